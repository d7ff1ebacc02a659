"""Which pool earns its money, and how amounts and times are shown."""

from __future__ import annotations

import time
from datetime import datetime

import pytest

from shoal.exits.figures import clock_time, earnings_of, money
from shoal.model import ExitStatus


def test_the_pool_whose_good_pages_cost_least_comes_first_for_each_host() -> None:
    uses = [
        ExitStatus(exit="a", lane="z.test via dear", requests=10, ok=10, cost=1.0),
        ExitStatus(exit="b", lane="z.test via none", requests=10, blocked=10, cost=0.1),
        ExitStatus(exit="c", lane="z.test via cheap", requests=10, ok=4, failed=6, cost=0.1),
        ExitStatus(exit="d", lane="z.test via cheap", requests=1, in_flight=1, ok=0, cost=0.0),
        ExitStatus(exit="a", lane="a.test via dear", requests=1),
    ]
    found = earnings_of(uses)
    assert [(one.host, one.pool) for one in found] == [
        ("a.test", "dear"),
        ("z.test", "cheap"),
        ("z.test", "dear"),
        ("z.test", "none"),
    ]
    assert [one.cost_per_1000_ok for one in found] == [None, pytest.approx(25.0), pytest.approx(100.0), None]
    assert [one.ended.success for one in found] == [None, 0.4, 1.0, 0.0]
    assert (found[1].exits, found[1].requests) == (2, 11)


@pytest.mark.parametrize(
    ("amount", "shown"), [(0.0, "0.00"), (3.2, "3.20"), (12345.678, "12,345.68"), (0.0004, "0.00040"), (0.05, "0.050")]
)
def test_an_amount_shows_two_digits_that_say_something(amount: float, shown: str) -> None:
    assert money(amount) == shown


def test_a_time_is_as_exact_as_it_is_near() -> None:
    noon = datetime(2026, 5, 12, 12, 0, 0).timestamp()
    assert clock_time(noon + 65, now=noon) == "12:01:05"
    assert clock_time(noon + 1860, now=noon) == "12:31"
    assert clock_time(noon + 86_400, now=noon) == "2026-05-13 12:00"
    assert len(clock_time(time.time())) == 8
