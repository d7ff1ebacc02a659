"""Does a task cost more when the crawl is large? `python -m bench.growth`.

First whole crawls: the benchmark's site in a crawl that already knows each number of URLs. Then the frontier alone,
grown to each size through its own verbs, half of the tasks done and half waiting: put, lease and settle, where each
task settled has found one new link and seven known ones. All in CPU-seconds per 1,000 tasks.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import msgspec

from bench.crawl import crawl_with_shoal, prepare_site
from bench.crawlers import WORK, fresh_folder
from bench.nginx import serve
from shoal.frontier import open_frontier
from shoal.frontier.base import Frontier
from shoal.model import Crawl, Done, Lease, Task
from shoal.processes.crawl_record import CrawlRecord
from shoal.settings import Settings

CRAWL = "growth"
LANES = 100
BATCH = 1000
LEASES = 64
SETTLES = 128
KNOWN_LINKS = 7
LARGE = 100_000

T = TypeVar("T")


class Growth:
    """A frontier that is grown to a size and then measured."""

    def __init__(self, frontier: Frontier, *, crawl: str = CRAWL, seed: int = 1) -> None:
        self._frontier = frontier
        self._crawl = crawl
        self._known = 0
        self._draw = random.Random(seed)
        self._spent = dict.fromkeys(("put", "lease", "settle"), 0.0)

    async def grow(self, size: int, *, done: float = 0.5) -> None:
        """Make `size` tasks known and settle that share of them."""
        while self._known < size:
            await self._frontier.put(self._crawl, self._new_tasks(min(BATCH, size - self._known)))
        for _ in range(int(size * done) // BATCH):
            leases = await self._lease(BATCH)
            await self._settle([Done(lease=lease) for lease in leases])

    async def measure(self) -> dict[str, float]:
        """CPU-seconds that the next 1,000 tasks take, by verb."""
        self._spent = dict.fromkeys(self._spent, 0.0)
        await self._timed("put", self._frontier.put(self._crawl, self._new_tasks(BATCH)))
        leases = await self._lease(BATCH)
        await self._settle([Done(lease=lease, found=self._found()) for lease in leases])
        return {**self._spent, "total": sum(self._spent.values())}

    async def _lease(self, count: int) -> list[Lease]:
        leases: list[Lease] = []
        while len(leases) < count:
            batch = await self._timed(
                "lease",
                self._frontier.lease(
                    [self._crawl], min(LEASES, count - len(leases)), worker="w", seconds=600, horizon=1
                ),
            )
            if not batch.leases:
                raise SystemExit("the frontier lends nothing although tasks are waiting")
            leases += batch.leases
        return leases

    async def _settle(self, results: list[Done]) -> None:
        for first in range(0, len(results), SETTLES):
            await self._timed("settle", self._frontier.settle(results[first : first + SETTLES]))

    async def _timed(self, verb: str, call: Awaitable[T]) -> T:
        started = time.process_time()
        result = await call
        self._spent[verb] += time.process_time() - started
        return result

    def _found(self) -> list[Task]:
        known = [_task(self._draw.randrange(self._known)) for _ in range(KNOWN_LINKS)]
        return [*known, *self._new_tasks(1)]

    def _new_tasks(self, count: int) -> list[Task]:
        numbers = range(self._known, self._known + count)
        self._known += count
        return [_task(number) for number in numbers]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.growth", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 1_000_000], help="known tasks")
    parser.add_argument("--samples", type=int, default=20, help="measurements of 1,000 tasks at each size")
    parser.add_argument("--rounds", type=int, default=2, help="whole crawls at each size, interleaved")
    parser.add_argument("--no-crawls", action="store_true", help="the frontier alone")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    crawls = {} if options.no_crawls else measure_crawls(options.sizes, rounds=options.rounds)
    if crawls:
        print("a whole crawl, CPU-seconds per 1,000 pages")
        for size, cost in crawls.items():
            print(f"{size:12,}{cost:10.4f}")
        print(f"{'ratio':>12}{crawls[max(crawls)] / crawls[min(crawls)]:10.2f}")
    rows = {size: asyncio.run(_measure(size, samples=options.samples)) for size in options.sizes}
    verbs = list(next(iter(rows.values())))
    print("the frontier alone, CPU-seconds per 1,000 tasks")
    print(f"{'known':>12}" + "".join(f"{verb:>10}" for verb in verbs))
    for size, row in rows.items():
        print(f"{size:12,}" + "".join(f"{row[verb]:10.4f}" for verb in verbs))
    smallest, largest = rows[min(rows)], rows[max(rows)]
    print(f"{'ratio':>12}" + "".join(f"{largest[verb] / smallest[verb]:10.2f}" for verb in verbs))
    if options.json:
        options.json.write_text(json.dumps({"crawls": crawls, "frontier": rows}, indent=2) + "\n")


def measure_crawls(sizes: Sequence[int], *, rounds: int) -> dict[int, float]:
    """CPU-seconds per 1,000 pages of the same site, by the number of URLs the crawl knew before."""
    plan = prepare_site(20_000)
    costs: dict[int, list[float]] = {size: [] for size in sizes}
    with serve(WORK / "site", port=int(plan.base.rpartition(":")[2]), work=WORK / "nginx") as address:
        for _ in range(rounds):
            for size in sizes:
                folder = fresh_folder("growth-run")
                asyncio.run(_prepare_crawl(folder, size))
                run = crawl_with_shoal(f"{address}/{plan.path(0)}", total=plan.pages, folder=folder)
                costs[size].append(run.cpu_per_thousand)
                print(f"{size:,} known before: {run.cpu_per_thousand:.3f} CPU-s per 1,000 pages", file=sys.stderr)
    return {size: statistics.median(found) for size, found in costs.items()}


async def _prepare_crawl(folder: Path, size: int) -> None:
    """An unfinished crawl of the benchmark's spider, which `shoal run` resumes, with `size` tasks done."""
    frontier = await open_frontier(str(folder / "shoal.db"))
    growth = Growth(frontier, crawl="bench-1")
    await frontier.open_crawl(
        Crawl(id="bench-1", spider="bench", interval=0.0, cap=1_000_000, feeding=True, settings=_record())
    )
    await growth.grow(size, done=1.0)
    await frontier.close()


def _record() -> dict[str, object]:
    return msgspec.to_builtins(CrawlRecord(settings=Settings()))  # type: ignore[no-any-return]  # a struct becomes a dict


async def _measure(size: int, *, samples: int) -> dict[str, float]:
    """Medians by verb. A sample adds tasks, so a small frontier can be used for one sample only."""
    costs: list[dict[str, float]] = []
    while len(costs) < samples:
        costs += await _samples(size, count=samples if size >= LARGE else 1)
    return {verb: statistics.median(cost[verb] for cost in costs) for verb in costs[0]}


async def _samples(size: int, *, count: int) -> list[dict[str, float]]:
    with TemporaryDirectory(prefix="shoal-growth-") as folder:
        frontier = await open_frontier(f"{folder}/shoal.db")
        growth = Growth(frontier)
        await frontier.open_crawl(Crawl(id=CRAWL, spider="growth", interval=0.0, cap=1_000_000))
        try:
            started = time.perf_counter()
            await growth.grow(size)
            if size >= LARGE:
                print(f"{size:,} known after {time.perf_counter() - started:.0f} s", file=sys.stderr)
            return [await growth.measure() for _ in range(count)]
        finally:
            await frontier.close()


def _task(number: int) -> Task:
    """Keys are spread over all 64 bits, as fingerprints are."""
    key = (number * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) % 2**64
    key = (key ^ (key >> 29)) * 0xBF58476D1CE4E5B9 % 2**64
    lane = f"host-{number % LANES}.example"
    return Task(url=f"http://{lane}/catalogue/page-{number}.html", key=key - 2**63, lane=lane)


if __name__ == "__main__":
    main()
