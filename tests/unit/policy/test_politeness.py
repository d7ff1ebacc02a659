from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.model import LaneUpdate, Lease, Task
from shoal.policy.politeness import GOOD_STREAK, SLOWEST_INTERVAL, LaneMood, Moods, after_response
from shoal.policy.retries import Verdict

GOOD = Verdict("ok", "handle")
SLOW = Verdict("http_429", "retry", free=True, slows=True)


def after(
    verdict: Verdict,
    *,
    interval: float,
    base: float = 1.0,
    latency: float = 0.1,
    mood: LaneMood | None = None,
) -> LaneUpdate | None:
    return after_response(mood or LaneMood(), verdict, latency=latency, interval=interval, base_interval=base)


def lease(lane: str = "a", *, interval: float = 1.0, base: float = 1.0) -> Lease:
    task = Task(url=f"http://{lane}/", key=1, lane=lane)
    return Lease(crawl="c", task=task, token=1, interval=interval, base_interval=base)


def test_a_good_answer_at_the_base_pace_changes_nothing() -> None:
    mood = LaneMood()
    assert all(after(GOOD, interval=1.0, mood=mood) is None for _ in range(100))


def test_a_struggling_host_is_asked_half_as_often() -> None:
    assert after(SLOW, interval=1.0) == LaneUpdate(interval=2.0, if_interval=1.0)


def test_many_refusals_of_one_moment_slow_the_lane_once() -> None:
    updates = {(update.interval, update.if_interval) for _ in range(50) if (update := after(SLOW, interval=1.0))}
    assert updates == {(2.0, 1.0)}


def test_an_unlimited_lane_gets_an_interval() -> None:
    assert after(SLOW, interval=0.0, base=0.0) == LaneUpdate(interval=0.1, if_interval=0.0)


def test_slows_down_no_further_than_the_slowest_interval() -> None:
    assert after(SLOW, interval=40.0) == LaneUpdate(interval=SLOWEST_INTERVAL, if_interval=40.0)
    assert after(SLOW, interval=SLOWEST_INTERVAL) is None


def test_a_base_slower_than_the_slowest_interval_stays() -> None:
    assert after(SLOW, interval=300.0, base=300.0) is None


def test_recovers_slowly_after_a_run_of_good_answers() -> None:
    mood = LaneMood()
    updates = [after(GOOD, interval=4.0, mood=mood) for _ in range(GOOD_STREAK)]
    assert updates[:-1] == [None] * (GOOD_STREAK - 1)
    assert updates[-1] == LaneUpdate(interval=pytest.approx(3.2), if_interval=4.0)


def test_a_refusal_starts_the_run_anew() -> None:
    mood = LaneMood()
    for _ in range(GOOD_STREAK - 1):
        after(GOOD, interval=4.0, mood=mood)
    after(SLOW, interval=4.0, mood=mood)
    assert after(GOOD, interval=4.0, mood=mood) is None


@pytest.mark.parametrize("base", [0.0, 0.25, 1.0, 10.0])
def test_recovery_arrives_at_the_base_and_never_below(base: float) -> None:
    mood, interval = LaneMood(), 60.0
    for _ in range(GOOD_STREAK * 200):
        update = after(GOOD, interval=interval, base=base, mood=mood)
        if update is not None and update.interval is not None:
            assert base <= update.interval < interval
            interval = update.interval
    assert interval == base


def test_answers_far_slower_than_usual_ease_the_pace() -> None:
    mood = LaneMood()
    for _ in range(10):
        after(GOOD, interval=1.0, latency=0.5, mood=mood)
    assert after(GOOD, interval=1.0, latency=5.0, mood=mood) == LaneUpdate(interval=1.25, if_interval=1.0)


def test_quick_answers_may_vary_without_consequence() -> None:
    mood = LaneMood()
    for _ in range(10):
        after(GOOD, interval=1.0, latency=0.01, mood=mood)
    assert after(GOOD, interval=1.0, latency=0.5, mood=mood) is None


def test_a_host_that_is_always_slow_is_not_slowed_further() -> None:
    mood = LaneMood()
    assert all(after(GOOD, interval=1.0, latency=8.0, mood=mood) is None for _ in range(50))


@given(
    st.lists(st.tuples(st.booleans(), st.floats(0, 100)), max_size=200),
    st.floats(0, 120),
)
def test_the_pace_stays_between_the_base_and_the_slowest(answers: list[tuple[bool, float]], base: float) -> None:
    mood, interval = LaneMood(), base
    for is_good, latency in answers:
        update = after(GOOD if is_good else SLOW, interval=interval, base=base, latency=latency, mood=mood)
        if update is not None and update.interval is not None:
            assert update.if_interval == interval
            interval = update.interval
        assert base <= interval <= max(SLOWEST_INTERVAL, base)


def test_a_fixed_pace_never_changes() -> None:
    moods = Moods(adaptive=False)
    assert moods.after(lease(), SLOW, 0.1) is None


def test_each_lane_has_its_own_mood() -> None:
    moods = Moods(adaptive=True)
    for _ in range(GOOD_STREAK - 1):
        assert moods.after(lease("a", interval=2.0), GOOD, 0.1) is None
    assert moods.after(lease("b", interval=2.0), GOOD, 0.1) is None
    assert moods.after(lease("a", interval=2.0), GOOD, 0.1) is not None


def test_forgets_the_lane_it_served_longest_ago() -> None:
    moods = Moods(adaptive=True, size=2)
    for _ in range(GOOD_STREAK - 1):
        moods.after(lease("a", interval=2.0), GOOD, 0.1)
    moods.after(lease("b"), GOOD, 0.1)
    moods.after(lease("a"), GOOD, 0.1)
    moods.after(lease("c"), GOOD, 0.1)
    assert set(moods._moods) == {"a", "c"}


def test_one_failing_page_does_not_slow_its_host() -> None:
    unavailable = Verdict("http_503", "retry", slows=True)
    mood = LaneMood()
    for _ in range(20):
        assert after(GOOD, interval=1.0, mood=mood) is None
    assert after(unavailable, interval=1.0, mood=mood) is None
    assert after(GOOD, interval=1.0, mood=mood) is None
    assert after(unavailable, interval=1.0, mood=mood) == LaneUpdate(interval=2.0, if_interval=1.0)
