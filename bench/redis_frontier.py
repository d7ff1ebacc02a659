"""The Redis frontier alone, one client: `python -m bench.redis_frontier`.

Links and tasks per second, BullMQ on the same server beside them; the cost of a lease from 10 to 100,000 lanes; the
memory of a waiting and of a finished URL. Tasks are made before the clock starts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from bench.bullmq import BullRates, measure_bullmq
from bench.crawlers import WORK
from bench.redis_server import RedisServer, redis_server
from shoal.frontier import open_frontier
from shoal.frontier.base import Frontier
from shoal.model import Crawl, Done, Lease, Task

CRAWL = "bench"
LANES = 1000
PUTS = 1000
LEASES = 100
LINKS = 32
LINKED_TASKS = 3_000
PLAIN_TASKS = 30_000
LANE_COUNTS = (10, 100, 1_000, 10_000, 100_000)
LANE_LEASES = 10
LANE_SAMPLES = 400
SIZES = (100_000, 1_000_000)
MASK = 2**64 - 1


class Rate(NamedTuple):
    """What a number of steps took: on the clock, and in processor time of each side."""

    steps: int
    seconds: float
    client_seconds: float
    server_seconds: float

    @property
    def per_second(self) -> float:
        return self.steps / self.seconds

    @property
    def alone_per_second(self) -> float:
        """The rate that the busier side allows if no other program uses the processors."""
        return self.steps / max(self.client_seconds, self.server_seconds)


class Stopwatch:
    """Starts when it is made."""

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._cpu = server.cpu_seconds
        self._client = time.process_time()
        self._clock = time.perf_counter()

    def stop(self, steps: int) -> Rate:
        seconds, client = time.perf_counter() - self._clock, time.process_time() - self._client
        return Rate(steps, seconds, client, self._server.cpu_seconds - self._cpu)


class Subject:
    """A frontier with one crawl, filled with numbered tasks."""

    dedup_ttl: ClassVar[float] = 0.0

    def __init__(self, server: RedisServer, frontier: Frontier, *, lanes: int = LANES) -> None:
        self.server = server
        self.frontier = frontier
        self.known = 0
        self._lanes = lanes

    @classmethod
    async def open(cls, server: RedisServer, *, lanes: int = LANES) -> Subject:
        server.empty()
        frontier = await open_frontier(server.url)
        crawl = Crawl(id=CRAWL, spider="bench", interval=0.0, cap=1_000_000, dedup_ttl=cls.dedup_ttl)
        await frontier.open_crawl(crawl)
        return cls(server, frontier, lanes=lanes)

    def new_tasks(self, count: int, *, lane: str | None = None) -> list[Task]:
        """Tasks spread evenly over so many lanes, or all in the given one."""
        numbers = range(self.known, self.known + count)
        self.known += count
        return [make_task(number, lanes=self._lanes, lane=lane) for number in numbers]

    def known_tasks(self, first: int, count: int) -> list[Task]:
        return [make_task((first + step * 7919) % self.known, lanes=self._lanes) for step in range(count)]

    async def grow(self, count: int) -> None:
        while count > 0:
            part = min(PUTS, count)
            await self.frontier.put(CRAWL, self.new_tasks(part))
            count -= part

    async def lease(self, limit: int = LEASES) -> list[Lease]:
        batch = await self.frontier.lease([CRAWL], limit, worker="bench", seconds=600, horizon=1)
        if not batch.leases:
            raise SystemExit("the frontier lends nothing although tasks are waiting")
        return batch.leases

    async def settle(self, results: Sequence[Done]) -> None:
        report = await self.frontier.settle(results)
        if report.stale or report.failed:
            raise SystemExit("a result was refused")

    async def lease_many(self, count: int) -> list[Lease]:
        leases: list[Lease] = []
        while len(leases) < count:
            leases += await self.lease(min(LEASES, count - len(leases)))
        return leases

    async def drain(self, count: int) -> None:
        """Lease and settle, the next batch lent while the last is settled, as a worker does."""
        settling: asyncio.Task[None] | None = None
        while count > 0:
            leases = await self.lease(min(LEASES, count))
            count -= len(leases)
            if settling is not None:
                await settling
            settling = asyncio.create_task(self.settle([Done(lease=lease) for lease in leases]))
        if settling is not None:
            await settling


def make_task(number: int, *, lanes: int, lane: str | None = None) -> Task:
    """A task with a URL of 67 bytes; keys are spread over all 64 bits, as fingerprints are."""
    key = (number * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & MASK
    key = ((key ^ (key >> 29)) * 0xBF58476D1CE4E5B9) & MASK
    lane = lane or f"host-{number % lanes:06}.example.com"
    return Task(url=f"https://{lane}/catalogue/item-{number:09}/index.html", key=key - 2**63, lane=lane)


async def measure_links(server: RedisServer, *, new: int, at_home: bool = False) -> Rate:
    """Settle tasks that found 32 links each, so many of them new: on other hosts, or on their own."""
    subject = await Subject.open(server)
    await subject.grow(50_000)
    leases = await subject.lease_many(LINKED_TASKS)
    results = [
        Done(
            lease=lease,
            found=[
                *subject.new_tasks(new, lane=lease.task.lane if at_home else None),
                *subject.known_tasks(place * LINKS, LINKS - new),
            ],
        )
        for place, lease in enumerate(leases)
    ]
    watch = Stopwatch(server)
    for first in range(0, len(results), LEASES):
        await subject.settle(results[first : first + LEASES])
    rate = watch.stop(len(results) * LINKS)
    await subject.frontier.close()
    return rate


async def measure_tasks(server: RedisServer) -> Rate:
    """Lease and settle tasks that found nothing."""
    subject = await Subject.open(server)
    await subject.grow(PLAIN_TASKS)
    watch = Stopwatch(server)
    await subject.drain(PLAIN_TASKS)
    rate = watch.stop(PLAIN_TASKS)
    await subject.frontier.close()
    return rate


async def measure_lanes(server: RedisServer, lanes: int) -> float:
    """Microseconds of both sides' processor time per lease, with so many lanes waiting."""
    subject = await Subject.open(server, lanes=lanes)
    await subject.grow(max(lanes, 2 * LANE_SAMPLES * LANE_LEASES))
    watch = Stopwatch(server)
    for _ in range(LANE_SAMPLES):
        await subject.lease(LANE_LEASES)
    rate = watch.stop(LANE_SAMPLES * LANE_LEASES)
    await subject.frontier.close()
    return (rate.client_seconds + rate.server_seconds) / rate.steps * 1e6


async def measure_memory(server: RedisServer, size: int, *, lanes: int) -> tuple[float, float]:
    """Bytes per waiting and per finished URL."""
    subject = await Subject.open(server, lanes=lanes)
    # The scripts take 0.3 MB, once, from the first call on.
    await subject.grow(1)
    await subject.drain(1)
    empty = server.used_bytes
    await subject.grow(size)
    waiting = server.used_bytes - empty
    await subject.drain(size)
    # Tables that shrank are tidied up by the server's own timer.
    await asyncio.sleep(1)
    finished = server.used_bytes - empty
    await subject.frontier.close()
    return waiting / size, finished / size


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.redis_frontier", description=__doc__)
    parts = ("rates", "bullmq", "lanes", "memory")
    parser.add_argument("--only", choices=parts, nargs="+", default=parts, help="leave the others out")
    parser.add_argument(
        "--rounds", type=int, default=3, help="measurements of rates and lanes, interleaved; the median counts"
    )
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="URLs whose memory is measured")
    parser.add_argument("--lanes", type=int, default=LANES, help="lanes over which these URLs are spread")
    parser.add_argument("--dedup-ttl", type=float, default=0.0, help="seconds; keys of the crawl then expire")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args()


def main() -> None:
    options = _options()
    Subject.dedup_ttl = options.dedup_ttl
    figures: dict[str, object] = {}
    with redis_server(WORK / "redis-frontier") as server:
        print(f"Redis {server.version}, append-only file on, one client")
        if "rates" in options.only:
            figures["rates"] = _rates(server, rounds=options.rounds)
        if "bullmq" in options.only:
            figures["bullmq"] = _bullmq(server)
        if "lanes" in options.only:
            figures["lanes"] = _lanes(server, rounds=options.rounds)
        if "memory" in options.only:
            figures["memory"] = _memory(server, sizes=options.sizes, lanes=options.lanes)
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


def _rates(server: RedisServer, *, rounds: int) -> dict[str, dict[str, float]]:
    found: dict[str, list[Rate]] = defaultdict(list)
    for _ in range(rounds):
        found["links, 1 of 32 new"].append(asyncio.run(measure_links(server, new=1)))
        found["links, all new, one host"].append(asyncio.run(measure_links(server, new=LINKS, at_home=True)))
        found["links, all new, 32 hosts"].append(asyncio.run(measure_links(server, new=LINKS)))
        found["tasks leased and settled"].append(asyncio.run(measure_tasks(server)))
    print(f"{'':28}{'per second':>12}{'if alone':>12}{'client µs':>11}{'server µs':>11}")
    rows = {}
    for name, rates in found.items():
        row = {
            "per_second": statistics.median(rate.per_second for rate in rates),
            "alone_per_second": statistics.median(rate.alone_per_second for rate in rates),
            "client_us": statistics.median(rate.client_seconds / rate.steps for rate in rates) * 1e6,
            "server_us": statistics.median(rate.server_seconds / rate.steps for rate in rates) * 1e6,
        }
        rows[name] = row
        print(
            f"{name:28}{row['per_second']:12,.0f}{row['alone_per_second']:12,.0f}"
            f"{row['client_us']:11.2f}{row['server_us']:11.2f}",
            flush=True,
        )
    return rows


def _bullmq(server: RedisServer) -> dict[str, float]:
    server.empty()
    try:
        rates: BullRates = measure_bullmq(server.url, jobs=PLAIN_TASKS, concurrency=LEASES)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"BullMQ was left out: {error}")
        return {}
    print(f"{'BullMQ, jobs added in bulk':28}{rates.added_per_second:12,.0f}")
    print(f"{'BullMQ, jobs processed':28}{rates.processed_per_second:12,.0f}", flush=True)
    return rates._asdict()


def _lanes(server: RedisServer, *, rounds: int) -> dict[int, float]:
    found: dict[int, list[float]] = {lanes: [] for lanes in LANE_COUNTS}
    for _ in range(rounds):
        for lanes, costs in found.items():
            costs.append(asyncio.run(measure_lanes(server, lanes)))
    print(f"{'lanes':>12}{'CPU-µs per lease':>20}")
    medians = {lanes: statistics.median(costs) for lanes, costs in found.items()}
    for lanes, cost in medians.items():
        print(f"{lanes:12,}{cost:20.1f}", flush=True)
    return medians


def _memory(server: RedisServer, *, sizes: Sequence[int], lanes: int) -> dict[int, dict[str, float]]:
    print(f"{'URLs':>12}{'bytes waiting':>16}{'bytes finished':>16}   in {lanes:,} lanes")
    found = {}
    for size in sizes:
        waiting, finished = asyncio.run(measure_memory(server, size, lanes=lanes))
        found[size] = {"waiting": waiting, "finished": finished}
        print(f"{size:12,}{waiting:16.1f}{finished:16.1f}", flush=True)
    return found


if __name__ == "__main__":
    main()
