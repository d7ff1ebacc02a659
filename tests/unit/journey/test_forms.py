"""The ways to write a spider: whichever is used, the same tasks come of it, and most of them in one go."""

from __future__ import annotations

import asyncio
import gc
import itertools
import traceback
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import msgspec
import pytest
from handler_runs import found, handlers, run
from hypothesis import example, given, settings
from hypothesis import strategies as st

from shoal import Item, Page, Request, Spider
from shoal.errors import UsageError
from shoal.journey.alarm import HandlerTimeout
from shoal.journey.handlers import Handlers
from shoal.journey.harvest import Harvest
from shoal.journey.intake import MOST_TOGETHER, Found, HandlerNames, Intake, PlainRequests, RecentKeys
from shoal.model import Task
from shoal.settings.table import Settings
from shoal.testing.fakes import make_page, respond, task_for
from shoal.urls.canonical import UrlRules, key_of

HREFS = st.sampled_from(
    [
        "1",
        "/1",
        "https://a.test/1",
        "./1",
        "../2?a=1&b=2",
        "/2?b=2&a=1",
        "/2?utm_source=x&a=1&b=2",
        "/1?utm_id=1",
        "/3#part",
        "#top",
        "",
        "?q=é",
        "/suche?q=größe&n=1",
        "/é",
        "//b.test/x",
        "http://a.test/1",
        "https://b.test/secret",
        "/private/x",
        "/private/x?utm_source=1",
        "/a/a/a/a/a",
        "/" + "x" * 3000,
        "javascript:void(0)",
        "mailto:me@a.test",
        "/dir/page",
    ]
)
# Such a link is a request of its own kind in some forms: none, or one without the password.
ODD_HREFS = st.sampled_from(["ftp://a.test/", "http://[", "https://me:word@a.test/4", "//me@b.test/"])
OPTIONS = st.sampled_from(
    [
        {},
        {"priority": 3},
        {"meta": {"n": [1, None], "t": "é"}},
        {"headers": {"Cookie": "s", "Accept": "text/html"}},
        {"headers": {"Accept": "text/html"}, "delay": 1.5, "priority": -1},
        {"max_attempts": 2, "pool": "direct"},
        {"method": "POST", "body": "x"},
        {"key": "one"},
    ]
)
SETTINGS = st.fixed_dictionaries(
    {"deny": st.just(["/private/"])},
    optional={
        "max_links": st.sampled_from([1, 3]),
        "max_depth": st.just(2),
        "allow": st.sampled_from([["*"], ["b.test"]]),
        "same_page": st.just(["trailing_slash"]),
    },
)
BASES = st.sampled_from(["", "", "<base href=/root/>", "<base href=https://b.test/dir/>", "<base href='ftp://x/'>"])


class OwnRequest(Request):
    """A request that is taken in by itself."""


class Forms(Spider):
    """Follows the links of a page in a handler of each form."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options

    def one_by_one(self, page: Page) -> Iterator[Any]:
        for request in page.follow("a", self.details, **self.options):
            yield OwnRequest(**msgspec.structs.asdict(request))

    def yielded(self, page: Page) -> Iterator[Any]:
        yield page.follow("a", self.details, **self.options)

    def yielded_from(self, page: Page) -> Iterator[Any]:
        yield from page.follow("a", self.details, **self.options)

    def nested(self, page: Page) -> Iterator[Any]:
        yield from self.yielded_from(page)

    def looped(self, page: Page) -> Iterator[Any]:
        for request in page.follow("a", self.details, **self.options):  # noqa: UP028 -- a form of its own
            yield request

    def listed(self, page: Page) -> list[Any]:
        return list(page.follow("a", self.details, **self.options))

    async def streamed(self, page: Page) -> AsyncIterator[Any]:
        for request in page.follow("a", self.details, **self.options):
            await asyncio.sleep(0)
            yield request

    def links(self, page: Page) -> Iterator[Any]:
        for url in page.links("a"):
            yield Request(url, self.details, **self.options)

    def hrefs_one_by_one(self, page: Page) -> Iterator[Any]:
        for href in page.hrefs("a"):
            yield OwnRequest(href, self.details, **self.options)

    def hrefs(self, page: Page) -> Iterator[Any]:
        for href in page.hrefs("a"):
            yield Request(href, self.details, **self.options)

    def details(self, page: Page) -> None: ...


EVERYTHING = [
    "1",
    "/1",
    "/1?utm_id=1",
    "/2?utm_source=x&a=1&b=2",
    "/suche?q=größe&n=1",
    "//b.test/x",
    "/private/x",
    "#top",
]
PLAIN: dict[str, Any] = {
    "hrefs": EVERYTHING,
    "known": {"/1"},
    "options": {},
    "changes": {"deny": ["/private/"]},
    "base": "",
    "charset": "utf-8",
    "depth": 1,
}


def tasks_of(harvest: Harvest) -> list[Task]:
    return list(harvest.found.tasks.values())


def summary_of(kept_out: Found) -> tuple[dict[str, int], list[tuple[str, str]]]:
    return kept_out.rejected, sorted(kept_out.samples)


@settings(deadline=None)
@example(**PLAIN)
@example(**{**PLAIN, "charset": "windows-1252"})
@example(**{**PLAIN, "base": "<base href=https://b.test/dir/>"})
@example(**{**PLAIN, "base": "<base href=https://b.test/dir/>", "changes": {"allow": ["*"]}})
@example(**{**PLAIN, "changes": {"max_links": 1}})
@example(**{**PLAIN, "changes": {"max_links": 2}, "hrefs": ["/1", "/2", "/2?", "/3", "/1"], "known": set()})
@example(**{**PLAIN, "changes": {"max_depth": 2}, "depth": 2})
@example(**{**PLAIN, "hrefs": ["https://me:word@a.test/4", *EVERYTHING]})
@example(**{**PLAIN, "hrefs": ["ftp://a.test/", *EVERYTHING], "options": {"priority": 3, "meta": {"a": 1}}})
@given(
    hrefs=st.lists(HREFS, max_size=12) | st.lists(HREFS | ODD_HREFS, max_size=12),
    known=st.sets(st.sampled_from(["/1", "/dir/1", "/2?a=1&b=2", "/3", "/suche?n=1&q=gr%C3%B6%C3%9Fe"])),
    options=OPTIONS,
    changes=SETTINGS,
    base=BASES,
    charset=st.sampled_from(["utf-8", "windows-1252"]),
    depth=st.integers(1, 2),
)
def test_every_form_finds_what_requests_that_are_taken_in_one_by_one_find(
    hrefs: list[str],
    known: set[str],
    options: dict[str, Any],
    changes: dict[str, Any],
    base: str,
    charset: str,
    depth: int,
) -> None:
    body = (base + "".join(f'<a href="{href}">x</a>' for href in hrefs)).encode(charset)
    given = Given(body, charset=charset, depth=depth, known=known, options=options, settings=Settings(**changes))
    got = asyncio.run(given.harvests())
    expected = got["one_by_one"]
    assert tasks_of(got["hrefs"]) == tasks_of(got["hrefs_one_by_one"])
    assert summary_of(got["hrefs"].found) == summary_of(got["hrefs_one_by_one"].found)
    for name in ("looped", "listed", "streamed", "yielded_from", "nested", "links"):
        if name != "links" or "headers" not in options:  # who writes requests decides who gets their headers
            assert tasks_of(got[name]) == tasks_of(expected), name
        assert summary_of(got[name].found) == summary_of(expected.found), name
    whole = got["yielded"]
    is_odd = {"scheme", "invalid_url", "url_too_long", "credentials"} & whole.found.rejected.keys()
    if not is_odd and not {"max_links", "max_depth"} & changes.keys() and "b.test" not in base:
        assert tasks_of(whole) == tasks_of(expected)
        assert summary_of(whole.found) == summary_of(expected.found)


class Given(NamedTuple):
    """A page and the rules of its crawl."""

    body: bytes
    charset: str
    depth: int
    known: set[str]
    options: dict[str, Any]
    settings: Settings

    async def harvests(self) -> dict[str, Harvest]:
        """What each handler of `Forms` gives, by its name."""
        names = [name for name in vars(Forms) if not name.startswith("_") and name != "details"]
        return {name: await self._harvest(name) for name in names}

    async def _harvest(self, name: str) -> Harvest:
        known = RecentKeys()
        for path in self.known:
            known.add(key_of(f"https://a.test{path}"))
        rules = UrlRules(self.settings, start_hosts=["a.test"])
        intake = Intake(rules, self.settings, known=known, clock=lambda: 50.0)
        url = "https://a.test/dir/page"
        answer = respond(url, self.body, kind=f"text/html; charset={self.charset}")
        page = Page(answer, task=task_for(url, handler=name, depth=self.depth), resolver=rules)
        return await Handlers(Forms(self.options), intake=intake, item_key="", seconds=0.0).run(page)


class Taking(Spider):
    """Iterates over the links of a page by hand, as people do."""

    iterator: Any = None

    def parse(self, page: Page) -> Iterator[Any]:
        self.iterator = iter(page.follow("a"))
        yield from self.iterator
        yield Item(key="behind", a=1)

    def first(self, page: Page) -> Iterator[Any]:
        yield next(iter(page.follow("a")))

    def sliced(self, page: Page) -> Iterator[Any]:
        yield from itertools.islice(page.follow("a"), 1)

    def filtered(self, page: Page) -> Iterator[Any]:
        yield from (request for request in page.follow("a") if request.url.endswith("2"))

    def without_first(self, page: Page) -> Iterator[Any]:
        requests = iter(page.follow("a"))
        next(requests)
        yield from requests

    def changed(self, page: Page) -> Iterator[Any]:
        for request in page.follow("a"):
            request.url += "/changed"
            yield request
            request.url += "/again"
            yield request

    def twice(self, page: Page) -> Iterator[Any]:
        follow = page.follow("a")
        yield from follow
        yield from follow

    def between(self, page: Page) -> Iterator[Any]:
        yield Request("/0")
        yield from page.follow("a")
        yield Request("/3", headers={"A": "b"})
        yield Request("/4")
        yield Request("/2")


async def test_a_handler_goes_on_behind_the_links_that_were_taken_in_whole() -> None:
    spider = Taking()
    harvest = await run("parse", spider)
    assert found(harvest) == ["/1", "/2"]
    assert [item.key for item in harvest.items] == ["behind"]
    assert spider.iterator.iteration.is_taken
    assert list(spider.iterator) == []


@pytest.mark.parametrize(
    ("name", "paths"),
    [
        ("first", ["/1"]),
        ("sliced", ["/1"]),
        ("filtered", ["/2"]),
        ("without_first", ["/2"]),
        ("changed", ["/1/changed", "/1/changed/again", "/2/changed", "/2/changed/again"]),
        ("twice", ["/1", "/2"]),
        ("between", ["/0", "/1", "/2", "/3", "/4"]),
    ],
)
async def test_who_iterates_by_hand_gets_what_was_asked_for(name: str, paths: list[str]) -> None:
    harvest = await run(name, Taking())
    assert found(harvest) == paths
    duplicates = {"between": 1, "twice": 2}.get(name)
    assert harvest.found.rejected == ({"duplicate": duplicates} if duplicates else {})


class Slips(Spider):
    """Yields good requests before and after a bad one. Each is to be named with the line that ends in its mark."""

    def parse(self, page: Page) -> Any: ...

    def bad_meta(self, page: Page) -> Iterator[Any]:
        yield Request("/1")
        yield Request("/2", meta={"a": object()})  # mark: bad_meta
        yield Request("/3")

    def bad_priority(self, page: Page) -> Iterator[Any]:
        yield Request("/1")
        yield Request("/2", priority=True)  # mark: bad_priority
        yield Request("/3")

    def bad_handler(self, page: Page) -> Iterator[Any]:
        yield Request("/1", self.parse)
        yield Request("/2", "prase")  # mark: bad_handler
        yield Request("/3")

    def bad_url(self, page: Page) -> Iterator[Any]:
        yield Request("/1")
        yield Request(None)  # type: ignore[arg-type]  # mark: bad_url
        yield Request("/3")

    def bad_option(self, page: Page) -> Iterator[Any]:
        yield Request("/1")
        yield from page.follow("a", meta={"a": object()})  # mark: bad_option

    async def bad_later(self, page: Page) -> AsyncIterator[Any]:
        yield Request("/1")
        yield Request("/2", meta={1: 2})  # type: ignore[dict-item]  # mark: bad_later


@pytest.mark.parametrize("name", ["bad_meta", "bad_priority", "bad_handler", "bad_url", "bad_option", "bad_later"])
async def test_a_bad_request_among_good_ones_is_an_error_in_its_line(name: str) -> None:
    with pytest.raises((UsageError, TypeError)) as caught:
        await run(name, Slips())
    lines = [frame.line or "" for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert any(text.endswith(f"# mark: {name}") for text in lines)


class Endless(Spider):
    def parse(self, page: Page) -> Iterator[Any]:
        for number in itertools.count():
            yield Request(f"/{number}")

    def many(self, page: Page) -> Iterator[Any]:
        for number in range(2 * MOST_TOGETHER + 10):
            yield Request(f"/{number}")
            yield {"n": number}


async def test_a_handler_that_never_stops_yielding_requests_is_stopped() -> None:
    # The deadline interrupts whatever runs: also what the garbage of earlier tests calls when it is collected.
    gc.collect()
    with pytest.raises(HandlerTimeout):
        await run("parse", Endless())


def test_only_so_many_requests_are_kept_back() -> None:
    plain = PlainRequests(HandlerNames(None))
    assert all(plain.take(Request(f"/{number}")) for number in range(MOST_TOGETHER))
    assert not plain.take(Request("/more"))


async def test_more_requests_than_are_kept_back_are_all_taken_in_and_in_order() -> None:
    harvest = await handlers(Endless(), seconds=0.0).run(make_page(handler="many"))
    number = 2 * MOST_TOGETHER + 10
    assert found(harvest) == [f"/{index}" for index in range(number)]
    assert len(harvest.items) == number
    assert harvest.found.rejected == {}
