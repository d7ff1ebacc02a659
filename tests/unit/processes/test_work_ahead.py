"""Crawls whose work is due later, was done a moment ago, or lies in an inbox: whether a worker is wanted now."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from crawl_surveys import SECONDS, beat, lane, survey

from shoal.insight.advice import LEAD_SECONDS, REST_SECONDS, advise, seconds_until_work
from shoal.insight.survey import Survey
from shoal.model import CrawlState
from shoal.worker.workers import Member, Presence

HOURS = 20 * 3600.0


def later(*workers: Any, due_in: float, delayed: int = 50, **more: Any) -> Survey:
    """A crawl with delayed tasks, the first of which is due then."""
    one = survey(*workers, **{"queued": 0, "at": SECONDS, **more})
    return msgspec.structs.replace(one, progress=msgspec.structs.replace(one.progress, delayed=delayed, due_in=due_in))


def wanted(now: Survey, *, before: Survey | None = None) -> int:
    return advise(now if before is None else before, now).workers_wanted


@pytest.mark.parametrize(
    ("due_in", "with_workers", "without"),
    [
        (HOURS, 0, 0),
        (REST_SECONDS + 1, 0, 0),
        (REST_SECONDS - 1, 1, 0),
        (LEAD_SECONDS + 1, 1, 0),
        (LEAD_SECONDS - 1, 1, 1),
        (0.0, 1, 1),
    ],
)
def test_delayed_tasks_want_a_worker_when_they_are_due_soon(due_in: float, with_workers: int, without: int) -> None:
    """Between the two limits who is at work stays, and who is not is not called yet."""
    workers = [beat(f"w{number}") for number in range(4)]
    assert wanted(later(*workers, due_in=due_in)) == with_workers
    assert wanted(later(due_in=due_in)) == without


def test_a_crawl_that_rests_says_for_how_long() -> None:
    advice = advise(later(due_in=HOURS), later(due_in=HOURS))
    assert advice.lines == (
        "50 pages of c-1 wait for their time, the first for 20.0 h: hardly a worker is needed before",
    )


def test_tasks_that_are_leased_or_queued_are_work_now() -> None:
    assert seconds_until_work(later(due_in=HOURS, leased=1)) == 0.0
    assert seconds_until_work(later(due_in=HOURS, queued=1)) == 0.0
    assert seconds_until_work(later(due_in=HOURS, queued=1, lanes=(lane(starts_in=60.0), lane(starts_in=90.0)))) == 60.0


def test_hosts_that_rest_keep_no_worker_though_their_pages_are_queued() -> None:
    resting = survey(beat(), lanes=(lane(starts_in=3600.0), lane(starts_in=7200.0)))
    assert wanted(resting) == 0
    assert wanted(survey(beat(), lanes=(lane(starts_in=3600.0), lane(starts_in=0.0)))) == 1


def test_of_hosts_that_were_not_read_any_may_start_now() -> None:
    many = tuple(lane(starts_in=3600.0) for _ in range(1_000))
    assert seconds_until_work(survey(lanes=many)) == 0.0


def test_each_kind_with_delayed_tasks_wants_one() -> None:
    worker = msgspec.structs.replace(beat(), kinds=("http", "browser"))
    advice = advise(*[later(worker, due_in=30.0, kinds={"http": 3, "browser": 2, "eu": 0})] * 2)
    assert [one.workers_wanted for one in advice.kinds] == [1, 1, 0]


@pytest.mark.parametrize(
    ("state", "number"),
    [(CrawlState.FINISHED, 1), (CrawlState.RUNNING, 1), (CrawlState.PAUSED, 0), (CrawlState.CANCELLED, 0)],
)
def test_pushed_urls_want_a_worker_that_takes_them_in(state: CrawlState, number: int) -> None:
    pushed = msgspec.structs.replace(survey(queued=0, state=state), pushed=3)
    assert wanted(pushed) == number
    assert ("3 pushed URLs wait in the inbox of c-1" in advise(pushed, pushed).lines[0]) is bool(number)


def test_pushed_urls_want_a_worker_of_a_kind_that_the_crawl_has_had() -> None:
    gone = msgspec.structs.replace(beat(), kinds=("eu",), left=1.0)
    pushed = msgspec.structs.replace(
        survey(gone, queued=0, kinds={"http": 0, "eu": 0}, state=CrawlState.FINISHED), pushed=1
    )
    assert {one.kind: one.workers_wanted for one in advise(pushed, pushed).kinds} == {"http": 0, "eu": 1}


def test_a_worker_that_left_a_crawl_as_it_finished_is_kept_for_the_next_push() -> None:
    left = Member(msgspec.structs.replace(beat(fetches=5), pages=5, left=1.0), Presence.LEFT)
    finished = survey(queued=0, done=5, at=SECONDS, state=CrawlState.FINISHED)
    assert wanted(msgspec.structs.replace(finished, members=[left]), before=survey(beat())) == 1
    gone = Member(left.beat, Presence.GONE)
    assert wanted(msgspec.structs.replace(finished, members=[gone]), before=survey(beat())) == 0


@pytest.mark.parametrize("state", [CrawlState.RUNNING, CrawlState.FINISHED])
def test_what_has_nothing_left_and_had_a_moment_ago_keeps_a_worker(state: CrawlState) -> None:
    busy = msgspec.structs.replace(beat(fetches=5), pages=5)
    before, now = survey(beat(), queued=0), survey(busy, beat("w2"), queued=0, done=5, at=SECONDS, state=state)
    assert wanted(now, before=before) == 1
    assert wanted(now) == 0
