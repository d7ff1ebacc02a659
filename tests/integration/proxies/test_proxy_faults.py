"""Requests through proxies that fail: whose fault it is, the exit's or the site's."""

from __future__ import annotations

import asyncio
import ssl

import msgspec
import pytest
import trustme
from exit_fetches import SECRET, SETTINGS, Site, answering, drop, fetching, is_exits_fault, proxy_exit, talking, through

from shoal.fetch.base import Fault, FaultKind, Fetch, Response
from shoal.testing.servers.programs import free_port
from shoal.testing.servers.proxy_servers import Microsocks, Tinyproxy

HASTY = msgspec.structs.replace(SETTINGS, connect_seconds=0.3, first_byte_seconds=0.6)


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)


@pytest.mark.parametrize("status", ["403 No", "407 Who", "502 Bad", "503 Busy", "504 Late"])
async def test_a_tunnel_that_is_refused_is_the_exits_fault(site: Site, status: str) -> None:
    async with talking(answering(status)) as port:
        answer = await through(proxy_exit(f"http://anna:{SECRET}@127.0.0.1:{port}"), site.secure_url)
    message = is_exits_fault(answer)
    assert ("credentials" if status.startswith("407") else "refused to open a tunnel") in message
    assert isinstance(answer, Fault)
    assert answer.is_certain == status.startswith("407")


async def test_a_proxy_that_refuses_us_is_told_by_its_own_page(site: Site, refusing_proxy: Tinyproxy) -> None:
    is_exits_fault(await through(proxy_exit(refusing_proxy.url), site.secure_url))
    assert "403" in is_exits_fault(await through(proxy_exit(refusing_proxy.url), site.url))
    assert site.asked == []


async def test_a_refusal_of_the_site_stays_the_sites(site: Site, open_proxy: Tinyproxy) -> None:
    for status in ("403", "407", "502"):
        answer = await through(proxy_exit(open_proxy.url), site.url, headers={"X-Status": status})
        if status == "407":
            is_exits_fault(answer)  # nobody but a proxy has a reason to say so
            assert isinstance(answer, Fault)
            assert not answer.is_certain  # but a site that lies must not shut out exit after exit
        else:
            assert isinstance(answer, Response)
            assert answer.status == int(status)


async def test_wrong_credentials_are_the_exits_fault(
    site: Site, locked_proxy: Tinyproxy, socks_proxy: Microsocks
) -> None:
    for proxy in (locked_proxy, socks_proxy):
        for url in (site.url, site.secure_url):
            for who in ("", "anna:wrong@"):
                scheme = proxy.url.partition("://")[0]
                config = proxy_exit(f"{scheme}://{who}{proxy.address}:{proxy.port}")
                is_exits_fault(await through(config, url))
    assert site.asked == []


@pytest.mark.parametrize("scheme", ["http", "https", "socks5"])
async def test_a_proxy_that_is_gone_is_the_exits_fault(site: Site, scheme: str) -> None:
    for url in (site.url, site.secure_url):
        answer = await through(proxy_exit(f"{scheme}://anna:{SECRET}@127.0.0.2:{free_port()}"), url)
        is_exits_fault(answer)
        assert isinstance(answer, Fault)
        assert answer.is_certain


async def test_a_proxy_whose_name_is_unknown_is_the_exits_fault(site: Site) -> None:
    # A label too long for any name: refused on this machine, without asking a name server.
    is_exits_fault(await through(proxy_exit(f"http://{'a' * 64}.invalid:3128"), site.url))


@pytest.mark.parametrize("scheme", ["http", "socks5"])
async def test_a_proxy_that_closes_is_the_exits_fault(site: Site, scheme: str) -> None:
    async with talking(close) as port:
        for url in (site.url, site.secure_url):
            is_exits_fault(await through(proxy_exit(f"{scheme}://127.0.0.1:{port}"), url))


async def test_a_proxy_that_hangs_is_the_exits_fault_until_it_took_the_request(site: Site) -> None:
    async with talking(hang) as port:
        is_exits_fault(await through(proxy_exit(f"http://127.0.0.1:{port}"), site.secure_url, settings=HASTY))
        is_exits_fault(await through(proxy_exit(f"socks5://127.0.0.1:{port}"), site.url, settings=HASTY))
        late = await through(proxy_exit(f"http://127.0.0.1:{port}"), site.url, settings=HASTY)
    assert isinstance(late, Fault)
    assert late.kind is FaultKind.TIMEOUT_FIRST_BYTE


async def test_a_bad_certificate_is_the_sites_fault(site: Site, open_proxy: Tinyproxy, socks_proxy: Microsocks) -> None:
    for proxy in (open_proxy, socks_proxy):
        answer = await through(proxy_exit(proxy.url), site.secure_url)
        assert isinstance(answer, Fault)
        assert answer.kind is FaultKind.TLS


async def test_a_secure_proxy_is_trusted_by_its_certificate_alone(
    site: Site, open_proxy: Tinyproxy, authority: trustme.CA
) -> None:
    async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection(open_proxy.address, open_proxy.port)
        back = asyncio.create_task(pump(theirs, writer))
        try:
            await pump(reader, ours)
            await back
        finally:
            back.cancel()
            await drop([ours])

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    stranger = Site(trustme.CA())
    await stranger.start()
    async with talking(relay, context=context) as port:
        config = proxy_exit(f"https://localhost:{port}")
        for url in (site.url, site.secure_url):
            is_exits_fault(await through(config, url))
        async with fetching(config, authority=authority) as fetcher:
            for url in (site.url, site.secure_url):
                assert isinstance(await fetcher.fetch(Fetch(url=url, exit=config.name)), Response)
            fault = await fetcher.fetch(Fetch(url=stranger.secure_url, exit=config.name))
    await stranger.close()
    assert isinstance(fault, Fault)
    assert fault.kind is FaultKind.TLS


async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()


async def test_an_exit_that_is_not_here_is_named(site: Site) -> None:
    async with fetching() as fetcher:
        answer = await fetcher.fetch(Fetch(url=site.url, exit="pool/other"))
    assert isinstance(answer, Fault)
    assert answer.kind is FaultKind.EXIT
    assert answer.message.startswith("pool/other: ")
