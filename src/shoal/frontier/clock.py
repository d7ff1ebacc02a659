"""What a process reckons of the time of its crawls, by a clock of its own that nobody can step.

Waiting for a start slot of a lane: a start that comes too late would be too close to the next one.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

COMPARED_SECONDS = 20.0


def steady_seconds() -> float:
    """Seconds of a clock that only goes forward, and goes on while the machine sleeps where there is such a clock."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class _Ways(NamedTuple):
    """How far the steady clock was ahead of the crawl's time, at least, when answers came: since a moment, and in the
    time of the same length before it. The least is what a short way takes. Compared by time, not by the number of
    answers: when a frozen process goes on, many answers come late together, and would pass for the usual. A shift of
    the crawl's time ends the comparison."""

    shift: float
    since: float
    least: float
    former: float


class SteadyTimes:
    """When this process last asked for leases, by its steady clock, and what time the crawl had then.

    Without a steady clock nothing is expected: for tests whose only clock is set by hand."""

    def __init__(self, steady: Callable[[], float] | None) -> None:
        self._steady = steady
        self._answers: dict[str, tuple[float, float]] = {}
        self._ways: dict[str, _Ways] = {}

    def now(self) -> float:
        """The steady clock; 0 without one."""
        return self._steady() if self._steady else 0.0

    def expected(self, name: str) -> float | None:
        """The time of this crawl as far as this process can know; None before its first answer."""
        answer = self._answers.get(name)
        return None if answer is None or self._steady is None else answer[0] + self._steady() - answer[1]

    def note(self, name: str, time_of_crawl: float, *, asked: float) -> None:
        """An answer named the crawl's time. It counts from the moment of asking: so a way to the frontier that is
        always slow counts for nothing."""
        if self._steady is not None:
            self._answers[name] = (time_of_crawl, asked)

    def age(self, name: str, time_of_crawl: float, *, shift: float) -> float:
        """How many seconds ago an answer that just came was given, beyond what the way usually takes: this process was
        frozen meanwhile, or the way was long. Starts count from then, so that a late one is known to be late."""
        if self._steady is None:
            return 0.0
        arrived, ways = self._steady(), self._ways.get(name)
        ahead = arrived - time_of_crawl
        if ways is None or ways.shift != shift:
            ways = _Ways(shift, arrived, ahead, ahead)
        elif arrived - ways.since > COMPARED_SECONDS:
            ways = _Ways(shift, arrived, ahead, ways.least)
        elif ahead < ways.least:
            ways = ways._replace(least=ahead)
        self._ways[name] = ways
        return ahead - min(ways.least, ways.former)


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
