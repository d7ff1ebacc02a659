"""Rules of lanes: pace and rests, how many tasks start within a horizon, and fair shares of a lease call."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from shoal.frontier.rules.constants import FAR_SECONDS, MAX_ASK_AGAIN, MIN_ASK_AGAIN, SAME_INTERVAL, SHORT_REST
from shoal.model import REGION, LaneUpdate, Pool


def share_out(rooms: Sequence[int], limit: int) -> list[int]:
    """How many tasks to lease of each lane: equal shares, and the remainder to lanes with more room."""
    given = [0] * len(rooms)
    while limit > 0:
        hungry = [index for index, room in enumerate(rooms) if given[index] < room]
        if not hungry:
            break
        share = max(1, limit // len(hungry))
        for index in hungry:
            part = min(share, rooms[index] - given[index], limit)
            given[index] += part
            limit -= part
    return given


class Pace(NamedTuple):
    """The times and limits of a lane. `base_interval`: the pace to which an adaptive interval returns."""

    next_start: float
    last_start: float
    blocked_until: float
    interval: float
    base_interval: float
    cap: int


def first_pace(interval: float, cap: int, pool: Pool | None) -> tuple[float, int]:
    """The interval and cap of a new lane: those of its pool towards one host, else those of the crawl. The pool of a
    region has none."""
    return (pool.host_interval, pool.host_cap) if pool and not pool.name.startswith(REGION) else (interval, cap)


def needs_opening(*, needs_rules: bool, rules_until: float, now: float) -> bool:
    """Whether the lane needs rules and has no valid ones: then it gets one lease, which opens it."""
    return needs_rules and rules_until <= now


def take_slot(
    at: float, *, next_start: float, interval: float, blocked_until: float, now: float
) -> tuple[float, float]:
    """The lane's last and next start after a request that starts at this time; the next is an interval later.

    In a lane without an interval, a start that its exit delays takes an earlier slot: it must not delay requests
    through other exits."""
    last_start = at if interval else min(at, max(now, next_start))
    return last_start, max(last_start + interval, blocked_until)


def reserved_start(
    *, next_start: float, last_start: float, interval: float, blocked_until: float, missed: float, now: float
) -> float:
    """When a request may start that belongs to no new lease. A request that has `missed` its slot by so many seconds
    starts at once if that slot was the lane's latest: the pace continues from the new start."""
    if missed > 0 and abs(now - missed - last_start) < interval / 2:
        return max(now, blocked_until)
    return max(now, next_start)


def next_start_at(interval: float, *, next_start: float, last_start: float, blocked_until: float, now: float) -> float:
    """The next start of a lane that gets this interval: an interval after its last start, which may be earlier than
    before, but not in the past. A due lane keeps its due time, which is its place among the waiting lanes."""
    return max(last_start + interval, blocked_until, min(next_start, now))


def update_pace(pace: Pace, update: LaneUpdate, *, now: float) -> Pace:
    """The pace of a lane after a response.

    With `if_interval`, the new interval counts only if the lane still has that one; for a refusal with `started`, if it
    is the first of its wave (see `is_of_former_wave`) and slower than the lane. The next wave begins at the end of the
    rest, or now."""
    next_start, last_start, blocked_until, interval, base_interval, cap = pace
    is_former = is_of_former_wave(update.started, blocked_until=blocked_until)
    if update.interval is not None and _counts(update, update.interval, interval=interval, is_former=is_former):
        interval = update.interval
        next_start = next_start_at(
            interval, next_start=next_start, last_start=last_start, blocked_until=blocked_until, now=now
        )
        if update.started is not None:
            blocked_until = max(blocked_until, now)
    if update.base_interval is not None:
        base_interval = update.base_interval
    if update.cap is not None:
        cap = update.cap
    if update.rest_seconds is not None and not (is_former and update.rest_seconds <= SHORT_REST):
        blocked_until = max(blocked_until, now + update.rest_seconds)
        next_start = max(next_start, blocked_until)
    return Pace(next_start, last_start, blocked_until, interval, base_interval, cap)


def is_of_former_wave(started: float | None, *, blocked_until: float) -> bool:
    """Whether a refused request started before the lane slowed down or rested: both answered this refusal, too."""
    return started is not None and started < blocked_until


def _counts(update: LaneUpdate, new: float, *, interval: float, is_former: bool) -> bool:
    if update.if_interval is None:
        return True
    if update.started is None:
        return abs(update.if_interval - interval) <= SAME_INTERVAL
    return new > interval and not is_former


def takes_why(before: Pace, after: Pace, *, is_own_pace: bool, now: float) -> bool:
    """Whether an update's reason replaces the kept one: the lane rests longer than before, or becomes slower while not
    resting, or gets another pace that is faster than its own. An update that sets the lane's own pace is no
    slow-down."""
    if after.blocked_until > max(before.blocked_until, now):
        return True
    if is_own_pace or before.blocked_until > now:
        return False
    return after.interval > before.interval or before.interval != after.interval < after.base_interval


def shows_why(pace: Pace, *, now: float) -> bool:
    """Whether the kept reason still holds: the lane rests, or does not have its own pace."""
    return pace.blocked_until > now or pace.interval != pace.base_interval


def follow_pace(pace: Pace, *, old: tuple[float, int], new: tuple[float, int], now: float) -> Pace:
    """The pace of a lane after the interval and cap of its crawl or pool changed from `old` to `new`: values equal to
    the old ones change, values set by an update stay."""
    next_start, last_start, blocked_until, interval, base_interval, cap = pace
    if base_interval == old[0] != new[0]:
        if interval == base_interval:
            interval = new[0]
        base_interval = new[0]
        next_start = next_start_at(
            new[0], next_start=next_start, last_start=last_start, blocked_until=blocked_until, now=now
        )
    return Pace(next_start, last_start, blocked_until, interval, base_interval, new[1] if cap == old[1] else cap)


def possible_start(pace: Pace, *, in_flight: int, now: float) -> float:
    """Upper bound of `next_start`: rest + (in_flight + 1) intervals + FAR_SECONDS. A later one was written by a wrong
    clock."""
    return max(now, pace.blocked_until) + (in_flight + 1) * max(pace.interval, pace.base_interval) + FAR_SECONDS


def bring_back(pace: Pace, *, in_flight: int, now: float) -> Pace:
    """The pace of a lane whose next start is no further ahead than is possible. A last start that is possible stays:
    workers hold the starts up to it."""
    latest = possible_start(pace, in_flight=in_flight, now=now)
    if pace.next_start <= latest:
        return pace
    last_start = pace.last_start if pace.last_start <= latest else now
    return pace._replace(last_start=last_start, next_start=max(now, last_start + pace.interval, pace.blocked_until))


def starts_within(most: int, *, interval: float, next_start: float, horizon: float, now: float) -> int:
    """How many tasks, at most `most`, a lane can start within the horizon; at least one."""
    if not interval:
        return most
    start, latest = max(now, next_start), now + horizon
    for count in range(1, most):
        start += interval
        if start > latest:
            return count
    return most


def ask_again_in(times: Iterable[float], *, now: float) -> float:
    """Seconds until a worker should ask for leases again. `times`: when tasks can be leased."""
    return max(MIN_ASK_AGAIN, min((now + MAX_ASK_AGAIN, *times)) - now)
