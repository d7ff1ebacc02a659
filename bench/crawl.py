"""Crawls of the 16 kB site by shoal, for benchmarks that compare shoal with itself; shoal beside others is case A."""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import NamedTuple

from bench.crawlers import WORK, fresh_folder, shoal_crawl
from bench.measure import Cost
from bench.nginx import free_port, is_free
from bench.site import SitePlan, build_site, stored_plan

MIB = 1024 * 1024


class Run(NamedTuple):
    """One crawl by one system."""

    system: str
    pages: int
    cost: Cost

    @property
    def pages_per_second(self) -> float:
        return self.pages / self.cost.seconds

    @property
    def cpu_per_thousand(self) -> float:
        return self.cost.cpu_seconds / self.pages * 1000


class Median(NamedTuple):
    """The median of a system's runs."""

    system: str
    runs: int
    pages: int
    pages_per_second: float
    cpu_seconds_per_1000_pages: float
    peak_mib: float


def prepare_site(pages: int) -> SitePlan:
    """The site that is there, or a new one if its port is taken: the port is part of its links."""
    folder = WORK / "site"
    found = stored_plan(folder)
    if found is not None and found.pages == pages and is_free(int(found.base.rpartition(":")[2])):
        plan = SitePlan(pages=pages, base=found.base)
    else:
        plan = SitePlan(pages=pages, base=f"http://127.0.0.1:{free_port()}")
    started = time.perf_counter()
    if build_site(plan, folder=folder):
        print(f"built {pages:,} pages in {time.perf_counter() - started:.0f} s under {folder}")
    return plan


def crawl_with_shoal(start: str, *, total: int, folder: Path | None = None) -> Run:
    folder = folder or fresh_folder("shoal-run")
    return Run("shoal", total, shoal_crawl(start, "--workers", "1", total=total, folder=folder))


def summarise(runs: list[Run]) -> list[Median]:
    medians = []
    for system in dict.fromkeys(run.system for run in runs):
        of_system = [run for run in runs if run.system == system]
        medians.append(
            Median(
                system=system,
                runs=len(of_system),
                pages=of_system[0].pages,
                pages_per_second=statistics.median(run.pages_per_second for run in of_system),
                cpu_seconds_per_1000_pages=statistics.median(run.cpu_per_thousand for run in of_system),
                peak_mib=statistics.median(run.cost.peak_bytes / MIB for run in of_system),
            )
        )
    return medians
