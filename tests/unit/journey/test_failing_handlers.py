"""A handler that fails on each of its first pages is noticed; one that succeeds once is left alone."""

from __future__ import annotations

import pytest
from scripted_journey import URL, Plain, ScriptedJourney

from shoal.journey.notes import FailingHandlers
from shoal.model import Dead, Done, Released, Retry
from shoal.testing.fakes import lease_for, respond

NO_TITLE = "<p>no title here</p>"


def leased(number: int, handler: str = "parse"):  # type: ignore[no-untyped-def]  # a lease, whose type is in its name
    return lease_for(f"https://a.test/{number}", task={"handler": handler})


def test_names_the_handler_and_its_most_frequent_failure() -> None:
    failing = FailingHandlers(3)
    for number, what in enumerate(["KeyError: 1 at b.py:1", "ValueError: 2 at b.py:2", "ValueError: 3 at b.py:2"]):
        assert failing.reason == ""
        failing.failed(leased(number).task, what)
    assert failing.reason == "parse failed on its first 3 pages: ValueError: 3 at b.py:2"


def test_a_page_that_is_tried_again_is_not_one_more_page() -> None:
    failing = FailingHandlers(2)
    for _ in range(5):
        failing.failed(leased(1).task, "KeyError")
    assert failing.reason == ""


def test_a_handler_that_has_succeeded_once_may_fail_ever_after() -> None:
    failing = FailingHandlers(2)
    good = leased(0)
    failing.handled(good.task)
    failing.settled(Done(lease=good))
    for number in range(1, 9):
        failing.failed(leased(number).task, "KeyError")
    assert (failing.reason, failing.is_watching) == ("", False)


def test_a_success_that_is_not_settled_yet_is_waited_for() -> None:
    failing = FailingHandlers(2)
    good = leased(0)
    failing.handled(good.task)
    for number in range(1, 9):
        failing.failed(leased(number).task, "KeyError")
    assert failing.reason == ""
    failing.settled(Dead(lease=good, reason="unstorable: item 'k': not finite"))
    assert failing.reason.startswith("parse failed on its first 9 pages: KeyError")


def test_each_handler_is_counted_by_itself() -> None:
    failing = FailingHandlers(2)
    failing.failed(leased(1, "book").task, "KeyError")
    failing.failed(leased(2, "list").task, "KeyError")
    assert failing.reason == ""


def test_zero_stops_never() -> None:
    failing = FailingHandlers(0)
    for number in range(200):
        failing.failed(leased(number).task, "KeyError")
    assert failing.reason == ""


@pytest.mark.parametrize(
    ("handler", "reason"),
    [
        (
            "failing",
            "failing failed on its first 2 pages: IndexError: list index out of range at scripted_journey.py:{line}",
        ),
        ("broken", "broken failed on its first 2 pages: unstorable: item 'bad': a number that is not finite in price"),
    ],
)
async def test_pages_that_come_after_a_stop_are_released(handler: str, reason: str) -> None:
    journey = ScriptedJourney(
        {f"https://a.test/{number}": respond(URL, NO_TITLE) for number in range(4)}, stop_after_failures=2
    )
    results = [(await journey.take(leased(number, handler))).result for number in range(4)]
    assert [type(result) for result in results[2:]] == [Released, Released]
    assert not any(isinstance(result, Released) for result in results[:2])
    line = Plain.failing.__code__.co_firstlineno + 1
    assert journey.journey.failing.reason == reason.format(line=line)
    assert len(journey.fetcher.requests) == 2


async def test_a_dead_letter_of_a_handler_notes_its_exception_and_the_line_of_the_spider() -> None:
    journey = ScriptedJourney({URL: respond(URL, NO_TITLE)})
    line = Plain.failing.__code__.co_firstlineno + 1
    first = (await journey.take(lease_for(URL, task={"handler": "failing", "depth": 1}))).result
    assert isinstance(first, Retry)
    assert first.notes == {}
    last = (await journey.take(lease_for(URL, task={"handler": "failing", "depth": 1}, attempt=4))).result
    assert isinstance(last, Dead)
    assert last.notes == {f"raised IndexError scripted_journey.py:{line}": 1}
