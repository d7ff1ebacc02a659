"""What every frontier makes of an exit that fails: how long it rests, and when it rests for every host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from shoal.errors import UsageError
from shoal.model import DIRECT, NO_EXIT, VIA, ExitStatus, ExitUse, Pool

STRIKES = 3  # failures towards different hosts in a row after which an exit rests for every host
BUSY_SECONDS = 0.25  # how soon a lane looks again at an exit that another lane holds
MAX_PUT_OFF = 500  # exits that are parked or held by others, and put off in one call; the next call goes on
GIVEN_UP = 100  # tasks of a starved lane that are given up in one step


class Ended(NamedTuple):
    """What went through one exit towards one lane and came to an end, and how ill that left it."""

    requests: int = 0
    ok: int = 0
    blocked: int = 0
    failed: int = 0
    size: int = 0
    elapsed: float = 0.0
    cost: float = 0.0
    streak: int = 0
    rests_until: float = 0.0


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


def status_of(
    exit_name: str, lane: str, ended: Ended, *, in_flight: int, parked_until: float, now: float
) -> ExitStatus:
    """An exit towards a lane, as people see it."""
    return ExitStatus(
        exit=exit_name,
        lane=lane,
        requests=ended.requests + in_flight,
        ok=ended.ok,
        blocked=ended.blocked,
        failed=ended.failed,
        in_flight=in_flight,
        size=ended.size,
        elapsed=ended.elapsed,
        cost=ended.cost,
        streak=ended.streak,
        rests_for=max(0.0, ended.rests_until - now) if ended.streak else 0.0,
        parked_for=max(0.0, parked_until - now),
    )


def no_exit_reason(lane: str, *, is_known: bool) -> str:
    """Why the tasks of a lane are given up that waited too long for an exit."""
    pool = lane.partition(VIA)[2]
    return f"{NO_EXIT}: every exit of pool {pool} rests" if is_known else f"{NO_EXIT}: there is no pool {pool}"
