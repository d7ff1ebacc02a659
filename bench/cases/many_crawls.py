"""Case R: what a lease costs where crawls share hosts, for one crawl and for many."""

from __future__ import annotations

import asyncio
import gc
from contextlib import AsyncExitStack
from typing import NamedTuple

from bench.case import Case, Figure, Plan, Spread, spread_of
from bench.case_main import main
from bench.crawlers import fresh_folder
from bench.frontier_subject import Rate, Stopwatch, lane_name, make_task
from bench.redis_server import RedisServer, find_redis, redis_server
from shoal.frontier import open_frontier
from shoal.frontier.base import Frontier
from shoal.model import Crawl, Done, Lease

LANES = 100
BATCH = 20
SAMPLES = 5  # per round, in turn over all frontiers
STEPS, QUICK_STEPS = 4_000, 2_000  # at least a batch of each crawl
MOST_ALONE, MOST_GROWTH = 1.05, 1.05
BACKENDS = ("SQLite", "Redis")


class Kind(NamedTuple):
    """A frontier with so many crawls. `scope`: their `pace_scope`; `has_same_hosts`: all of them have the same ones."""

    crawls: int
    scope: str = "host"
    has_same_hosts: bool = False

    def __str__(self) -> str:
        if self.scope == "crawl":
            return "1 crawl, pace_scope = crawl"
        hosts = "the same hosts" if self.has_same_hosts else "hosts of its own each"
        return "1 crawl" if self.crawls == 1 else f"{self.crawls} crawls, {hosts}"


APART, ALONE, TEN, HUNDRED = Kind(1, "crawl"), Kind(1), Kind(10), Kind(100)
CROWD = Kind(100, has_same_hosts=True)
KINDS = (APART, ALONE, TEN, HUNDRED, Kind(10, has_same_hosts=True), CROWD)


class Sample(NamedTuple):
    """What one sample found."""

    lease: Rate
    settle: Rate


class Ground:
    """A frontier with its crawls. Each has as many tasks waiting before a sample as before any other one."""

    def __init__(self, kind: Kind, frontier: Frontier, server: RedisServer | None) -> None:
        self._kind = kind
        self._frontier = frontier
        self._server = server
        self._known = 0

    @classmethod
    async def open(cls, kind: Kind, url: str, server: RedisServer | None, *, steps: int) -> Ground:
        frontier = await open_frontier(url)
        ground = cls(kind, frontier, server)
        for number in range(kind.crawls):
            scope = {"pace_scope": kind.scope}
            await frontier.open_crawl(Crawl(id=f"c-{number}", spider="bench", interval=0.0, cap=1_000_000, **scope))
        await ground._fill(steps)
        return ground

    async def sample(self, steps: int) -> Sample:
        """Lease so many tasks over all crawls in turn, then settle them; what they were is put anew."""
        await self._fill(steps)
        gc.collect()
        watch = Stopwatch(self._server)
        leases = [await self._lease(f"c-{number % self._kind.crawls}") for number in range(steps // BATCH)]
        lease = watch.stop(steps)
        watch = Stopwatch(self._server)
        for batch in leases:
            await self._frontier.settle([Done(lease=one) for one in batch])
        return Sample(lease, watch.stop(steps))

    async def close(self) -> None:
        await self._frontier.close()

    async def _lease(self, crawl: str) -> list[Lease]:
        batch = await self._frontier.lease([crawl], BATCH, worker="bench", seconds=600, horizon=1)
        if len(batch.leases) < BATCH:
            raise SystemExit(f"{self._kind}: {crawl} lends {len(batch.leases)} of {BATCH} tasks")
        return batch.leases

    async def _fill(self, count: int) -> None:
        for first in range(0, count, BATCH):
            crawl = first // BATCH % self._kind.crawls
            numbers = range(self._known, self._known + BATCH)
            self._known += BATCH
            of = "" if self._kind.has_same_hosts else f"{crawl}."
            await self._frontier.put(
                f"c-{crawl}", [make_task(number, lane=f"{of}{lane_name(number % LANES)}") for number in numbers]
            )


def run(plan: Plan) -> Case:
    find_redis()
    steps = QUICK_STEPS if plan.quick else STEPS
    samples = asyncio.run(_measure(plan, steps=steps))
    costs = {
        of: [spread_of([getattr(one, verb).cpu_us for one in found]) for verb in Sample._fields]
        for of, found in samples.items()
    }
    return Case(
        letter="R",
        title="many crawls on one frontier",
        how=_how(plan, steps),
        columns=["frontier", "crawls", "CPU µs per lease", "CPU µs per settle"],
        rows=[[backend, str(kind), *(cost.shown(".1f") for cost in found)] for (backend, kind), found in costs.items()],
        figures=[figure for backend in BACKENDS for figure in _figures(backend, costs)],
        notes=[_look_note(backend, costs) for backend in BACKENDS],
    )


async def _measure(plan: Plan, *, steps: int) -> dict[tuple[str, Kind], list[Sample]]:
    samples: dict[tuple[str, Kind], list[Sample]] = {}
    async with AsyncExitStack() as stack:
        grounds: dict[tuple[str, Kind], Ground] = {}
        folder = fresh_folder("many-crawls")
        for number, kind in enumerate(KINDS):
            server = stack.enter_context(redis_server(folder / f"redis-{number}"))
            for backend, url, its in (("SQLite", str(folder / f"{number}.db"), None), ("Redis", server.url, server)):
                ground = await Ground.open(kind, url, its, steps=steps)
                stack.push_async_callback(ground.close)
                grounds[backend, kind] = ground
        for ground in grounds.values():
            await ground.sample(steps)  # caches are cold
        for _ in range(_samples(plan)):
            for of, ground in grounds.items():
                samples.setdefault(of, []).append(await ground.sample(steps))
    return {of: samples[of] for of in sorted(samples, key=lambda one: BACKENDS.index(one[0]))}


def _figures(backend: str, costs: dict[tuple[str, Kind], list[Spread]]) -> list[Figure]:
    def lease(kind: Kind) -> float:
        return costs[backend, kind][0].median

    pairs = (
        ("a lease of the only crawl, of that with pace_scope = crawl", lease(ALONE) / lease(APART), MOST_ALONE),
        ("a lease with 10 crawls, of that with one", lease(TEN) / lease(ALONE), MOST_GROWTH),
        ("a lease with 100 crawls, of that with one", lease(HUNDRED) / lease(ALONE), MOST_GROWTH),
    )
    return [
        Figure(what=f"{backend}: {what}", value=round(value, 3), wanted=wanted, sense="at most", unit="times")
        for what, value, wanted in pairs
    ]


def _look_note(backend: str, costs: dict[tuple[str, Kind], list[Spread]]) -> str:
    most = costs[backend, CROWD][0].median - costs[backend, ALONE][0].median
    each = most / (CROWD.crawls - 1)
    return f"{backend}: a look at the host costs {each:.1f} µs for each other crawl that has it."


def _samples(plan: Plan) -> int:
    return plan.rounds * (1 if plan.quick else SAMPLES)


def _how(plan: Plan, steps: int) -> list[str]:
    return [
        f"A frontier for each row, with {LANES} hosts for each crawl and no pace. A sample is {steps:,} tasks leased"
        f" and settled in batches of {BATCH}, each batch of the next crawl; tasks are put anew before it, which is not"
        " measured.",
        "CPU is that of client and server together. Redis with its append-only file on (everysec), on this machine.",
        "With pace_scope = crawl a crawl looks at no other one: what a lease cost before crawls shared hosts.",
        f"Medians of {_samples(plan)} samples of all frontiers in turn, and their spread.",
    ]


if __name__ == "__main__":
    main(run)
