"""Which other crawl holds back a lane that shares its host."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.frontier.rules.hosts import OtherLane, held_by
from shoal.frontier.rules.lanes import Pace
from shoal.model import Held

NOW = 100.0
OWN = Pace(next_start=0.0, last_start=0.0, blocked_until=0.0, interval=1.0, base_interval=1.0, cap=8)
QUIET: dict[str, Any] = {
    "last_start": 0.0,
    "blocked_until": 0.0,
    "interval": 1.0,
    "base_interval": 1.0,
    "cap": 8,
    "in_flight": 0,
    "opener": 0,
    "turn": 0.0,
    "wants_until": 0.0,
    "heeded_until": 0.0,
}
WANTS = {"wants_until": NOW + 1, "heeded_until": NOW + 60}


def held(*, in_flight: int = 0, lacks_rules: bool = False, **others: dict[str, Any]) -> Held | None:
    lanes = {name: OtherLane(**{**QUIET, **fields}) for name, fields in others.items()}
    return held_by(OWN, lanes, in_flight=in_flight, lacks_rules=lacks_rules, now=NOW)


def test_crawls_that_do_nothing_hold_nobody_back() -> None:
    assert held() is None
    assert held(b={}, c={"interval": 9.0, "cap": 1, "blocked_until": NOW - 1}) is None


@pytest.mark.parametrize(
    ("fields", "by", "more"),
    [
        (WANTS, "turn", {"turns": 1}),
        ({**WANTS, "interval": 4.0}, "pace", {"turns": 1, "interval": 4.0}),
        ({**WANTS, "interval": 4.0, "in_flight": 8}, "cap", {"turns": 1, "interval": 4.0}),
        ({**WANTS, "in_flight": 8, "blocked_until": NOW + 9}, "rest", {"turns": 1, "seconds": 9.0}),
        ({"blocked_until": NOW + 9}, "rest", {"seconds": 9.0}),
    ],
)
def test_what_lets_nothing_start_counts_before_what_makes_it_slow(
    fields: dict[str, Any], by: str, more: dict[str, Any]
) -> None:
    found = held(b=fields)
    assert found is not None
    assert (found.crawl, found.by) == ("b", by)
    expected = {"interval": 1.0, "seconds": 0.0, "more": 0, "turns": 0, **more}
    assert {name: getattr(found, name) for name in expected} == expected


def test_a_smaller_cap_of_another_crawl_counts_with_its_requests() -> None:
    small = {**WANTS, "cap": 3, "in_flight": 1}
    assert held(b=small, in_flight=1) == Held(crawl="b", by="turn", interval=1.0, turns=1)
    full = held(b=small, in_flight=2)
    assert full is not None
    assert full.by == "cap"


def test_robots_txt_is_waited_for_only_by_those_that_lack_it() -> None:
    opening = {"opener": 5, "in_flight": 1, "heeded_until": NOW + 60}
    assert held(b=opening) is None
    assert held(b=opening, lacks_rules=True) == Held(crawl="b", by="rules", interval=1.0)


def test_of_several_the_one_that_does_most_is_named() -> None:
    found = held(b={**WANTS, "interval": 2.0}, c={**WANTS, "interval": 4.0}, d=WANTS)
    assert found == Held(crawl="c", by="pace", interval=4.0, more=1, turns=3)
    found = held(b={**WANTS, "turn": 5.0}, c={**WANTS, "turn": 3.0})
    assert found == Held(crawl="c", by="turn", interval=1.0, more=1, turns=2)
