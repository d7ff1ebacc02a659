"""Fetches through exits, a site that keeps what it was asked, and servers that talk as they are told."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import trustme

from shoal.fetch.base import Fault, FaultKind, Fetch, Response
from shoal.fetch.exits import ExitConfig
from shoal.fetch.http import HttpFetcher
from shoal.settings.table import Settings
from shoal.testing.sites.loopback import LoopbackServer, Reply, Request, reply

SETTINGS = Settings(
    allow_private=True, connect_seconds=10.0, first_byte_seconds=10.0, idle_seconds=10.0, total_seconds=20.0
)
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
    *exits: ExitConfig, settings: Settings = SETTINGS, authority: trustme.CA | None = None, names: object = None
) -> AsyncIterator[HttpFetcher]:
    roots = authority.cert_pem.bytes() if authority else None
    fetcher = HttpFetcher(
        settings, exits={config.name: config for config in exits}, resolver=names, trusted_roots=roots
    )  # type: ignore[arg-type] # a small stand-in
    try:
        yield fetcher
    finally:
        await fetcher.close()


def proxy_exit(url: str, name: str = "pool/one") -> ExitConfig:
    return ExitConfig(name=name, kind="proxy", url=url)


async def through(config: ExitConfig, url: str, **options: object) -> Response | Fault:
    headers = options.pop("headers", None)
    async with fetching(config, **options) as fetcher:  # type: ignore[arg-type] # handed on
        return await fetcher.fetch(Fetch(url=url, exit=config.name, headers=headers))  # type: ignore[arg-type] # handed on


def is_exits_fault(answer: Response | Fault) -> str:
    """The fault's message, after making sure that it is the exit's and gives nothing away."""
    assert isinstance(answer, Fault), answer
    assert answer.kind is FaultKind.EXIT, answer
    assert answer.message.startswith("pool/one: ")
    assert SECRET not in answer.message
    assert "://" not in answer.message
    return answer.message


def answering(status: str) -> Talk:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()

    return talk


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
