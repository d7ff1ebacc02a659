"""shoal over Redis against scrapy-redis, on the same site: `python -m bench.fleet`.

One process each; then shoal with two, for what the second one adds to the cost of a page. Redis is started empty for
every run, with its append-only file on. Each run must have stored exactly one item per page.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from pathlib import Path
from typing import NamedTuple

from bench.crawl import MIB, prepare_site
from bench.crawlers import HERE, WORK, Limit, fresh_folder, scrapy_crawl, scrapy_program, shoal_crawl
from bench.measure import Cost
from bench.nginx import serve
from bench.redis_server import redis_server
from bench.site import SitePlan

THEIRS = "scrapy-redis"
OURS = "shoal"
OURS_TWICE = "shoal, 2 processes"


class FleetRun(NamedTuple):
    """One crawl over Redis. The cost is that of the crawler's processes; Redis's own time is beside it."""

    system: str
    pages: int
    cost: Cost
    redis_cpu_seconds: float

    @property
    def pages_per_second(self) -> float:
        return self.pages / self.cost.seconds

    @property
    def cpu_per_thousand(self) -> float:
        return self.cost.cpu_seconds / self.pages * 1000

    @property
    def redis_cpu_per_thousand(self) -> float:
        return self.redis_cpu_seconds / self.pages * 1000


class Row(NamedTuple):
    """The medians of a system's runs."""

    system: str
    runs: int
    pages: int
    pages_per_second: float
    cpu_seconds_per_1000_pages: float
    redis_cpu_seconds_per_1000_pages: float
    peak_mib: float


def main() -> None:
    options = _options()
    plan = prepare_site(options.pages)
    scrapy = None if options.only == OURS else scrapy_program(THEIRS)
    runs: list[FleetRun] = []
    with serve(WORK / "site", port=int(plan.base.rpartition(":")[2]), work=WORK / "nginx") as address:
        start = f"{address}/{plan.path(0)}"
        if scrapy is not None:
            limit = Limit(min(options.scrapy_pages or plan.pages, plan.pages), plan.pages)
            runs.append(crawl_with_scrapy_redis(scrapy, start=start, limit=limit))
            _say(runs[-1])
        if options.only != THEIRS:
            for _ in range(options.rounds):
                for workers in (1, 2):
                    runs.append(crawl_with_shoal(start, total=plan.pages, workers=workers))
                    _say(runs[-1])
    rows = summarise(runs)
    print_table(rows, plan=plan)
    if options.json:
        options.json.write_text(json.dumps(_report(rows, runs=runs, plan=plan), indent=2) + "\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description=__doc__)
    parser.add_argument(
        "--rounds", type=int, default=3, help="runs of shoal with one and with two processes, interleaved"
    )
    parser.add_argument("--pages", type=int, default=20_000, help="pages of the site")
    parser.add_argument(
        "--scrapy-pages", type=int, default=0, help="stop scrapy-redis after this many; 0: the whole site"
    )
    parser.add_argument("--only", choices=(OURS, THEIRS), help="run only one of them")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args()


def crawl_with_scrapy_redis(program: Path, *, start: str, limit: Limit) -> FleetRun:
    folder = fresh_folder("scrapy-redis-run")
    with redis_server(WORK / "redis-fleet") as server:
        address = f"REDIS_URL={server.url}"
        pages, cost = scrapy_crawl(program, "scrapy_redis_spider.py", address, start=start, limit=limit, folder=folder)
        return FleetRun(THEIRS, pages, cost, server.cpu_seconds)


def crawl_with_shoal(start: str, *, total: int, workers: int) -> FleetRun:
    folder = fresh_folder("shoal-redis-run")
    with redis_server(WORK / "redis-fleet") as server:
        flags = ("--workers", str(workers), "--frontier", server.url)
        cost = shoal_crawl(start, *flags, total=total, folder=folder)
        return FleetRun(OURS if workers == 1 else OURS_TWICE, total, cost, server.cpu_seconds)


def summarise(runs: list[FleetRun]) -> list[Row]:
    rows = []
    for system in dict.fromkeys(run.system for run in runs):
        of_system = [run for run in runs if run.system == system]
        rows.append(
            Row(
                system=system,
                runs=len(of_system),
                pages=of_system[0].pages,
                pages_per_second=statistics.median(run.pages_per_second for run in of_system),
                cpu_seconds_per_1000_pages=statistics.median(run.cpu_per_thousand for run in of_system),
                redis_cpu_seconds_per_1000_pages=statistics.median(run.redis_cpu_per_thousand for run in of_system),
                peak_mib=statistics.median(run.cost.peak_bytes / MIB for run in of_system),
            )
        )
    return rows


def print_table(rows: list[Row], *, plan: SitePlan) -> None:
    print(f"\n{plan.pages:,} pages of {plan.page_bytes // 1024} kB with {plan.links} links, over Redis")
    print(f"{'':20}{'pages':>8}{'pages/s':>10}{'CPU-s per 1,000':>18}{'of Redis':>10}{'peak MiB':>10}{'runs':>6}")
    for row in rows:
        print(
            f"{row.system:20}{row.pages:8,}{row.pages_per_second:10,.0f}{row.cpu_seconds_per_1000_pages:18.3f}"
            f"{row.redis_cpu_seconds_per_1000_pages:10.3f}{row.peak_mib:10,.0f}{row.runs:6}"
        )
    for name, ratio in _ratios(rows).items():
        print(f"{name}: {ratio:.2f} times")


def _ratios(rows: list[Row]) -> dict[str, float]:
    by_system = {row.system: row for row in rows}
    ours, twice, theirs = by_system.get(OURS), by_system.get(OURS_TWICE), by_system.get(THEIRS)
    ratios = {}
    if ours and theirs:
        ratios["shoal against scrapy-redis, pages per second"] = ours.pages_per_second / theirs.pages_per_second
        ratios["shoal against scrapy-redis, pages per CPU-second"] = (
            theirs.cpu_seconds_per_1000_pages / ours.cpu_seconds_per_1000_pages
        )
    if ours and twice:
        ratios["two processes against one, CPU-seconds per page"] = (
            twice.cpu_seconds_per_1000_pages / ours.cpu_seconds_per_1000_pages
        )
        ratios["two processes against one, CPU-seconds of Redis per page"] = (
            twice.redis_cpu_seconds_per_1000_pages / ours.redis_cpu_seconds_per_1000_pages
        )
    return ratios


def _report(rows: list[Row], *, runs: list[FleetRun], plan: SitePlan) -> dict[str, object]:
    return {
        "machine": {"cpus": os.cpu_count(), "python": platform.python_version(), "system": platform.platform()},
        "scrapy-redis": (HERE / "scrapy-redis-requirements.txt").read_text().split(),
        "site": {"pages": plan.pages, "page_bytes": plan.page_bytes, "links": plan.links},
        "medians": [row._asdict() for row in rows],
        "ratios": _ratios(rows),
        "runs": [
            {"system": run.system, "pages": run.pages, "redis_cpu_seconds": run.redis_cpu_seconds, **run.cost._asdict()}
            for run in runs
        ],
    }


def _say(run: FleetRun) -> None:
    print(
        f"{run.system}: {run.pages:,} pages in {run.cost.seconds:.1f} s, {run.pages_per_second:,.0f} pages/s, "
        f"{run.cpu_per_thousand:.3f} CPU-s per 1,000 and {run.redis_cpu_per_thousand:.3f} of Redis",
        flush=True,
    )


if __name__ == "__main__":
    main()
