"""Which other crawl holds back a lane that shares its host, for people to read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

from shoal.frontier.rules.constants import SAME_INTERVAL
from shoal.frontier.rules.hosts import OtherLane, is_heeded
from shoal.frontier.rules.lanes import Pace
from shoal.model import Held


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
