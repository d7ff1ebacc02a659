"""A crawl in several shards, and workers that crawl a link graph in it."""

from __future__ import annotations

import asyncio
import random
import subprocess
from collections.abc import Callable

from shoal.frontier import open_frontier
from shoal.frontier.base import Frontier
from shoal.frontier.redis.shards import shard_of
from shoal.model import Budgets, Crawl, Done, Lease, Retry, Task
from shoal.testing.contract.frontier.case import make_task
from shoal.testing.waiting import eventually
from shoal.worker.outages import until_reachable

CRAWL = "books"
SHARDS = 8
SECONDS = 120.0


def sharded(url: str, shards: int = SHARDS) -> str:
    return f"{url}?shards={shards}"


async def opened(url: str, *, pages: int = 0) -> Frontier:
    frontier = await open_frontier(url)
    await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=1000, budgets=Budgets(pages=pages)))
    return frontier


def lanes_apart(number: int) -> list[str]:
    """Lanes that live in different shards."""
    lanes: dict[int, str] = {}
    for count in range(1000):
        lanes.setdefault(shard_of(f"{count}.test", of=SHARDS), f"{count}.test")
    return list(lanes.values())[:number]


def run(command: list[str]) -> int:
    return subprocess.run(command, timeout=SECONDS, stdout=subprocess.DEVNULL).returncode


async def take(frontier: Frontier, limit: int = 100, *, worker: str = "w", seconds: float = 60.0) -> list[Lease]:
    return (await frontier.lease([CRAWL], limit, worker=worker, seconds=seconds, horizon=0.0)).leases


async def take_patiently(frontier: Frontier, limit: int = 100) -> list[Lease]:
    """The first leases after a restart: the lanes rest for a horizon before they lend."""
    return await eventually(
        lambda: until_reachable(lambda: take(frontier, limit), say=str), seconds=SECONDS, pause=0.05
    )


class Site:
    """A link graph over many lanes, the same for the same seed."""

    def __init__(self, pages: int, seed: int) -> None:
        self.pages, self.seed = pages, seed

    def page(self, number: int) -> Task:
        return make_task(number, f"{number % 13}.test", max_attempts=50)

    def links(self, number: int) -> list[Task]:
        draw = random.Random(number * 1000 + self.seed)
        found = {(number * 2 + 1) % self.pages, (number * 2 + 2) % self.pages, draw.randrange(self.pages)}
        return [self.page(one) for one in sorted(found)]


async def work(url: str, site: Site, name: str, *, say: Callable[[str], object] = str) -> int:
    """A worker that now and then drops its leases; gives the pages that were done when it was told of the end."""
    frontier = await until_reachable(lambda: open_frontier(url), say=say)
    draw = random.Random(f"{name} {site.seed}")
    while True:
        limit = draw.randrange(1, 12)
        batch = await until_reachable(
            lambda: frontier.lease([CRAWL], limit, worker=name, seconds=0.5, horizon=0.0),  # noqa: B023 -- awaited at once
            say=say,
        )
        if batch.finished:
            done = (await frontier.progress(CRAWL)).done
            await frontier.close()
            return done
        if draw.random() < 0.03:
            continue
        results = [
            Retry(lease=lease, reason="timeout", free=True)
            if draw.random() < 0.05
            else Done(lease=lease, found=site.links(lease.task.key))
            for lease in batch.leases
        ]
        await until_reachable(lambda: frontier.settle(results), say=say)  # noqa: B023 -- awaited at once
        await asyncio.sleep(draw.choice([0.0, 0.0, 0.01]))
