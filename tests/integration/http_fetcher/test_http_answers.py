"""What a fetch gives of the pages of a site: status, headers and a body that was unpacked."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest
from fetch_checks import MIB, SETTINGS, fetched

from shoal.charset import charset_of, text_of
from shoal.fetch.http import HttpFetcher
from shoal.testing.sites.hostile import HostileSite, page_of


async def test_fetches_a_page(site: HostileSite, fetcher: HttpFetcher) -> None:
    page = await fetched(fetcher, site.url("/ok"))
    assert page.status == 200
    assert page.body.startswith(b"<title>fine</title>")
    assert page.wire_size == len(page.body)
    assert page.headers["content-type"] == "text/html"
    assert page.url == site.url("/ok")
    assert 0 < page.elapsed < 5


@pytest.mark.parametrize("path", ["/encoding/good", "/encoding/stacked"])
async def test_undoes_the_content_encoding(site: HostileSite, fetcher: HttpFetcher, path: str) -> None:
    page = await fetched(fetcher, site.url(path))
    assert page.body.startswith(b"<html><title>packed</title>")
    assert page.wire_size < len(page.body)


async def test_decompresses_a_large_page_without_holding_up_the_loop(site: HostileSite) -> None:
    fetcher = HttpFetcher(msgspec.structs.replace(SETTINGS, max_body_bytes=64 * MIB, max_ratio=10_000))
    page_of("/bomb/gzip")
    fetching = asyncio.create_task(fetched(fetcher, site.url("/bomb/gzip")))
    longest, before = 0.0, time.monotonic()
    while not fetching.done():
        await asyncio.sleep(0.001)
        longest, before = max(longest, time.monotonic() - before), time.monotonic()
    assert len((await fetching).body) == 32 * MIB
    assert longest < 0.5
    await fetcher.close()


@pytest.mark.parametrize("path", ["/binary", "/nuls", "/http10", "/lengths/same", "/charset/lie", "/charset/nonsense"])
async def test_odd_bodies_are_pages_like_any_other(site: HostileSite, fetcher: HttpFetcher, path: str) -> None:
    page = await fetched(fetcher, site.url(path))
    assert page.status == 200
    assert text_of(page.body, charset_of(page.body, page.headers.get("content-type")))


async def test_a_page_of_a_hundred_thousand_links_arrives_whole(site: HostileSite) -> None:
    fetcher = HttpFetcher(msgspec.structs.replace(SETTINGS, max_body_bytes=10 * MIB))
    assert (await fetched(fetcher, site.url("/links"))).body.count(b"<a ") == 100_000
    await fetcher.close()


@pytest.mark.parametrize("path", ["/redirect/metadata", "/redirect/file", "/redirect/port", "/redirects/1"])
async def test_follows_no_redirect(site: HostileSite, fetcher: HttpFetcher, path: str) -> None:
    page = await fetched(fetcher, site.url(path))
    assert page.status == 302
    assert page.headers["location"]
    assert len(site.requests) == 1


@pytest.mark.parametrize(("path", "after"), [("/429", "7"), ("/429-date", "Fri, 01 Jan 2100 00:00:00 GMT")])
async def test_a_refusal_with_retry_after_is_a_response(
    site: HostileSite, fetcher: HttpFetcher, path: str, after: str
) -> None:
    page = await fetched(fetcher, site.url(path))
    assert (page.status, page.headers["retry-after"]) == (429, after)
    assert (await fetched(fetcher, site.url("/503"))).status == 503


async def test_joins_repeated_headers_and_leaves_out_unreadable_ones(site: HostileSite, fetcher: HttpFetcher) -> None:
    headers = (await fetched(fetcher, site.url("/non-ascii-headers"))).headers
    assert headers["set-cookie"] == "a=1\nb=2"
    assert headers["vary"] == "a, b"
    assert headers["x-plain"] == "yes"
    assert "x-name" not in headers
