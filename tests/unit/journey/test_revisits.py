"""Pages that are visited again and again: what each end of a visit makes of the next one."""

from __future__ import annotations

import msgspec
from scripted_journey import NOW, URL, ScriptedJourney

from shoal.fetch.base import FaultKind
from shoal.journey.results import Finished
from shoal.model import Dead, Done, Retry, Task, Visit
from shoal.testing.fakes import Answer, fault, lease_for, respond


async def visited(answer: Answer, *, visit: Visit | None = None, attempt: int = 1, **settings: object) -> Finished:
    scripted = ScriptedJourney({URL: answer}, **{"revisit": "24h", **settings})
    return await scripted.take(lease_for(URL, task={"visit": visit, "depth": 1}, attempt=attempt))


def again(finished: Finished) -> tuple[Task, Visit]:
    result = finished.result
    assert isinstance(result, Done), result
    assert result.again is not None
    assert result.again.visit is not None
    return result.again, result.again.visit


async def test_a_page_is_visited_again_as_the_same_task() -> None:
    finished = await visited(respond(URL, "<a href=/next>x</a>"))
    task, visit = again(finished)
    assert isinstance(finished.result, Done)
    assert finished.result.again_in == 86_400.0
    assert finished.result.notes["visits"] == 1
    assert msgspec.structs.replace(task, visit=None) == msgspec.structs.replace(finished.result.lease.task, visit=None)
    assert (visit.visits, visit.at, visit.compared) == (1, NOW, 0.0)


async def test_a_crawl_without_revisits_visits_a_page_once() -> None:
    finished = await visited(respond(URL, "<p>x"), revisit="")
    assert isinstance(finished.result, Done)
    assert finished.result.again is None
    assert "visits" not in finished.result.notes


async def test_a_request_may_ask_for_one_visit_or_for_its_own_time() -> None:
    once = await visited(respond(URL, "<p>x"), visit=Visit(asked=0.0))
    assert isinstance(once.result, Done)
    assert once.result.again is None
    often = await visited(respond(URL, "<p>x"), visit=Visit(asked=60.0), revisit="")
    assert isinstance(often.result, Done)
    assert often.result.again_in == 60.0


async def test_what_tells_visits_apart_are_items_and_links_and_not_other_bytes() -> None:
    async def harvest(body: str) -> int:
        return again(await visited(respond(URL, body)))[1].harvest

    one = await harvest("<p>at 12:01<a href=/a>x</a><a href=/b>y</a>")
    assert await harvest("<p>at 12:02<a href=/b>y</a><a href=/a>x</a>") == one
    assert await harvest("<p>at 12:01<a href=/a>x</a><a href=/c>y</a>") != one


async def test_links_that_the_worker_knows_already_count_for_what_a_page_gave() -> None:
    body = "<a href=/a>x</a><a href=/b>y</a>"
    fresh = again(await visited(respond(URL, body)))[1].harvest
    scripted = ScriptedJourney({URL: respond(URL, body)}, revisit="24h")
    first = await scripted.take(lease_for(URL, task={"depth": 1}))
    assert isinstance(first.result, Done)
    for task in first.result.found:
        scripted.known.add(task.key)
    second = await scripted.take(lease_for(URL, task={"depth": 1}))
    assert isinstance(second.result, Done)
    assert second.result.found == []
    assert again(second)[1].harvest == fresh


async def test_a_page_that_is_not_there_any_more_is_visited_again_and_counts_as_changed() -> None:
    before = again(await visited(respond(URL, "<p>x")))[1]
    missing = again(await visited(respond(URL, "", status=404), visit=before))[1]
    assert (missing.visits, missing.harvest != before.harvest) == (2, True)


async def test_a_redirect_is_visited_again_and_hands_on_the_time_that_its_request_named() -> None:
    answer = respond(URL, "", status=301, headers={"location": "/new"})
    finished = await visited(answer, visit=Visit(asked=60.0))
    assert isinstance(finished.result, Done)
    [hop] = finished.result.found
    assert hop.visit == Visit(asked=60.0)
    assert finished.result.again_in == 60.0


async def test_a_page_that_was_reached_before_is_no_dead_letter_when_it_cannot_be_reached() -> None:
    seen = Visit(visits=3, at=NOW - 86_400, harvest=5, planned=86_400.0)
    failed = await visited(fault(FaultKind.CONNECT), visit=seen, attempt=99)
    _, visit = again(failed)
    assert isinstance(failed.result, Done)
    assert (visit, failed.result.again_in) == (seen, 86_400.0)
    assert failed.result.notes["unreached visits"] == 1
    assert failed.result.outcome != "ok"
    assert failed.fetch is not None
    assert failed.fetch.error


async def test_a_page_that_was_never_reached_is_a_dead_letter_as_in_any_crawl() -> None:
    assert isinstance((await visited(fault(FaultKind.CONNECT), attempt=99)).result, Dead)
    assert isinstance((await visited(fault(FaultKind.CONNECT))).result, Retry)


async def test_a_page_that_is_the_same_at_each_visit_is_never_given_up_as_a_trap() -> None:
    scripted = ScriptedJourney({URL: respond(URL, "<p>no news")}, revisit="24h", max_equal_pages=3)
    visit = None
    for _ in range(20):
        finished = await scripted.take(lease_for(URL, task={"parent": 1, "shape": 1, "depth": 1, "visit": visit}))
        visit = again(finished)[1]
    assert visit is not None
    assert visit.visits == 20
