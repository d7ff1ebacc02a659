"""How crawls share a host: the strictest of their limits holds for all of them together, and they take turns.

Every crawl keeps a lane of its own for the host. Before a lane starts a request it looks at the lanes that the other
crawls have under the same name; it never writes into them. Decision 59 says why.

What the priority of a crawl means at a host that it shares with others. Decision 60 says why.

Which other crawl holds back a lane that shares its host, for people to read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from shoal.frontier.rules.constants import FAR_SECONDS, HEEDED_SECONDS, SAME_INTERVAL, WANTS_SECONDS
from shoal.frontier.rules.lanes import Pace
from shoal.model import STAGE, CrawlState, Held

HOST_FACTOR: Final = 9.0  # the starts at a shared host of a crawl of priority 1, for each one of a crawl of priority 0
MOST_STEPS: Final = 9  # more priority than this is no more at a host: the other crawls keep their share


def effective_weight(weight: float, priority: int) -> float:
    """The weight by which a crawl shares hosts with others. Each step of priority above 0 is worth nine crawls without
    priority; below 0 the same holds the other way round."""
    steps = min(abs(priority), MOST_STEPS)
    factor = HOST_FACTOR * steps if steps else 1.0
    return weight * factor if priority >= 0 else weight / factor


# How a lane stands to those of other crawls.
APART: Final = -1  # neither looks at others nor is looked at: its crawl's pace is its own, or it is a stage
ALONE: Final = 0  # no lane of another crawl matters now; of the lanes of one name at most one is alone
SHARED: Final = 1  # looks at the others before it starts a request

DELETING: Final = "deleting"  # the state of a crawl whose rows are being removed
_ENDED: Final = frozenset({CrawlState.FINISHED, CrawlState.CANCELLED, CrawlState.STOPPED})


class OtherLane(NamedTuple):
    """The lane of another crawl for the same host, with its times in the time of the crawl that looks.

    `turn` is how many requests it has started, each divided by the weight of its crawl. Until `wants_until` it would
    take a start slot if it got one, until `heeded_until` its limits count."""

    last_start: float
    blocked_until: float
    interval: float
    base_interval: float
    cap: int
    in_flight: int
    opener: int
    turn: float
    wants_until: float
    heeded_until: float


class Limits(NamedTuple):
    """What other crawls leave to a lane. `interval`, `base_interval` and `cap` are the strictest of all, `in_flight` is
    of the others alone. No request starts before `not_before`, and none of a lane that needs rules while one of them
    `is_opening` the host. `least_turn` is of those that want a start slot, None if nobody does. `first_turn` is where a
    crawl begins that wanted none: with the least of those that want one, else behind all whose limits count."""

    interval: float
    base_interval: float
    cap: int
    in_flight: int
    not_before: float
    is_opening: bool
    least_turn: float | None
    first_turn: float | None


def first_sharing(name: str, *, is_apart: bool) -> int:
    """How a new lane stands to those of other crawls, as long as there are none."""
    return APART if is_apart or STAGE in name else ALONE


def in_time_of(at: float, *, shift: float, own_shift: float) -> float:
    """A time of another crawl in the time of the crawl that looks: each is the frontier's clock plus a shift."""
    return at if shift == own_shift else at - shift + own_shift


def lane_in_state(other: OtherLane, state: str) -> OtherLane:
    """What the lane is to other crawls while its own crawl is in this state. One that has ended wants nothing, and its
    limits count only for what it still has in flight; one that is being deleted has nothing there."""
    if state == DELETING:
        return other._replace(in_flight=0, opener=0, wants_until=0.0, heeded_until=0.0)
    return other._replace(wants_until=0.0, heeded_until=0.0) if state in _ENDED else other


def limits_of(
    interval: float, base_interval: float, cap: int, others: Sequence[OtherLane], *, now: float, own_start: float = 0.0
) -> Limits:
    """What the lanes of other crawls leave to a lane with this pace. `own_start`: its own last start, after which the
    interval of a slower crawl holds as well; 0: none counts."""
    heeded = [other for other in others if is_heeded(other, now=now)]
    own_interval, interval = interval, max([interval, *(other.interval for other in heeded)])
    ends = [other.blocked_until for other in others]
    ends += [own_start + interval] if own_start and interval > own_interval else []
    ends += [other.last_start + interval for other in others if not _is_far(other, interval, now=now)]
    wanting = [other.turn for other in others if other.wants_until > now]
    return Limits(
        interval=interval,
        base_interval=max([base_interval, *(other.base_interval for other in heeded)]),
        # A cap of zero stops the crawl that has it, not the others.
        cap=min([cap, *(other.cap for other in heeded if other.cap > 0)]),
        in_flight=sum(other.in_flight for other in others),
        not_before=max(ends, default=0.0),
        is_opening=any(other.opener != 0 for other in others),
        least_turn=min(wanting, default=None),
        first_turn=min(wanting) if wanting else max((other.turn for other in heeded), default=None),
    )


def is_heeded(other: OtherLane, *, now: float) -> bool:
    """Whether the limits of this lane count: it has requests in flight, or its crawl asked for it lately."""
    return other.in_flight > 0 or other.heeded_until > now


def _is_far(other: OtherLane, interval: float, *, now: float) -> bool:
    """Whether its last start lies further ahead than is possible: the clock was wrong when it was written."""
    return other.last_start > now + (other.in_flight + 1) * interval + FAR_SECONDS


def matters(other: OtherLane, interval: float, *, now: float) -> bool:
    """Whether a lane with this interval has to look at the other one."""
    return (
        is_heeded(other, now=now)
        or other.opener != 0
        or other.wants_until > now
        or other.blocked_until > now
        or (other.last_start + interval > now and not _is_far(other, interval, now=now))
    )


def turn_at_return(turn: float, *, wants_until: float, first_turn: float | None, now: float) -> float:
    """The turn of a lane that asks for start slots. One that wanted none meanwhile has saved none up."""
    return turn if first_turn is None or wants_until > now else max(turn, first_turn)


def turn_owed(turn: float, *, weight: float, limits: Limits, horizon: float) -> float:
    """The turn of a lane that is about to start requests. What it has started while nobody else wanted to is no debt to
    a crawl that came later: it is no further ahead of those that want a start slot than taking turns can bring it."""
    if limits.least_turn is None:
        return turn
    return min(turn, limits.least_turn + _turns_ahead(weight, limits, horizon=horizon) + 1.0 / weight)


def _turns_ahead(weight: float, limits: Limits, *, horizon: float) -> float:
    """How far ahead a lane may be: by as many as start within the horizon, so that one call can lend them. A turn of a
    crawl of much weight is many starts."""
    starts = max(1.0, horizon / limits.interval if limits.interval else float(limits.cap))
    return starts / max(1.0, weight)


def turns_left(turn: float, *, weight: float, limits: Limits, horizon: float, most: int) -> int:
    """How many requests, at most `most`, the lane may start before a crawl that waits has had its turn."""
    if limits.least_turn is None:
        return most
    count, end = 0, limits.least_turn + _turns_ahead(weight, limits, horizon=horizon)
    while count < most and turn < end:
        count, turn = count + 1, turn + 1.0 / weight
    return count


def wants(waiting: int, due: float, *, is_served: bool, now: float) -> tuple[float, float]:
    """Until when a lane wants a start slot and its limits count, after a call that looked at it. `is_served`: the call
    lent all that the worker had room for. `due`: when the lane may start next. The limits of a lane that has got empty
    count as well: the pages that its crawl has just fetched may lead back there."""
    later = max(now, due)
    return (later + WANTS_SECONDS if waiting and not is_served else 0.0), later + HEEDED_SECONDS


class _Cause(NamedTuple):
    """What holds the lane back, and how much each of the crawls does so."""

    by: Literal["rest", "rules", "cap", "pace", "turn"]
    crawls: Mapping[str, float]


def held_by(
    pace: Pace, others: Mapping[str, OtherLane], *, in_flight: int, lacks_rules: bool, now: float
) -> Held | None:
    """What other crawls, by their ids, do to a lane with this pace; None: they do nothing to it.

    What lets nothing start counts before what makes the lane slow."""
    heeded = {crawl: one for crawl, one in others.items() if is_heeded(one, now=now)}
    wanting = {crawl: one for crawl, one in others.items() if one.wants_until > now}
    causes = (
        _Cause("rest", _rests(pace, others, now=now)),
        _Cause("rules", {crawl: 1.0 for crawl, one in others.items() if one.opener and lacks_rules}),
        _Cause("cap", _crowd(pace, heeded, in_flight=in_flight)),
        _Cause(
            "pace", {name: one.interval for name, one in heeded.items() if one.interval > pace.interval + SAME_INTERVAL}
        ),
        # Who has had least goes first.
        _Cause("turn", {crawl: -one.turn for crawl, one in wanting.items()}),
    )
    found = next((cause for cause in causes if cause.crawls), None)
    if found is None:
        return None
    return Held(
        crawl=min(found.crawls, key=lambda crawl: (-found.crawls[crawl], crawl)),
        by=found.by,
        interval=max([pace.interval, *(one.interval for one in heeded.values())]),
        seconds=max(0.0, *(one.blocked_until - now for one in others.values())),
        more=len(found.crawls) - 1,
        turns=len(wanting),
    )


def _rests(pace: Pace, others: Mapping[str, OtherLane], *, now: float) -> dict[str, float]:
    """The rests that are longer than the lane's own."""
    return {name: one.blocked_until for name, one in others.items() if one.blocked_until > max(now, pace.blocked_until)}


def _crowd(pace: Pace, heeded: Mapping[str, OtherLane], *, in_flight: int) -> dict[str, float]:
    """The requests in flight of crawls that leave no room for another one."""
    cap = min([pace.cap, *(one.cap for one in heeded.values() if one.cap > 0)])
    flying = {crawl: float(one.in_flight) for crawl, one in heeded.items() if one.in_flight}
    return flying if in_flight + sum(flying.values()) >= cap else {}
