"""What choosing exits costs: `python -m bench.exits`.

Leases per second through a pool of 200 exits and directly, on SQLite and on Redis, all to one host and to a hundred:
each task leased and settled with eight links, as pages have, or without any; and the leases alone, with what is settled
in between not counted. The goal is 80 % of the speed without exits.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from bench.crawlers import WORK
from bench.frontier_subject import make_task
from bench.redis_server import RedisServer, redis_server
from shoal.frontier import open_frontier
from shoal.frontier.base import Frontier
from shoal.model import DIRECT, VIA, Crawl, Done, ExitUse, Lease, Pool, Task

CRAWL = "bench"
EXITS = 200
HOSTS = (1, 100)
LINKS = (8, 0, None)
TASKS = 10_000
PUTS = 1000
LEASES = 100
CAP = 1_000_000
GOAL = 0.8


class Place(NamedTuple):
    """Where the frontier lives, how it is emptied, and the processor time of its server."""

    name: str
    url: str
    empty: Callable[[], None]
    server_seconds: Callable[[], float]


class Case(NamedTuple):
    """What is measured: the number of hosts, and of links on each page, one of them new. None: the leases alone."""

    place: str
    hosts: int
    links: int | None

    @property
    def deed(self) -> str:
        if self.links is None:
            return "leased"
        return f"settled, {self.links} links" if self.links else "settled"


class Rate(NamedTuple):
    """What a number of tasks took: on the clock, and in processor time of both sides."""

    per_second: float
    per_cpu_second: float


class Stopwatch:
    """Time on the clock and of both sides' processors, while it runs."""

    def __init__(self, place: Place) -> None:
        self.seconds = 0.0
        self.cpu = 0.0
        self._place = place

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        server, process, clock = self._place.server_seconds(), time.process_time(), time.perf_counter()
        yield
        self.seconds += time.perf_counter() - clock
        self.cpu += time.process_time() - process + self._place.server_seconds() - server


class Subject:
    """A frontier with one crawl, filled with numbered tasks: all through the pool, or all direct."""

    def __init__(self, frontier: Frontier, case: Case, *, via: str) -> None:
        self._frontier = frontier
        self._case = case
        self._via = via
        self._known = 0

    async def grow(self, count: int) -> None:
        for _ in range(0, count, PUTS):
            await self._frontier.put(CRAWL, [self._new() for _ in range(PUTS)])

    async def drain(self, count: int, watch: Stopwatch) -> None:
        """Lease and settle; the next batch is lent while the last is settled, as a worker does."""
        if self._case.links is None:
            await self._drain_in_turn(count, watch)
            return
        with watch.running():
            settling: asyncio.Task[None] | None = None
            while count > 0:
                leases = await self._lease(count)
                count -= len(leases)
                if settling is not None:
                    await settling
                settling = asyncio.create_task(self._settle(leases))
            if settling is not None:
                await settling

    async def _drain_in_turn(self, count: int, watch: Stopwatch) -> None:
        while count > 0:
            with watch.running():
                leases = await self._lease(count)
            count -= len(leases)
            await self._settle(leases)

    async def _lease(self, most: int) -> list[Lease]:
        batch = await self._frontier.lease([CRAWL], min(LEASES, most), worker="bench", seconds=600, horizon=1)
        if not batch.leases:
            raise SystemExit("the frontier lends nothing although tasks are waiting")
        return batch.leases

    async def _settle(self, leases: list[Lease]) -> None:
        results = [Done(lease=lease, found=self._links(), exit=use_of(lease)) for lease in leases]
        report = await self._frontier.settle(results)
        if report.stale or report.failed:
            raise SystemExit("a result was refused")

    def _links(self) -> list[Task]:
        if not self._case.links:
            return []
        return [self._new(), *(self._task((self._known * 31 + step) % PUTS) for step in range(1, self._case.links))]

    def _new(self) -> Task:
        self._known += 1
        return self._task(self._known - 1)

    def _task(self, number: int) -> Task:
        host = f"host-{number % self._case.hosts:03}.example.com"
        return make_task(number, lane=host + self._via)


async def measure(place: Place, case: Case, *, pool: Pool | None, tasks: int) -> Rate:
    """Lease and settle so many tasks."""
    place.empty()
    frontier = await open_frontier(place.url)
    pools = (pool,) if pool else ()
    await frontier.open_crawl(Crawl(id=CRAWL, spider="bench", interval=0.0, cap=CAP, pools=pools))
    subject = Subject(frontier, case, via=VIA + pool.name if pool else "")
    await subject.grow(tasks)
    watch = Stopwatch(place)
    await subject.drain(tasks, watch)
    await frontier.close()
    return Rate(tasks / watch.seconds, tasks / watch.cpu)


def use_of(lease: Lease) -> ExitUse | None:
    return None if lease.exit == DIRECT else ExitUse(size=16_000, elapsed=0.1)


def sqlite_place(folder: Path) -> Place:
    folder.mkdir(parents=True, exist_ok=True)

    def empty() -> None:
        for file in folder.glob("exits.db*"):
            file.unlink()

    return Place("SQLite", str(folder / "exits.db"), empty, lambda: 0.0)


def redis_place(server: RedisServer) -> Place:
    return Place("Redis", server.url, server.empty, lambda: server.cpu_seconds)


@contextlib.contextmanager
def places(only: list[str]) -> Iterator[list[Place]]:
    with contextlib.ExitStack() as stack:
        found = [sqlite_place(WORK / "exits")] if "sqlite" in only else []
        if "redis" in only:
            found.append(redis_place(stack.enter_context(redis_server(WORK / "exits-redis"))))
        yield found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.exits", description=__doc__)
    parser.add_argument("--only", choices=("sqlite", "redis"), nargs="+", default=["sqlite", "redis"])
    parser.add_argument("--rounds", type=int, default=5, help="measurements, interleaved; the median counts")
    parser.add_argument("--tasks", type=int, default=TASKS, help="leased and settled in each")
    parser.add_argument("--exits", type=int, default=EXITS, help="in the pool")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    return parser.parse_args()


def main() -> None:
    options = _options()
    names = tuple(f"exit-{number:04}" for number in range(options.exits))
    pool = Pool(name="pool", exits=names, interval=0.0, cap=CAP, host_cap=CAP)
    found: dict[tuple[Case, bool], list[Rate]] = defaultdict(list)
    with places(options.only) as measured:
        cases = [(place, Case(place.name, hosts, links)) for place in measured for hosts in HOSTS for links in LINKS]
        for _ in range(options.rounds):
            for place, case in cases:
                for used in (None, pool):
                    rate = asyncio.run(measure(place, case, pool=used, tasks=options.tasks))
                    found[case, used is not None].append(rate)
    rows = [_row(case, found[case, False], found[case, True]) for _, case in cases]
    _show(rows, exits=options.exits)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")


def _row(case: Case, direct: list[Rate], through: list[Rate]) -> dict[str, float | str]:
    pairs = list(zip(direct, through, strict=True))
    return {
        "frontier": case.place,
        "hosts": case.hosts,
        "deed": case.deed,
        "direct_per_second": statistics.median(rate.per_second for rate in direct),
        "exits_per_second": statistics.median(rate.per_second for rate in through),
        "share": statistics.median(two.per_second / one.per_second for one, two in pairs),
        "direct_per_cpu_second": statistics.median(rate.per_cpu_second for rate in direct),
        "exits_per_cpu_second": statistics.median(rate.per_cpu_second for rate in through),
        "cpu_share": statistics.median(two.per_cpu_second / one.per_cpu_second for one, two in pairs),
    }


def _show(rows: list[dict[str, float | str]], *, exits: int) -> None:
    print(f"tasks directly and through {exits} exits; the goal is {GOAL:.0%}")
    heads = ("direct/s", "exits/s", "share", "direct/CPU-s", "exits/CPU-s", "share")
    print(f"{'':8}{'hosts':>6}  {'':18}" + "".join(f"{head:>13}" for head in heads))
    for row in rows:
        print(
            f"{row['frontier']:8}{row['hosts']:6}  {row['deed']:18}"
            f"{row['direct_per_second']:13,.0f}{row['exits_per_second']:13,.0f}{row['share']:13.0%}"
            f"{row['direct_per_cpu_second']:13,.0f}{row['exits_per_cpu_second']:13,.0f}{row['cpu_share']:13.0%}",
            flush=True,
        )


if __name__ == "__main__":
    main()
