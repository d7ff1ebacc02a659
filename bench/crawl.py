"""shoal against Scrapy, one process each, on the same site: `python -m bench.crawl`.

Runs are interleaved and repeated; the table shows medians. Each run must have fetched every page it was asked for.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from bench.crawlers import HERE, WORK, Limit, fresh_folder, scrapy_crawl, scrapy_program, shoal_crawl
from bench.measure import Cost
from bench.nginx import find_nginx, free_port, is_free, serve
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


def main() -> None:
    options = _options()
    plan = prepare_site(options.pages)
    scrapy = None if options.only == "shoal" else scrapy_program("scrapy")
    runs: list[Run] = []
    with serve(WORK / "site", port=int(plan.base.rpartition(":")[2]), work=WORK / "nginx") as address:
        start = f"{address}/{plan.path(0)}"
        for number in range(1, options.rounds + 1):
            if scrapy is not None:
                limit = Limit(min(options.scrapy_pages or plan.pages, plan.pages), plan.pages)
                folder = fresh_folder("scrapy-run")
                runs.append(
                    Run("Scrapy", *scrapy_crawl(scrapy, "scrapy_spider.py", start=start, limit=limit, folder=folder))
                )
                _say(number, runs[-1])
            if options.only != "scrapy":
                runs.append(crawl_with_shoal(start, total=plan.pages))
                _say(number, runs[-1])
    medians = summarise(runs)
    print_table(medians, plan=plan)
    if options.json:
        options.json.write_text(json.dumps(_report(medians, runs=runs, plan=plan), indent=2) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.crawl", description="shoal against Scrapy on the same site")
    parser.add_argument("--rounds", type=int, default=2, help="runs of each system, interleaved")
    parser.add_argument("--pages", type=int, default=20_000, help="pages of the site")
    parser.add_argument("--scrapy-pages", type=int, default=0, help="stop Scrapy after this many; 0: the whole site")
    parser.add_argument("--only", choices=("shoal", "scrapy"), help="run only one of them")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args()


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


def print_table(medians: list[Median], *, plan: SitePlan) -> None:
    print(f"\n{plan.pages:,} pages of {plan.page_bytes // 1024} kB with {plan.links} links, one process each")
    print(f"{'':10}{'pages':>8}{'pages/s':>12}{'CPU-s per 1,000':>18}{'peak MiB':>12}{'runs':>7}")
    for row in medians:
        print(
            f"{row.system:10}{row.pages:8,}{row.pages_per_second:12,.0f}"
            f"{row.cpu_seconds_per_1000_pages:18.3f}{row.peak_mib:12,.0f}{row.runs:7}"
        )
    for name, ratio in _ratios(medians).items():
        print(f"shoal against Scrapy, {name}: {ratio:.1f} times")


def _ratios(medians: list[Median]) -> dict[str, float]:
    by_system = {row.system: row for row in medians}
    if len(by_system) < 2:
        return {}
    ours, theirs = by_system["shoal"], by_system["Scrapy"]
    return {
        "pages per second": ours.pages_per_second / theirs.pages_per_second,
        "pages per CPU-second": theirs.cpu_seconds_per_1000_pages / ours.cpu_seconds_per_1000_pages,
    }


def _report(medians: list[Median], *, runs: list[Run], plan: SitePlan) -> dict[str, object]:
    nginx = subprocess.run([find_nginx(), "-v"], check=True, capture_output=True, text=True).stderr.strip()
    return {
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()},
        "nginx": nginx,
        "scrapy": (HERE / "scrapy-requirements.txt").read_text().split(),
        "site": {"pages": plan.pages, "page_bytes": plan.page_bytes, "links": plan.links},
        "medians": [row._asdict() for row in medians],
        "ratios": _ratios(medians),
        "runs": [{"system": run.system, "pages": run.pages, **run.cost._asdict()} for run in runs],
    }


def _say(number: int, run: Run) -> None:
    print(
        f"round {number}: {run.system} {run.pages:,} pages in {run.cost.seconds:.1f} s, "
        f"{run.pages_per_second:,.0f} pages/s, {run.cpu_per_thousand:.3f} CPU-s per 1,000, "
        f"{run.cost.peak_bytes / MIB:.0f} MiB",
        flush=True,
    )


if __name__ == "__main__":
    main()
