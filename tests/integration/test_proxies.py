"""Requests through real proxies, gateways and accounts: who the site sees, and whose fault a failure is."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trustme

from shoal.exits import Way
from shoal.fetch.base import Fault, FaultKind, Fetch, Response
from shoal.fetch.gateways import gateway_answer
from shoal.fetch.http import HttpFetcher
from shoal.settings import Settings
from shoal.testing.fakes import respond
from shoal.testing.loopback import LoopbackServer, Reply, Request, reply
from shoal.testing.proxies import Gateway, Microsocks, Tinyproxy
from shoal.testing.servers import free_port

SETTINGS = Settings(
    allow_private=True, connect_seconds=10.0, first_byte_seconds=10.0, idle_seconds=10.0, total_seconds=20.0
)
HASTY = msgspec.structs.replace(SETTINGS, connect_seconds=0.3, first_byte_seconds=0.6)
GUARDED = msgspec.structs.replace(SETTINGS, allow_private=False)
SECRET = "pass-word"

Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Site:
    """A loopback site that keeps what it was asked, over HTTP and HTTPS."""

    def __init__(self, authority: trustme.CA) -> None:
        self.asked: list[Request] = []
        self.server = LoopbackServer(answer=self._answer)
        self._tls: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost", "127.0.0.1").configure_cert(self._context)

    async def start(self) -> None:
        await self.server.start()
        self._tls = await asyncio.start_server(self._secure, "127.0.0.1", 0, ssl=self._context)

    async def close(self) -> None:
        await self.server.close()
        assert self._tls is not None
        self._tls.close()
        await drop(self._writers)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}/page?a=1&b=%26"

    @property
    def secure_url(self) -> str:
        assert self._tls is not None
        return f"https://localhost:{self._tls.sockets[0].getsockname()[1]}/page?a=1&b=%26"

    def _answer(self, request: Request) -> Reply:
        self.asked.append(request)
        status = int(request.headers.get("x-status", "200"))
        return reply("ok", status=status, headers={"Location": "/next"} if status == 302 else None)

    async def _secure(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        lines = (line.partition(": ") for line in head.split("\r\n")[1:])
        headers = {name.lower(): value for name, _, value in lines}
        peer = writer.get_extra_info("peername")[0]
        self.asked.append(Request("localhost", "GET", head.split(" ")[1], headers, b"", peer))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        await writer.drain()
        writer.close()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
async def site(authority: trustme.CA) -> AsyncIterator[Site]:
    site = Site(authority)
    await site.start()
    yield site
    await site.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("proxies")


@pytest.fixture(scope="module")
def open_proxy(folder: Path) -> Iterator[Tinyproxy]:
    proxy = Tinyproxy(folder, address="127.0.0.2").start()
    yield proxy
    proxy.stop()


@pytest.fixture(scope="module")
def locked_proxy(folder: Path) -> Iterator[Tinyproxy]:
    proxy = Tinyproxy(folder, address="127.0.0.3", user="anna", password=SECRET).start()
    yield proxy
    proxy.stop()


@pytest.fixture(scope="module")
def refusing_proxy(folder: Path) -> Iterator[Tinyproxy]:
    proxy = Tinyproxy(folder, address="127.0.0.4", serves_us=False).start()
    yield proxy
    proxy.stop()


@pytest.fixture(scope="module")
def socks_proxy() -> Iterator[Microsocks]:
    proxy = Microsocks(address="127.0.0.5", user="anna", password=SECRET).start()
    yield proxy
    proxy.stop()


@asynccontextmanager
async def talking(talk: Talk, *, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server that does to every connection as it is told; gives its port."""
    tasks: set[asyncio.Task[None]] = set()
    writers: list[asyncio.StreamWriter] = []

    def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def serve() -> None:
            try:
                await talk(reader, writer)
            except (ConnectionError, asyncio.IncompleteReadError):
                pass
            finally:
                writer.close()

        writers.append(writer)
        tasks.add(asyncio.get_running_loop().create_task(serve()))

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await drop(writers)


async def drop(writers: Sequence[asyncio.StreamWriter]) -> None:
    """End connections now: a TLS connection that is closed waits for the other side to agree."""
    for writer in writers:
        writer.transport.abort()
    await asyncio.sleep(0)


@asynccontextmanager
async def fetching(
    *ways: Way, settings: Settings = SETTINGS, authority: trustme.CA | None = None, names: object = None
) -> AsyncIterator[HttpFetcher]:
    roots = authority.cert_pem.bytes() if authority else None
    fetcher = HttpFetcher(settings, ways={way.name: way for way in ways}, resolver=names, trusted_roots=roots)  # type: ignore[arg-type] # a small stand-in
    try:
        yield fetcher
    finally:
        await fetcher.close()


def proxy_way(url: str, name: str = "pool/one") -> Way:
    return Way(name=name, kind="proxy", url=url)


async def through(way: Way, url: str, **options: object) -> Response | Fault:
    headers = options.pop("headers", None)
    async with fetching(way, **options) as fetcher:  # type: ignore[arg-type] # handed on
        return await fetcher.fetch(Fetch(url=url, exit=way.name, headers=headers))  # type: ignore[arg-type] # handed on


def is_exits_fault(answer: Response | Fault) -> str:
    """The fault's message, after making sure that it is the exit's and gives nothing away."""
    assert isinstance(answer, Fault), answer
    assert answer.kind is FaultKind.EXIT, answer
    assert answer.message.startswith("pool/one: ")
    assert SECRET not in answer.message
    assert "://" not in answer.message
    return answer.message


async def test_a_site_sees_the_address_of_each_proxy(
    site: Site, open_proxy: Tinyproxy, locked_proxy: Tinyproxy, socks_proxy: Microsocks, authority: trustme.CA
) -> None:
    proxies: Sequence[Tinyproxy | Microsocks] = (open_proxy, locked_proxy, socks_proxy)
    ways = [proxy_way(proxy.url, f"pool/{proxy.address}") for proxy in proxies]
    async with fetching(*ways, authority=authority) as fetcher:
        for way in ways:
            for url in (site.url, site.secure_url):
                answer = await fetcher.fetch(Fetch(url=url, exit=way.name))
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
        answer = await through(proxy_way(locked_proxy.url), url, headers=headers, authority=authority)
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
        answer = await through(proxy_way(f"http://an%40na:p%3A%2F%40%2541@127.0.0.1:{port}"), url)
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
    monkeypatch.setenv("NO_PROXY", "*")
    async with fetching(proxy_way(open_proxy.url)) as fetcher:
        assert isinstance(await fetcher.fetch(Fetch(url=site.url)), Response)
        assert isinstance(await fetcher.fetch(Fetch(url=site.url, exit="pool/one")), Response)
    assert [request.peer for request in site.asked] == ["127.0.0.1", "127.0.0.2"]


async def hang(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await asyncio.sleep(60)


async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read(1)


def answering(status: str) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n".encode())
        await writer.drain()

    return talk


@pytest.mark.parametrize("status", ["403 No", "407 Who", "502 Bad", "503 Busy", "504 Late"])
async def test_a_tunnel_that_is_refused_is_the_exits_fault(site: Site, status: str) -> None:
    async with talking(answering(status)) as port:
        answer = await through(proxy_way(f"http://anna:{SECRET}@127.0.0.1:{port}"), site.secure_url)
    message = is_exits_fault(answer)
    assert ("credentials" if status.startswith("407") else "refused to open a tunnel") in message
    assert isinstance(answer, Fault)
    assert answer.is_certain == status.startswith("407")


async def test_a_proxy_that_refuses_us_is_told_by_its_own_page(site: Site, refusing_proxy: Tinyproxy) -> None:
    is_exits_fault(await through(proxy_way(refusing_proxy.url), site.secure_url))
    assert "403" in is_exits_fault(await through(proxy_way(refusing_proxy.url), site.url))
    assert site.asked == []


async def test_a_refusal_of_the_site_stays_the_sites(site: Site, open_proxy: Tinyproxy) -> None:
    for status in ("403", "407", "502"):
        answer = await through(proxy_way(open_proxy.url), site.url, headers={"X-Status": status})
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
                way = proxy_way(f"{scheme}://{who}{proxy.address}:{proxy.port}")
                is_exits_fault(await through(way, url))
    assert site.asked == []


@pytest.mark.parametrize("scheme", ["http", "https", "socks5"])
async def test_a_proxy_that_is_gone_is_the_exits_fault(site: Site, scheme: str) -> None:
    for url in (site.url, site.secure_url):
        answer = await through(proxy_way(f"{scheme}://anna:{SECRET}@127.0.0.2:{free_port()}"), url)
        is_exits_fault(answer)
        assert isinstance(answer, Fault)
        assert answer.is_certain


async def test_a_proxy_whose_name_is_unknown_is_the_exits_fault(site: Site) -> None:
    # A label too long for any name: refused on this machine, without asking a name server.
    is_exits_fault(await through(proxy_way(f"http://{'a' * 64}.invalid:3128"), site.url))


@pytest.mark.parametrize("scheme", ["http", "socks5"])
async def test_a_proxy_that_closes_is_the_exits_fault(site: Site, scheme: str) -> None:
    async with talking(close) as port:
        for url in (site.url, site.secure_url):
            is_exits_fault(await through(proxy_way(f"{scheme}://127.0.0.1:{port}"), url))


async def test_a_proxy_that_hangs_is_the_exits_fault_until_it_took_the_request(site: Site) -> None:
    async with talking(hang) as port:
        is_exits_fault(await through(proxy_way(f"http://127.0.0.1:{port}"), site.secure_url, settings=HASTY))
        is_exits_fault(await through(proxy_way(f"socks5://127.0.0.1:{port}"), site.url, settings=HASTY))
        late = await through(proxy_way(f"http://127.0.0.1:{port}"), site.url, settings=HASTY)
    assert isinstance(late, Fault)
    assert late.kind is FaultKind.TIMEOUT_FIRST_BYTE


async def test_a_bad_certificate_is_the_sites_fault(site: Site, open_proxy: Tinyproxy, socks_proxy: Microsocks) -> None:
    for proxy in (open_proxy, socks_proxy):
        answer = await through(proxy_way(proxy.url), site.secure_url)
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
        way = proxy_way(f"https://localhost:{port}")
        for url in (site.url, site.secure_url):
            is_exits_fault(await through(way, url))
        async with fetching(way, authority=authority) as fetcher:
            for url in (site.url, site.secure_url):
                assert isinstance(await fetcher.fetch(Fetch(url=url, exit=way.name)), Response)
            fault = await fetcher.fetch(Fetch(url=stranger.secure_url, exit=way.name))
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


class Names:
    """A name service that counts the questions."""

    def __init__(self, **addresses: Sequence[str]) -> None:
        self.addresses = {name.replace("_", "."): found for name, found in addresses.items()}
        self.asked: list[str] = []

    async def __call__(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        if host not in self.addresses:
            raise OSError(-2, "Name or service not known")
        return self.addresses[host]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/",
        "http://169.254.169.254/latest/",
        "https://[::1]/",
        "http://inside.example/",
        "https://mixed.example/",
        "http://localhost/",
        "http://metadata.google.internal/",
        "http://printer/",
        "http://router.lan./",
    ],
)
@pytest.mark.parametrize("kind", ["proxy", "gateway"])
async def test_no_page_reaches_the_inside_network_of_an_exit(url: str, kind: str) -> None:
    names = Names(inside_example=["10.0.0.1"], mixed_example=["93.184.216.34", "192.168.0.1"])
    reached: list[bytes] = []

    async def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(await reader.read(100))

    async with talking(note) as port:
        at = f"http://127.0.0.1:{port}"
        way = Way(name="pool/one", kind="gateway", url=f"{at}/?u={{url}}") if kind == "gateway" else proxy_way(at)
        answer = await through(way, url, settings=GUARDED, names=names)
    assert isinstance(answer, Fault)
    assert answer.kind is FaultKind.REFUSED_ADDRESS, answer
    assert reached == []


async def test_a_name_that_only_the_proxy_knows_is_left_to_it() -> None:
    async with talking(answering("200 OK")) as port:
        names = Names(public_example=["93.184.216.34"])
        async with fetching(proxy_way(f"http://127.0.0.1:{port}"), settings=GUARDED, names=names) as fetcher:
            for host in ("unknown.example", "public.example", "public.example"):
                answer = await fetcher.fetch(Fetch(url=f"http://{host}/", exit="pool/one"))
                assert isinstance(answer, Response), answer
    assert names.asked == ["unknown.example", "public.example"]


async def test_a_gateway_fetches_the_page_for_us(site: Site) -> None:
    async with Gateway(key=SECRET, address="127.0.0.6") as gateway:
        way = Way(name="pool/one", kind="gateway", url=gateway.template, error_statuses=(401,))
        answer = await through(way, site.url)
        assert isinstance(answer, Response), answer
        assert (answer.url, answer.body) == (site.url, b"ok")
        assert site.asked[0].peer == "127.0.0.6"
        assert site.asked[0].path == "/page?a=1&b=%26"
        gateway.key = "another"
        assert "401" in is_exits_fault(await through(way, site.url))


async def test_a_gateway_sees_no_secrets_of_the_page_unless_told_to(site: Site) -> None:
    headers = {"Authorization": "Bearer x1", "Cookie": "id=x2", "X-Api-Key": "x3", "X-Render": "true"}
    async with Gateway(key=SECRET) as gateway:
        way = Way(name="pool/one", kind="gateway", url=gateway.template)
        await through(way, site.url, headers=headers)
        await through(msgspec.structs.replace(way, forwards_secrets=True), site.url, headers=headers)
    closed, opened = (head.lower() for head in gateway.heads)
    assert "x-render: true" in closed
    assert "x1" not in closed
    assert "x2" not in closed
    assert "x3" not in closed
    assert "x1" in opened
    assert "x2" in opened


@pytest.mark.parametrize(
    ("location", "is_own"),
    [
        ("/next", False),
        ("http://shop.example/", False),
        ("http://[::1", False),
        ("", True),
        (f"http://another.example/?key={SECRET}", True),
        (f"http://shop.example/?from=http%3A%2F%2F127.0.0.6%2F%3Fkey%3D{SECRET}", True),
    ],
)
async def test_a_redirect_is_the_pages_unless_it_leads_to_the_gateway(
    site: Site, location: str, *, is_own: bool
) -> None:
    async with Gateway(key=SECRET, address="127.0.0.6") as gateway:
        gateway.location = location or f"http://127.0.0.6:{gateway.port}/again?key={SECRET}"
        answer = await through(Way(name="pool/one", kind="gateway", url=gateway.template), site.url)
    if is_own:
        assert "redirects to itself" in is_exits_fault(answer)
    else:
        assert isinstance(answer, Response)
        assert (answer.url, answer.headers["location"]) == (site.url, location)


def test_what_a_gateway_says_of_its_key_is_not_kept() -> None:
    way = Way(name="pool/one", kind="gateway", url=f"http://gate.example/?key={SECRET}&device=desktop&url={{url}}")
    headers = {"x-asked": f"/?key={SECRET}", "location": "http://shop.example/desktop", "x-device": "desktop"}
    answer = gateway_answer(way, respond("http://shop.example/", headers=headers))
    assert isinstance(answer, Response)
    assert SECRET not in str(answer.headers)
    assert (answer.headers["location"], answer.headers["x-device"]) == ("http://shop.example/desktop", "desktop")


async def test_a_gateway_that_is_gone_is_the_exits_fault(site: Site) -> None:
    for host in (f"127.0.0.1:{free_port()}", "gateway.invalid"):
        way = Way(name="pool/one", kind="gateway", url=f"http://{host}/?key={SECRET}&u={{url}}")
        is_exits_fault(await through(way, site.url, names=Names()))


async def test_an_account_has_its_own_user_agent_and_may_have_its_own_proxy(site: Site, open_proxy: Tinyproxy) -> None:
    anna = Way(name="shop/anna", kind="account", user_agent="Anna/1.0")
    bert = Way(name="shop/bert", kind="account", user_agent="Bert/1.0", url=open_proxy.url)
    async with fetching(anna, bert) as fetcher:
        for way in (anna, bert):
            await fetcher.fetch(Fetch(url=site.url, exit=way.name, headers={"Cookie": f"id={way.name}"}))
        await fetcher.fetch(Fetch(url=site.url, exit=anna.name, headers={"user-agent": "Other/1.0"}))
    seen = [(request.peer, request.headers["user-agent"], request.headers.get("cookie")) for request in site.asked]
    assert seen == [
        ("127.0.0.1", "Anna/1.0", "id=shop/anna"),
        ("127.0.0.2", "Bert/1.0", "id=shop/bert"),
        ("127.0.0.1", "Other/1.0", None),
    ]
