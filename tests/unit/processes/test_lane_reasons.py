"""Why a lane rests, is slow, or has a pace of its own, as people read it."""

from __future__ import annotations

import re
from typing import Any

import pytest

from shoal.cli.display.tables import reason_lines
from shoal.insight.bounds import is_resting, why_so
from shoal.model import Crawl, Held, LaneStatus, Pool
from shoal.policy.politeness import lent_interval

RING = Pool(name="ring", exits=("ring/x",), interval=1.0)
CRAWL = Crawl(id="c", spider="s", interval=1.0, cap=8, pools=(RING,))
WAIT = "429, asked to wait 90 s (Retry-After)"


def lane(name: str = "a.test", **fields: Any) -> LaneStatus:
    values = {"lane": name, "waiting": 10, "in_flight": 1, "interval": 1.0, "base_interval": 1.0, "cap": 8, **fields}
    return LaneStatus(**values)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({}, ""),
        ({"starts_in": 0.5}, ""),
        ({"cap": 0, "rests_for": 90.0, "why": WAIT}, "blocked by an operator"),
        ({"rests_for": 90.0, "starts_in": 90.0, "why": WAIT}, f"{WAIT}; rests until TIME"),
        ({"rests_for": 90.0, "starts_in": 90.0}, "its answers asked for a rest; rests until TIME"),
        ({"name": "a.test via ring", "exits_rest": True, "starts_in": 90.0}, "every exit of ring rests until TIME"),
        (
            {"name": "a.test via ring", "waits_for_exit": True, "starts_in": 90.0},
            "its exits are in use, or wait for their turn",
        ),
        ({"interval": 3.0, "why": "backing off"}, "slower than asked for: backing off"),
        ({"interval": 0.101}, "searching, 10/s"),
        ({"interval": 0.101, "why": "knee near 12/s"}, "searching, 10/s, knee near 12/s"),
        ({"interval": 3.0}, "slower than asked for: its answers call for that"),
        (
            {"interval": 9.0, "base_interval": 9.0, "pace_why": "robots.txt has Crawl-delay 9 s"},
            "robots.txt has Crawl-delay 9 s",
        ),
        (
            {"interval": 9.0, "base_interval": 9.0},
            "its pace was changed by an operator, or by its robots.txt",
        ),
        ({"pace_why": "it has the crawl's pace again"}, ""),
        ({"held": Held(crawl="n-1", by="turn", turns=1)}, "takes turns with n-1"),
        (
            {"held": Held(crawl="n-1", by="turn", turns=1), "interval": 3.0, "why": "backing off"},
            "slower than asked for: backing off",
        ),
        (
            {"held": Held(crawl="n-1", by="pace", interval=lent_interval(2.0))},
            "slower than asked for: n-1 has it at 30/m",
        ),
        ({"held": Held(crawl="n-1", by="rules")}, "n-1 fetches its robots.txt"),
        (
            {"held": Held(crawl="n-1", by="cap", more=1)},
            "with those of n-1 and 1 other crawl it has as many requests in flight as it may",
        ),
        (
            {"held": Held(crawl="n-1", by="rest", seconds=90.0), "rests_for": 9.0, "why": WAIT},
            "the host asked n-1 to wait; rests until TIME",
        ),
        ({"held": Held(crawl="n-1", by="cap"), "rests_for": 90.0, "why": WAIT}, f"{WAIT}; rests until TIME"),
    ],
)
def test_each_reason_has_a_line(fields: dict[str, Any], why: str) -> None:
    said = why_so(lane(**fields), CRAWL)
    assert re.sub(r"(\d{4}-\d\d-\d\d )?\d\d:\d\d(:\d\d)?", "TIME", said) == why


def test_a_lane_with_a_long_interval_rests_only_when_it_was_told_to() -> None:
    assert not is_resting(lane(interval=60.0, base_interval=60.0, starts_in=50.0))
    assert is_resting(lane(interval=60.0, base_interval=60.0, starts_in=50.0, rests_for=50.0))
    assert is_resting(lane(starts_in=50.0))
    assert not is_resting(lane(waiting=0, starts_in=50.0, rests_for=50.0))
    assert is_resting(lane(held=Held(crawl="n-1", by="rest", seconds=50.0)))


def test_the_first_lanes_that_rest_or_are_slow_are_explained_below_the_table() -> None:
    slow = [lane(f"{number}.test", interval=3.0, why="backing off") for number in range(5)]
    lines = reason_lines([lane(), *slow], CRAWL)
    assert lines == [f"{number}.test: slower than asked for: backing off" for number in range(3)]
