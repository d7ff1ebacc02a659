"""The time of a crawl: it goes on steadily, whatever is done to the clock of the frontier.

A crawl's time is the frontier's clock plus a shift. It never goes back. A process that has asked for leases knows by
its own steady clock how far the crawl's time can have come: what the clock is ahead of that, it was stepped."""

from __future__ import annotations

from typing import NamedTuple

from shoal.frontier.rules.constants import AWAY_SHARE, CLOCK_SECONDS, LONGEST_BREAK, STEP_SECONDS


class Expected(NamedTuple):
    """What a process knows of a crawl's time by its own steady clock: it is `time`, or later by up to `way`, the
    seconds that its latest call took. When in those seconds the frontier answered is not known. `shift` was the
    crawl's shift then."""

    time: float
    way: float
    shift: float


def reckon(clock: float, *, last: float, shift: float, expected: Expected | None) -> tuple[float, float]:
    """The time of a crawl and the new shift. `last` is its latest time that was noted, `expected` what the caller
    knows; None: it has not asked before.

    A clock that is ahead of what is expected was stepped forward, or the caller's request lay in a server that stood
    still: the crawl's time stands still as well. A clock that is behind the last time was stepped back: the crawl's
    time goes on from there. Either way it goes on from the earliest possible time: if it were ahead, lanes would lease
    starts too close to those that they have leased. Another shift than the caller knows means that the crawl's time
    may have stood still since its last call: then the latest noted time is the earliest possible one."""
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
    """Whether the frontier was away for so long that leases of `seconds` may have ended meanwhile although their
    workers live: nobody asked or renewed in that time, and the caller is not new.

    The latest time may be older than the latest call by as much as it is noted seldom: else short leases would never
    end."""
    return expected is not None and last > 0 and now - last > seconds / AWAY_SHARE + CLOCK_SECONDS


def ran_since(now: float, *, last: float) -> float:
    """The seconds since the last time that workers were there, as far as they were there all the time: they ask or
    renew at least every LONGEST_BREAK. In a longer break nobody worked."""
    return now - last if 0 < last <= now <= last + LONGEST_BREAK else 0.0
