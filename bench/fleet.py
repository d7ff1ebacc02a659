"""What does a second worker process add to the cost of a page, over Redis? `python -m bench.fleet`.

A small and a large site, each crawled with one process and with two, interleaved. What a page costs is the difference
between the two sites, so that the start of the processes, which is shown apart, does not count in it.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import statistics
import sys
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from bench.crawlers import HERE, WORK, fresh_folder
from bench.grounds import Ground, open_ground
from bench.measure import run_measured
from bench.redis_server import redis_server
from bench.site import SitePlan

SMALL_PAGES = 2_000


class FleetRun(NamedTuple):
    """One crawl: the CPU-seconds of all its processes, those of Redis, and the pages of each worker."""

    pages: int
    seconds: float
    cpu_seconds: float
    redis_cpu_seconds: float
    shares: list[int]


class PageCost(NamedTuple):
    """What pages cost with so many processes, in CPU-seconds per 1,000, and what their start costs."""

    processes: int
    per_thousand: float
    redis_per_thousand: float
    start: float


def main() -> None:
    options = _options()
    runs: dict[tuple[int, int], list[FleetRun]] = {}
    small, large = SitePlan(pages=SMALL_PAGES), SitePlan(pages=options.pages)
    with open_ground("fleet-small", small) as near, open_ground("fleet-large", large) as far:
        for _ in range(options.rounds):
            for processes in (1, 2):
                for ground in (near, far):
                    run = crawl(ground, processes=processes)
                    runs.setdefault((processes, ground.pages), []).append(run)
                    _say(processes, run)
    costs = [cost_of(processes, runs[processes, near.pages], runs[processes, far.pages]) for processes in (1, 2)]
    _print_table(costs, [run.shares for run in runs[2, far.pages]])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.fleet", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="crawls of each kind, interleaved")
    parser.add_argument("--pages", type=int, default=20_000, help="pages of the large site")
    return parser.parse_args()


def crawl(ground: Ground, *, processes: int) -> FleetRun:
    """One whole crawl, checked: one item per page."""
    folder = fresh_folder("fleet-run")
    shoal = str(Path(sys.executable).with_name("shoal"))
    with redis_server(WORK / "redis-fleet") as server:
        flags = ["--workers", str(processes), "--frontier", server.url]
        command = [shoal, "run", str(HERE / "readme_spider.py"), *flags]
        cost = run_measured(command, folder=folder, environment=os.environ | {"BENCH_URL": ground.start})
        redis_cpu_seconds = server.cpu_seconds
    with closing(sqlite3.connect(folder / "shoal.db")) as database:
        (items,) = database.execute("SELECT count(*) FROM item").fetchone()
        shares = [count for (count,) in database.execute("SELECT count(*) FROM fetch GROUP BY worker ORDER BY 1 DESC")]
    if items != ground.pages:
        raise SystemExit(f"the crawl has {items:,} items instead of {ground.pages:,}")
    return FleetRun(ground.pages, cost.seconds, cost.cpu_seconds, redis_cpu_seconds, shares)


def cost_of(processes: int, small: list[FleetRun], large: list[FleetRun]) -> PageCost:
    """The cost of a page by the medians of crawls of two sites, and what is left for the start."""
    pages = large[0].pages - small[0].pages
    cpu = [statistics.median(run.cpu_seconds for run in runs) for runs in (small, large)]
    redis = [statistics.median(run.redis_cpu_seconds for run in runs) for runs in (small, large)]
    per_page = (cpu[1] - cpu[0]) / pages
    redis_per_page = (redis[1] - redis[0]) / pages
    return PageCost(processes, per_page * 1000, redis_per_page * 1000, cpu[0] - per_page * small[0].pages)


def _print_table(costs: list[PageCost], shares: list[list[int]]) -> None:
    print(f"\n{'processes':>10}{'CPU-s per 1,000 pages':>24}{'of Redis':>10}{'CPU-s of the start':>20}")
    for cost in costs:
        print(f"{cost.processes:10}{cost.per_thousand:24.3f}{cost.redis_per_thousand:10.3f}{cost.start:20.2f}")
    one, two = costs
    print(f"two processes against one, CPU of a page: {two.per_thousand / one.per_thousand:.2f} times")
    print(f"pages of each of two workers: {', '.join(' and '.join(f'{n:,}' for n in each) for each in shares)}")


def _say(processes: int, run: FleetRun) -> None:
    print(
        f"{processes} of them: {run.pages:,} pages in {run.seconds:.1f} s, {run.cpu_seconds:.2f} CPU-s and"
        f" {run.redis_cpu_seconds:.2f} of Redis; pages per worker: {run.shares}",
        flush=True,
    )


if __name__ == "__main__":
    main()
