"""What a process knows of the times of its crawls by its own steady clock; and waiting for a lane's start slot."""

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
    """Seconds of a clock that is never stepped; on Linux it also runs while the machine sleeps."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class _Ways(NamedTuple):
    """The smallest lead of the steady clock over the frontier's clock when answers arrived, in two periods: since
    `since`, and in the period before. The smallest lead is that of a fast answer. Periods are of time, not of a number
    of answers: when a frozen process continues, many answers arrive late together, and would count as usual. A step of
    the frontier's clock begins anew."""

    since: float
    least: float
    former: float


class SteadyTimes:
    """By crawl, its time in the latest answer to this process, and when that was by the steady clock.

    Without a steady clock nothing is expected: for tests whose only clock is set by hand."""

    def __init__(self, steady: Callable[[], float] | None) -> None:
        self._steady = steady
        self._answers: dict[str, tuple[float, float, float, float]] = {}
        self._ways: dict[str, _Ways] = {}

    def now(self) -> float:
        """The steady clock; 0 without one."""
        return self._steady() if self._steady else 0.0

    def expected(self, name: str) -> Expected | None:
        """What this process knows of the crawl's time; None before its first answer."""
        answer = self._answers.get(name)
        if answer is None or self._steady is None:
            return None
        time_of_crawl, shift, asked, answered = answer
        return Expected(time_of_crawl + self._steady() - answered, answered - asked, shift)

    def note(self, name: str, time_of_crawl: float, *, shift: float, asked: float) -> None:
        """Note the crawl's time and shift in an answer that just arrived. The answer may be as old as the question
        (`asked`): so a connection that is always slow is not taken for a step of the clock."""
        if self._steady is not None:
            self._answers[name] = (time_of_crawl, shift, asked, self._steady())

    def age(self, name: str, clock: float, *, asked: float = -math.inf) -> float:
        """How many seconds late an answer arrived, beyond the usual time of an answer, because this process was frozen
        or the connection was slow. `clock`: the frontier's clock in the answer. Waits count from when the answer should
        have arrived, so that a late start is known to be late."""
        if self._steady is None:
            return 0.0
        arrived, ways = self._steady(), self._ways.get(name)
        ahead = arrived - clock
        # The answer seems older than its question: the frontier's clock was stepped back.
        if ways is None or ahead - min(ways.least, ways.former) > arrived - asked:
            ways = _Ways(arrived, ahead, ahead)
        elif arrived - ways.since > COMPARED_SECONDS:
            ways = _Ways(arrived, ahead, ways.least)
        elif ahead < ways.least:
            ways = ways._replace(least=ahead)
        self._ways[name] = ways
        return ahead - min(ways.least, ways.former)


LATE_SHARE = 20  # a start is late after a twentieth of the interval; the network may add as much again
SHORTEST_SLACK_SECONDS = 0.01


def slack_of(interval: float) -> float:
    """Seconds by which a start may be late and keep its slot. A lane without an interval has no late starts."""
    return max(interval / LATE_SHARE, SHORTEST_SLACK_SECONDS) if interval else float("inf")


class Reserve(Protocol):
    """Takes a new slot for a request that missed its own by `missed` seconds; gives the seconds to wait for it."""

    def __call__(self, *, missed: float) -> Awaitable[float]: ...


async def wait_for_slot(
    start: float,
    *,
    interval: float,
    reserve: Reserve,
    monotonic: Callable[[], float] = time.monotonic,
) -> None:
    """Wait until `start`. A missed slot is given up, and `reserve` takes a new one: so starts of one lane are never
    closer together than its interval minus the slack."""
    slack = slack_of(interval)
    while True:
        await asyncio.sleep(max(0.0, start - monotonic()))
        missed = monotonic() - start
        if missed <= slack:
            return
        wait = await reserve(missed=missed)
        start = monotonic() + wait
