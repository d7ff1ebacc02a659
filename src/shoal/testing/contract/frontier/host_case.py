"""Helpers of the promises about shared hosts: crawls, and workers that ask for leases."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from shoal.frontier.base import Frontier
from shoal.model import Crawl, Done, LaneUpdate, Lease, LeaseBatch, Pool
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import LEASE_SECONDS, make_task

ONE, TWO = "one", "two"
VIA_POOL = "a.test via pool"
# More than one step of a deletion.
LANES_OF_SEVERAL_STEPS = 600
ALLOW = LaneUpdate(rules=b"allow", rules_seconds=500.0)


async def begin(frontier: Frontier, name: str, *lanes: str, tasks: int = 50, **fields: Any) -> None:
    """A crawl with this many tasks per lane. Its hosts have no pace unless a test sets one."""
    await frontier.open_crawl(Crawl(**{"id": name, "spider": "s", "interval": 0.0, "cap": 100, **fields}))
    numbers = itertools.count()
    for lane in lanes or ("a.test",):
        pool = lane.partition(" via ")[2] or "direct"
        await frontier.put(name, [make_task(next(numbers), lane, pool=pool) for _ in range(tasks)])


async def ask(
    frontier: Frontier, crawl: str, limit: int = 100, *, horizon: float = 0.0, landed: Sequence[Lease] = ()
) -> LeaseBatch:
    """A lease call of a worker of this crawl. It gets fewer leases than it asks for, unless a test sets a limit."""
    return await frontier.lease(
        [crawl], limit, worker=f"worker of {crawl}", seconds=LEASE_SECONDS, horizon=horizon, landed=landed
    )


async def fetch(frontier: Frontier, crawl: str, limit: int = 100) -> int:
    """Lease and settle at once; returns how many."""
    leases = (await ask(frontier, crawl, limit)).leases
    await frontier.settle([Done(lease=lease) for lease in leases])
    return len(leases)


async def fetched_by_turns(frontier: Frontier, clock: FakeClock, *, seconds: int) -> dict[str, int]:
    """How many pages two crawls fetch if their workers ask twice a second."""
    counts = {ONE: 0, TWO: 0}
    for _ in range(2 * seconds):
        for name in counts:
            counts[name] += await fetch(frontier, name)
        clock.advance(0.5)
    return counts


def make_pool(*exits: str, **limits: Any) -> Pool:
    return Pool(**{"name": "pool", "exits": exits, "interval": 0.0, "cap": 100, **limits})
