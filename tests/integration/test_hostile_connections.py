"""Hosts that misuse the connection itself: left open, answered ahead of time, flooded with frames of HTTP/2."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest
import trustme

from shoal.fetch.base import Fault, FaultKind, Fetch, Response
from shoal.fetch.http import HttpFetcher
from shoal.settings.table import Settings
from shoal.testing.few_files import few_files
from shoal.testing.sites.hostile import answer

SETTINGS = Settings(
    allow_private=True,
    connect_seconds=10.0,
    first_byte_seconds=0.5,
    idle_seconds=0.5,
    total_seconds=3.0,
    max_body_bytes=1024 * 1024,
)
PATIENCE = 20.0
GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, FRAME_SETTINGS, PUSH, PING, GOAWAY, CONTINUATION = 0, 1, 4, 5, 6, 7, 9
END_STREAM, END_HEADERS, PADDED = 1, 4, 8
OK = b"\x88"  # ":status: 200" in HPACK

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Connections:
    """A server whose connections a test can wait for the end of."""

    def __init__(self, serve: Serve, context: ssl.SSLContext | None = None) -> None:
        self._serve = serve
        self._context = context
        self.port = 0
        self.opened = 0
        self.ended = asyncio.Semaphore(0)
        self._open: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Connections]:
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0, ssl=self._context)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)
            await asyncio.sleep(0.01)  # for the transports to close their sockets

    async def one_ends(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.ended.acquire()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        self._open.add(asyncio.get_running_loop().create_task(self._connected(reader, writer)))

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
                await self._serve(reader, writer)
        finally:
            writer.transport.abort()
        self.ended.release()


async def _silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while await reader.read(1000):
        pass


async def _endless_hints(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    while not writer.is_closing():
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n" * 10)
        await writer.drain()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("serve", [_silent, _endless_hints])
async def test_a_request_that_was_given_up_leaves_no_connection_behind(serve: Serve) -> None:
    async with Connections(serve).running() as site:
        fetcher = HttpFetcher(SETTINGS)
        found = await fetcher.fetch(Fetch(url=f"http://127.0.0.1:{site.port}/"))
        assert isinstance(found, Fault)
        assert found.kind is FaultKind.TIMEOUT_FIRST_BYTE
        await site.one_ends()
        await fetcher.close()


async def test_an_answer_ahead_of_its_request_is_never_taken_for_one() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            path = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1]
            writer.write(answer(b"true " + path) + answer(b"forged"))
            await writer.drain()

    async with Connections(serve).running() as site:
        fetcher = HttpFetcher(SETTINGS)
        for number in range(20):
            found = await fetcher.fetch(Fetch(url=f"http://127.0.0.1:{site.port}/{number}"))
            assert isinstance(found, Response)
            assert found.body == b"true /%d" % number
        await fetcher.close()


async def test_idle_connections_are_left_when_there_are_no_descriptors_for_others() -> None:
    everybody = asyncio.Barrier(20)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await everybody.wait()
        writer.write(answer(b"one of many"))
        await _silent(reader, writer)

    async def other(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer(b"another host"))

    async with Connections(serve).running() as many, Connections(other).running() as one:
        fetcher = HttpFetcher(msgspec.structs.replace(SETTINGS, first_byte_seconds=PATIENCE, idle_seconds=PATIENCE))
        urls = [f"http://127.0.0.1:{many.port}/{number}" for number in range(20)]
        await asyncio.gather(*(fetcher.fetch(Fetch(url=url)) for url in urls))
        with few_files():
            found = await fetcher.fetch(Fetch(url=f"http://127.0.0.1:{one.port}/"))
            assert isinstance(found, Fault)
            assert found.kind is FaultKind.SHORTAGE
            for _ in urls:
                await many.one_ends()
            found = await fetcher.fetch(Fetch(url=f"http://127.0.0.1:{one.port}/"))
        assert isinstance(found, Response)
        assert found.body == b"another host"
        await fetcher.close()


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def literal(name: bytes, value: bytes, *, remembered: bool = False) -> bytes:
    """A header field that is spelled out; remembered ones can be named by one byte from then on."""
    return bytes([0x40 if remembered else 0, len(name)]) + name + _length(value) + value


def _length(value: bytes) -> bytes:
    rest = len(value) - 127
    if rest < 0:
        return bytes([len(value)])
    return bytes([127, rest % 128 | 128, rest // 128])


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificate")
    authority = trustme.CA()
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(folder / "site.pem")
    authority.cert_pem.write_to_path(folder / "roots.pem")
    return folder


def http2_site(certificate: Path, *, first: bytes, again: bytes = b"") -> Connections:
    """Answers a request with `first`, and then says `again` for ever."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "site.pem")
    context.set_alpn_protocols(["h2"])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(GREETING))
        writer.write(frame(FRAME_SETTINGS))
        while True:
            head = await reader.readexactly(9)
            await reader.readexactly(int.from_bytes(head[:3], "big"))
            if head[3] == HEADERS:
                break
        writer.write(first)
        listening = asyncio.create_task(_silent(reader, writer))
        while again and not listening.done() and not writer.is_closing():
            writer.write(again)
            await writer.drain()
            await asyncio.sleep(0.01)
        await listening

    return Connections(serve, context)


def fetcher_for(certificate: Path, clock: Callable[[], float] | None = None) -> HttpFetcher:
    roots = (certificate / "roots.pem").read_bytes()
    return HttpFetcher(SETTINGS, trusted_roots=roots, clock=clock or itertools.repeat(0.0).__next__)


ANSWER = frame(HEADERS, OK, flags=END_HEADERS, stream=1)
FLOODS = {
    "pings": frame(PING, b"12345678") * 20,
    "unknown frames": frame(99, b"x" * 100) * 20,
    "early hints": frame(HEADERS, b"\x08\x03103", flags=END_HEADERS, stream=1) * 20,
}
BROKEN = {
    "endless headers": (frame(HEADERS, OK, stream=1), frame(CONTINUATION, literal(b"x", b"y"), stream=1) * 20),
    "empty continuations": (frame(HEADERS, OK, stream=1), frame(CONTINUATION, stream=1) * 20),
    "headers that unpack to 40 MiB": (
        frame(
            HEADERS,
            OK + literal(b"x", b"y" * 3900, remembered=True) + b"\xbe" * 11_000,
            flags=END_HEADERS,
            stream=1,
        ),
        b"",
    ),
    "empty data": (ANSWER, frame(DATA, stream=1) * 100),
    "padding alone": (ANSWER, frame(DATA, b"\xff" + bytes(255), flags=PADDED, stream=1) * 20),
    "a page pushed": (ANSWER, frame(PUSH, struct.pack(">I", 2) + b"\x82\x84\x87", flags=END_HEADERS, stream=1)),
    "a frame too large": (ANSWER + frame(DATA, bytes(100_000), stream=1), b""),
    "a body longer than announced": (
        frame(HEADERS, OK + literal(b"content-length", b"5"), flags=END_HEADERS, stream=1)
        + frame(DATA, b"too long", flags=END_STREAM, stream=1),
        b"",
    ),
    "going away": (frame(GOAWAY, struct.pack(">II", 0, 0)), b""),
}


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_of_frames_ends_with_the_request_it_was_for(certificate: Path, name: str) -> None:
    async with http2_site(certificate, first=b"", again=FLOODS[name]).running() as site:
        fetcher = fetcher_for(certificate)
        found = await fetcher.fetch(Fetch(url=f"https://127.0.0.1:{site.port}/"))
        assert isinstance(found, Fault)
        assert found.kind is FaultKind.TIMEOUT_FIRST_BYTE
        await site.one_ends()
        await fetcher.close()


@pytest.mark.parametrize("name", BROKEN)
async def test_frames_that_no_answer_is_made_of_are_a_protocol_fault(certificate: Path, name: str) -> None:
    first, again = BROKEN[name]
    async with http2_site(certificate, first=first, again=again).running() as site:
        fetcher = fetcher_for(certificate)
        found = await fetcher.fetch(Fetch(url=f"https://127.0.0.1:{site.port}/"))
        assert isinstance(found, Fault)
        assert found.kind in (FaultKind.PROTOCOL, FaultKind.TRUNCATED)
        assert site.opened <= 3
        await fetcher.close()


async def test_bytes_beyond_ascii_in_headers_of_http_2_are_kept(certificate: Path) -> None:
    head = (
        OK + literal(b"location", b"/caf\xc3\xa9") + literal(b"set-cookie", b"a=\xe9") + literal(b"set-cookie", b"b=1")
    )
    page = frame(HEADERS, head, flags=END_HEADERS, stream=1) + frame(DATA, b"a page", flags=END_STREAM, stream=1)
    async with http2_site(certificate, first=page).running() as site:
        fetcher = fetcher_for(certificate)
        found = await fetcher.fetch(Fetch(url=f"https://127.0.0.1:{site.port}/"))
        assert isinstance(found, Response)
        assert found.headers == {"location": "/caf\xc3\xa9", "set-cookie": "a=\xe9\nb=1"}
        await fetcher.close()


async def test_as_many_bytes_of_headers_as_browsers_take_come_over_http_2(certificate: Path) -> None:
    lines = [literal(b"x-%d" % number, b"y" * 3000) for number in range(60)]
    blocks = [frame(CONTINUATION, b"".join(lines[at : at + 5]), stream=1) for at in range(0, len(lines), 5)]
    page = frame(HEADERS, OK, stream=1) + b"".join(blocks) + frame(CONTINUATION, flags=END_HEADERS, stream=1)
    async with http2_site(
        certificate, first=page + frame(DATA, b"a page", flags=END_STREAM, stream=1)
    ).running() as site:
        fetcher = fetcher_for(certificate)
        found = await fetcher.fetch(Fetch(url=f"https://127.0.0.1:{site.port}/"))
        assert isinstance(found, Response), found
        assert found.headers == {f"x-{number}": "y" * 3000 for number in range(60)}
        await fetcher.close()


async def test_a_host_that_goes_on_sending_when_nothing_is_asked_of_it_is_left(certificate: Path) -> None:
    now = 0.0
    page = ANSWER + frame(DATA, b"a page", flags=END_STREAM, stream=1)
    async with http2_site(certificate, first=page, again=FLOODS["pings"]).running() as site:
        fetcher = fetcher_for(certificate, lambda: now)
        found = await fetcher.fetch(Fetch(url=f"https://127.0.0.1:{site.port}/"))
        assert isinstance(found, Response)
        assert found.body == b"a page"
        now = 200.0
        await fetcher.fetch(Fetch(url="http://127.0.0.1:1/"))
        await site.one_ends()
        await fetcher.close()
