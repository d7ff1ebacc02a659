"""When a page of a new crawl is asked for only if it has changed, and what stands for the answer that it has not."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest
from scripted_journey import NOW, URL, ScriptedJourney

from shoal.archive.base import Capture
from shoal.errors import StorageError
from shoal.fetch.base import Fetch
from shoal.fetch.exits import ExitConfig
from shoal.journey.conditional import MOST_IN_VAIN, ArchivedPages, ArchiveRead
from shoal.journey.results import Finished
from shoal.model import Done, LaneUpdate, Lease, Render, Retry, Visit
from shoal.store.base import FetchRow
from shoal.testing.fakes import HTML, Answer, lease_for, respond

BODY = b"<a href=/next>next</a>"
HASH = hashlib.sha256(BODY).hexdigest()
STRONG, WEAK, DATE = '"v1"', 'W/"v1"', "Mon, 01 Jan 2024 00:00:00 GMT"
EXITS = {
    "homes/a": ExitConfig(name="homes/a", kind="proxy", url="http://a.test:1"),
    "homes/gate": ExitConfig(name="homes/gate", kind="gateway", url="http://g.test/{url}"),
    "members/ann": ExitConfig(name="members/ann", kind="account"),
}


async def at_once(step: Callable[[], Awaitable[ArchiveRead]]) -> ArchiveRead:
    return await step()


class Before:
    """An earlier crawl that has archived each page which is asked for, with these fields in its line of the log and
    these headers in its capture."""

    def __init__(self, *, vary: str = "", status: int = 200, **line: Any) -> None:
        headers = {"content-type": HTML, "etag": STRONG, "last-modified": DATE, "vary": vary}
        self.line = {"etag": STRONG, "last_modified": DATE, "outcome": "ok", "status": 200, **line}
        if "etag" in line:
            headers["etag"] = line["etag"]
        self.headers = {name: text for name, text in headers.items() if text}
        self.status = status
        self.asked: list[tuple[str, list[int]]] = []
        self.missing: set[str] = set()
        self.reads = 0

    async def fetches(self, crawl: str, keys: Sequence[int]) -> list[FetchRow]:
        self.asked.append((crawl, list(keys)))
        common = {"crawl": crawl, "token": 1, "attempt": 1, "at": NOW - 86_400, "url": URL, "exit": "direct"}
        kept = {"content_hash": HASH, "archived": "object"}
        return [msgspec.convert({**common, **kept, "key": key, **self.line}, FetchRow) for key in keys]

    async def body(self, content_hash: str) -> bytes:
        if "body" in self.missing:
            raise StorageError("bodies/… is not in the archive")
        assert content_hash == HASH
        return BODY

    async def captures(self, name: str) -> list[Capture]:
        self.reads += 1
        if "captures" in self.missing:
            raise StorageError("captures/… is damaged")
        about: dict[str, Any] = {"crawl": "before", "url": URL, "final_url": URL, "at": NOW - 86_400, "token": 1}
        capture = Capture(**about, key=1, status=self.status, headers=self.headers, content_hash=HASH, size=len(BODY))
        return [msgspec.structs.replace(capture, key=9), msgspec.structs.replace(capture, content_hash="0"), capture]

    def pages(self, *crawls: str, sends_cookies: bool = True) -> ArchivedPages:
        archive: Any = self
        return ArchivedPages(
            crawls or ("before",),
            read=self.fetches,
            archive=archive,
            exits=EXITS,
            reach=at_once,
            sends_cookies=sends_cookies,
        )


class Site:
    """Answers a conditional request with a 304 that has these headers, any other one with the page as it is now."""

    def __init__(self, **headers: str) -> None:
        self.headers = headers
        self.requests: list[Fetch] = []

    async def fetch(self, request: Fetch) -> Answer:
        self.requests.append(request)
        if request.headers:
            return respond(request.url, "", status=304, headers=self.headers)
        return respond(request.url, "<p>new")

    async def close(self) -> None:
        """Nothing to close."""

    @property
    def conditions(self) -> list[dict[str, str]]:
        return [dict(request.headers or {}) for request in self.requests]


async def visit(
    before: Before, site: Site | None = None, *, pages: ArchivedPages | None = None, **lease: Any
) -> tuple[Finished, Site]:
    site = site or Site()
    scripted = ScriptedJourney(fetcher=site, archived_pages=pages or before.pages(), keeping="hash")
    await scripted.with_rules(b"")
    return await scripted.take(lease_of(**lease)), site


def lease_of(task: dict[str, Any] | None = None, **fields: Any) -> Lease:
    return lease_for(URL, task={"depth": 1, "key": 1, **(task or {})}, **fields)


def outcome(finished: Finished) -> str:
    assert isinstance(finished.result, Done)
    return finished.result.outcome


async def test_a_page_that_has_not_changed_gives_the_items_and_links_of_the_archived_one() -> None:
    finished, site = await visit(Before())
    assert site.conditions == [{"if-none-match": STRONG, "if-modified-since": DATE}]
    assert isinstance(finished.result, Done)
    assert [task.url for task in finished.result.found] == ["https://a.test/next"]
    assert [item.key for item in finished.items] == [URL]
    row = finished.fetch
    assert row is not None
    assert (row.outcome, row.status, row.size, row.content_hash, row.etag) == ("not_modified", 304, 0, HASH, STRONG)


async def test_its_capture_is_that_of_a_page_with_what_the_304_says_anew() -> None:
    scripted = ScriptedJourney(
        fetcher=Site(etag=STRONG, date="today", server="another"), archived_pages=Before().pages(), keeping="page"
    )
    page = (await scripted.take(lease_of())).page
    assert page is not None
    assert (page.body, page.capture.status, page.capture.crawl) == (BODY, 200, "c")
    assert page.capture.headers == {"content-type": HTML, "etag": STRONG, "last-modified": DATE, "date": "today"}


async def test_a_page_that_has_changed_is_one_request() -> None:
    scripted = ScriptedJourney({URL: respond(URL, "<p>new")}, archived_pages=Before().pages())
    finished = await scripted.take(lease_of())
    assert outcome(finished) == "ok"
    assert len(scripted.fetcher.requests) == 1
    assert scripted.fetcher.requests[0].headers


@pytest.mark.parametrize(
    "line",
    [
        {"etag": "", "last_modified": ""},
        {"outcome": "http_404"},
        {"outcome": "redirected"},
        {"archived": ""},
        {"content_hash": ""},
        {"request": "POST 1 B 00"},
        {"url": "https://a.test/other"},
        {"exit": "homes/a"},
    ],
)
async def test_a_line_that_names_no_such_page_asks_nothing(line: dict[str, Any]) -> None:
    finished, site = await visit(Before(**line))
    assert site.conditions == [{}]
    assert outcome(finished) == "ok"


@pytest.mark.parametrize(
    "task",
    [
        {"visit": Visit(visits=1)},
        {"method": "POST", "body": b"x"},
        {"method": "HEAD"},
        {"headers": {"accept-language": "de"}},
        {"render": Render()},
    ],
)
def test_other_requests_than_plain_first_ones_are_not_looked_up(task: dict[str, Any]) -> None:
    assert not Before().pages().concern(lease_of(task))


@pytest.mark.parametrize(
    ("name", "is_asked"),
    [("direct", True), ("homes/a", True), ("homes/gate", False), ("members/ann", False), ("homes/unknown", False)],
)
def test_through_accounts_and_gateways_all_is_fetched_in_full(name: str, is_asked: bool) -> None:
    assert Before().pages().concern(lease_of(exit=name)) == is_asked


@pytest.mark.parametrize(
    ("vary", "etag", "answer", "is_believed"),
    [
        ("", WEAK, {}, True),
        ("", "", {}, True),
        ("Accept-Encoding, User-Agent", WEAK, {}, True),
        ("Cookie", STRONG, {}, True),
        ("*", STRONG, {"etag": WEAK}, True),
        ("Cookie", WEAK, {}, False),
        ("accept, cookie", "", {}, False),
        ("*", "", {}, False),
        ("", "", {"vary": "Cookie"}, False),
        ("", STRONG, {"etag": '"v2"'}, False),
    ],
)
async def test_a_304_is_believed_where_it_can_only_mean_this_page(
    vary: str,
    etag: str,
    answer: dict[str, str],
    is_believed: bool,
) -> None:
    finished, site = await visit(Before(vary=vary, etag=etag), Site(**answer))
    assert outcome(finished) == ("not_modified" if is_believed else "ok")
    assert len(site.requests) == (1 if is_believed else 2)
    assert is_believed or site.conditions[1] == {}


async def test_without_cookies_a_page_that_varies_by_them_is_the_same() -> None:
    before = Before(vary="Cookie", etag="")
    finished, _ = await visit(before, pages=before.pages(sends_cookies=False))
    assert outcome(finished) == "not_modified"


@pytest.mark.parametrize("what", ["body", "captures"])
async def test_a_page_that_is_not_in_the_archive_any_more_is_fetched_in_full(what: str) -> None:
    before = Before()
    before.missing = {what}
    finished, site = await visit(before)
    assert [bool(headers) for headers in site.conditions] == [True, False]
    assert outcome(finished) == "ok"


async def test_a_capture_with_other_validators_or_another_status_is_not_that_page() -> None:
    # The line of a later visit that archived nothing names an older capture beside its own validators.
    before = Before()
    before.headers["etag"] = '"v0"'
    assert outcome((await visit(before))[0]) == "ok"
    assert outcome((await visit(Before(status=404)))[0]) == "ok"


async def test_a_lane_whose_pages_are_asked_for_in_vain_is_fetched_in_full_from_then_on() -> None:
    before, site = Before(), Site()
    before.missing = {"body"}
    pages = before.pages()
    await visit(before, site, pages=pages)
    assert not pages.concern(lease_of())  # its next attempt
    assert pages.concern(lease_of({"key": 2}))
    for key in range(2, MOST_IN_VAIN + 1):
        await visit(before, site, pages=pages, task={"key": key})
    assert not pages.concern(lease_of({"key": 99}))
    assert pages.concern(lease_of({"key": 99, "lane": "b.test"}))


async def test_crawls_are_looked_through_from_the_newest_on_for_what_is_not_found_yet() -> None:
    before = Before()

    async def read(crawl: str, keys: Sequence[int]) -> list[FetchRow]:
        rows = await before.fetches(crawl, keys)
        return rows if crawl == "c-1" else [row for row in rows if row.key == 1]

    archive: Any = before
    pages = ArchivedPages(("c-3", "c-2", "c-1"), read=read, archive=archive, exits={}, reach=at_once)
    for key in (1, 2):
        await pages.ask(lease_of({"key": key}))
    assert before.asked == [("c-3", [1]), ("c-3", [2]), ("c-2", [2]), ("c-1", [2])]


async def test_the_captures_of_a_batch_are_read_once() -> None:
    before = Before()
    pages = before.pages()
    for _ in range(3):
        await visit(before, pages=pages)
    assert before.reads == 1


async def test_a_host_without_a_start_slot_for_the_second_request_ends_the_attempt_for_free() -> None:
    before, site = Before(), Site()
    before.missing = {"body"}
    scripted = await ScriptedJourney(fetcher=site, archived_pages=before.pages()).with_rules(b"")
    await scripted.frontier.update_lane("c", "a.test", LaneUpdate(rest_seconds=600.0))
    finished = await scripted.take(lease_of())
    assert isinstance(finished.result, Retry)
    assert finished.result.free
    assert "cannot be used" in finished.result.reason
