"""Does a task cost more when the crawl is large? `python -m bench.growth`.

Grows a SQLite frontier to each size through its own verbs, half of the tasks done and half waiting, then measures
put, lease and settle: CPU-seconds per 1,000 tasks, where each task settled has found one new link and seven known ones.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Awaitable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from shoal.frontier import open_frontier
from shoal.frontier.base import Frontier
from shoal.model import Crawl, Done, Lease, Task

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

    def __init__(self, frontier: Frontier, *, seed: int = 1) -> None:
        self._frontier = frontier
        self._known = 0
        self._draw = random.Random(seed)
        self._spent = dict.fromkeys(("put", "lease", "settle"), 0.0)

    async def grow(self, size: int) -> None:
        """Make `size` tasks known and settle half of them."""
        await self._frontier.open_crawl(Crawl(id=CRAWL, spider="growth", interval=0.0, cap=1_000_000))
        while self._known < size:
            await self._frontier.put(CRAWL, self._new_tasks(min(BATCH, size - self._known)))
        for _ in range(size // 2 // BATCH):
            leases = await self._lease(BATCH)
            await self._settle([Done(lease=lease) for lease in leases])

    async def measure(self) -> dict[str, float]:
        """CPU-seconds that the next 1,000 tasks take, by verb."""
        self._spent = dict.fromkeys(self._spent, 0.0)
        await self._timed("put", self._frontier.put(CRAWL, self._new_tasks(BATCH)))
        leases = await self._lease(BATCH)
        await self._settle([Done(lease=lease, found=self._found()) for lease in leases])
        return {**self._spent, "total": sum(self._spent.values())}

    async def _lease(self, count: int) -> list[Lease]:
        leases: list[Lease] = []
        while len(leases) < count:
            batch = await self._timed(
                "lease",
                self._frontier.lease([CRAWL], min(LEASES, count - len(leases)), worker="w", seconds=600, horizon=1),
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
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    rows = {size: asyncio.run(_measure(size, samples=options.samples)) for size in options.sizes}
    verbs = list(next(iter(rows.values())))
    print("CPU-seconds per 1,000 tasks")
    print(f"{'known':>12}" + "".join(f"{verb:>10}" for verb in verbs))
    for size, row in rows.items():
        print(f"{size:12,}" + "".join(f"{row[verb]:10.4f}" for verb in verbs))
    smallest, largest = rows[min(rows)], rows[max(rows)]
    print(f"{'ratio':>12}" + "".join(f"{largest[verb] / smallest[verb]:10.2f}" for verb in verbs))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


async def _measure(size: int, *, samples: int) -> dict[str, float]:
    """Medians by verb. A sample adds tasks itself, so that a small frontier is good for one only."""
    costs: list[dict[str, float]] = []
    while len(costs) < samples:
        costs += await _samples(size, count=samples if size >= LARGE else 1)
    return {verb: statistics.median(cost[verb] for cost in costs) for verb in costs[0]}


async def _samples(size: int, *, count: int) -> list[dict[str, float]]:
    with TemporaryDirectory(prefix="shoal-growth-") as folder:
        frontier = await open_frontier(f"{folder}/shoal.db")
        growth = Growth(frontier)
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
