"""How many workers of each kind are worth running, where each kind is scaled by itself."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from crawl_surveys import SECONDS, beat, lane, survey

from shoal.insight.advice import Advice, advise
from shoal.insight.kinds import shared_out
from shoal.model import CrawlState, Heartbeat


def worker(name: str, *kinds: str, pages: int = 0, busy: int = 1, **figures: Any) -> Heartbeat:
    return msgspec.structs.replace(beat(name, **figures), kinds=kinds, pages=pages, busy=busy)


def wanted(advice: Advice) -> dict[str, int]:
    return {one.kind: one.workers_wanted for one in advice.kinds}


def test_a_crawl_of_one_kind_wants_workers_of_that_kind() -> None:
    busy = beat(load=1.0, fetches=100, fetch_seconds=5.0, cpu_seconds=10.0)
    advice = advise(survey(beat(), lanes=(lane(),)), survey(busy, lanes=(lane(),), done=100, at=SECONDS))
    assert wanted(advice) == {"http": advice.workers_wanted}
    assert not any(line.startswith("kind ") for line in advice.lines)


def test_only_the_kind_whose_workers_are_used_up_wants_more() -> None:
    kinds = {"http": 4_000, "browser": 4_000}
    before = survey(worker("w1", "http"), worker("w2", "browser"), kinds=kinds, lanes=(lane(interval=0.01),))
    light = worker("w1", "http", pages=95, load=0.2, fetches=950, fetch_seconds=50.0, cpu_seconds=2.0)
    heavy = worker("w2", "browser", pages=10, load=1.0, fetches=10, fetch_seconds=9.0, cpu_seconds=10.0)
    advice = advise(before, survey(light, heavy, kinds=kinds, lanes=(lane(interval=0.01),), done=105, at=SECONDS))
    found = wanted(advice)
    assert found["http"] == 1
    assert found["browser"] == 2
    assert advice.workers_wanted == 3
    assert advice.lines[-1] == (
        "kind browser: 2 workers are worth running now, 1 at work, 4,000 tasks wait; their cores are used up"
    )


def test_the_pace_of_a_host_bounds_all_kinds_together() -> None:
    """Two kinds share four starts per second, and use them up: none of them wants more workers."""
    kinds, lanes = {"http": 900, "browser": 900}, (lane(interval=0.25),)
    before = survey(worker("w1", "http"), worker("w2", "browser"), kinds=kinds, lanes=lanes)
    ends = [worker("w1", "http", pages=20, fetches=20), worker("w2", "browser", pages=20, fetches=20)]
    assert wanted(advise(before, survey(*ends, kinds=kinds, lanes=lanes, done=40, at=SECONDS))) == {
        "http": 1,
        "browser": 1,
    }


def test_a_stage_that_fetches_nothing_is_not_bound_by_the_pace() -> None:
    kinds = {"http": 900, "parse": 900}
    lanes = (lane(interval=0.25), lane(lane="a.example stage parse", interval=0.0))
    before = survey(worker("w1", "http"), worker("w2", "parse"), kinds=kinds, lanes=lanes)
    fetches = worker("w1", "http", pages=40, fetches=40, fetch_seconds=4.0)
    parses = worker("w2", "parse", pages=30, load=1.0, cpu_seconds=10.0)
    advice = advise(before, survey(fetches, parses, kinds=kinds, lanes=lanes, done=30, at=SECONDS))
    assert wanted(advice) == {"http": 1, "parse": 3}
    assert advice.bound == "pace"
    assert "1 host with waiting pages allows (a.example)" in advice.lines[0]


def test_a_kind_that_nobody_does_wants_one_worker() -> None:
    kinds = {"http": 0, "browser": 14}
    before = survey(worker("w1", "http", busy=0), kinds=kinds, queued=14)
    advice = advise(before, survey(worker("w1", "http", busy=0), kinds=kinds, queued=14, at=SECONDS))
    assert wanted(advice) == {"http": 0, "browser": 1}
    assert "kind browser: 1 worker is worth running now, none at work, 14 tasks wait" in advice.lines


def test_where_nobody_works_each_kind_with_tasks_wants_one() -> None:
    kinds = {"http": 3, "browser": 0, "eu": 1}
    assert wanted(advise(survey(kinds=kinds), survey(kinds=kinds, at=SECONDS))) == {"http": 1, "browser": 0, "eu": 1}


def test_tasks_that_are_lent_to_workers_that_are_gone_want_one() -> None:
    kinds = {"http": 0, "browser": 0}
    one = survey(kinds=kinds, queued=0, leased=5)
    assert advise(one, one).workers_wanted == 1


def test_workers_that_do_another_kind_than_the_only_one_do_not_count() -> None:
    before, now = (survey(worker("w1", "eu", busy=0), queued=50, at=at) for at in (0.0, SECONDS))
    advice = advise(before, now)
    assert wanted(advice) == {"http": 1}
    assert (advice.workers, advice.kinds[0].workers) == (1, 0)


def test_a_crawl_that_is_paused_wants_nobody_of_any_kind() -> None:
    one = survey(worker("w1", "http"), kinds={"http": 5, "browser": 5}, state=CrawlState.PAUSED)
    advice = advise(one, one)
    assert (wanted(advice), advice.workers_wanted) == ({"http": 0, "browser": 0}, 0)


def test_workers_that_do_two_kinds_count_once_in_the_sum() -> None:
    kinds = {"http": 3_000, "browser": 1_000}
    before = survey(*(worker(f"w{number}", "http", "browser") for number in range(4)), kinds=kinds, lanes=(lane(),))
    ends = [
        worker(f"w{number}", "http", "browser", pages=50, load=0.85, fetches=50, cpu_seconds=8.5) for number in range(4)
    ]
    advice = advise(before, survey(*ends, kinds=kinds, lanes=(lane(),), done=200, at=SECONDS))
    assert wanted(advice) == {"http": 6, "browser": 2}
    assert [one.workers for one in advice.kinds] == [4, 4]


@pytest.mark.parametrize(
    ("number", "weights", "parts"),
    [
        (3, {"a": 1, "b": 1}, {"a": 2, "b": 1}),
        (2, {"a": 0, "b": 0}, {"a": 2, "b": 0}),
        (1, {"a": 1, "b": 99}, {"a": 0, "b": 1}),
        (5, {"a": 3, "b": 2}, {"a": 3, "b": 2}),
        (0, {"a": 3}, {"a": 0}),
    ],
)
def test_a_number_is_shared_out_whole(number: int, weights: dict[str, int], parts: dict[str, int]) -> None:
    assert shared_out(number, weights) == parts
