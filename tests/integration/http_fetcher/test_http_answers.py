"""What a fetch gives of the pages of a site: status, headers and a body that was unpacked."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest
from fetch_checks import MIB, SETTINGS, fetched

from shoal.fetch.decode import decompress
from shoal.fetch.http import HttpFetcher
from shoal.testing.sites.hostile import HostileSite, page_of
from shoal.urls.charset import charset_of, text_of


async def test_fetches_a_page(site: HostileSite, fetcher: HttpFetcher) -> None:
    page = await fetched(fetcher, site.url("/ok"))
    assert page.status == 200
    assert page.body.startswith(b"<title>fine</title>")
    assert page.wire_size == len(page.body)
    assert page.headers["content-type"] == "text/html"
    assert page.url == site.url("/ok")
    assert page.elapsed > 0


@pytest.mark.parametrize("path", ["/encoding/good", "/encoding/stacked"])
async def test_undoes_the_content_encoding(site: HostileSite, fetcher: HttpFetcher, path: str) -> None:
    page = await fetched(fetcher, site.url(path))
    assert page.body.startswith(b"<html><title>packed</title>")
    assert page.wire_size < len(page.body)


class NotingExecutor(ThreadPoolExecutor):
    """Notes the functions that it runs in its threads."""

    def __init__(self) -> None:
        super().__init__()
        self.ran: list[Any] = []

    def submit(self, call: Any, /, *args: Any, **options: Any) -> Any:
        self.ran += getattr(call, "args", ())  # `asyncio.to_thread` hands over a partial of the function
        return super().submit(call, *args, **options)


async def test_a_large_page_is_decompressed_in_a_thread_so_that_the_loop_goes_on(site: HostileSite) -> None:
    threads = NotingExecutor()
    asyncio.get_running_loop().set_default_executor(threads)
    fetcher = HttpFetcher(msgspec.structs.replace(SETTINGS, max_body_bytes=64 * MIB, max_ratio=10_000))
    await fetched(fetcher, site.url("/encoding/good"))
    assert decompress not in threads.ran
    page_of("/bomb/gzip")
    assert len((await fetched(fetcher, site.url("/bomb/gzip"))).body) == 32 * MIB
    assert decompress in threads.ran
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


async def test_joins_repeated_headers_and_reads_bytes_as_latin_1(site: HostileSite, fetcher: HttpFetcher) -> None:
    headers = (await fetched(fetcher, site.url("/non-ascii-headers"))).headers
    assert headers["set-cookie"] == "a=1\nb=2"
    assert headers["vary"] == "a, b"
    assert headers["x-plain"] == "yes"
    assert headers["x-name"] == "caf\xe9"
