from __future__ import annotations

import asyncio
import resource
import socket
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import msgspec
import pytest
import trustme

from shoal.charset import charset_of, text_of
from shoal.fetch.base import Fault, FaultKind, Fetch, Response
from shoal.fetch.http import HttpFetcher
from shoal.settings import Settings
from shoal.testing.hostile import HostileSite, answer, page_of

MIB = 1024 * 1024
SETTINGS = Settings(
    allow_private=True,
    connect_seconds=10.0,
    first_byte_seconds=10.0,
    idle_seconds=10.0,
    total_seconds=20.0,
    max_body_bytes=2 * MIB,
)
HASTY = msgspec.structs.replace(SETTINGS, first_byte_seconds=0.2, idle_seconds=0.2, total_seconds=0.6)


@pytest.fixture
async def site() -> AsyncIterator[HostileSite]:
    async with HostileSite(pause=0.02) as site:
        yield site


@pytest.fixture
async def fetcher() -> AsyncIterator[HttpFetcher]:
    fetcher = HttpFetcher(SETTINGS)
    yield fetcher
    await fetcher.close()


class Names:
    """A name service for tests that counts the questions."""

    def __init__(self, **addresses: Sequence[str]) -> None:
        self.addresses = {name.replace("_", "."): found for name, found in addresses.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        await asyncio.sleep(0.01)
        if host not in self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return self.addresses[host]


async def fetched(fetcher: HttpFetcher, url: str, **request: object) -> Response:
    answer = await fetcher.fetch(msgspec.convert({"url": url, **request}, Fetch))
    assert isinstance(answer, Response), answer
    return answer


async def fault(fetcher: HttpFetcher, url: str) -> Fault:
    answer = await fetcher.fetch(Fetch(url=url))
    assert isinstance(answer, Fault), answer
    assert "\n" not in answer.message
    assert 0 < len(answer.message) <= 250
    assert answer.elapsed >= 0
    return answer


async def test_fetches_a_page(site: HostileSite, fetcher: HttpFetcher) -> None:
    page = await fetched(fetcher, site.url("/ok"))
    assert page.status == 200
    assert page.body.startswith(b"<title>fine</title>")
    assert page.wire_size == len(page.body)
    assert page.headers["content-type"] == "text/html"
    assert page.url == site.url("/ok")
    assert 0 < page.elapsed < 5


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/slow-headers", FaultKind.TIMEOUT_FIRST_BYTE),
        ("/endless-headers", FaultKind.TIMEOUT_FIRST_BYTE),
        ("/endless-continue", FaultKind.TIMEOUT_FIRST_BYTE),
        ("/stall", FaultKind.TIMEOUT_IDLE),
        ("/drip", FaultKind.TIMEOUT_TOTAL),
        ("/endless-tiny-chunks", FaultKind.TIMEOUT_TOTAL),
    ],
)
async def test_waits_no_longer_than_each_deadline(site: HostileSite, path: str, kind: FaultKind) -> None:
    fetcher = HttpFetcher(HASTY)
    started = time.monotonic()
    found = await fault(fetcher, site.url(path))
    assert found.kind is kind, found
    assert time.monotonic() - started < 3.0
    await fetcher.close()


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/endless", FaultKind.TOO_LARGE),
        ("/nested", FaultKind.TOO_LARGE),
        ("/short", FaultKind.TRUNCATED),
        ("/reset-in-body", FaultKind.TRUNCATED),
        ("/chunked/cut", FaultKind.TRUNCATED),
        ("/chunked/garbage", FaultKind.PROTOCOL),
        ("/headers/huge", FaultKind.PROTOCOL),
        ("/headers/many", FaultKind.PROTOCOL),
        ("/headers/broken", FaultKind.PROTOCOL),
        ("/lengths/different", FaultKind.PROTOCOL),
        ("/http09", FaultKind.PROTOCOL),
        ("/garbage", FaultKind.PROTOCOL),
        ("/close", FaultKind.CONNECT),
        ("/reset", FaultKind.CONNECT),
        ("/bomb/gzip", FaultKind.TOO_LARGE),
        ("/bomb/members", FaultKind.BAD_ENCODING),
        ("/bomb/deflate", FaultKind.TOO_LARGE),
        ("/bomb/br", FaultKind.BOMB),
        ("/bomb/zstd", FaultKind.BOMB),
        ("/bomb/stacked", FaultKind.BOMB),
        ("/encoding/lie", FaultKind.BAD_ENCODING),
        ("/encoding/unknown", FaultKind.BAD_ENCODING),
        ("/encoding/four-layers", FaultKind.BAD_ENCODING),
        ("/encoding/cut", FaultKind.TRUNCATED),
    ],
)
async def test_names_what_a_bad_site_does(site: HostileSite, fetcher: HttpFetcher, path: str, kind: FaultKind) -> None:
    found = await fault(fetcher, site.url(path))
    assert found.kind is kind, found
    assert (await fetched(fetcher, site.url("/ok"))).status == 200


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


async def test_a_closed_port_is_a_connect_fault(fetcher: HttpFetcher) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        found = await fault(fetcher, f"http://user:secret@127.0.0.1:{unused.getsockname()[1]}/")
    assert found.kind is FaultKind.CONNECT
    assert "secret" not in found.message


async def test_a_full_listen_queue_is_a_connect_timeout() -> None:
    fetcher = HttpFetcher(msgspec.structs.replace(SETTINGS, connect_seconds=0.2))
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    queued = [socket.socket() for _ in range(4)]
    for connection in queued:
        connection.setblocking(False)
        connection.connect_ex(listener.getsockname())
    try:
        found = await fault(fetcher, f"http://127.0.0.1:{listener.getsockname()[1]}/")
        assert found.kind is FaultKind.TIMEOUT_CONNECT
    finally:
        for connection in [*queued, listener]:
            connection.close()
        await fetcher.close()


async def test_having_no_file_descriptors_left_is_a_local_fault(site: HostileSite, fetcher: HttpFetcher) -> None:
    await fetched(fetcher, site.url("/ok"))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with socket.socket() as probe:
        lowest_free = probe.fileno()
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
    try:
        found = await fault(fetcher, "http://127.0.0.2:9/")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found.kind is FaultKind.LOCAL


async def test_cancelling_a_fetch_is_not_a_fault(site: HostileSite, fetcher: HttpFetcher) -> None:
    task = asyncio.create_task(fetcher.fetch(Fetch(url=site.url("/slow-headers"))))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


class TestAddresses:
    @pytest.mark.parametrize(
        ("url", "reason"),
        [
            ("http://127.0.0.1/", "loopback"),
            ("http://10.1.2.3/", "private"),
            ("http://169.254.169.254/latest/", "metadata"),
            ("http://2130706433/", "loopback"),
            ("http://0x7f.1/", "loopback"),
            ("http://0/", "unspecified"),
            ("http://[::1]/", "loopback"),
            ("http://[::ffff:7f00:1]/", "IPv4-mapped"),
            ("http://[64:ff9b::7f00:1]/", "NAT64"),
            ("https://[fd00:ec2::254]/", "metadata"),
            ("https://192.168.1.1/", "private"),
        ],
    )
    async def test_refuses_special_addresses_by_default(self, url: str, reason: str) -> None:
        fetcher = HttpFetcher(Settings())
        found = await fault(fetcher, url)
        assert found.kind is FaultKind.REFUSED_ADDRESS
        assert reason in found.message
        await fetcher.close()

    @pytest.mark.parametrize("scheme", ["http", "https"])
    async def test_refuses_a_name_that_leads_to_a_special_address(self, site: HostileSite, scheme: str) -> None:
        fetcher = HttpFetcher(Settings(), resolver=Names(inside_test=["127.0.0.1", "10.0.0.1"]))
        found = await fault(fetcher, f"{scheme}://inside.test:{site.port}/")
        assert found.kind is FaultKind.REFUSED_ADDRESS
        assert site.requests == []
        await fetcher.close()

    async def test_addresses_that_were_named_are_allowed_and_no_others(self, site: HostileSite) -> None:
        names = Names(
            inside_test=["10.0.0.1", "127.0.0.1"], outside_test=["127.0.0.2"], mapped_test=["::ffff:127.0.0.1"]
        )
        fetcher = HttpFetcher(Settings(allow_addresses=("127.0.0.1", "fd00::/8")), resolver=names)
        await fetched(fetcher, f"http://127.0.0.1:{site.port}/ok")
        await fetched(fetcher, f"http://inside.test:{site.port}/ok")
        for host in ("127.0.0.2", "outside.test", "mapped.test", "[::1]", "[::ffff:127.0.0.1]"):
            found = await fault(fetcher, f"http://{host}:{site.port}/ok")
            assert found.kind is FaultKind.REFUSED_ADDRESS
        await fetcher.close()

    async def test_connects_to_the_address_it_vetted_and_names_the_host(self, site: HostileSite) -> None:
        names = Names(shop_test=["127.0.0.1"])
        fetcher = HttpFetcher(SETTINGS, resolver=names)
        head = (await fetched(fetcher, f"http://shop.test:{site.port}/echo?a=b/c")).body
        assert head.startswith(b"GET /echo?a=b/c HTTP/1.1\r\n")
        assert f"Host: shop.test:{site.port}\r\n".encode() in head
        assert names.asked == ["shop.test"]
        await fetcher.close()

    async def test_names_an_international_host_in_its_ascii_form(self, site: HostileSite) -> None:
        fetcher = HttpFetcher(SETTINGS, resolver=Names(**{"xn--bcher-kva_test": ["127.0.0.1"]}))
        for host in ("xn--bcher-kva.test", "bücher.test", "B%C3%BCCHER.test"):
            head = (await fetched(fetcher, f"http://{host}:{site.port}/echo")).body
            assert f"Host: xn--bcher-kva.test:{site.port}\r\n".encode() in head
        await fetcher.close()

    async def test_reaches_an_ipv6_address(self) -> None:
        try:
            async with HostileSite(host="::1") as site:
                fetcher = HttpFetcher(SETTINGS, resolver=Names(six_test=["::1"]))
                head = (await fetched(fetcher, f"http://[::1]:{site.port}/echo")).body
                assert f"Host: [::1]:{site.port}\r\n".encode() in head
                head = (await fetched(fetcher, f"http://six.test:{site.port}/echo")).body
                assert f"Host: six.test:{site.port}\r\n".encode() in head
                await fetcher.close()
        except OSError:
            pytest.skip("no IPv6 on this machine")

    async def test_credentials_of_a_url_become_a_header(self, site: HostileSite, fetcher: HttpFetcher) -> None:
        head = (await fetched(fetcher, f"http://user:secret@127.0.0.1:{site.port}/echo")).body.decode().lower()
        assert "authorization: basic dxnlcjpzzwnyzxq=" in head
        assert "user" not in head.split("host: ")[1].split("\r\n")[0]

    async def test_requests_that_wait_for_one_name_ask_for_it_once(self, site: HostileSite) -> None:
        names = Names(shop_test=["127.0.0.1"])
        fetcher = HttpFetcher(SETTINGS, resolver=names)
        await asyncio.gather(*(fetched(fetcher, f"http://shop.test:{site.port}/ok") for _ in range(8)))
        assert names.asked == ["shop.test"]
        await fetcher.close()

    async def test_looks_a_name_up_again_after_a_minute_and_a_failure_after_seconds(self, site: HostileSite) -> None:
        names, now = Names(shop_test=["127.0.0.1"]), [1000.0]
        fetcher = HttpFetcher(SETTINGS, resolver=names, clock=lambda: now[0])
        for later in (0, 59, 2):
            now[0] += later
            await fetched(fetcher, f"http://shop.test:{site.port}/ok")
        assert names.asked == ["shop.test"] * 2
        for later in (0, 4, 2):
            now[0] += later
            assert (await fault(fetcher, "http://gone.test/")).kind is FaultKind.DNS
        assert names.asked[2:] == ["gone.test"] * 2
        await fetcher.close()

    async def test_a_new_answer_of_the_name_server_is_vetted_again(self, site: HostileSite) -> None:
        names, now = Names(shop_test=["93.184.216.34"]), [0.0]
        fetcher = HttpFetcher(Settings(), resolver=names, clock=lambda: now[0])
        assert not isinstance(await fetcher._routes.find("http://shop.test"), Fault)
        names.addresses["shop.test"] = ["127.0.0.1"]
        now[0] += 61
        assert (await fault(fetcher, f"http://shop.test:{site.port}/ok")).kind is FaultKind.REFUSED_ADDRESS
        assert (await fault(fetcher, "http://shop.test/")).kind is FaultKind.REFUSED_ADDRESS
        await fetcher.close()

    async def test_tries_the_next_address_when_one_does_not_connect(self, site: HostileSite) -> None:
        fetcher = HttpFetcher(SETTINGS, resolver=Names(shop_test=["127.0.0.9", "127.0.0.1"]))
        assert (await fetched(fetcher, f"http://shop.test:{site.port}/ok")).status == 200
        await fetcher.close()

    async def test_a_name_server_that_does_not_answer_is_a_dns_fault(self) -> None:
        async def silent(host: str) -> Sequence[str]:
            await asyncio.sleep(3600)
            return []

        fetcher = HttpFetcher(msgspec.structs.replace(SETTINGS, connect_seconds=0.05), resolver=silent)
        assert (await fault(fetcher, "http://shop.test/")).kind is FaultKind.DNS
        await fetcher.close()

    async def test_asks_the_system_for_names(self, site: HostileSite, fetcher: HttpFetcher) -> None:
        assert (await fetched(fetcher, f"http://localhost:{site.port}/ok")).status == 200
        assert (await fault(fetcher, "http://no-such-host.invalid/")).kind is FaultKind.DNS


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    issued = authority.issue_cert("shop.test", "other.test", "127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(folder / "site.pem")
    authority.cert_pem.write_to_path(folder / "roots.pem")
    return folder


class SecureSite:
    """Answers every request over TLS with the host it was asked for."""

    def __init__(self, folder: Path) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "site.pem")
        self._context.set_alpn_protocols(["http/1.1"])
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self.port = 0

    async def __aenter__(self) -> SecureSite:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        await asyncio.sleep(0.01)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            while True:
                writer.write(answer(await reader.readuntil(b"\r\n\r\n")))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


class TestTls:
    async def test_pins_the_address_and_checks_the_certificate_for_the_name(self, certificate: Path) -> None:
        names = Names(shop_test=["127.0.0.1"], other_test=["127.0.0.1"], stranger_test=["127.0.0.1"])
        async with SecureSite(certificate) as site:
            roots = (certificate / "roots.pem").read_bytes()
            fetcher = HttpFetcher(SETTINGS, resolver=names, trusted_roots=roots)
            for host in ("shop.test", "other.test", "127.0.0.1"):
                head = (await fetched(fetcher, f"https://{host}:{site.port}/")).body
                assert f"host: {host}:{site.port}\r\n".encode() in head.lower()
            found = await fault(fetcher, f"https://stranger.test:{site.port}/")
            assert found.kind is FaultKind.TLS
            await fetcher.close()

    async def test_an_unknown_issuer_is_a_tls_fault(self, certificate: Path) -> None:
        async with SecureSite(certificate) as site:
            fetcher = HttpFetcher(SETTINGS, resolver=Names(shop_test=["127.0.0.1"]))
            found = await fault(fetcher, f"https://shop.test:{site.port}/")
            assert found.kind is FaultKind.TLS
            assert "certificate" in found.message
            await fetcher.close()

    async def test_a_site_that_speaks_no_tls_is_a_tls_fault(self, fetcher: HttpFetcher) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        found = await fault(fetcher, f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        assert found.kind is FaultKind.TLS
        server.close()
        await server.wait_closed()
