"""The handlers that shoal has itself: page ranges and sitemaps."""

from __future__ import annotations

import datetime
import gzip
import json
from collections.abc import Iterator
from typing import Any

import pytest
from handler_runs import Forms, found, handlers

from shoal import Page, Spider
from shoal.journey.harvest import Harvest
from shoal.journey.intake import RecentKeys
from shoal.journey.sitemaps import PAGES, SITEMAP, last_page
from shoal.model import Visit
from shoal.testing.fakes import make_page

NOON = 1_778_587_200.0  # of 12 May 2026, by UTC


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


async def test_what_a_start_says_of_a_sitemaps_pages_goes_to_those_of_its_sitemaps_as_well() -> None:
    options = {"handler": "item", "meta": {"shop": "a"}, "pool": "direct"}
    for body, handler, meta in (
        (b"<urlset><url><loc>https://a.test/p</loc></url></urlset>", "item", {"shop": "a"}),
        (b"<sitemapindex><sitemap><loc>https://a.test/2.xml</loc></sitemap></sitemapindex>", SITEMAP, None),
    ):
        page = make_page(body, url="https://a.test/map.xml", handler=SITEMAP, meta=options, priority=6, depth=2)
        harvest = await handlers(Forms()).run(page)
        [task] = harvest.found.tasks.values()
        assert (task.handler, task.priority, task.depth, task.pool) == (handler, 6, 2, "direct")
        assert task.meta == (meta or {**options, "level": 1})


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


def sitemap_page(*entries: tuple[str, str], visit: Visit | None) -> Page:
    body = "".join(f"<url><loc>{url}</loc><lastmod>{text}</lastmod></url>" for url, text in entries)
    text = f"<urlset>{body}</urlset>"
    return make_page(
        text, url="https://a.test/s.xml", kind="text/xml", handler=SITEMAP, meta={"handler": "parse"}, visit=visit
    )


def iso(moment: float) -> str:
    return datetime.datetime.fromtimestamp(moment, tz=datetime.UTC).isoformat()


async def hastened(*entries: tuple[str, str], seen: float, now: float = NOON) -> list[str]:
    """The pages that are to be visited now, of a sitemap that is read now and was read at another time before."""
    page = sitemap_page(*entries, visit=Visit(visits=1, at=seen))
    harvest = await handlers(Forms(), clock=lambda: now).run(page)
    assert found(harvest) == [url.removeprefix("https://a.test") for url, _ in entries]
    return [task.url.removeprefix("https://a.test") for task in harvest.found.tasks.values() if task.hastens]


async def test_pages_that_changed_since_the_last_visit_of_their_sitemap_are_to_be_visited_now() -> None:
    entries = [
        ("https://a.test/new", iso(NOON - 60)),
        ("https://a.test/old", iso(NOON - 90_000)),
        ("https://a.test/later", iso(NOON + 3600)),
        ("https://a.test/odd", "soon"),
    ]
    first = await handlers(Forms()).run(sitemap_page(*entries, visit=None))
    assert not any(task.hastens for task in first.found.tasks.values())
    assert await hastened(*entries, seen=NOON - 3600) == ["/new"]
    assert await hastened(*entries, seen=NOON - 30) == []
    # A time that was still to come is told of when it is over.
    assert await hastened(*entries, seen=NOON - 30, now=NOON + 3600) == ["/later"]


async def test_a_day_of_change_is_told_of_when_it_is_first_seen_and_when_it_is_over() -> None:
    entry = ("https://a.test/day", iso(NOON)[:10])
    midnight = NOON - 12 * 3600
    assert await hastened(entry, seen=midnight - 60) == ["/day"]
    assert await hastened(entry, seen=NOON - 3600) == []
    assert await hastened(entry, seen=NOON, now=midnight + 86_400) == ["/day"]
    assert await hastened(entry, seen=midnight + 86_401, now=midnight + 90_000) == []


async def test_a_known_page_is_sent_to_the_frontier_only_if_its_visit_is_to_be_hastened() -> None:
    known = RecentKeys()
    running = handlers(Forms(), clock=lambda: NOON, known=known)
    entries = [("https://a.test/new", iso(NOON - 60)), ("https://a.test/old", iso(NOON - 90_000))]
    first = await running.run(sitemap_page(*entries, visit=None))
    for key in first.found.tasks:
        known.add(key)
    later = await running.run(sitemap_page(*entries, visit=Visit(visits=1, at=NOON - 3600)))
    assert found(later) == ["/new"]
    assert later.found.rejected == {"duplicate": 1}
    # As at its first visit: the pages that it lists make its fingerprint, not when they changed.
    assert later.found.links == first.found.links


async def test_a_sitemap_that_says_the_same_of_all_its_pages_says_nothing_of_them() -> None:
    entries = [(f"https://a.test/{number}", iso(NOON - 60)) for number in range(30)]
    assert await hastened(*entries, seen=NOON - 3600) == []
    assert len(await hastened(*entries, ("https://a.test/x", iso(NOON - 30)), seen=NOON - 3600)) == 31


async def test_a_sitemap_that_is_read_at_its_own_times_names_sitemaps_that_are_read_at_the_same_ones() -> None:
    for asked, expected in ((None, None), (3600.0, Visit(asked=3600.0)), (0.0, Visit(asked=0.0))):
        visit = None if asked is None else Visit(asked=asked)
        page = make_page(
            index_of("https://a.test/1.xml"),
            url="https://a.test/s.xml",
            kind="",
            handler=SITEMAP,
            meta={"handler": "item"},
            visit=visit,
        )
        harvest = await handlers(Forms(), revisit="24h").run(page)
        assert [task.visit for task in harvest.found.tasks.values()] == [expected]
