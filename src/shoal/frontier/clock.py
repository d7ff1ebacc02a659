"""What a process reckons of the time of its crawls, by a clock of its own that nobody can step.

Waiting for a start slot of a lane: a start that comes too late would be too close to the next one.
"""

from __future__ import annotations

import asyncio
import math
import sys
import time
from collections.abc import Awaitable, Callable
from typing import NamedTuple, Protocol

from shoal.frontier.rules.crawl_time import Expected

COMPARED_SECONDS = 20.0


def steady_seconds() -> float:
    """Seconds of a clock that only goes forward, and goes on while the machine sleeps where there is such a clock."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class _Ways(NamedTuple):
    """How far the steady clock was ahead of the other side's, at least, when answers came: since a moment, and in the
    time of the same length before it. The least is what a short way takes. Compared by time, not by the number of
    answers: when a frozen process goes on, many answers come late together, and would pass for the usual. A step of the
    other clock ends the comparison."""

    since: float
    least: float
    former: float


class SteadyTimes:
    """What time a crawl had when this process last asked for leases, and when by its steady clock that was.

    Without a steady clock nothing is expected: for tests whose only clock is set by hand."""

    def __init__(self, steady: Callable[[], float] | None) -> None:
        self._steady = steady
        self._answers: dict[str, tuple[float, float, float, float]] = {}
        self._ways: dict[str, _Ways] = {}

    def now(self) -> float:
        """The steady clock; 0 without one."""
        return self._steady() if self._steady else 0.0

    def expected(self, name: str) -> Expected | None:
        """The time of this crawl as far as this process can know; None before its first answer."""
        answer = self._answers.get(name)
        if answer is None or self._steady is None:
            return None
        time_of_crawl, shift, asked, answered = answer
        return Expected(time_of_crawl + self._steady() - answered, answered - asked, shift)

    def note(self, name: str, time_of_crawl: float, *, shift: float, asked: float) -> None:
        """An answer that is there now named the crawl's time and its shift. It may be as old as the question: so a way
        to the frontier that is always slow passes for no step."""
        if self._steady is not None:
            self._answers[name] = (time_of_crawl, shift, asked, self._steady())

    def age(self, name: str, clock: float, *, asked: float = -math.inf) -> float:
        """How many seconds ago an answer that just came was given, by the clock of the one who gave it, beyond what the
        way usually takes: this process was frozen meanwhile, or the way was long. Starts count from then, so that a
        late one is known to be late."""
        if self._steady is None:
            return 0.0
        arrived, ways = self._steady(), self._ways.get(name)
        ahead = arrived - clock
        # Older than its question: that clock was stepped back.
        if ways is None or ahead - min(ways.least, ways.former) > arrived - asked:
            ways = _Ways(arrived, ahead, ahead)
        elif arrived - ways.since > COMPARED_SECONDS:
            ways = _Ways(arrived, ahead, ways.least)
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
