"""When a page is visited again: fixed times, and times that follow how often the page changes."""

from __future__ import annotations

import math
import random

import pytest

from shoal.journey.revisits import RevisitRule, after_failure, after_visit, change_rate
from shoal.model import Visit
from shoal.settings.table import Settings

HOUR, DAY = 3600.0, 86_400.0
YEAR = 365 * DAY
FOLLOWING = RevisitRule(DAY, HOUR, 30 * DAY)


def visits_of_a_year(
    rule: RevisitRule, *, changes_every: float, seed: int = 1, visit: Visit | None = None
) -> list[float]:
    """The times between the visits of a page that changes at random, in a year."""
    rng, at, content, changes_at, gaps = random.Random(seed), 0.0, 1, 0.0, []
    changes_at = rng.expovariate(1 / changes_every)
    while at < YEAR:
        visit = after_visit(visit, at=at, harvest=content, rule=rule)
        gaps.append(visit.planned)
        at += visit.planned
        while changes_at < at:
            content += 1
            changes_at += rng.expovariate(1 / changes_every)
    return gaps


def test_the_rule_is_what_the_settings_say() -> None:
    assert RevisitRule.of(Settings()) == RevisitRule()
    assert RevisitRule.of(Settings(revisit="24h", revisit_bounds="1h-30d")) == FOLLOWING


def test_without_bounds_every_page_is_visited_after_the_same_time() -> None:
    assert set(visits_of_a_year(RevisitRule(DAY), changes_every=HOUR)) == {DAY}


def test_a_time_that_a_request_names_is_kept_whatever_the_page_does() -> None:
    gaps = visits_of_a_year(FOLLOWING, changes_every=HOUR, visit=Visit(asked=7 * DAY))
    assert set(gaps) == {7 * DAY}


def test_a_page_that_never_changes_is_visited_less_and_less_often_up_to_the_bound() -> None:
    gaps = visits_of_a_year(FOLLOWING, changes_every=1000 * YEAR)
    assert gaps[:7] == [DAY, 2 * DAY, 4 * DAY, 8 * DAY, 16 * DAY, 30 * DAY, 30 * DAY]
    assert len(gaps) < 20


def test_a_page_that_changes_all_the_time_is_visited_as_often_as_the_bound_lets() -> None:
    gaps = visits_of_a_year(FOLLOWING, changes_every=60.0)
    assert set(gaps[20:]) == {HOUR}


@pytest.mark.parametrize("changes_every", [6 * HOUR, 2 * DAY, 10 * DAY])
def test_a_page_is_visited_when_the_chance_that_it_changed_is_about_one_half(changes_every: float) -> None:
    gaps = [
        gap for seed in range(20) for gap in visits_of_a_year(FOLLOWING, changes_every=changes_every, seed=seed)[15:]
    ]
    usual = sorted(gaps)[len(gaps) // 2]
    assert changes_every * math.log(2) / 1.5 < usual < changes_every * math.log(2) * 1.5
    assert min(gaps) >= HOUR
    assert max(gaps) <= 30 * DAY


def test_a_page_that_changes_its_habits_is_followed() -> None:
    visit = Visit()
    for day in range(60):
        visit = after_visit(visit, at=day * DAY, harvest=1, rule=FOLLOWING)
    quiet = visit
    for turn in range(60):
        visit = after_visit(visit, at=60 * DAY + turn * HOUR, harvest=turn, rule=FOLLOWING)
    assert quiet.planned == 30 * DAY
    assert visit.planned == HOUR


def test_a_crawl_that_stood_still_for_a_month_does_not_visit_its_pages_less_often() -> None:
    visit = None
    for turn in range(30):
        visit = after_visit(visit, at=turn * HOUR, harvest=turn, rule=FOLLOWING)
    assert visit is not None
    later = after_visit(visit, at=30 * DAY, harvest=99, rule=FOLLOWING)
    assert later.planned <= 2 * visit.planned


def test_a_clock_that_was_set_back_is_no_pair_of_visits() -> None:
    first = after_visit(None, at=1000.0, harvest=1, rule=FOLLOWING)
    again = after_visit(first, at=500.0, harvest=2, rule=FOLLOWING)
    assert (again.compared, again.visits, again.planned) == (0.0, 2, DAY)


def test_a_visit_that_fails_is_no_pair_of_visits_and_the_next_one_comes_as_planned() -> None:
    visit = after_visit(None, at=0.0, harvest=1, rule=FOLLOWING)
    assert after_failure(visit, rule=FOLLOWING) == DAY
    # The pair is the visit before the failure and the one after it, with the true time between them.
    assert after_visit(visit, at=2 * DAY, harvest=1, rule=FOLLOWING).seconds == 2 * DAY


def test_the_rate_of_change_is_that_of_the_stated_estimator() -> None:
    visit = Visit(visits=11, compared=10.0, changes=4.0, seconds=10 * DAY)
    assert change_rate(visit) == pytest.approx(-math.log(6.5 / 10.5) / DAY)
    assert change_rate(Visit(compared=3.0, seconds=DAY)) == 0.0
