"""Handlers of every form, their deadlines, and the handlers shoal has itself: page ranges and sitemaps."""

from __future__ import annotations

import asyncio
import functools
import gzip
import inspect
import json
import re
import signal
import sys
import time
import traceback
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import pydantic
import pytest

from shoal import Item, Page, Request, Spider
from shoal.error_text import line_of, traceback_of
from shoal.errors import UsageError
from shoal.journey.alarm import HandlerTimeout
from shoal.journey.handlers import HandlerGaveUp, Handlers
from shoal.journey.harvest import Harvest
from shoal.journey.intake import Intake
from shoal.journey.listings import PAGES, SITEMAP, last_page
from shoal.settings import Settings
from shoal.testing.fakes import make_page
from shoal.urls import UrlRules

LIMIT = 0.2


class Model(pydantic.BaseModel):
    a: int = 1


class Struct(msgspec.Struct):
    a: int = 1


class Forms(Spider):
    def parse(self, page: Page) -> Iterator[Any]:
        yield Item(key="k", a=1)
        yield Request("/1")
        yield None
        yield page.follow("a")

    def listed(self, page: Page) -> list[Any]:
        return [Item(key="k", a=1), Request("/1"), page.follow("a")]

    def nothing(self, page: Page) -> None:
        return None

    def mapping(self, page: Page) -> dict[str, int]:
        return {"a": 1}

    def model(self, page: Page) -> Model:
        return Model()

    def struct(self, page: Page) -> Struct:
        return Struct()

    def request(self, page: Page) -> Request:
        return Request("/1")

    def followed(self, page: Page) -> Any:
        return page.follow("a")

    async def awaited(self, page: Page) -> list[Any]:
        await asyncio.sleep(0)
        return self.listed(page)

    async def awaited_item(self, page: Page) -> Model:
        return Model()

    async def awaited_nothing(self, page: Page) -> None:
        await asyncio.sleep(0)

    async def streamed(self, page: Page) -> AsyncIterator[Any]:
        for part in self.listed(page):
            await asyncio.sleep(0.001)
            yield part

    def text(self, page: Page) -> str:
        return "text"


class Failing(Spider):
    def takes_a_while(self, page: Page) -> None:
        time.sleep(LIMIT)

    def is_quick(self, page: Page) -> None:
        return None

    def raises(self, page: Page) -> None:
        raise ValueError("no\nprice")

    async def raises_later(self, page: Page) -> AsyncIterator[Any]:
        yield {"a": 1}
        await asyncio.sleep(0)
        raise ValueError("no price")

    def exits(self, page: Page) -> None:
        sys.exit(3)

    async def exits_later(self, page: Page) -> None:
        await asyncio.sleep(0)
        sys.exit(3)

    async def cancelled(self, page: Page) -> None:
        other = asyncio.ensure_future(asyncio.sleep(10))
        other.cancel()
        await other

    async def own_timeout(self, page: Page) -> None:
        raise TimeoutError("mine")

    def loops(self, page: Page) -> None:
        while True:
            pass

    def generates_for_ever(self, page: Page) -> Iterator[Any]:
        while True:
            yield None

    def regex(self, page: Page) -> Any:
        return re.match(r"(a+)+$", "a" * 60 + "b")

    async def sleeps(self, page: Page) -> None:
        await asyncio.sleep(60)

    async def loops_in_async(self, page: Page) -> None:
        await asyncio.sleep(0)
        while True:
            pass

    async def streams_for_ever(self, page: Page) -> AsyncIterator[Any]:
        while True:
            await asyncio.sleep(0.01)
            yield None


def handlers(spider: Spider, *, seconds: float = LIMIT, **settings: Any) -> Handlers:
    values = Settings(**settings)
    intake = Intake(UrlRules(values, start_hosts=["a.test"]), values)
    return Handlers(spider, intake=intake, item_key="", seconds=seconds)


async def run(name: str, spider: Spider | None = None, **page: Any) -> Harvest:
    given = make_page("<a href=/1></a><a href=/2></a>", handler=name, **page)
    return await handlers(spider or Forms()).run(given)


def found(harvest: Harvest) -> list[str]:
    return [task.url.removeprefix("https://a.test") for task in harvest.found.tasks.values()]


@pytest.mark.parametrize("name", ["parse", "listed", "awaited", "streamed"])
async def test_handlers_may_yield_or_return_many_things(name: str) -> None:
    harvest = await run(name)
    assert [item.key for item in harvest.items] == ["k"]
    assert found(harvest) == ["/1", "/2"]


@pytest.mark.parametrize("name", ["mapping", "model", "struct", "awaited_item"])
async def test_handlers_may_return_one_item(name: str) -> None:
    [item] = (await run(name)).items
    assert json.loads(item.data) == {"a": 1}


async def test_handlers_may_return_one_request_links_or_nothing() -> None:
    assert found(await run("request")) == ["/1"]
    assert found(await run("followed")) == ["/1", "/2"]
    for name in ("nothing", "awaited_nothing"):
        harvest = await run(name)
        assert (harvest.items, harvest.found.tasks) == ([], {})


async def test_a_handler_that_does_not_exist_is_named() -> None:
    for name in ("missing", "start"):
        with pytest.raises(UsageError, match=f"Forms has no handler '{name}'"):
            await run(name)
    with pytest.raises(UsageError, match="a handler yielded a value of type"):
        await run("text")


class Slips(Spider):
    """Handlers with slips. Each is to be named with the line that ends in its mark."""

    def wrong_handler(self, page: Page) -> Iterator[Any]:
        yield Item(key="k", a=1)
        yield page.follow("a", "detials")  # mark: wrong_handler

    def wrong_request(self, page: Page) -> Iterator[Any]:
        yield Request("/1", handler="detials")  # mark: wrong_request

    def wrong_iterated(self, page: Page) -> Iterator[Any]:
        yield from page.follow("a", "detials")  # mark: wrong_iterated

    async def wrong_streamed(self, page: Page) -> AsyncIterator[Any]:
        await asyncio.sleep(0)
        yield Request("/1", handler="detials")  # mark: wrong_streamed

    def swallowed(self, page: Page) -> Iterator[Any]:
        try:
            yield page.follow("a", "detials")  # mark: swallowed
        except Exception:
            yield Item(key="k", a=1)

    async def swallowed_later(self, page: Page) -> AsyncIterator[Any]:
        try:
            yield page.follow("a", "detials")  # mark: swallowed_later
        except Exception:
            return

    def href_as_selector(self, page: Page) -> Iterator[Any]:
        yield page.follow(page.attr("a", "href"))  # mark: href_as_selector

    def bad_selector(self, page: Page) -> Iterator[Any]:
        yield page.follow("a[[", self.details)  # mark: bad_selector

    def no_parse(self, page: Page) -> Iterator[Any]:
        yield page.follow("a")  # mark: no_parse

    def details(self, page: Page) -> None: ...


DETAILS = "Slips has no handler 'detials': did you mean 'details'?"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("wrong_handler", DETAILS),
        ("wrong_request", DETAILS),
        ("wrong_iterated", DETAILS),
        ("wrong_streamed", DETAILS),
        ("swallowed", DETAILS),
        ("swallowed_later", DETAILS),
        ("href_as_selector", "page.follow('/1'): that is a URL, write page.follow(url='/1')"),
        ("bad_selector", "'a[[' is no CSS selector"),
        ("no_parse", "Slips has no parse method, and a request names no other handler: write one"),
    ],
)
async def test_a_slip_is_an_error_in_the_line_that_makes_it(name: str, line: str) -> None:
    with pytest.raises(UsageError) as caught:
        await run(name, Slips())
    assert str(caught.value) == line
    lines = [frame.line or "" for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert any(text.endswith(f"# mark: {name}") for text in lines)


class Forgetful(Spider):
    def parse(self, page: Page) -> None:
        page.follow("a")

    async def later(self, page: Page) -> None:
        page.follow(url="/1")

    def looks(self, page: Page) -> None:
        assert len(list(page.follow("a"))) == 2


@pytest.mark.parametrize("name", ["parse", "later"])
async def test_links_that_a_handler_neither_yields_nor_returns_are_an_error(name: str) -> None:
    with pytest.raises(UsageError, match=r"calls page.follow and gives nothing back: write `yield page.follow"):
        await run(name, Forgetful())
    assert found(await run("looks", Forgetful())) == []


def again(handler: Any) -> Any:
    @functools.wraps(handler)
    def yields(self: Any, page: Page) -> Iterator[Any]:
        yield from handler(self, page)

    return yields


class Returning(Spider):
    def both(self, page: Page) -> Any:
        if page.url.endswith("/list"):
            yield page.follow("a")
        return {"a": 1}  # mark: both

    def within(self, page: Page) -> Any:
        def price() -> int:
            return 1

        if page.url.endswith("/list"):
            return
        yield {"a": price(), "b": [(lambda: 1)()]}
        return None

    @again
    def wrapped(self, page: Page) -> Any:
        return [{"a": 1}]


async def test_a_value_that_a_generator_returns_is_an_error() -> None:
    lines = inspect.getsource(sys.modules[__name__]).splitlines()
    line = next(number for number, text in enumerate(lines, 1) if text.endswith("# mark: both"))
    with pytest.raises(UsageError, match=rf"^Returning.both yields, so what it returns in line {line} is lost: yield"):
        await run("both", Returning())


@pytest.mark.parametrize("name", ["within", "wrapped"])
async def test_a_generator_that_only_ends_is_none(name: str) -> None:
    assert len((await run(name, Returning())).items) == 1


async def test_what_a_handler_raises_comes_through() -> None:
    for name in ("raises", "raises_later"):
        with pytest.raises(ValueError, match=r"no\sprice"):
            await run(name, Failing())
    with pytest.raises(TimeoutError, match="mine"):
        await run("own_timeout", Failing())


@pytest.mark.parametrize("name", ["exits", "exits_later", "cancelled"])
async def test_a_handler_cannot_end_its_worker(name: str) -> None:
    with pytest.raises(HandlerGaveUp):
        await run(name, Failing())


@pytest.mark.parametrize(
    "name",
    ["loops", "generates_for_ever", "regex", "sleeps", "loops_in_async", "streams_for_ever"],
)
async def test_a_handler_that_takes_too_long_is_stopped(name: str) -> None:
    began = time.monotonic()
    with pytest.raises(HandlerTimeout, match=r"longer than 0.2 s"):
        await run(name, Failing())
    assert time.monotonic() - began >= LIMIT * 0.9
    await asyncio.sleep(LIMIT * 1.2)  # an alarm that was left would ring in this time, and raise


async def test_each_page_has_its_own_deadline_though_the_timer_runs_on() -> None:
    limit = 5 * LIMIT
    subject = handlers(Failing(), seconds=limit)
    for _ in range(6):
        await subject.run(make_page("", handler="takes_a_while"))
    began = time.monotonic()
    with pytest.raises(HandlerTimeout):
        await subject.run(make_page("", handler="loops"))
    assert time.monotonic() - began >= limit * 0.9


async def test_the_alarms_of_two_crawls_in_one_process_do_not_silence_each_other() -> None:
    both = [handlers(Failing()) for _ in range(2)]
    for subject in (*both, *both):
        await subject.run(make_page("", handler="is_quick"))
    for subject in both:
        with pytest.raises(HandlerTimeout):
            await subject.run(make_page("", handler="loops"))


async def test_a_closed_alarm_does_not_ring() -> None:
    subject = handlers(Failing(), seconds=100.0)
    await subject.run(make_page("", handler="is_quick"))
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 0
    subject.close()
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


async def test_a_handler_that_is_cancelled_from_outside_stays_cancelled() -> None:
    began = asyncio.Event()

    class Waiting(Spider):
        async def parse(self, page: Page) -> None:
            began.set()
            await asyncio.Event().wait()

    working = asyncio.create_task(handlers(Waiting(), seconds=60.0).run(make_page("")))
    await began.wait()
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working


def test_an_error_in_one_line_and_its_last_frames() -> None:
    class Broken(Exception):  # noqa: N818 -- a test's own
        def __str__(self) -> str:
            raise RuntimeError

    assert line_of(ValueError("no\n price \ud800")) == "ValueError: no price \\ud800"
    assert line_of(Broken()) == "Broken: (no text)"
    assert len(line_of(ValueError("x" * 10_000))) == 500
    half_cut = ValueError("x" * 480 + " hunter2hunter2hunter2")
    assert "hunter2" not in line_of(half_cut, secrets=["hunter2hunter2hunter2"])
    try:
        raise ValueError("deep \ud800")
    except ValueError as error:
        lines = traceback_of(error)
    assert lines.endswith("ValueError: deep \\ud800")
    assert "test_handlers.py" in lines
    quoting = traceback_of(ValueError("x" * 990 + " hunter2hunter2hunter2" + "x" * 1_000_000), secrets=["hunter2" * 3])
    assert "hunter2" not in quoting
    assert len(quoting) < 2000


def test_an_error_that_quotes_a_whole_page_is_cut_short() -> None:
    try:
        float("x" * 1_000_000)
    except ValueError as error:
        lines = traceback_of(error)
    assert "could not convert string to float: 'xxx" in lines
    assert len(lines) < 10_000


@pytest.mark.parametrize(
    ("body", "selector", "last"),
    [
        ("<a class=last href='/list?page=12&x=3'>Last</a>", "a.last", 12),
        ("<a class=last href='/elsewhere'>Page 7</a>", "a.last", 7),
        ("<a>1</a><a>2</a><a>9</a>", "a", 9),
        ("<option value=31>x</option>", "option", 31),
        ("<p>Page 3 of 40</p>", "p", 40),
    ],
)
def test_the_last_page_is_read_off_a_link_a_text_or_a_value(body: str, selector: str, last: int) -> None:
    assert last_page(make_page(body), selector, "https://a.test/list?page={}") == last


def test_a_last_page_that_is_not_there_is_an_error_that_says_so() -> None:
    with pytest.raises(LookupError, match=r"no element matches 'a\.last'"):
        last_page(make_page("<p>x"), "a.last", "https://a.test/{}")
    with pytest.raises(LookupError, match="names no number"):
        last_page(make_page("<a class=last>last</a>"), "a.last", "https://a.test/{}")
    assert last_page(make_page(""), 5, "https://a.test/{}") == 5


async def test_the_first_page_of_a_range_gives_the_others() -> None:
    class Shop(Spider):
        def listing(self, page: Page) -> Iterator[Any]:
            yield {"meta": page.meta}

    options = {"handler": "listing", "template": "https://a.test/p/{}", "first": 2, "last": "b", "meta": {}}
    page = make_page("<b>5</b>", handler=PAGES, meta=options, priority=4, depth=1)
    harvest = await handlers(Shop()).run(page)
    assert found(harvest) == ["/p/3", "/p/4", "/p/5"]
    assert {(task.handler, task.depth, task.priority) for task in harvest.found.tasks.values()} == {("listing", 1, 4)}
    assert json.loads(harvest.items[0].data) == {"meta": {}}


async def test_a_range_that_claims_a_billion_pages_is_cut_with_a_reason() -> None:
    options = {"handler": "nothing", "template": "https://a.test/p/{}", "first": 1, "last": "b", "meta": {}}
    page = make_page("<b>99999999999</b>", handler=PAGES, meta=options)
    harvest = await handlers(Forms(), max_per_shape=50).run(page)
    assert len(harvest.found.tasks) == 50
    assert harvest.found.rejected == {"max_per_shape": 1}


async def take_sitemap(body: bytes, url: str, *, level: int = 0, **settings: Any) -> Harvest:
    page = make_page(body, url=url, kind="", handler=SITEMAP, meta={"handler": "item", "level": level})
    return await handlers(Forms(), **settings).run(page)


def index_of(*urls: str) -> bytes:
    listed = "".join(f"<sitemap><loc>{url}</loc></sitemap>" for url in urls)
    return f"<sitemapindex>{listed}</sitemapindex>".encode()


async def test_a_sitemap_gives_pages_and_further_sitemaps() -> None:
    urlset = b"<urlset><url><loc>https://a.test/1</loc></url><url><loc>https://other.test/2</loc></url></urlset>"
    for body in (urlset, gzip.compress(urlset)):
        harvest = await take_sitemap(body, "https://a.test/map.xml")
        assert [(task.url, task.handler, task.depth) for task in harvest.found.tasks.values()] == [
            ("https://a.test/1", "item", 0)
        ]
        assert harvest.found.rejected == {"out_of_scope": 1}
    index = index_of("https://cdn.test/more.xml")
    [nested] = (await take_sitemap(index, "https://a.test/map.xml")).found.tasks.values()
    assert (nested.url, nested.handler) == ("https://cdn.test/more.xml", SITEMAP)
    assert nested.meta == {"handler": "item", "level": 1}


async def test_a_sitemap_that_nobody_asked_for_names_others_of_its_host_only() -> None:
    index = index_of("https://cdn.test/1.xml", "https://victim.test/2.xml", "https://a.test/3.xml")
    harvest = await take_sitemap(index, "https://cdn.test/index.xml", level=1, allow=("a.test",))
    assert {task.url for task in harvest.found.tasks.values()} == {"https://cdn.test/1.xml", "https://a.test/3.xml"}
    assert harvest.found.rejected == {"out_of_scope": 1}


async def test_the_sitemaps_on_other_hosts_are_counted() -> None:
    index = index_of(*(f"https://h{number}.test/map.xml" for number in range(1_500)))
    harvest = await take_sitemap(index, "https://a.test/index.xml")
    assert (len(harvest.found.tasks), harvest.found.rejected) == (1_000, {"out_of_scope": 500})


async def test_sitemaps_that_lead_to_sitemaps_for_ever_are_left() -> None:
    index, reached = index_of("/another.xml"), []
    for level in range(5):
        harvest = await take_sitemap(index, "https://a.test/index.xml", level=level)
        reached.append(len(harvest.found.tasks))
    assert reached == [1, 1, 1, 0, 0]
    assert harvest.found.rejected == {"sitemap_chain": 1}
    assert harvest.found.samples == [("sitemap_chain", "https://a.test/another.xml")]


async def test_of_a_robots_txt_without_end_the_first_sitemaps_are_taken() -> None:
    body = b"".join(b"Sitemap: /map-%d.xml\n" % number for number in range(100_000))
    harvest = await take_sitemap(body, "https://a.test/robots.txt", max_robots_bytes=1000)
    assert 30 < len(harvest.found.tasks) < 60


async def test_the_sitemap_lines_of_robots_txt_are_followed() -> None:
    harvest = await take_sitemap(b"User-agent: *\nSitemap: /map.xml\nSITEMAP: /map2.xml", "https://a.test/robots.txt")
    assert found(harvest) == ["/map.xml", "/map2.xml"]


async def test_a_broken_sitemap_is_counted_and_what_it_gave_is_kept() -> None:
    harvest = await take_sitemap(b"<urlset><url><loc>https://a.test/1</loc></url><url", "https://a.test/map.xml")
    assert found(harvest) == ["/1"]
    assert harvest.found.rejected == {"bad_sitemap": 1}
    assert harvest.found.samples == [("bad_sitemap", "https://a.test/map.xml")]
    assert harvest.problem.startswith("sitemap https://a.test/map.xml: its XML is broken: unclosed token: line 1")
    assert harvest.notes == {harvest.problem[:200]: 1}


async def test_entries_of_a_sitemap_without_a_url_are_counted_one_by_one() -> None:
    body = b"<urlset><url/><url><loc>/1</loc></url><url/><url></url></urlset>"
    harvest = await take_sitemap(body, "https://a.test/map.xml")
    assert found(harvest) == ["/1"]
    assert harvest.found.rejected == {"sitemap_entry": 3}
    assert harvest.found.samples == [("sitemap_entry", "https://a.test/map.xml")]
    assert "3 entries name no usable URL" in harvest.problem


async def test_the_pages_of_a_feed_are_taken_in() -> None:
    rss = b"<rss><channel><item><link>/1</link></item><item><guid>https://a.test/2</guid></item></channel></rss>"
    atom = b"<feed><entry><link href='/1'/></entry><entry><link rel='alternate' href='/2'/></entry></feed>"
    for feed in (rss, atom):
        harvest = await take_sitemap(feed, "https://a.test/feed")
        assert (found(harvest), harvest.problem, harvest.notes) == (["/1", "/2"], "", {})
        assert [task.handler for task in harvest.found.tasks.values()] == ["item", "item"]


async def test_a_robots_txt_that_names_no_sitemap_is_counted() -> None:
    harvest = await take_sitemap(b"User-agent: *\nDisallow:", "https://a.test/robots.txt")
    assert harvest.found.rejected == {"bad_sitemap": 1}
    assert harvest.problem == "sitemap https://a.test/robots.txt: it names no sitemap"


async def test_of_many_bad_sitemaps_a_few_are_noted() -> None:
    running = handlers(Forms())
    notes: dict[str, int] = {}
    for number in range(50):
        url = f"https://a.test/{number}.xml"
        page = make_page(b"<html>", url=url, kind="", handler=SITEMAP, meta={"handler": "item"})
        notes |= (await running.run(page)).notes
    assert len(notes) == 10
    assert "sitemap https://a.test/0.xml: it is an HTML page" in notes
