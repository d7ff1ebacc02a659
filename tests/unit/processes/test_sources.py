"""Where a spider starts: URLs, requests, files, stdin, sitemaps, page ranges, and generators of them."""

from __future__ import annotations

import io
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal import Page, Request, Sitemap, Spider, Stdin, UrlFile
from shoal.crawl.sources import LONGEST_LINE, check_start, feed, requests_of, start_lanes, start_mark
from shoal.errors import StorageError, UsageError
from shoal.journey.intake import Intake
from shoal.journey.sitemaps import PAGES, SITEMAP
from shoal.model import Crawl
from shoal.settings.table import Settings
from shoal.spider.spider import Pages
from shoal.testing.clock import FakeClock
from shoal.testing.fakes import Watched
from shoal.testing.memory_frontier import MemoryFrontier
from shoal.urls.canonical import UrlRules


def spider_from(start: Any) -> Spider:
    return type("Made", (Spider,), {"start": start, "parse": _handle, "item": _handle, "listing": _handle})()


def _handle(self: Spider, page: Page) -> None:
    """A handler."""


async def requests(start: Any) -> list[Request]:
    return [request async for request in requests_of(spider_from(start)) if request is not None]


async def urls(start: Any) -> list[str]:
    return [request.url for request in await requests(start)]


async def test_one_url_or_many_in_canonical_form() -> None:
    assert await urls("https://A.test") == ["https://a.test/"]
    assert await urls(["https://a.test/x#y", Request("https://b.test/", priority=1)]) == [
        "https://a.test/x",
        "https://b.test/",
    ]


async def test_start_may_be_a_method_plain_or_async_or_a_generator() -> None:
    def listed(self: Any) -> list[str]:
        return ["https://a.test/1"]

    def yielded(self: Any) -> Iterator[str]:
        yield "https://a.test/2"

    async def awaited(self: Any) -> list[str]:
        return ["https://a.test/3"]

    async def streamed(self: Any) -> AsyncIterator[str]:
        yield "https://a.test/4"

    assert [await urls(start) for start in (listed, yielded, awaited, streamed)] == [
        [f"https://a.test/{number}"] for number in (1, 2, 3, 4)
    ]


async def test_a_generator_is_not_used_up_by_looking_at_it() -> None:
    spider = spider_from(f"https://a.test/{number}" for number in range(3))
    check_start(spider)
    assert start_lanes(spider) == []
    assert len([request async for request in requests_of(spider)]) == 3


async def test_a_file_gives_a_url_a_line(tmp_path: Path) -> None:
    path = tmp_path / "urls.txt"
    path.write_bytes(b"\xef\xbb\xbfhttps://a.test/1\n\n# a comment\n  https://a.test/2  \r\nhttps://a.test/\xff")
    found = await requests(UrlFile(str(path), handler="item"))
    assert [request.url for request in found] == ["https://a.test/1", "https://a.test/2", "https://a.test/�"]
    assert {request.handler for request in found} == {"item"}


async def test_a_file_that_cannot_be_read_is_said_before_anything_begins(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"missing\.txt cannot be read: No such file"):
        check_start(spider_from([UrlFile(str(tmp_path / "missing.txt"))]))
    (tmp_path / "urls.gz").write_bytes(b"\x1f\x8b\x08\x00")
    with pytest.raises(UsageError, match=r"urls\.gz cannot be read: it is compressed by gzip, and no text in UTF-8"):
        check_start(spider_from([UrlFile(str(tmp_path / "urls.gz"))]))


async def test_stdin_gives_a_url_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"https://a.test/1\n\nhttps://a.test/2")))
    assert await urls(Stdin()) == ["https://a.test/1", "https://a.test/2"]
    # A line without an end takes no more memory than a long one.
    endless = io.BytesIO(b"\xef\xbb\xbfhttps://a.test/1\n" + b"a" * 3 * LONGEST_LINE)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(endless))
    assert [len(url) for url in await urls(Stdin())] == [len("https://a.test/1"), LONGEST_LINE]


async def test_a_sitemap_or_a_bare_sites_robots_txt() -> None:
    [given] = await requests(Sitemap("https://a.test/map.xml", handler="item"))
    assert (given.url, given.handler, given.meta) == ("https://a.test/map.xml", SITEMAP, {"handler": "item"})
    [bare] = await requests(Sitemap("https://a.test"))
    assert (bare.url, bare.meta) == ("https://a.test/robots.txt", {"handler": "parse"})


async def test_a_page_range_with_a_known_end_needs_no_first_page() -> None:
    found = await requests(Pages("https://a.test/?page={}", last=3, handler="listing"))
    assert [request.url for request in found] == [f"https://a.test/?page={number}" for number in (1, 2, 3)]
    assert {request.handler for request in found} == {"listing"}
    assert await urls(Pages("https://a.test/{}", last=1, first=5)) == ["https://a.test/5"]


async def test_sources_say_what_each_of_their_pages_has(tmp_path: Path) -> None:
    path = tmp_path / "urls.txt"
    path.write_text("https://a.test/1\n")
    meta = {"shop": "a"}
    for source in (
        UrlFile(str(path), priority=3, depth=2, pool="slow", meta=meta),
        Pages("https://a.test/{}", last=1, priority=3, depth=2, pool="slow", meta=meta),
    ):
        [given] = await requests(source)
        assert (given.priority, given.depth, given.pool, given.meta) == (3, 2, "slow", meta)
    [listing] = await requests(Pages("https://a.test/{}", "a.last", priority=3, depth=2, pool="slow", meta=meta))
    assert (listing.priority, listing.depth, listing.pool) == (3, 2, "slow")
    assert listing.meta is not None
    assert (listing.meta["meta"], listing.meta["pool"]) == (meta, "slow")
    [sitemap] = await requests(Sitemap("https://a.test/map.xml", priority=3, depth=2, pool="slow", meta=meta))
    assert (sitemap.priority, sitemap.depth, sitemap.pool) == (3, 2, "slow")
    assert sitemap.meta == {"handler": "parse", "meta": meta, "pool": "slow"}


def test_the_mark_of_a_start_changes_with_what_its_pages_have() -> None:
    sources = [Pages("https://a.test/{}", last=3), Sitemap("https://a.test/"), UrlFile("urls.txt")]
    for source in sources:
        others = [msgspec.structs.replace(source, **{name: value}) for name, value in (("priority", 1), ("pool", "p"))]
        assert len({start_mark(spider_from([one])) for one in (source, *others)}) == 3


async def test_a_page_range_with_an_unknown_end_begins_with_its_first_page() -> None:
    [first] = await requests(Pages("https://a.test/{}", last="a.last", first=0))
    assert (first.url, first.handler) == ("https://a.test/0", PAGES)
    assert first.meta == {"handler": "parse", "template": "https://a.test/{}", "first": 0, "last": "a.last", "meta": {}}
    with pytest.raises(UsageError, match="where the page number goes"):
        await requests(Pages("https://a.test/", last=3))


@pytest.mark.parametrize(
    ("start", "line"),
    [
        ((), "Made has no start: give it a `start` URL or a list of them, or --stay waits"),
        ("", "Made has no start"),
        (5, "start holds a int"),
        ([5], "start holds a int"),
        (["example.com"], "did you mean https://example.com"),
        ("ftp://a.test/", "neither http nor https"),
        (["https://u:p@a.test/"], "take it out of the URL"),
    ],
)
def test_a_start_that_is_none_is_refused_in_one_line(start: Any, line: str) -> None:
    with pytest.raises(UsageError, match=line):
        check_start(spider_from(start))


def test_start_urls_without_a_start_is_told_what_to_write() -> None:
    spider = type("Books", (Spider,), {"start_urls": ["https://a.test/"]})()
    with pytest.raises(UsageError, match="give it a `start` URL or a list of them, in place of start_urls"):
        check_start(spider)


async def test_a_source_of_the_wrong_kind_is_refused_where_it_comes() -> None:
    with pytest.raises(UsageError, match="start holds a int"):
        await requests(lambda self: 5)
    with pytest.raises(UsageError, match="start holds a int"):
        await requests(lambda self: iter([5]))


def test_the_lanes_of_start_are_known_beforehand() -> None:
    start = [
        "https://b.test:8080/x",
        Request("http://a.test/"),
        Pages("https://c.test/{}", last=2),
        Sitemap("http://a.test/"),
    ]
    assert start_lanes(spider_from(start)) == ["a.test", "b.test:8080", "c.test"]


async def make_frontier() -> MemoryFrontier:
    frontier = MemoryFrontier(clock=FakeClock())
    await frontier.open_crawl(Crawl(id="c", spider="s", interval=0.0))
    return frontier


def make_intake() -> Intake:
    return Intake(UrlRules(Settings()), Settings())


async def test_feeding_puts_in_batches_counts_and_may_be_repeated() -> None:
    calls: list[tuple[str, Any]] = []
    frontier = await make_frontier()
    watched: Any = Watched(frontier, calls)
    spider = spider_from([f"https://h{number}.test/" for number in range(1200)] + ["https://h0.test/"])
    said: list[str] = []
    for new in (1200, 0):
        report = await feed(
            watched, "c", requests_of(spider), intake=make_intake(), max_pending=10_000, say=said.append
        )
        assert report.new == new
    assert [name for name, _ in calls].count("put") == 6
    assert (await frontier.progress("c")).duplicates == 1202
    assert said == []


async def test_feeding_waits_while_the_frontier_holds_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shoal.crawl.sources.FULL_PAUSE_SECONDS", 0.001)
    frontier = await make_frontier()
    looks: list[int] = []

    async def drain() -> None:
        looks.append(1)
        if len(looks) == 3:
            await frontier.delete_crawl("c")
            await frontier.open_crawl(Crawl(id="c", spider="s"))

    watched: Any = Watched(frontier, [], meddle=lambda name, *_: drain() if name == "progress" else None)
    spider = spider_from([f"https://h{number}.test/" for number in range(501)])
    await feed(watched, "c", requests_of(spider), intake=make_intake(), max_pending=100, say=print)
    assert len(looks) == 3


async def test_bad_lines_are_counted_and_feeding_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "urls.txt"
    path.write_text("https://a.test/\nnot a url\nftp://a.test/\nhttps://b.test/\n")
    frontier = await make_frontier()
    await feed(
        frontier, "c", requests_of(spider_from(UrlFile(str(path)))), intake=make_intake(), max_pending=9, say=print
    )
    progress = await frontier.progress("c")
    assert progress.queued == 2
    assert progress.rejected == {"invalid_url": 1, "scheme": 1}


async def test_a_frontier_that_refuses_for_a_moment_is_waited_for() -> None:
    frontier = await make_frontier()
    failures = [StorageError("locked"), StorageError("locked")]

    def meddle(name: str, *_: Any) -> None:
        if name == "put" and failures:
            raise failures.pop()

    said: list[str] = []
    watched: Any = Watched(frontier, [], meddle=meddle)
    await feed(
        watched, "c", requests_of(spider_from("https://a.test/")), intake=make_intake(), max_pending=9, say=said.append
    )
    assert said == ["locked; waiting"]
    assert (await frontier.progress("c")).queued == 1


@pytest.mark.parametrize(
    "source",
    [
        Request("https://a.test/", handler="itme"),
        Sitemap("https://a.test/", handler="itme"),
        Pages("https://a.test/{}", 3, handler="itme"),
        UrlFile("missing.txt", handler="itme"),
        Stdin(handler="itme"),
    ],
)
async def test_a_start_that_names_a_handler_the_spider_lacks_is_refused(source: Any) -> None:
    line = "Made has no handler 'itme': did you mean 'item'\\?"
    for start in (source, ["https://a.test/", source]):
        with pytest.raises(UsageError, match=line):
            check_start(spider_from(start))

    def yielded(self: Any) -> Iterator[Any]:
        yield "https://a.test/1"
        yield source

    async def streamed(self: Any) -> AsyncIterator[Any]:
        yield source

    for method in (yielded, streamed):
        check_start(spider_from(method))
        with pytest.raises(UsageError, match=line):
            await requests(method)


def test_a_spider_without_parse_is_refused_if_its_start_needs_it() -> None:
    def without_parse(start: Any) -> Spider:
        return type("Made", (Spider,), {"start": start, "item": _handle})()

    for start in ("https://a.test/", ["https://a.test/"], [Request("https://a.test/")], Sitemap("https://a.test/")):
        with pytest.raises(
            UsageError, match="Made has no parse method, and a request names no other handler: write one"
        ):
            check_start(without_parse(start))
    check_start(without_parse([Request("https://a.test/", handler="item"), Sitemap("https://a.test/", handler="item")]))
