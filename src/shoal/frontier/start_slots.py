"""Waiting for a start slot of a lane: a start that comes too late would be too close to the next one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Protocol

LATE_SHARE = 20  # of an interval: a start is late after a twentieth of it; the way to the site may take as much again
SHORTEST_SLACK_SECONDS = 0.01


def slack_of(interval: float) -> float:
    """How late a start may be and still keep its slot. A lane without an interval has no late starts."""
    return max(interval / LATE_SHARE, SHORTEST_SLACK_SECONDS) if interval else float("inf")


class Reserve(Protocol):
    """Takes a new slot for a request that missed its own by so many seconds; gives the wait for it."""

    def __call__(self, *, missed: float) -> Awaitable[float]: ...


async def wait_for_slot(
    start: float,
    *,
    interval: float,
    reserve: Reserve,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Wait until `start`. When that is missed, the slot is given up, and `reserve` gives the wait for a new one: starts
    of one lane are then never closer together than its interval less the slack."""
    slack = slack_of(interval)
    while True:
        await asyncio.sleep(max(0.0, start - monotonic()))
        missed = monotonic() - start
        if missed <= slack:
            return
        wait = await reserve(missed=missed)
        start = monotonic() + wait
