"""A frontier with one crawl of numbered tasks: filled, emptied and measured through its own verbs."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from typing import NamedTuple

from bench.redis_server import RedisServer
from shoal.frontier import open_frontier
from shoal.frontier.base import Frontier
from shoal.model import Crawl, Done, Lease, Task

CRAWL = "bench"
LANES = 1000
PUTS = 2000
LEASES = 100
LINKS = 32
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

    @property
    def cpu_us(self) -> float:
        """Processor time of both sides per step, in microseconds."""
        return (self.client_seconds + self.server_seconds) / self.steps * 1e6


class Stopwatch:
    """Starts when it is made. Without a server, the frontier works in this process."""

    def __init__(self, server: RedisServer | None) -> None:
        self._server = server
        self._cpu = self._server_seconds()
        self._client = time.process_time()
        self._clock = time.perf_counter()

    def stop(self, steps: int) -> Rate:
        seconds, client = time.perf_counter() - self._clock, time.process_time() - self._client
        return Rate(steps, seconds, client, self._server_seconds() - self._cpu)

    def _server_seconds(self) -> float:
        return self._server.cpu_seconds if self._server else 0.0


class Subject:
    """A frontier with one crawl. Tasks are numbered from 0 on in the order in which they become known."""

    def __init__(self, frontier: Frontier, server: RedisServer | None, *, known: int = 0, lanes: int = LANES) -> None:
        self.frontier = frontier
        self.server = server
        self.known = known
        self._lanes = lanes
        self._draw = random.Random(known)

    @classmethod
    async def open(
        cls,
        url: str,
        server: RedisServer | None = None,
        *,
        known: int = 0,
        lanes: int = LANES,
        dedup: str = "exact",
    ) -> Subject:
        """Open it with the crawl, which may be there already and know so many tasks."""
        frontier = await open_frontier(url)
        await frontier.open_crawl(Crawl(id=CRAWL, spider="bench", interval=0.0, cap=1_000_000, dedup=dedup))
        return cls(frontier, server, known=known, lanes=lanes)

    async def load_scripts(self) -> None:
        """Use each verb once, in another crawl: scripts take 0.3 MB of Redis, once."""
        other = Crawl(id="other", spider="bench", interval=0.0)
        await self.frontier.open_crawl(other)
        await self.frontier.put(other.id, [make_task(0, lane=lane_name(0))])
        batch = await self.frontier.lease([other.id], 1, worker="bench", seconds=600, horizon=1)
        await self.settle([Done(lease=lease) for lease in batch.leases])
        await self.frontier.delete_crawl(other.id)

    async def close(self) -> None:
        await self.frontier.close()

    def new_tasks(self, count: int, *, lane: str | None = None, block: int = 1) -> list[Task]:
        """Tasks spread evenly over the lanes, so many in a row to each, or all in the given lane."""
        numbers = range(self.known, self.known + count)
        self.known += count
        return [make_task(number, lane=lane or lane_name(number // block % self._lanes)) for number in numbers]

    def known_tasks(self, count: int) -> list[Task]:
        """Any tasks of those that are known, with equal chances: none is likelier to be at hand than another."""
        numbers = [self._draw.randrange(self.known) for _ in range(count)]
        return [make_task(number, lane=lane_name(number % self._lanes)) for number in numbers]

    def page(self, lease: Lease, *, new: int = 1, lane: str | None = None) -> Done:
        """What a page with 32 links gives, so many of them new."""
        known = self.known_tasks(LINKS - new)
        return Done(lease=lease, found=[*self.new_tasks(new, lane=lane), *known])

    async def grow(self, count: int, *, block: int = 1) -> int:
        """Put so many tasks; gives how many were new to the frontier, which a Bloom filter may deny."""
        new = 0
        while count > 0:
            part = min(PUTS, count)
            new += (await self.frontier.put(CRAWL, self.new_tasks(part, block=block))).new
            count -= part
        return new

    async def lease(self, limit: int = LEASES) -> list[Lease]:
        batch = await self.frontier.lease([CRAWL], limit, worker="bench", seconds=600, horizon=1)
        if not batch.leases:
            raise SystemExit("the frontier lends nothing although tasks are waiting")
        return batch.leases

    async def lease_many(self, count: int) -> list[Lease]:
        leases: list[Lease] = []
        while len(leases) < count:
            leases += await self.lease(min(LEASES, count - len(leases)))
        return leases

    async def settle(self, results: Sequence[Done]) -> None:
        report = await self.frontier.settle(results)
        if report.stale or report.failed:
            raise SystemExit("a result was refused")

    async def settle_many(self, results: Sequence[Done]) -> None:
        for first in range(0, len(results), LEASES):
            await self.settle(results[first : first + LEASES])

    async def finish(self, count: int, *, batch: int = LEASES) -> None:
        """Lease and settle, the next batch lent while the last is settled, as a worker does."""
        settling: asyncio.Task[None] | None = None
        while count > 0:
            leases = await self.lease(min(batch, count))
            count -= len(leases)
            if settling is not None:
                await settling
            settling = asyncio.create_task(self.settle([Done(lease=lease) for lease in leases]))
        if settling is not None:
            await settling


def make_task(number: int, *, lane: str) -> Task:
    """A task with a URL of 67 bytes; keys are spread over all 64 bits, as fingerprints are."""
    key = (number * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & MASK
    key = ((key ^ (key >> 29)) * 0xBF58476D1CE4E5B9) & MASK
    return Task(url=f"https://{lane}/catalogue/item-{number:09}/index.html", key=key - 2**63, lane=lane)


def lane_name(number: int) -> str:
    return f"host-{number:06}.example.com"
