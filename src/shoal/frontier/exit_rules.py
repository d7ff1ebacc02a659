"""What every frontier makes of an exit that fails: how long it rests, and when it rests for every host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from shoal.errors import UsageError
from shoal.model import DIRECT, NO_EXIT, VIA, ExitUse, Pool

STRIKES = 3  # failures towards different hosts in a row after which an exit rests for every host
BUSY_SECONDS = 0.25  # how soon a lane looks again at an exit that another lane holds
GIVEN_UP = 100  # tasks of a starved lane that are given up in one step


def check_exits(pools: Sequence[Pool]) -> None:
    """Refuse pools that could not be told apart, or whose exits could not."""
    names = [pool.name for pool in pools]
    for name in names:
        if names.count(name) > 1 or not name.isprintable() or VIA in name or name in ("", DIRECT):
            raise UsageError(f"{name!r} cannot be the name of a pool, or is that of two")
    for pool in pools:
        for name, number in Counter(pool.exits).items():
            if number > 1 or not name.isprintable() or name in ("", DIRECT):
                raise UsageError(f"pool {pool.name}: {name!r} cannot be the name of an exit, or is that of two")


def rest_of(pool: Pool, times: int) -> float:
    """How long an exit rests the so-manieth time in a row."""
    return min(pool.quarantine * 2.0 ** min(times - 1, 60), pool.max_quarantine)


def cost_of(pool: Pool, report: ExitUse | None) -> float:
    """What one request through the pool costs."""
    return pool.cost + (report.size / 1e9 * pool.cost_per_gb if report else 0.0)


def no_exit_reason(lane: str, *, is_known: bool) -> str:
    """Why the tasks of a lane are given up that waited too long for an exit."""
    pool = lane.partition(VIA)[2]
    return f"{NO_EXIT}: every exit of pool {pool} rests" if is_known else f"{NO_EXIT}: there is no pool {pool}"
