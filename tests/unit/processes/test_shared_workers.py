"""Worker processes that work on several crawls: they are wanted once, not once per crawl."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from crawl_surveys import SECONDS, beat, lane, survey

from shoal.insight.advice import Advice, advise, shared, with_parts
from shoal.insight.survey import Survey
from shoal.model import Heartbeat


def of_crawl(name: str, *workers: Heartbeat, done: int = 0, **more: Any) -> Survey:
    one = survey(*workers, done=done, lanes=(lane(interval=0.01),), **more)
    return msgspec.structs.replace(one, crawl=msgspec.structs.replace(one.crawl, id=name))


def worker(process: int, crawl: str, *, pages: int = 0, kind: str = "http", **figures: Any) -> Heartbeat:
    one = beat(f"{crawl}-{process}", fetches=pages, **figures)
    return msgspec.structs.replace(one, pid=process, crawl=crawl, pages=pages, kinds=(kind,), busy=1)


def advice_on(before: list[Survey], now: list[Survey]) -> dict[str, Advice]:
    former = {one.crawl.id: one for one in before}
    surveys = with_parts(now, former)
    return shared({one.crawl.id: advise(former[one.crawl.id], one) for one in surveys}, surveys)


def test_two_crawls_share_the_load_of_their_processes_by_pages() -> None:
    before = [of_crawl(name, worker(1, name)) for name in "ab"]
    now = [of_crawl("a", worker(1, "a", pages=300), at=SECONDS), of_crawl("b", worker(1, "b", pages=100), at=SECONDS)]
    parts = [one.parts for one in with_parts(now, {one.crawl.id: one for one in before})]
    assert parts == [{"a-1": 0.75}, {"b-1": 0.25}]


def test_what_was_not_measured_is_shared_equally() -> None:
    now = [of_crawl(name, worker(1, name)) for name in "ab"]
    assert [one.parts for one in with_parts(now, {})] == [{"a-1": 0.5}, {"b-1": 0.5}]


def test_processes_of_one_crawl_are_not_shared() -> None:
    now = [of_crawl("a", worker(1, "a")), of_crawl("b", worker(2, "b"))]
    assert [one.parts for one in with_parts(now, {})] == [{}, {}]


def test_two_crawls_that_need_one_process_together_want_one() -> None:
    before = [of_crawl(name, worker(1, name)) for name in "ab"]
    now = [of_crawl(name, worker(1, name, pages=50, load=0.1), done=50, at=SECONDS, queued=1) for name in "ab"]
    found = advice_on(before, now)
    assert sum(one.workers_wanted for one in found.values()) == 1
    assert [sum(kind.workers_wanted for kind in one.kinds) for one in found.values()] in ([1, 0], [0, 1])
    assert any("its workers work on other crawls as well: 0 of those" in one.lines[-1] for one in found.values())


def test_two_crawls_that_use_up_two_processes_want_what_their_cores_ask_for_together() -> None:
    """Hosts allow a hundred pages per second each, of which each gets a half: four cores, five workers, not ten."""
    before = [of_crawl(name, worker(1, name), worker(2, name)) for name in "ab"]
    now = [
        of_crawl(name, *(worker(one, name, pages=250, load=1.0) for one in (1, 2)), done=500, at=SECONDS)
        for name in "ab"
    ]
    assert sum(one.workers_wanted for one in advice_on(before, now).values()) == 5


def test_slots_are_those_of_each_crawl_so_the_crawl_with_most_needs_counts() -> None:
    waits = {"pages": 320, "fetch_seconds": 320.0, "waiting_for_slots": 10.0, "load": 0.1}
    before = [of_crawl(name, worker(1, name)) for name in "ab"]
    now = [of_crawl(name, worker(1, name, **waits), done=320, at=SECONDS) for name in "ab"]
    alone = advise(before[0], now[0]).workers_wanted
    assert sum(one.workers_wanted for one in advice_on(before, now).values()) == alone == 4


def test_not_measured_yet_they_are_as_many_as_there_are() -> None:
    now = [of_crawl(name, worker(1, name), worker(2, name), worker(3, name)) for name in "ab"]
    assert sum(one.workers_wanted for one in advice_on(now, now).values()) == 3


@pytest.mark.parametrize("other", ["browser", "eu"])
def test_kinds_do_not_share_each_other(other: str) -> None:
    before = [of_crawl("a", worker(1, "a")), of_crawl("b", worker(1, "b", kind=other), kinds={"http": 0, other: 9})]
    now = [
        of_crawl("a", worker(1, "a", pages=50, load=0.02), done=50, at=SECONDS),
        of_crawl(
            "b", worker(1, "b", kind=other, pages=50, load=0.02), kinds={"http": 0, other: 9}, done=50, at=SECONDS
        ),
    ]
    assert [one.workers_wanted for one in advice_on(before, now).values()] == [1, 1]


def test_a_crawl_without_workers_wants_its_own() -> None:
    before = [of_crawl("a", worker(1, "a")), of_crawl("b")]
    now = [of_crawl("a", worker(1, "a", pages=50, load=0.02), done=50, at=SECONDS), of_crawl("b", at=SECONDS)]
    assert [one.workers_wanted for one in advice_on(before, now).values()] == [1, 1]
