"""The time of a crawl: it runs steadily, even if the frontier's clock is stepped, and never goes back.

It is the frontier's clock plus a shift. A process that has asked for leases before knows by its own steady clock how
far the crawl's time can be: a clock further ahead was stepped."""

from __future__ import annotations

from typing import NamedTuple

from shoal.frontier.rules.constants import AWAY_SHARE, CLOCK_SECONDS, LONGEST_BREAK, STEP_SECONDS


class Expected(NamedTuple):
    """What a process knows of a crawl's time by its own steady clock: it is `time`, or later by up to `way`, the
    duration of the process's latest call: when in this span the frontier answered is not known. `shift`: the crawl's
    shift in that answer."""

    time: float
    way: float
    shift: float


def reckon(clock: float, *, last: float, shift: float, expected: Expected | None) -> tuple[float, float]:
    """The time of a crawl and the new shift. `last`: its latest noted time; `expected`: what the caller knows, None
    before its first answer.

    A clock ahead of the expected time was stepped forward, or the request waited in a frozen server: the crawl's time
    stands still too. A clock behind the latest time was stepped back: the crawl's time continues from there. Either way
    it continues from the earliest possible time: a later one would put starts too close to earlier ones. If the crawl's
    shift is not the one that the caller knows, its time may have stood still since the caller's last answer: then the
    latest noted time is the earliest possible one."""
    now = clock + shift
    is_ahead = expected is not None and now > expected.time + expected.way + STEP_SECONDS
    if not is_ahead and now >= last:
        return now, shift
    earliest = expected.time if expected is not None and expected.shift == shift else last
    now = max(last, earliest if is_ahead else min(earliest, last + CLOCK_SECONDS))
    return now, now - clock


def is_noted(now: float, *, last: float) -> bool:
    """Whether this time is noted as the crawl's latest: about once a second."""
    return now >= last + CLOCK_SECONDS


def was_away(now: float, *, last: float, expected: Expected | None, seconds: float) -> bool:
    """Whether leases of `seconds` may have ended although their workers are alive, because no worker could reach the
    frontier: no call came for too long, and the caller is not new.

    The latest time is noted once per CLOCK_SECONDS, so it may be older than the latest call by as much."""
    return expected is not None and last > 0 and now - last > seconds / AWAY_SHARE + CLOCK_SECONDS


def ran_since(now: float, *, last: float) -> float:
    """The seconds since `last` if workers were there all the time: they call at least every LONGEST_BREAK. In a longer
    break nobody worked: 0."""
    return now - last if 0 < last <= now <= last + LONGEST_BREAK else 0.0
