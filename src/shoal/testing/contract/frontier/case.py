"""Fixtures and helpers of the frontier's contract tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from shoal.frontier.base import Frontier
from shoal.model import Crawl, Lease, LeaseBatch, Task
from shoal.testing.clock import FakeClock

CRAWL = "contract"
BESIDE = "beside"  # another crawl on the same hosts, see beside.py
LEASE_SECONDS = 60.0


def make_task(number: int, lane: str = "a.test", **fields: Any) -> Task:
    """A task whose key is its number."""
    return Task(url=f"https://{lane}/{number}", key=number, lane=lane, **fields)


def keys(batch: LeaseBatch) -> list[int]:
    return [lease.task.key for lease in batch.leases]


async def listed(frontier: Frontier) -> list[Crawl]:
    """The crawls of a test, newest first."""
    return [crawl for crawl in await frontier.crawls() if crawl.id != BESIDE]


async def take(
    frontier: Frontier, limit: int = 100, *, horizon: float = 0.0, worker: str = "w1", landed: Sequence[Lease] = ()
) -> LeaseBatch:
    """A lease call with the usual arguments of these tests."""
    return await frontier.lease([CRAWL], limit, worker=worker, seconds=LEASE_SECONDS, horizon=horizon, landed=landed)


async def take_one(frontier: Frontier) -> Lease:
    """One lease; the test fails if there is none."""
    batch = await take(frontier, 1)
    assert len(batch.leases) == 1
    return batch.leases[0]


async def check_counts(frontier: Frontier, **expected: int) -> None:
    """Only these counters are above zero; their sum is the number of known tasks."""
    progress = await frontier.progress(CRAWL)
    names = ("queued", "delayed", "leased", "done", "dead", "cancelled")
    assert {name: getattr(progress, name) for name in names if getattr(progress, name)} == expected
    assert progress.known == sum(expected.values())


class FrontierCase:
    """The fixtures. A subclass opens its frontier.

    `is_sharded`: each shard counts requests through exits separately, so promises about an exit across hosts do not
    hold."""

    is_sharded = False

    def need_one_shard(self) -> None:
        """Skip if exits are counted per shard."""
        if self.is_sharded:
            pytest.skip(
                "each shard of a crawl counts the requests through exits by itself, and refuses accounts and budgets"
            )

    async def open(
        self, folder: Path, clock: Callable[[], float], steady: Callable[[], float] | None = None
    ) -> Frontier:
        """The frontier with its state in this folder; opened again, a second view of the same state. `steady` is the
        monotonic clock of the process; without it, steps of the clock are not noticed."""
        raise NotImplementedError

    @pytest.fixture
    def clock(self) -> FakeClock:
        return FakeClock()

    @pytest.fixture
    async def frontier(self, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Frontier]:
        """A frontier with one crawl; its lanes have no pace unless a test sets one."""
        frontier = await self.open(tmp_path, clock)
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=100))
        yield frontier
        await frontier.close()

    @pytest.fixture
    async def second(self, frontier: Frontier, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Frontier]:
        """Another process's view of the same frontier."""
        second = await self.open(tmp_path, clock)
        yield second
        await second.close()
