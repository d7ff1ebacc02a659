"""What a process reckons of a crawl's time, and how it waits for start slots."""

from __future__ import annotations

import pytest

from shoal.frontier.clock import COMPARED_SECONDS, SteadyTimes, slack_of, steady_seconds, wait_for_slot
from shoal.testing.clock import FakeClock


def test_a_steady_clock_does_not_go_back() -> None:
    assert steady_seconds() <= steady_seconds()


def test_nothing_is_expected_before_the_first_answer_nor_without_a_steady_clock() -> None:
    assert SteadyTimes(FakeClock().steady).expected("c") is None
    without = SteadyTimes(None)
    without.note("c", 1000.0, shift=0.0, asked=without.now())
    assert without.expected("c") is None
    assert without.age("c", 1000.0) == 0.0


def test_the_time_that_is_expected_goes_on_from_the_answer_or_from_as_long_before_as_the_call_took() -> None:
    clock = FakeClock()
    times = SteadyTimes(clock.steady)
    asked = times.now()
    clock.advance(0.5)
    times.note("c", 1000.0, shift=0.0, asked=asked)
    clock.advance(2.0)
    assert times.expected("c") == pytest.approx((1002.0, 0.5, 0.0))
    assert times.expected("other") is None


def test_an_answer_is_as_old_as_it_came_later_than_others() -> None:
    clock = FakeClock()
    times = SteadyTimes(clock.steady)
    assert times.age("c", 1000.0, asked=-0.1) == 0.0
    clock.advance(1.3)
    assert times.age("c", 1001.0, asked=0.9) == pytest.approx(0.3)
    clock.advance(1.0)
    assert times.age("c", 1002.3, asked=2.2) == pytest.approx(0.0)


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_no_answer_is_older_than_its_question_whatever_the_clock_of_the_frontier_was_stepped_by(step: float) -> None:
    clock = FakeClock()
    times = SteadyTimes(clock.steady)
    times.age("c", 1000.0, asked=-0.1)
    clock.advance(1.0)
    assert times.age("c", 1001.0 + step, asked=0.9) == 0.0
    clock.advance(1.3)
    assert times.age("c", 1002.0 + step, asked=1.9) == pytest.approx(0.3)


def test_many_answers_that_come_late_together_are_late_all_the_same() -> None:
    clock = FakeClock()
    times = SteadyTimes(clock.steady)
    times.age("c", 1000.0)
    clock.advance(3.0)
    assert [times.age("c", 1000.0) for _ in range(100)] == pytest.approx([3.0] * 100)


def test_a_way_that_has_become_longer_is_the_usual_one_after_a_while() -> None:
    clock = FakeClock()
    times = SteadyTimes(clock.steady)
    times.age("c", clock.steady())
    ages = []
    for _ in range(5):
        clock.advance(COMPARED_SECONDS)
        ages.append(times.age("c", clock.steady() - 0.2))
    assert ages == pytest.approx([0.2, 0.2, 0.2, 0.0, 0.0], abs=1e-6)


@pytest.mark.parametrize(
    ("interval", "slack"), [(1.0, 0.05), (0.25, 0.0125), (0.1, 0.01), (0.02, 0.01), (0.0, float("inf"))]
)
def test_a_start_is_late_after_a_twentieth_of_its_interval(interval: float, slack: float) -> None:
    assert slack_of(interval) == pytest.approx(slack)


async def test_a_slot_whose_answer_came_late_is_given_up_too() -> None:
    clock = FakeClock()
    waits = [-0.2, 0.0]

    async def reserve(*, missed: float) -> float:
        return waits.pop(0)

    start = clock()
    clock.advance(0.3)
    await wait_for_slot(start, interval=1.0, reserve=reserve, monotonic=clock)
    assert waits == []
