"""The way to a billion: real Redis shards, driven by workers that lease, wait and settle but fetch nothing.

`python -m bench.scale --shards 1 2 4 8 16 --workers 200 --urls 1000000`; case K does the same with settings of its own.
Half of a page's links are on its own host and known, the others on any host, one of them new.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import multiprocessing
import random
import shutil
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

from bench.crawlers import WORK
from bench.frontier_subject import lane_name, make_task
from bench.redis_cluster import Cluster, redis_shards
from shoal.frontier import open_frontier
from shoal.frontier.base import Frontier
from shoal.frontier.redis.shards import shard_of
from shoal.model import Crawl, Done, Lease, Task

CRAWL = "scale"
HOSTS = 10_000
BLOCK = 100  # neighbouring numbers on one host
PUTS = 2_000
LEASES = 16  # a quarter of the 64 pages that a worker has in hand by default
LINKS = 8  # that a worker has not met lately, and asks for
STRIDE = 101  # between new numbers: the next one is on another host
PROCESSES = 4


class Load(NamedTuple):
    """What one process is to do; `first` is the number of the first of the workers `here`, of all `workers`."""

    url: str
    shards: int
    urls: int
    first: int
    here: int
    workers: int
    seconds: float
    links: int
    leases: int
    wait: float

    @property
    def hosts(self) -> int:
        """Hosts of the known URLs: no new one is added."""
        return min(HOSTS, self.urls // BLOCK)


class Work(NamedTuple):
    """What the workers of a process, or of all, have done."""

    settled: int
    far_links: int
    lease_seconds: list[float]
    client_seconds: float


class Measured(NamedTuple):
    """One number of shards under one load."""

    shards: int
    workers: int
    urls: int
    links: int
    leases: int
    wait: float
    seconds: float
    work: Work
    redis_seconds: float
    net_bytes: float
    url_bytes: float

    @property
    def per_second(self) -> float:
        return self.work.settled / self.seconds

    @property
    def per_redis_second(self) -> float:
        """Pages per second of Redis's processor time: what one core of Redis allows."""
        return self.work.settled / self.redis_seconds

    @property
    def far_share(self) -> float:
        """The links that lead to another shard."""
        return self.work.far_links / (self.work.settled * self.links)

    def lease_ms(self, share: float) -> float:
        if share == 0.5:
            return statistics.median(self.work.lease_seconds) * 1000
        return statistics.quantiles(self.work.lease_seconds, n=100)[round(share * 100) - 1] * 1000


class Crowd(NamedTuple):
    """The crawl that is measured, and for how long: at full speed, then with pages that take `wait` seconds."""

    workers: int
    urls: int
    seconds: float
    wait: float
    links: int = LINKS
    leases: int = LEASES
    processes: int = PROCESSES


def task_of(number: int, *, hosts: int) -> Task:
    return make_task(number, lane=lane_name(number // BLOCK % hosts))


def measure(shards: int, crowd: Crowd) -> list[Measured]:
    """Fill the shards, then measure at full speed and at a pace."""
    folder = WORK / "scale"
    shutil.rmtree(folder, ignore_errors=True)
    processes = min(crowd.processes, crowd.workers)
    spawn = multiprocessing.get_context("spawn")
    with (
        redis_shards(shards, crawl=CRAWL, folder=folder) as cluster,
        ProcessPoolExecutor(processes, mp_context=spawn) as pool,
    ):
        asyncio.run(_open(cluster.url))
        empty = cluster.used_bytes
        loads = _loads(cluster, shards, crowd, processes)
        began = time.perf_counter()
        list(pool.map(_fill, loads))
        url_bytes = (cluster.used_bytes - empty) / crowd.urls
        print(f"{shards} shards: {crowd.urls:,} URLs after {time.perf_counter() - began:.0f} s", flush=True)
        found = []
        for wait in (0.0, crowd.wait):
            cpu, net, began = cluster.cpu_seconds, cluster.net_bytes, time.perf_counter()
            work = _sum(list(pool.map(_drive, [load._replace(wait=wait) for load in loads])))
            seconds, cpu = time.perf_counter() - began, cluster.cpu_seconds - cpu
            per_page = (cluster.net_bytes - net) / work.settled
            found.append(
                Measured(
                    shards,
                    crowd.workers,
                    crowd.urls,
                    crowd.links,
                    crowd.leases,
                    wait,
                    seconds,
                    work,
                    cpu,
                    per_page,
                    url_bytes,
                )
            )
            print(_line(found[-1]), flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    return found


def _line(one: Measured) -> str:
    return (
        f"{one.shards:>3} shards, {one.leases} leases, {one.links} links, wait {one.wait:.1f} s:"
        f" {one.per_second:,.0f} pages/s,"
        f" {one.per_redis_second:,.0f} per CPU-second of Redis, {one.far_share:.0%} of links to other shards,"
        f" lease {one.lease_ms(0.5):.1f} ms (99 %: {one.lease_ms(0.99):.1f}), {one.net_bytes:,.0f} bytes per page,"
        f" {one.url_bytes:.0f} bytes per URL, client {one.work.client_seconds / one.work.settled * 1e6:.0f} µs"
    )


def _loads(cluster: Cluster, shards: int, crowd: Crowd, processes: int) -> list[Load]:
    firsts = [crowd.workers * number // processes for number in range(processes + 1)]
    return [
        Load(
            cluster.url,
            shards,
            crowd.urls,
            first,
            after - first,
            crowd.workers,
            crowd.seconds,
            crowd.links,
            crowd.leases,
            0.0,
        )
        for first, after in itertools.pairwise(firsts)
    ]


async def _open(url: str) -> None:
    frontier = await open_frontier(url)
    await frontier.open_crawl(Crawl(id=CRAWL, spider="bench", interval=0.0, cap=1_000_000))
    await frontier.close()


def _fill(load: Load) -> None:
    """This process's part of the URLs that are known from the beginning."""

    async def fill() -> None:
        frontier = await open_frontier(load.url)
        first, after = (load.urls * number // load.workers for number in (load.first, load.first + load.here))
        for start in range(first, after, PUTS):
            numbers = range(start, min(after, start + PUTS))
            await frontier.put(CRAWL, [task_of(number, hosts=load.hosts) for number in numbers])
        await frontier.close()

    asyncio.run(fill())


def _drive(load: Load) -> Work:
    """Work with all workers of this process, each with connections of its own."""

    async def drive() -> list[Work]:
        deadline = time.monotonic() + load.seconds
        return await asyncio.gather(*(_Worker(load, load.first + place).work(deadline) for place in range(load.here)))

    started = time.process_time()
    total = _sum(asyncio.run(drive()))
    return total._replace(client_seconds=time.process_time() - started)


class _Worker:
    """Leases a few pages, waits as long as fetching them would take, and settles them."""

    def __init__(self, load: Load, number: int) -> None:
        self._load = load
        self._name = f"worker-{number}"
        self._draw = random.Random(f"{number}/{load.wait}")
        self._fresh = self._fresh_numbers(number)
        self._work = Work(0, 0, [], 0.0)

    async def work(self, deadline: float) -> Work:
        frontier = await open_frontier(self._load.url)
        if self._load.wait:
            # Not all at the same moment.
            await asyncio.sleep(self._draw.random() * self._load.wait)
        while time.monotonic() < deadline:
            leases = await self._lease(frontier)
            await asyncio.sleep(self._load.wait)
            await self._settle(frontier, leases)
        await frontier.close()
        return self._work

    async def _lease(self, frontier: Frontier) -> list[Lease]:
        began = time.perf_counter()
        batch = await frontier.lease([CRAWL], self._load.leases, worker=self._name, seconds=600, horizon=1)
        self._work.lease_seconds.append(time.perf_counter() - began)
        if not batch.leases:
            raise SystemExit("the frontier lends nothing although tasks are waiting")
        return batch.leases

    async def _settle(self, frontier: Frontier, leases: list[Lease]) -> None:
        results = [Done(lease=lease, found=self._links(lease.task.lane)) for lease in leases]
        report = await frontier.settle(results)
        if report.stale or report.failed:
            raise SystemExit("a result was refused")
        homes = [(shard_of(result.lease.task.lane, of=self._load.shards), result.found) for result in results]
        far = sum(shard_of(link.lane, of=self._load.shards) != home for home, found in homes for link in found)
        done = self._work
        self._work = done._replace(settled=done.settled + len(results), far_links=done.far_links + far)

    def _links(self, lane: str) -> list[Task]:
        draw, urls = self._draw, self._load.urls
        host, hosts = int(lane[5:11]), self._load.hosts
        blocks = [host + hosts * draw.randrange(urls // BLOCK // hosts) for _ in range(self._load.links // 2)]
        numbers = [block * BLOCK + draw.randrange(BLOCK) for block in blocks]
        numbers += [draw.randrange(urls) for _ in range((self._load.links - 1) // 2)]
        return [task_of(number, hosts=hosts) for number in (*numbers, next(self._fresh))]

    def _fresh_numbers(self, number: int) -> Iterator[int]:
        """Numbers that no other worker has, nor this one in the other phase."""
        load = self._load
        step = 2 * load.workers
        count = 2 * number + bool(load.wait)
        while True:
            yield load.urls + count * STRIDE
            count += step


def _sum(parts: list[Work]) -> Work:
    return Work(
        sum(part.settled for part in parts),
        sum(part.far_links for part in parts),
        [seconds for part in parts for seconds in part.lease_seconds],
        sum(part.client_seconds for part in parts),
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.scale", description=__doc__)
    parser.add_argument("--shards", type=int, nargs="+", default=[1, 2, 4, 8, 16], help="Redis servers, one shard each")
    parser.add_argument("--workers", type=int, default=200, help="in four processes")
    parser.add_argument("--urls", type=int, default=1_000_000, help="known at the beginning, all of them waiting")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--wait", type=float, default=8.0, help="seconds that pages take in the second measurement")
    parser.add_argument("--leases", type=int, default=LEASES, help="pages that a worker leases at a time")
    parser.add_argument("--links", type=int, default=LINKS, help="links of a page that the frontier is asked about")
    options = parser.parse_args()
    if options.urls < 2 * BLOCK:
        raise SystemExit(f"--urls {options.urls}: at least {2 * BLOCK} are needed")
    for shards in options.shards:
        measure(
            shards, Crowd(options.workers, options.urls, options.seconds, options.wait, options.links, options.leases)
        )


if __name__ == "__main__":
    main()
