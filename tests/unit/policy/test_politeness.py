from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.frontier.rules.tasks import next_token
from shoal.model import LaneUpdate, Lease, Task
from shoal.policy.pace import Pacer
from shoal.policy.politeness import SLOWEST_INTERVAL, TROUBLED_RUN, LaneHealth, after_response
from shoal.policy.retries import Verdict

GOOD = Verdict("ok", "handle")
TOO_MANY = Verdict("http_429", "retry", free=True, slows=True, too_often=True)
UNAVAILABLE_FOR_NOW = Verdict("http_503", "retry", free=True, slows=True)
UNAVAILABLE = Verdict("http_503", "retry", slows=True)
REFUSALS = [TOO_MANY, UNAVAILABLE_FOR_NOW, UNAVAILABLE]


def after(
    verdict: Verdict,
    *,
    interval: float,
    base: float = 1.0,
    latency: float = 0.1,
    health: LaneHealth | None = None,
) -> LaneUpdate | None:
    health = health or LaneHealth()
    health.note(refused=verdict.slows)
    return unexplained(after_response(health, verdict, latency=latency, interval=interval, base_interval=base))


def unexplained(update: LaneUpdate | None) -> LaneUpdate | None:
    """The update without its reason."""
    return update and msgspec.structs.replace(update, why="")


def troubled() -> LaneHealth:
    """The health after refusals in a row; one more makes it trouble."""
    return LaneHealth(run=TROUBLED_RUN - 1)


def lease(lane: str = "a", *, interval: float = 1.0, base: float = 1.0, token: int = 1, wait: float = 0.0) -> Lease:
    task = Task(url=f"http://{lane}/", key=1, lane=lane)
    return Lease(crawl="c", task=task, token=token, wait=wait, interval=interval, base_interval=base)


def test_a_good_answer_at_the_base_pace_changes_nothing() -> None:
    health = LaneHealth()
    assert all(after(GOOD, interval=1.0, health=health) is None for _ in range(100))


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_struggling_host_is_asked_less_often(refusal: Verdict) -> None:
    assert after(refusal, interval=1.0, health=troubled()) == LaneUpdate(interval=1.5, if_interval=1.0)


def test_a_host_that_says_it_is_asked_too_often_is_asked_a_little_less_often() -> None:
    assert after(TOO_MANY, interval=1.0) == LaneUpdate(interval=pytest.approx(1.1), if_interval=1.0)
    assert after(TOO_MANY, interval=4.0) == LaneUpdate(interval=pytest.approx(4.4), if_interval=4.0)


def test_lone_refusals_with_retry_after_slow_a_lane_by_a_tenth_in_all() -> None:
    assert after(UNAVAILABLE_FOR_NOW, interval=1.0) == LaneUpdate(interval=pytest.approx(1.1), if_interval=1.0)
    assert after(UNAVAILABLE_FOR_NOW, interval=1.1) == LaneUpdate(interval=pytest.approx(1.11), if_interval=1.1)
    assert after(UNAVAILABLE_FOR_NOW, interval=1.11) is None
    assert after(UNAVAILABLE_FOR_NOW, interval=4.0) is None


def test_one_failing_page_does_not_slow_its_host() -> None:
    health = LaneHealth()
    assert after(UNAVAILABLE, interval=1.0, health=health) is None
    for _ in range(20):
        assert after(GOOD, interval=1.0, health=health) is None
    for _ in range(TROUBLED_RUN - 1):
        assert after(UNAVAILABLE, interval=1.0, health=health) is None
    assert after(UNAVAILABLE, interval=1.0, health=health) == LaneUpdate(interval=1.5, if_interval=1.0)


def test_a_third_of_refusals_is_trouble_also_when_no_two_follow_each_other() -> None:
    health = LaneHealth()
    updates = [after(verdict, interval=1.0, health=health) for _ in range(20) for verdict in (GOOD, GOOD, UNAVAILABLE)]
    assert LaneUpdate(interval=1.5, if_interval=1.0) in updates


def test_a_tenth_of_refusals_is_no_trouble() -> None:
    health = LaneHealth()
    verdicts = [*[GOOD] * 9, UNAVAILABLE] * 100
    assert [update for verdict in verdicts if (update := after(verdict, interval=1.0, health=health))] == []


def test_an_unlimited_lane_gets_an_interval() -> None:
    slower = LaneUpdate(interval=0.1, if_interval=0.0)
    assert after(UNAVAILABLE, interval=0.0, base=0.0, health=troubled()) == slower
    assert after(TOO_MANY, interval=0.0, base=0.0) == slower
    assert after(UNAVAILABLE_FOR_NOW, interval=0.0, base=0.0) is None


def test_slows_down_no_further_than_the_slowest_interval() -> None:
    slowest = LaneUpdate(interval=SLOWEST_INTERVAL, if_interval=50.0)
    assert after(TOO_MANY, interval=50.0, health=troubled()) == slowest
    assert after(TOO_MANY, interval=SLOWEST_INTERVAL, health=troubled()) is None


def test_a_base_slower_than_the_slowest_interval_stays() -> None:
    assert after(TOO_MANY, interval=300.0, base=300.0, health=troubled()) is None


def test_a_good_answer_of_any_worker_speeds_a_slowed_lane_up() -> None:
    assert after(GOOD, interval=0.5, base=0.05) == LaneUpdate(interval=pytest.approx(0.47), if_interval=0.5)
    assert after(GOOD, interval=4.0) == LaneUpdate(interval=pytest.approx(3.04), if_interval=4.0)
    assert after(GOOD, interval=60.0) == LaneUpdate(interval=pytest.approx(15.0), if_interval=60.0)


@pytest.mark.parametrize("base", [0.0, 0.25, 1.0, 10.0])
def test_recovery_arrives_at_the_base_and_never_below(base: float) -> None:
    health, interval = LaneHealth(), 60.0
    for _ in range(200):
        update = after(GOOD, interval=interval, base=base, health=health)
        if update is not None and update.interval is not None:
            assert base <= update.interval < interval
            interval = update.interval
    assert interval == base


def test_answers_far_slower_than_usual_ease_the_pace() -> None:
    health = LaneHealth()
    for _ in range(10):
        after(GOOD, interval=1.0, latency=0.5, health=health)
    assert after(GOOD, interval=1.0, latency=5.0, health=health) == LaneUpdate(interval=1.25, if_interval=1.0)


def test_quick_answers_may_vary_without_consequence() -> None:
    health = LaneHealth()
    for _ in range(10):
        after(GOOD, interval=1.0, latency=0.01, health=health)
    assert after(GOOD, interval=1.0, latency=0.5, health=health) is None


def test_a_host_that_is_always_slow_is_not_slowed_further() -> None:
    health = LaneHealth()
    assert all(after(GOOD, interval=1.0, latency=8.0, health=health) is None for _ in range(50))


@given(
    st.lists(st.tuples(st.sampled_from([GOOD, *REFUSALS]), st.floats(0, 100)), max_size=200),
    st.floats(0, 120),
)
def test_the_pace_stays_between_the_base_and_the_slowest(answers: list[tuple[Verdict, float]], base: float) -> None:
    health, interval = LaneHealth(), base
    for verdict, latency in answers:
        update = after(verdict, interval=interval, base=base, latency=latency, health=health)
        if update is not None and update.interval is not None:
            assert update.if_interval == interval
            interval = update.interval
        assert base <= interval <= max(SLOWEST_INTERVAL, base)


def test_a_fixed_pace_never_changes() -> None:
    pacer = Pacer(adaptive=False)
    assert [pacer.after(lease(), TOO_MANY, 0.1) for _ in range(9)] == [None] * 9


def test_a_refusal_says_when_its_request_started() -> None:
    lent = lease(token=next_token(0, now=5000.0), wait=0.5)
    update = unexplained(Pacer(adaptive=True).after(lent, TOO_MANY, 0.1))
    assert update == LaneUpdate(interval=pytest.approx(1.1), if_interval=1.0, started=5000.5)


def test_a_good_answer_counts_once_for_those_lent_at_the_same_interval() -> None:
    update = Pacer(adaptive=True).after(lease(interval=2.0), GOOD, 0.1)
    assert update == LaneUpdate(interval=pytest.approx(1.76), if_interval=2.0)


def test_each_lane_has_its_own_mood() -> None:
    pacer = Pacer(adaptive=True)
    assert pacer.after(lease("a"), UNAVAILABLE, 0.1) is None
    assert pacer.after(lease("b"), UNAVAILABLE, 0.1) is None
    assert pacer.after(lease("a"), UNAVAILABLE, 0.1) is not None


@pytest.mark.parametrize("adaptive", [True, False])
def test_a_lone_refusal_rests_its_lane_only_for_long(*, adaptive: bool) -> None:
    pacer, lent = Pacer(adaptive=adaptive), lease(token=next_token(0, now=5000.0))
    pacer.after(lent, UNAVAILABLE_FOR_NOW, 0.1)
    assert pacer.resting(lent, None, LaneUpdate(rest_seconds=5.0)) is None
    assert pacer.resting(lent, None, None) is None
    long = LaneUpdate(rest_seconds=5.1, started=5000.0)
    assert pacer.resting(lent, None, LaneUpdate(rest_seconds=5.1)) == long


@pytest.mark.parametrize("adaptive", [True, False])
def test_refusals_in_a_row_rest_their_lane(*, adaptive: bool) -> None:
    pacer, lent = Pacer(adaptive=adaptive), lease(token=next_token(0, now=5000.0))
    for _ in range(TROUBLED_RUN):
        update = pacer.after(lent, UNAVAILABLE_FOR_NOW, 0.1)
    rested = pacer.resting(lent, update, LaneUpdate(rest_seconds=1.0))
    slower = LaneUpdate(interval=1.5, if_interval=1.0) if adaptive else LaneUpdate()
    assert rested == msgspec.structs.replace(slower, rest_seconds=1.0, started=5000.0)


def test_an_update_says_why_the_lane_slows_down_or_rests() -> None:
    pacer, lent = Pacer(adaptive=True), lease()
    for _ in range(TROUBLED_RUN):
        update = pacer.after(lent, UNAVAILABLE, 0.1)
    assert update is not None
    assert update.why == "backing off after 3 failures in a row, the last one http_503"
    rested = pacer.resting(lent, update, LaneUpdate(rest_seconds=60.0, why="503, asked to wait 60 s (Retry-After)"))
    assert rested is not None
    assert rested.why == "503, asked to wait 60 s (Retry-After)"
    health = LaneHealth(latency=0.1)
    slow = after_response(health, GOOD, latency=5.0, interval=1.0, base_interval=1.0)
    assert slow is not None
    assert slow.why == "its answers take much longer than usual"


def test_forgets_the_lane_it_served_longest_ago() -> None:
    pacer = Pacer(adaptive=True, size=2)
    for _ in range(TROUBLED_RUN - 1):
        pacer.after(lease("a"), UNAVAILABLE, 0.1)
    pacer.after(lease("b"), GOOD, 0.1)
    pacer.after(lease("a"), GOOD, 0.1)
    pacer.after(lease("c"), GOOD, 0.1)
    assert set(pacer._health) == {"a", "c"}
