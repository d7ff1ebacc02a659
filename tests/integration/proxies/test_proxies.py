"""Requests through real proxies and accounts: who the site sees, and what it is told."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence

import pytest
import trustme
from exit_fetches import Site, fetching, is_exits_fault, proxy_exit, talking, through

from shoal.fetch.base import Fetch, Response
from shoal.fetch.exits import ExitConfig
from shoal.testing.servers.programs import free_port
from shoal.testing.servers.proxy_servers import Microsocks, Tinyproxy


async def test_a_site_sees_the_address_of_each_proxy(
    site: Site, open_proxy: Tinyproxy, locked_proxy: Tinyproxy, socks_proxy: Microsocks, authority: trustme.CA
) -> None:
    proxies: Sequence[Tinyproxy | Microsocks] = (open_proxy, locked_proxy, socks_proxy)
    exits = [proxy_exit(proxy.url, f"pool/{proxy.address}") for proxy in proxies]
    async with fetching(*exits, authority=authority) as fetcher:
        for config in exits:
            for url in (site.url, site.secure_url):
                answer = await fetcher.fetch(Fetch(url=url, exit=config.name))
                assert isinstance(answer, Response), answer
                assert (answer.status, answer.body, answer.url) == (200, b"ok", url)
        await fetcher.fetch(Fetch(url=site.url))
    seen = [request.peer for request in site.asked]
    assert seen == [proxy.address for proxy in proxies for _ in range(2)] + ["127.0.0.1"]
    assert {request.path for request in site.asked} == {"/page?a=1&b=%26"}
    assert [hit.peer for hit in site.server.requests] == [*seen[::2]]


async def test_the_proxys_credentials_never_reach_the_site(
    site: Site, locked_proxy: Tinyproxy, authority: trustme.CA
) -> None:
    headers = {"Proxy-Authorization": "Basic c3B5", "X-Kept": "1"}
    for url in (site.url, site.secure_url):
        answer = await through(proxy_exit(locked_proxy.url), url, headers=headers, authority=authority)
        assert isinstance(answer, Response), answer
    assert len(site.asked) == 2
    for request in site.asked:
        assert request.headers["x-kept"] == "1"
        assert "proxy-authorization" not in request.headers
        assert "c3B5" not in str(request)


async def test_a_direct_request_carries_no_credentials_for_a_proxy(site: Site) -> None:
    async with fetching() as fetcher:
        await fetcher.fetch(Fetch(url=site.url, headers={"proxy-authorization": "Basic c3B5"}))
    assert "proxy-authorization" not in site.asked[0].headers


@pytest.mark.parametrize("url", ["http://shop.example/", "https://shop.example/"])
async def test_sends_the_name_and_credentials_with_special_characters(url: str) -> None:
    heads: list[str] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
        writer.write(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    async with talking(note) as port:
        answer = await through(proxy_exit(f"http://an%40na:p%3A%2F%40%2541@127.0.0.1:{port}"), url)
    assert "407" in is_exits_fault(answer)
    first, *lines = heads[0].split("\r\n")
    assert first in ("GET http://shop.example/ HTTP/1.1", "CONNECT shop.example:443 HTTP/1.1")
    credentials = base64.b64encode(b"an@na:p:/@%41").decode()
    assert [line for line in lines if line.lower() == f"proxy-authorization: basic {credentials}".lower()]


async def test_proxies_of_the_environment_are_never_used(
    site: Site, open_proxy: Tinyproxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with fetching() as fetcher:
        assert isinstance(await fetcher.fetch(Fetch(url=site.url)), Response)
    monkeypatch.setenv("NO_PROXY", "*")
    async with fetching(proxy_exit(open_proxy.url)) as fetcher:
        assert isinstance(await fetcher.fetch(Fetch(url=site.url, exit="pool/one")), Response)
    assert [request.peer for request in site.asked] == ["127.0.0.1", "127.0.0.2"]


async def test_an_account_has_its_own_user_agent_and_may_have_its_own_proxy(site: Site, open_proxy: Tinyproxy) -> None:
    anna = ExitConfig(name="shop/anna", kind="account", user_agent="Anna/1.0")
    bert = ExitConfig(name="shop/bert", kind="account", user_agent="Bert/1.0", url=open_proxy.url)
    async with fetching(anna, bert) as fetcher:
        for config in (anna, bert):
            await fetcher.fetch(Fetch(url=site.url, exit=config.name, headers={"Cookie": f"id={config.name}"}))
        await fetcher.fetch(Fetch(url=site.url, exit=anna.name, headers={"user-agent": "Other/1.0"}))
    seen = [(request.peer, request.headers["user-agent"], request.headers.get("cookie")) for request in site.asked]
    assert seen == [
        ("127.0.0.1", "Anna/1.0", "id=shop/anna"),
        ("127.0.0.2", "Bert/1.0", "id=shop/bert"),
        ("127.0.0.1", "Other/1.0", None),
    ]
