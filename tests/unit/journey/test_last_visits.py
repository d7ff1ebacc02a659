"""Requests that ask whether a page has changed since its last visit, and the answer that it has not."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from scripted_journey import NOW, URL, ScriptedJourney

from shoal.errors import StorageError
from shoal.journey.conditional import LastVisits
from shoal.journey.results import Finished
from shoal.model import Done, Render, Task, Visit
from shoal.store.base import FetchRow, ScrapedPage, named_keys
from shoal.testing.fakes import lease_for, respond

SEEN = Visit(visits=2, at=NOW - 86_400, harvest=77, planned=86_400.0)


class Log:
    """A fetch log with one line for each key that is asked for."""

    def __init__(self, **fields: object) -> None:
        line = {"etag": '"v1"', "last_modified": "Mon, 01 Jan 2024 00:00:00 GMT", "outcome": "ok", "status": 200}
        self._fields = {
            **line,
            "item_keys": named_keys(["a", "b"]),
            "content_hash": "c0de",
            "archived": "x.warc",
            **fields,
        }
        self.calls: list[list[int]] = []
        self.error: Exception | None = None

    async def read(self, crawl: str, keys: Sequence[int]) -> list[FetchRow]:
        self.calls.append(list(keys))
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        common = {"crawl": crawl, "url": URL, "token": 1, "attempt": 1, "at": NOW - 86_400}
        return [msgspec.convert({**common, "key": key, **self._fields}, FetchRow) for key in keys]


async def visit(
    log: Log, *, status: int = 304, task: dict[str, object] | None = None
) -> tuple[Finished, dict[str, str]]:
    scripted = ScriptedJourney(
        {URL: respond(URL, "" if status == 304 else "<p>new", status=status)},
        revisit="24h",
        last_visits=LastVisits(log.read),
    )
    finished = await scripted.take(lease_for(URL, task={"depth": 1, "visit": SEEN, **(task or {})}))
    return finished, dict(scripted.fetcher.requests[-1].headers or {})


async def test_a_later_visit_asks_whether_the_page_has_changed() -> None:
    _, headers = await visit(Log())
    assert headers == {"if-none-match": '"v1"', "if-modified-since": "Mon, 01 Jan 2024 00:00:00 GMT"}


async def test_a_page_that_has_not_changed_runs_no_handler_and_has_its_items() -> None:
    finished, _ = await visit(Log())
    result, row = finished.result, finished.fetch
    assert isinstance(result, Done)
    assert (result.outcome, finished.items, result.found) == ("not_modified", (), [])
    assert result.again is not None
    assert result.again.visit is not None
    assert (result.again.visit.visits, result.again.visit.harvest, result.again.visit.changes) == (3, 77, 0.0)
    assert finished.look == ScrapedPage(spider="plain", url=URL, keys=("a", "b"), at=NOW, token=7)
    assert row is not None
    assert (row.outcome, row.status, row.etag, row.content_hash, row.archived) == (
        "not_modified",
        304,
        '"v1"',
        "c0de",
        "x.warc",
    )
    assert row.item_keys == named_keys(["a", "b"])


async def test_a_page_that_has_changed_is_handled_as_ever() -> None:
    finished, headers = await visit(Log(), status=200)
    assert headers
    assert isinstance(finished.result, Done)
    assert finished.result.outcome == "ok"
    assert finished.look is not None
    assert finished.look.keys == (URL,)


@pytest.mark.parametrize(
    "fields",
    [
        {"etag": "", "last_modified": ""},
        {"outcome": "http_404"},
        {"error": "sitemap: broken"},
        {"item_keys": ""},
        {"item_keys": named_keys(["a", "b", "c"], limit=2)},
    ],
)
async def test_a_page_whose_last_visit_does_not_say_all_is_fetched_in_full(fields: dict[str, object]) -> None:
    _, headers = await visit(Log(**fields), status=200)
    assert headers == {}


@pytest.mark.parametrize(
    "task",
    [
        {"visit": None},
        {"visit": Visit()},
        {"method": "POST", "body": b"x"},
        {"headers": {"If-None-Match": "mine"}},
        {"render": Render()},
    ],
)
async def test_first_visits_and_other_requests_carry_no_conditions_of_ours(task: dict[str, object]) -> None:
    _, headers = await visit(Log(), status=200, task=task)
    assert "if-none-match" not in headers


async def test_a_log_that_cannot_be_read_costs_a_body_and_nothing_else() -> None:
    log = Log()
    log.error = StorageError("the store is away")
    finished, headers = await visit(log, status=200)
    assert headers == {}
    assert isinstance(finished.result, Done)
    assert finished.result.outcome == "ok"


async def test_the_lines_of_many_pages_are_read_together_and_each_once() -> None:
    log = Log()
    visits = LastVisits(log.read)
    leases = [lease_for(f"https://a.test/{number}", task={"key": number, "visit": SEEN}) for number in range(1, 301)]
    await asyncio.gather(*(visits.ask(lease) for lease in leases))
    rows = await asyncio.gather(*(visits.of(lease) for lease in leases))
    assert [row and row.key for row in rows] == list(range(1, 301))
    assert [len(keys) for keys in log.calls] == [200, 100]
    # What was used is read anew at the next visit.
    assert await visits.of(leases[0]) is not None
    assert len(log.calls) == 3


@pytest.mark.parametrize("status", [404, 410, 403])
async def test_a_page_that_is_gone_has_no_items_and_one_that_is_refused_says_nothing(status: int) -> None:
    finished, _ = await visit(Log(), status=status)
    keys = finished.look and finished.look.keys
    assert keys == (None if status == 403 else ())


async def test_pages_that_are_visited_once_give_no_look() -> None:
    scripted = ScriptedJourney({URL: respond(URL, "<p>x")})
    finished = await scripted.take(lease_for(URL, task={"depth": 1}))
    assert finished.look is None


def test_a_task_keeps_what_is_known_of_its_visits() -> None:
    task = Task(url=URL, key=1, lane="a.test", visit=SEEN)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(task), type=Task) == task


async def test_a_visit_that_is_cancelled_takes_no_answer_away_from_the_next_one() -> None:
    log = Log()
    visits = LastVisits(log.read)
    lease = lease_for(URL, task={"visit": SEEN})
    asking = asyncio.create_task(visits.ask(lease))
    await asyncio.sleep(0)
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert await visits.of(lease) is not None
    assert len(log.calls) == 1
