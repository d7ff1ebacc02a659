"""A whole crawl over a site that does everything wrong, beside one that does not: it ends, and says what was what."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal import Item, Page, Spider
from shoal.crawl import Places, begin, intake_of, opened, settings_of, worker_for
from shoal.model import DeadFilter, Progress
from shoal.sources import feed, requests_of
from shoal.store.base import ItemFilter
from shoal.testing.catalogue import GONE_EVERY
from shoal.testing.hostile import BEHAVIOURS, REDIRECTS, HostileSite
from shoal.testing.site import CatalogueSite
from shoal.worker import resident_bytes

SECONDS = 60.0
MOST_GROWTH = 200 * 1024 * 1024
# Each nasty path and the names under which it may end: what was done, or the reason of its dead letter.
ENDINGS = {
    "/slow-headers": {"timeout_first_byte"},
    "/endless-headers": {"timeout_first_byte", "timeout_total", "protocol", "too_large"},
    "/endless-continue": {"timeout_first_byte", "timeout_total", "protocol"},
    "/stall": {"timeout_idle"},
    "/drip": {"timeout_total"},
    "/endless": {"too_large"},
    "/endless-tiny-chunks": {"too_large", "timeout_total"},
    "/reset": {"protocol", "connect", "truncated"},
    "/reset-in-body": {"truncated", "protocol"},
    "/close": {"protocol", "connect", "truncated"},
    "/http09": {"protocol"},
    "/garbage": {"protocol"},
    "/short": {"truncated"},
    "/chunked/cut": {"truncated"},
    "/chunked/garbage": {"truncated", "protocol"},
    "/http10": {"ok"},
    "/503": {"http_503"},
    "/non-ascii-headers": {"ok"},
    "/headers/huge": {"protocol", "too_large"},
    "/headers/many": {"protocol", "too_large", "ok"},
    "/headers/broken": {"protocol", "ok"},
    "/lengths/same": {"ok"},
    "/lengths/different": {"protocol"},
    "/bomb/gzip": {"bomb", "too_large"},
    "/bomb/members": {"bomb", "bad_encoding"},
    "/bomb/deflate": {"bomb", "too_large"},
    "/bomb/br": {"bomb"},
    "/bomb/zstd": {"bomb"},
    "/bomb/stacked": {"bomb"},
    "/encoding/good": {"ok"},
    "/encoding/stacked": {"ok"},
    "/encoding/four-layers": {"ok", "bad_encoding", "bomb"},
    "/encoding/lie": {"bad_encoding"},
    "/encoding/unknown": {"bad_encoding"},
    "/encoding/cut": {"truncated", "bad_encoding"},
    "/charset/lie": {"ok"},
    "/charset/nonsense": {"ok"},
    "/binary": {"ok"},
    "/nested": {"too_large"},
    "/nuls": {"ok"},
    "/links": {"ok"},
    "/redirects/0": {"redirected"},
    "/redirect/private": {"redirected"},
    "/redirect/file": {"redirected"},
    "/redirect/script": {"redirected"},
    "/redirect/nowhere": {"http_302"},
    "/redirect/self": {"redirect_loop"},
}
LIMITS: dict[str, Any] = {
    "rate": "unlimited",
    "per_host": 32,
    "pace": "fixed",
    "obey_robots": False,
    "allow_private": True,
    "max_attempts": 2,
    "retry_seconds": 0.05,
    "connect_seconds": 2.0,
    "first_byte_seconds": 2.0,
    "idle_seconds": 2.0,
    "total_seconds": 3.0,
    "handler_seconds": 5.0,
    "max_body_bytes": 4 * 1024 * 1024,
    "max_links": 200,
    "max_redirects": 3,
}


class Everything(Spider):
    name = "everything"

    def parse(self, page: Page) -> Iterator[Any]:
        yield Item(key=page.url, title=page.text("title"), words=len(page.text().split()))
        yield page.follow()


async def crawl_all(db: Path, start: list[str], **settings: Any) -> tuple[Progress, dict[str, str], set[str]]:
    """The counters at the end, each URL's ending, and the keys of the items."""
    spider = Everything()
    spider.start = start  # type: ignore[misc]  # an instance may have a start of its own
    values = settings_of(Everything, {**LIMITS, **settings}).values
    async with opened(Places(frontier=str(db), store=str(db))) as (frontier, store):
        crawl, _ = await begin(frontier, store, spider, settings=values, reference="none")
        intake = intake_of(crawl)
        await feed(frontier, crawl.id, requests_of(spider), intake=intake, max_pending=10**6, say=print)
        await frontier.set_feeding(crawl.id, feeding=False)
        async with worker_for(crawl, spider, frontier=frontier, store=store, say=print) as worker:
            async with asyncio.timeout(SECONDS):
                await worker.run(asyncio.Event())
        rows = await store.fetches(crawl.id, [intake.rules.resolve(url).key for url in start])
        endings = {row.url: row.outcome for row in rows}
        for letter in await frontier.dead(crawl.id, DeadFilter(), limit=1000):
            assert letter.reason.partition(":")[0] == endings.get(letter.task.url, letter.reason.partition(":")[0])
        items = {item.key async for item in store.items(ItemFilter(spider="everything"))}
        return await frontier.progress(crawl.id), endings, items


@pytest.fixture(scope="module")
def _large_pages_are_made() -> None:
    """The site's own memory is not the worker's: its largest answers are built before anything is measured."""
    from shoal.testing.hostile import page_of

    for path in ENDINGS.keys() - BEHAVIOURS.keys():
        page_of(path)


@pytest.mark.usefixtures("_large_pages_are_made")
async def test_a_hostile_site_costs_bounded_time_and_memory_and_every_url_is_named(tmp_path: Path) -> None:
    assert BEHAVIOURS.keys() <= ENDINGS.keys()
    async with HostileSite(pause=0.2, host="127.0.0.3") as hostile, CatalogueSite(products=60, flaky=0) as shop:
        before = resident_bytes()
        began = time.monotonic()
        start = [hostile.url(path) for path in ENDINGS] + [shop.url]
        progress, endings, items = await crawl_all(tmp_path / "shoal.db", start)
        assert time.monotonic() - began < SECONDS
        assert resident_bytes() - before < MOST_GROWTH
    assert progress.is_finished
    assert progress.known == progress.done + progress.dead
    wrong = {path: endings.get(hostile.url(path)) for path in ENDINGS}
    assert {path: ending for path, ending in wrong.items() if ending not in ENDINGS[path]} == {}
    # The healthy host beside it is all there, whatever happened next door.
    assert shop.expected_urls() <= items
    assert progress.outcomes["http_404"] >= 60 // GONE_EVERY
    assert progress.rejected["too_many_links"] == 100_000 - LIMITS["max_links"]


async def test_redirects_to_private_addresses_are_refused_where_they_lead(tmp_path: Path) -> None:
    async with HostileSite(host="127.0.0.3") as hostile:
        start = [hostile.url(path) for path in REDIRECTS]
        progress, endings, _ = await crawl_all(tmp_path / "shoal.db", start, allow_private=False)
    assert progress.is_finished
    assert set(endings.values()) == {"refused_address"}
    assert hostile.requests == []


@pytest.mark.parametrize(
    "tag", [b"<div>", b"<b>", b"<table><tr><td>", b"<ul><li>", b"<template>", b"<svg>", b"<font a=%d><p>"]
)
async def test_ten_megabytes_of_nested_tags_are_a_dead_letter_in_a_moment(tmp_path: Path, tag: bytes) -> None:
    parts = (tag % number if b"%d" in tag else tag for number in range(10 * 1024 * 1024 // (len(tag) + 6)))
    body = b"".join(parts)
    site = await asyncio.start_server(_always(body), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{site.sockets[0].getsockname()[1]}/"
    began, before = time.monotonic(), resident_bytes()
    async with site:
        progress, endings, _ = await crawl_all(
            tmp_path / "shoal.db", [url], max_body_bytes=10 * 1024 * 1024, total_seconds=10.0
        )
    assert endings == {url: "too_complex"}
    assert (progress.dead, progress.retried) == (1, 0)
    assert time.monotonic() - began < 5.0
    assert resident_bytes() - before < MOST_GROWTH


def _always(body: bytes) -> Any:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    return answer
