"""Rules of hosts that crawls share: the strictest limits hold for all crawls together, and crawls take turns by weight.

Every crawl has its own lane for the host. Before a lane starts a request it reads the lanes of other crawls with the
same name; it never writes them.

A crawl's priority is a factor of its weight. It is not strict: else a crawl that never ends would stop all others.
A power of nine per step would be nearly strict: four steps are one start in 6,561. Ranks among the crawls would have to
be rewritten in all crawls whenever one changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, NamedTuple

from shoal.frontier.rules.constants import FAR_SECONDS, HEEDED_SECONDS, SAME_INTERVAL, WANTS_SECONDS
from shoal.frontier.rules.lanes import Pace
from shoal.model import STAGE, CrawlState, Held

HOST_FACTOR: Final = 9.0  # starts of a crawl of priority 1 at a shared host, per start of a crawl of priority 0
MOST_STEPS: Final = 9  # higher priorities have no further effect at a host: the other crawls keep their share


def effective_weight(weight: float, priority: int) -> float:
    """The weight by which a crawl shares hosts. Priority n is worth n times nine crawls without priority, -n an n-th
    of a ninth; further steps than MOST_STEPS do not count."""
    steps = min(abs(priority), MOST_STEPS)
    factor = HOST_FACTOR * steps if steps else 1.0
    return weight * factor if priority >= 0 else weight / factor


# How a lane stands to the lanes of other crawls with its name.
APART: Final = -1  # neither reads others nor is read: its crawl shares no hosts, or it is a stage
ALONE: Final = 0  # no lane of another crawl matters now; at most one lane of a name is ALONE
SHARED: Final = 1  # reads the others before it starts a request

DELETING: Final = "deleting"  # the state of a crawl whose rows are being removed
_ENDED: Final = frozenset({CrawlState.FINISHED, CrawlState.CANCELLED, CrawlState.STOPPED})


class OtherLane(NamedTuple):
    """The lane of another crawl for the same host; its times are in the time of the reading crawl.

    `turn`: its starts, each divided by the weight of its crawl. `wants_until`: until then it would take a start slot.
    `heeded_until`: until then its limits count."""

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
    """The limits that other crawls put on a lane.

    - `interval`, `base_interval`, `cap`: the strictest of all lanes; `in_flight`: the sum of the other lanes
    - `not_before`: no request starts earlier; `is_opening`: another lane fetches the rules, so this one must wait
    - `least_turn`: the lowest turn of the crawls that want a start slot; None: no crawl does
    - `first_turn`: the turn of a crawl that returns: the lowest of the waiting crawls, else the highest of those whose
      limits count"""

    interval: float
    base_interval: float
    cap: int
    in_flight: int
    not_before: float
    is_opening: bool
    least_turn: float | None
    first_turn: float | None


def first_sharing(name: str, *, is_apart: bool) -> int:
    """How a new lane stands to lanes of other crawls while there are none."""
    return APART if is_apart or STAGE in name else ALONE


def in_time_of(at: float, *, shift: float, own_shift: float) -> float:
    """Convert a time of another crawl: each crawl's time is the frontier's clock plus a shift."""
    return at if shift == own_shift else at - shift + own_shift


def lane_in_state(other: OtherLane, state: str) -> OtherLane:
    """The lane as it counts for other crawls in this state of its crawl. In an ended crawl it wants no slots, and its
    limits count only while it has requests in flight; in a crawl being deleted it counts for nothing."""
    if state == DELETING:
        return other._replace(in_flight=0, opener=0, wants_until=0.0, heeded_until=0.0)
    return other._replace(wants_until=0.0, heeded_until=0.0) if state in _ENDED else other


def limits_of(
    interval: float, base_interval: float, cap: int, others: Sequence[OtherLane], *, now: float, own_start: float = 0.0
) -> Limits:
    """The limits that other lanes put on a lane with this pace. `own_start`: its own last start, after which the
    interval of a slower crawl holds too; 0: it does not count."""
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
    """Whether the limits of this lane count: it has requests in flight, or its crawl has lately asked for it."""
    return other.in_flight > 0 or other.heeded_until > now


def _is_far(other: OtherLane, interval: float, *, now: float) -> bool:
    """Whether its last start is later than possible: it was written by a wrong clock."""
    return other.last_start > now + (other.in_flight + 1) * interval + FAR_SECONDS


def matters(other: OtherLane, interval: float, *, now: float) -> bool:
    """Whether a lane with this interval must read the other lane before it starts requests."""
    return (
        is_heeded(other, now=now)
        or other.opener != 0
        or other.wants_until > now
        or other.blocked_until > now
        or (other.last_start + interval > now and not _is_far(other, interval, now=now))
    )


def turn_at_return(turn: float, *, wants_until: float, first_turn: float | None, now: float) -> float:
    """The turn of a lane that asks for start slots. A lane that wanted none for a while has not saved up any."""
    return turn if first_turn is None or wants_until > now else max(turn, first_turn)


def turn_owed(turn: float, *, weight: float, limits: Limits, horizon: float) -> float:
    """The turn of a lane that is about to start requests. Starts while no other crawl wanted any are no debt to a crawl
    that came later: the turn is limited to the lead that taking turns can give."""
    if limits.least_turn is None:
        return turn
    return min(turn, limits.least_turn + _turns_ahead(weight, limits, horizon=horizon) + 1.0 / weight)


def _turns_ahead(weight: float, limits: Limits, *, horizon: float) -> float:
    """How far ahead a lane's turn may be: by the starts within the horizon, so that one call can lease them. One turn
    of a crawl with a high weight is many starts."""
    starts = max(1.0, horizon / limits.interval if limits.interval else float(limits.cap))
    return starts / max(1.0, weight)


def turns_left(turn: float, *, weight: float, limits: Limits, horizon: float, most: int) -> int:
    """How many requests, at most `most`, the lane may start before it is the turn of a waiting crawl."""
    if limits.least_turn is None:
        return most
    count, end = 0, limits.least_turn + _turns_ahead(weight, limits, horizon=horizon)
    while count < most and turn < end:
        count, turn = count + 1, turn + 1.0 / weight
    return count


def wants(waiting: int, due: float, *, is_served: bool, now: float) -> tuple[float, float]:
    """Until when a lane wants a start slot, and until when its limits count, after a call that reached it. `is_served`:
    the worker got as many leases as it has room for. `due`: when the lane may start next. The limits of an empty lane
    count too: the pages that its crawl has just fetched may link to it."""
    later = max(now, due)
    return (later + WANTS_SECONDS if waiting and not is_served else 0.0), later + HEEDED_SECONDS


class _Cause(NamedTuple):
    """One cause that holds the lane back, and its strength by crawl."""

    by: Literal["rest", "rules", "cap", "pace", "turn"]
    crawls: Mapping[str, float]


def held_by(
    pace: Pace, others: Mapping[str, OtherLane], *, in_flight: int, lacks_rules: bool, now: float
) -> Held | None:
    """How other crawls, by their ids, hold back a lane with this pace; None: they do not.

    Causes that stop the lane count before causes that slow it down."""
    heeded = {crawl: one for crawl, one in others.items() if is_heeded(one, now=now)}
    wanting = {crawl: one for crawl, one in others.items() if one.wants_until > now}
    causes = (
        _Cause("rest", _rests(pace, others, now=now)),
        _Cause("rules", {crawl: 1.0 for crawl, one in others.items() if one.opener and lacks_rules}),
        _Cause("cap", _crowd(pace, heeded, in_flight=in_flight)),
        _Cause(
            "pace", {name: one.interval for name, one in heeded.items() if one.interval > pace.interval + SAME_INTERVAL}
        ),
        # The crawl with the lowest turn goes first.
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
    """The ends of rests that are later than the lane's own."""
    return {name: one.blocked_until for name, one in others.items() if one.blocked_until > max(now, pace.blocked_until)}


def _crowd(pace: Pace, heeded: Mapping[str, OtherLane], *, in_flight: int) -> dict[str, float]:
    """By crawl, its requests in flight, if together they leave no room for another one; else empty."""
    cap = min([pace.cap, *(one.cap for one in heeded.values() if one.cap > 0)])
    flying = {crawl: float(one.in_flight) for crawl, one in heeded.items() if one.in_flight}
    return flying if in_flight + sum(flying.values()) >= cap else {}
