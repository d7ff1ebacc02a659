"""What a fetch sends to a site, and what it refuses to send."""

from __future__ import annotations

import pytest
from fetch_checks import SETTINGS, fault, fetched

from shoal.fetch.base import Fault, FaultKind, Fetch
from shoal.fetch.http import HttpFetcher
from shoal.testing.sites.hostile import HostileSite


async def test_says_who_it_is(site: HostileSite, fetcher: HttpFetcher) -> None:
    head = (await fetched(fetcher, site.url("/echo"))).body.decode().lower()
    assert f"user-agent: {SETTINGS.user_agent.lower()}" in head
    assert "accept-encoding: gzip, deflate, br, zstd\r\n" in head
    assert "accept-language: " in head
    assert head.count("accept: ") == 1
    assert head.count("host: ") == 1
    assert "referer" not in head


async def test_a_request_may_set_headers_but_not_those_that_steer_it(site: HostileSite, fetcher: HttpFetcher) -> None:
    headers = {
        "ACCEPT": "text/plain",
        "user-agent": "me",
        "X-Mine": "1",
        "HOST": "evil.test",
        "Content-Length": "5",
        "transfer-encoding": "chunked",
    }
    head = (await fetched(fetcher, site.url("/echo"), headers=headers)).body.decode().lower()
    assert "accept: text/plain" in head
    assert head.count("accept: ") == 1
    assert "user-agent: me\r\n" in head
    assert "x-mine: 1" in head
    assert f"host: 127.0.0.1:{site.port}\r\n" in head
    assert "evil" not in head
    assert "content-length" not in head
    assert "transfer-encoding" not in head


async def test_sends_a_body_with_its_method(site: HostileSite, fetcher: HttpFetcher) -> None:
    head = (await fetched(fetcher, site.url("/echo"), method="POST", body=b"a=1")).body.decode().lower()
    assert head.startswith("post /echo http/1.1")
    assert "content-length: 3" in head


async def test_a_head_request_may_announce_a_body_above_the_limit(site: HostileSite, fetcher: HttpFetcher) -> None:
    page = await fetched(fetcher, site.url("/nested"), method="HEAD")
    assert page.status == 200


@pytest.mark.parametrize(
    "headers", [{"X-Mine": "two\r\nlines"}, {"bad name": "1"}], ids=["line break in a value", "space in a name"]
)
async def test_a_header_that_cannot_be_sent_is_a_fault(
    site: HostileSite, fetcher: HttpFetcher, headers: dict[str, str]
) -> None:
    answer = await fetcher.fetch(Fetch(url=site.url("/ok"), headers=headers))
    assert isinstance(answer, Fault)
    assert answer.kind is FaultKind.BAD_URL


@pytest.mark.parametrize(
    "url",
    [
        "ftp://127.0.0.1/",
        "file:///etc/passwd",
        "http://",
        "http://[::1/",
        "javascript:1",
        "",
        "http://a b/",
        "http://a?b/",
    ],
)
async def test_a_url_nobody_can_fetch_is_a_fault(fetcher: HttpFetcher, url: str) -> None:
    assert (await fault(fetcher, url)).kind is FaultKind.BAD_URL


async def test_only_the_direct_exit_is_known(site: HostileSite, fetcher: HttpFetcher) -> None:
    answer = await fetcher.fetch(Fetch(url=site.url("/ok"), exit="proxy-1"))
    assert isinstance(answer, Fault)
    assert answer.kind is FaultKind.EXIT
