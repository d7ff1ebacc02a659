"""Where a searched pace settles: hosts with a knee, fleets of one worker, two and eight, minutes of simulated time."""

from __future__ import annotations

import itertools
import random

import pytest
from pace_simulation import BEGIN, GOOD, TOO_MANY, UNAVAILABLE, Fleet, Knee, per_second

from shoal.frontier.rules.tasks import next_token
from shoal.model import LaneUpdate, Lease, Task
from shoal.policy.pace import Pacer, latency_of
from shoal.policy.politeness import allowed_interval, lent_interval
from shoal.policy.retries import Verdict
from shoal.settings.table import Settings

RATE, MAX_RATE = 4.0, 100.0
SETTLED, END = 120.0, 210.0
LONGEST_OVER = 3.0  # seconds in which a host may be asked more often than it allows
FAILED = Verdict("http_500", "retry")

fleets = pytest.mark.parametrize("workers", [1, 2, 8])


def settings(*, max_rate: float = MAX_RATE) -> Settings:
    return Settings(rate=f"{RATE}/s", pace="search", max_rate=f"{max_rate}/s")


def search(
    host: Knee,
    *,
    workers: int,
    seconds: float = END,
    max_rate: float = MAX_RATE,
    first: float = 0.0,
    crawl_delay: float | None = 0.0,
    cap: int = 16,
) -> Fleet:
    fleet = Fleet(
        host,
        rate=RATE,
        workers=workers,
        latency=host.latency,
        settings=settings(max_rate=max_rate),
        first=lent_interval(1 / first) if first else 0.0,
        crawl_delay=crawl_delay,
        cap=cap,
    )
    return fleet.run(seconds)


def longest_over(starts: list[float], rate: float) -> float:
    """For how many seconds at once requests started more often than so, each of those seconds by itself."""
    seconds = [round(rate) < sum(1 for _ in group) for _, group in itertools.groupby(sorted(starts), key=int)]
    return max((float(len(list(run))) for over, run in itertools.groupby(seconds) if over), default=0.0)


@fleets
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("heavy", [0.0, 0.2])
def test_a_search_settles_a_little_below_where_answers_take_longer(heavy: float, seed: int, workers: int) -> None:
    fleet = search(Knee(20.0, most=30.0, noise=0.4, heavy=heavy, seed=seed), workers=workers)
    assert 0.8 * 20.0 <= per_second(fleet.starts, SETTLED, END) <= 20.0
    assert longest_over(fleet.starts, 30.0) <= LONGEST_OVER


@fleets
@pytest.mark.parametrize("seed", range(2))
def test_a_search_settles_a_little_below_where_requests_are_refused(seed: int, workers: int) -> None:
    fleet = search(Knee(500.0, most=30.0, heavy=0.2, seed=seed), workers=workers)
    assert 0.8 * 30.0 <= per_second(fleet.starts, SETTLED, END) <= 30.0
    assert longest_over(fleet.starts, 31.0) <= LONGEST_OVER
    assert len(fleet.starts) - len(fleet.good) < 0.01 * len(fleet.starts)


@fleets
def test_a_search_settles_below_where_answers_fail(workers: int) -> None:
    class Failing(Knee):
        def __call__(self, at: float) -> tuple[Verdict, float | None]:
            return (FAILED, None) if self.waits(at) > 0.1 else (GOOD, None)

        def latency(self, at: float) -> float:
            super().latency(at)
            return 0.05

    fleet = search(Failing(20.0), workers=workers)
    assert 0.8 * 20.0 <= per_second(fleet.starts, SETTLED, END) <= 20.5


@fleets
def test_pages_that_fail_at_any_pace_are_no_knee(workers: int) -> None:
    rng = random.Random(1)

    class Failing(Knee):
        def __call__(self, at: float) -> tuple[Verdict, float | None]:
            return (FAILED if rng.random() < 0.1 else GOOD, None)

    fleet = search(Failing(500.0), workers=workers, max_rate=30.0)
    assert per_second(fleet.starts, SETTLED, END) > 27.0


@fleets
def test_a_search_ends_at_max_rate(workers: int) -> None:
    fleet = search(Knee(500.0), workers=workers, max_rate=30.0)
    assert per_second(fleet.starts, SETTLED, END) > 29.0
    assert min(later - earlier for earlier, later in itertools.pairwise(sorted(fleet.starts))) > 1 / 30.0 - 1e-6
    assert allowed_interval(fleet.learnt) == pytest.approx(1 / 30.0)


@fleets
def test_a_search_is_no_faster_than_a_crawl_delay(workers: int) -> None:
    fleet = search(Knee(500.0), workers=workers, crawl_delay=0.1)
    assert 9.5 < per_second(fleet.starts, SETTLED, END) <= 10.0


def test_where_the_rules_of_a_host_are_not_known_it_is_asked_no_faster() -> None:
    fleet = search(Knee(500.0), workers=1, crawl_delay=None, seconds=60.0)
    assert per_second(fleet.starts, 0.0, 60.0) <= RATE


@fleets
def test_a_lane_at_its_cap_of_requests_in_flight_gets_no_faster_pace(workers: int) -> None:
    fleet = search(Knee(500.0, seconds=0.4), workers=workers, cap=4)
    # Four at once that take 0.45 s each, settled, are nine a second.
    assert all(interval > 1 / 20 for _, interval in fleet.intervals)


@fleets
def test_a_host_that_bears_half_as_much_is_asked_half_as_often(workers: int) -> None:
    def weaken(knee: Knee, at: float) -> None:
        knee.bears = 20.0 if at < 60.0 else 10.0

    fleet = search(Knee(20.0, changes=weaken), workers=workers, seconds=240.0)
    assert 7.5 <= per_second(fleet.starts, 120.0, 240.0) <= 10.0


@fleets
def test_pages_that_take_longer_at_any_pace_do_not_hold_it(workers: int) -> None:
    def slow_down(knee: Knee, at: float) -> None:
        knee.seconds = 0.05 if at < 60.0 else 0.2

    fleet = search(Knee(500.0, changes=slow_down), workers=workers, seconds=300.0, max_rate=15.0)
    assert per_second(fleet.starts, 240.0, 300.0) > 13.0


@fleets
def test_a_host_that_was_down_is_searched_again(workers: int) -> None:
    class Down(Knee):
        def __call__(self, at: float) -> tuple[Verdict, float | None]:
            return (UNAVAILABLE if 60.0 <= at - BEGIN < 90.0 else GOOD, None)

    fleet = search(Down(20.0), workers=workers, seconds=300.0)
    assert per_second(fleet.starts, 70.0, 90.0) < 2.0
    assert 16.0 <= per_second(fleet.starts, 240.0, 300.0) <= 20.0


@fleets
def test_a_search_that_begins_at_a_learnt_pace_stays_there(workers: int) -> None:
    fleet = search(Knee(20.0), workers=workers, first=18.0, seconds=60.0)
    assert 16.0 <= per_second(fleet.starts, 1.0, 30.0) <= 20.0
    assert 16.0 <= 1 / allowed_interval(fleet.learnt) <= 20.0


@fleets
def test_a_learnt_pace_that_has_become_too_fast_is_left(workers: int) -> None:
    fleet = search(Knee(9.0), workers=workers, first=18.0)
    assert 6.5 <= per_second(fleet.starts, 30.0, END) <= 9.0
    assert 1 / allowed_interval(fleet.learnt) < 11.0


def lease(*, lane: str = "a.test", interval: float, base: float, number: int = 0) -> Lease:
    task = Task(url="http://a.test/", key=1, lane=lane)
    token = next_token(0, now=BEGIN + number * interval)
    return Lease(crawl="c", task=task, token=token, wait=0.1, interval=interval, base_interval=base)


BASE = lent_interval(1 / RATE)


@pytest.mark.parametrize(("lane", "base"), [("a.test", 2 * BASE), ("a.test", BASE / 2), ("a.test via ring", BASE)])
def test_a_pace_that_somebody_has_set_is_not_searched(lane: str, base: float) -> None:
    pacer = Pacer.of(settings())
    leases = [lease(lane=lane, interval=base, base=base, number=number) for number in range(100)]
    assert not any(pacer.after(one, GOOD, 0.05) for one in leases)


def test_a_search_takes_a_step_once_it_has_seen_enough_at_its_pace() -> None:
    pacer = Pacer.of(settings())
    updates = [pacer.after(lease(interval=BASE, base=BASE, number=number), GOOD, 0.05) for number in range(24)]
    assert not any(updates[:-1])
    step = updates[-1]
    assert step is not None
    assert (step.if_interval, step.learnt) == (BASE, BASE)
    assert step.interval == pytest.approx(BASE / 1.25)


def test_a_refusal_slows_a_searched_lane_once_and_says_what_was_learnt() -> None:
    pacer = Pacer.of(settings())
    update = pacer.after(lease(interval=BASE / 4, base=BASE), TOO_MANY, 0.05)
    assert update is not None
    assert update.interval is not None
    assert BASE / 4 < update.interval < BASE / 3
    assert update.learnt == update.interval
    assert update.started == pytest.approx(BEGIN + 0.1)
    assert update.why == "held below its knee near 16/s: it answered 429"


@pytest.mark.parametrize("pace", ["fixed", "adaptive"])
def test_a_crawl_that_searches_no_longer_goes_at_its_rate(pace: str) -> None:
    pacer = Pacer.of(Settings(rate=f"{RATE}/s", pace="fixed" if pace == "fixed" else "adaptive"))
    fast = lease(interval=BASE / 4, base=BASE)
    assert pacer.after(fast, GOOD, 0.05) == LaneUpdate(interval=BASE, if_interval=BASE / 4)
    assert pacer.after(lease(interval=BASE, base=BASE), GOOD, 0.05) is None


def test_a_lane_that_is_faster_than_a_lowered_max_rate_goes_at_that_one() -> None:
    pacer = Pacer.of(settings(max_rate=8.0))
    update = pacer.after(lease(interval=BASE / 4, base=BASE), GOOD, 0.05)
    assert update is not None
    assert update.interval == lent_interval(1 / 8.0)


def test_answers_are_compared_rank_by_rank() -> None:
    quick, slow = [0.05] * 12, [0.4] * 12
    mixed = sorted(quick + slow)
    assert latency_of(mixed, mixed) == "level"
    assert latency_of(sorted([0.05] * 16 + [0.4] * 8), mixed) == "level"
    assert latency_of(sorted([0.05] * 8 + [0.4] * 16), mixed) == "level"
    assert latency_of([one + 0.2 for one in mixed], mixed) == "risen"
    assert latency_of([one * 1.5 for one in mixed], mixed) == "unclear"
    assert latency_of([0.012] * 24, [0.002] * 24) == "level"
