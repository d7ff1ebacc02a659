"""Where a lane's pace settles: hosts that refuse, fleets of one worker and of eight, four minutes of simulated time."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from pace_simulation import (
    TOO_MANY,
    UNAVAILABLE,
    Bucket,
    Fleet,
    Host,
    is_down,
    per_second,
    refuses_every_tenth,
    refuses_one_in_ten,
)

from shoal.policy.retries import Verdict

pytestmark = pytest.mark.full

SECONDS = 240.0
SETTLED = 60.0

fleets = pytest.mark.parametrize("workers", [1, 8])


@fleets
@pytest.mark.parametrize("seed", range(5))
def test_a_host_that_refuses_one_page_in_ten_is_asked_nearly_at_the_rate(seed: int, workers: int) -> None:
    fleet = Fleet(refuses_one_in_ten(seed), workers=workers).run(SECONDS)
    assert per_second(fleet.starts, SETTLED, SECONDS) > 16


@fleets
@pytest.mark.parametrize("adaptive", [True, False])
def test_every_tenth_page_refused_with_a_short_rest_does_not_rest_the_others(*, workers: int, adaptive: bool) -> None:
    fleet = Fleet(refuses_every_tenth(rest=1.0), workers=workers, adaptive=adaptive).run(SECONDS)
    assert per_second(fleet.good, SETTLED, SECONDS) > 16.5


@fleets
@pytest.mark.parametrize("bears", [1.0, 5.0, 10.0, 15.0, 18.0])
@pytest.mark.parametrize("verdict", [UNAVAILABLE, TOO_MANY], ids=["503", "429"])
def test_the_pace_settles_near_what_the_host_bears(verdict: Verdict, bears: float, workers: int) -> None:
    fleet = Fleet(Bucket(bears, verdict), workers=workers).run(SECONDS)
    assert per_second(fleet.good, SETTLED, SECONDS) > 0.9 * bears
    assert per_second(fleet.starts, SETTLED, SECONDS) < (1.5 if verdict is UNAVAILABLE else 1.25) * bears


@fleets
@pytest.mark.parametrize("rest", [None, 1.0])
def test_a_host_that_was_down_for_a_minute_is_asked_little_and_back_at_the_rate_in_two_more(
    workers: int, rest: float | None
) -> None:
    fleet = Fleet(is_down(20.0, 80.0, rest=rest), workers=workers).run(SECONDS)
    assert per_second(fleet.starts, 30.0, 80.0) < 1
    assert per_second(fleet.starts, 200.0, SECONDS) > 19


@fleets
def test_a_long_rest_is_kept_as_long_as_it_is_asked_for(workers: int) -> None:
    fleet = Fleet(is_down(20.0, 20.5, rest=30.0), workers=workers).run(SECONDS)
    # What was lent already starts within the horizon of a second.
    assert per_second(fleet.starts, 21.5, 50.0) == 0
    assert per_second(fleet.starts, 60.0, SECONDS) > 19


@fleets
def test_one_wave_of_refusals_rests_the_lane_once(workers: int) -> None:
    fleet = Fleet(is_down(20.0, 20.5, rest=3.0), workers=workers).run(40.0)
    assert per_second(fleet.starts, 21.8, 23.0) == 0
    assert per_second(fleet.starts, 24.0, 25.0) > 5


@fleets
@pytest.mark.parametrize("host", [lambda: refuses_one_in_ten(1), lambda: Bucket(18.0, TOO_MANY)])
def test_the_rate_is_never_exceeded(host: Callable[[], Host], workers: int) -> None:
    starts = sorted(Fleet(host(), workers=workers).run(60.0).starts)
    assert min(later - earlier for earlier, later in itertools.pairwise(starts)) > 0.05 - 1e-6
