"""A site on loopback that behaves badly, one behaviour per path, for tests of fetchers and workers."""

from __future__ import annotations

import asyncio
import socket
import struct
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from email.utils import formatdate
from functools import lru_cache
from types import TracebackType
from typing import Final
from urllib.parse import unquote

import brotli
import zstandard

from shoal.testing.sites.traps import trap_page

MIB: Final = 1024 * 1024
BOMB_BYTES: Final = 32 * MIB
NESTED_BYTES: Final = 20 * MIB
LINKS: Final = 100_000
HEADERS: Final = 10_000

Behaviour = Callable[[asyncio.StreamWriter, float], Awaitable[None]]

REDIRECTS: Final = {
    "/redirect/private": "http://10.0.0.1/",
    "/redirect/metadata": "http://169.254.169.254/latest/meta-data/",
    "/redirect/decimal": "http://2130706433/",
    "/redirect/file": "file:///etc/passwd",
    "/redirect/script": "javascript:alert(1)",
    "/redirect/port": "//127.0.0.1:1/",
    "/redirect/nowhere": "",
    "/redirect/self": "/redirect/self",
}


class HostileSite:
    """`async with HostileSite() as site: site.url("/slow-headers")`. `pause` is the wait between dripped bytes, `pages`
    are a test's own responses."""

    def __init__(self, *, pause: float = 1.0, host: str = "127.0.0.1", port: int = 0) -> None:
        self.pause = pause
        self.host = host
        self.port = port
        self.requests: list[bytes] = []
        self.pages: dict[str, bytes] = {}
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> HostileSite:
        self._server = await asyncio.start_server(self._connected, self.host, self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            # Not close(): it would wait for clients that stopped reading.
            writer.transport.abort()
        await asyncio.sleep(0)

    def url(self, path: str) -> str:
        """The URL of a path of this site."""
        return f"http://{self.host}:{self.port}{path}"

    def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            while await self._answer(await reader.readuntil(b"\r\n\r\n"), writer):
                pass
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        self._writers.discard(writer)

    async def _answer(self, head: bytes, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False if the connection must not be used again."""
        self.requests.append(head)
        target = head.split(b" ", 2)[1].decode("ascii", "replace")
        path, _, query = target.partition("?")
        behaviour = BEHAVIOURS.get(path)
        if behaviour is not None:
            await behaviour(writer, self.pause)
            return False
        if path == "/redirect-to":
            writer.write(answer(status="302 Found", headers=f"Location: {unquote(query, 'latin-1')}\r\n"))
        elif path == "/link-to":
            writer.write(answer(f"<title>on</title><a href='/redirect-to?{query}'>on</a>".encode()))
        elif path == "/base-on":
            writer.write(answer(f"<base href='{unquote(query)}'><a href='inside'>in</a>".encode()))
        elif path in self.pages:
            writer.write(self.pages[path])
        elif (page := trap_page(target)) is not None:
            writer.write(answer(page))
        else:
            writer.write(page_of(path, head))
        await writer.drain()
        return True


def page_of(path: str, head: bytes = b"") -> bytes:
    """The whole response of a path that answers in one piece."""
    if path.startswith("/redirects/"):
        following = int(path.rpartition("/")[2]) + 1
        return answer(status="302 Found", headers=f"Location: /redirects/{following}\r\n")
    if path in REDIRECTS:
        return answer(status="302 Found", headers=f"Location: {REDIRECTS[path]}\r\n")
    if path == "/echo":
        return answer(head, headers="Content-Type: text/plain\r\n")
    return _fixed(path) or answer(b"<p>no such page</p>", status="404 Not Found")


def answer(body: bytes = b"", *, status: str = "200 OK", headers: str = "Content-Type: text/html\r\n") -> bytes:
    """A well-formed response with this body."""
    return f"HTTP/1.1 {status}\r\n{headers}Content-Length: {len(body)}\r\n\r\n".encode("latin-1") + body


@lru_cache(maxsize=64)
def _fixed(path: str) -> bytes | None:
    return _status(path) or _with_bad_headers(path) or _large(path) or _bomb(path) or _encoded(path) or _document(path)


def _status(path: str) -> bytes | None:
    match path:
        case "/429":
            return answer(status="429 Too Many Requests", headers="Retry-After: 7\r\n")
        case "/429-date":
            date = formatdate(4_102_444_800, usegmt=True)
            return answer(status="429 Too Many Requests", headers=f"Retry-After: {date}\r\n")
        case "/429-nonsense":
            return answer(status="429 Too Many Requests", headers="Retry-After: soon\r\n")
        case "/429-negative":
            return answer(status="429 Too Many Requests", headers="Retry-After: -1e400\r\n")
        case "/429-millennium":
            return answer(status="429 Too Many Requests", headers=f"Retry-After: {10**30}\r\n")
        case "/503":
            return answer(status="503 Service Unavailable")
    return None


def _with_bad_headers(path: str) -> bytes | None:
    match path:
        case "/non-ascii-headers":
            headers = "X-Name: caf\xe9\r\nX-Plain: yes\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nVary: a\r\nVary: b\r\n"
            return answer(b"ok", headers=headers)
        case "/headers/huge":
            return answer(headers=f"X-Huge: {'a' * MIB}\r\n")
        case "/headers/many":
            return answer(headers="".join(f"X-{number}: a\r\n" for number in range(HEADERS)))
        case "/headers/broken":
            return answer(headers="X-Nul: a\0b\r\n")
        case "/lengths/same":
            return answer(b"ab", headers="Content-Length: 2\r\n")
        case "/lengths/different":
            return answer(b"ab", headers="Content-Length: 1\r\n")
        case "/location/huge":
            return answer(status="302 Found", headers=f"Location: /{'a' * 100_000}\r\n")
        case "/location/binary":
            return answer(status="302 Found", headers="Location: /\x80\xff\t /\r\n")
        case "/status/999":
            return answer(status="999 Denied")
    return None


def _large(path: str) -> bytes | None:
    """Header fields of the largest allowed size."""
    match path:
        case "/headers/cookies":
            return answer(b"ok", headers=f"Set-Cookie: a={'b' * 4000}\r\n" * 90)
        case "/headers/etag":
            return answer(b"ok", headers=f"ETag: {'e' * 200_000}\r\nLast-Modified: {'9' * 100_000}\r\n")
        case "/hrefs":
            long = b"x" * (MIB // 4)
            data = b"data:text/html," + long
            links = (b"/" + long, data, b"http://%b/" % long, b"?" + b"&" * 60_000, b"/a" * 30_000)
            return answer(b"".join(b"<a href='%b'>x</a><img srcset='%b'>" % (href, data) for href in links))
    return None


def _bomb(path: str) -> bytes | None:
    zeros = bytes(BOMB_BYTES) if path.startswith("/bomb/") else b""
    match path:
        case "/bomb/gzip":
            return _with_encoding("gzip", gzipped(zeros))
        case "/bomb/members":
            return _with_encoding("gzip", gzipped(b"") * 50_000)
        case "/bomb/deflate":
            return _with_encoding("deflate", zlib.compress(zeros))
        case "/bomb/br":
            return _with_encoding("br", brotli.compress(zeros, quality=3))
        case "/bomb/zstd":
            return _with_encoding("zstd", zstandard.compress(zeros))
        case "/bomb/stacked":
            return _with_encoding("gzip, br", brotli.compress(gzipped(zeros), quality=3))
    return None


def _encoded(path: str) -> bytes | None:
    page = b"<html><title>packed</title>" + b"<p>a line of text</p>" * 500
    match path:
        case "/encoding/good":
            return _with_encoding("gzip", gzipped(page))
        case "/encoding/stacked":
            return _with_encoding("deflate, gzip, zstd", zstandard.compress(gzipped(zlib.compress(page))))
        case "/encoding/four-layers":
            return _with_encoding("gzip, gzip, gzip, gzip", gzipped(gzipped(gzipped(gzipped(page)))))
        case "/encoding/thousand-names":
            return _with_encoding("identity, " * 1000 + "gzip", gzipped(page))
        case "/encoding/lie":
            return _with_encoding("gzip", page)
        case "/encoding/unknown":
            return _with_encoding("lzma", page)
        case "/encoding/cut":
            return _with_encoding("gzip", gzipped(page)[:-20])
    return None


def _document(path: str) -> bytes | None:
    match path:
        case "/" | "/ok":
            return answer(b"<title>fine</title><a href=/ok>again</a>")
        case "/charset/lie":
            return answer("<p>café, naïve</p>".encode("latin-1"), headers="Content-Type: text/html; charset=utf-8\r\n")
        case "/charset/utf-16":
            return answer(b"<p>plain ASCII</p>", headers="Content-Type: text/html; charset=utf-16\r\n")
        case "/charset/invalid-utf-8":
            bad = b"<title>\xff\xfe\xc0\xaf\xed\xa0\x80</title><a href='/\xc3\x28\xf8'>x</a>"
            return answer(bad, headers="Content-Type: text/html; charset=utf-8\r\n")
        case "/charset/nonsense":
            return answer("<p>café</p>".encode(), headers="Content-Type: text/html; charset=klingon-9\r\n")
        case "/binary":
            return answer(bytes(range(256)) * 256)
        case "/nested":
            return answer(b"<div>" * (NESTED_BYTES // 5))
        case "/nuls":
            return answer(b"<p>a\x00b</p>" + bytes(10_000) + b"<a href='/o\x00k'>x</a>")
        case "/links":
            return answer(b"".join(b"<a href=/page/%d>%d</a>\n" % (number, number) for number in range(LINKS)))
    return None


def gzipped(body: bytes) -> bytes:
    """The body as one gzip member."""
    packer = zlib.compressobj(6, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    return packer.compress(body) + packer.flush()


def _with_encoding(encoding: str, body: bytes) -> bytes:
    return answer(body, headers=f"Content-Type: text/html\r\nContent-Encoding: {encoding}\r\n")


async def _raw(writer: asyncio.StreamWriter, text: bytes) -> None:
    writer.write(text)
    await writer.drain()


async def _forever() -> AsyncIterator[None]:
    while True:
        yield None
        await asyncio.sleep(0)


async def _slow_headers(writer: asyncio.StreamWriter, pause: float) -> None:
    await asyncio.sleep(3600)


async def _endless_headers(writer: asyncio.StreamWriter, pause: float) -> None:
    await _raw(writer, b"HTTP/1.1 200 OK\r\n")
    while True:
        await _raw(writer, b"X: y\r\n")
        await asyncio.sleep(pause)


async def _endless_continue(writer: asyncio.StreamWriter, pause: float) -> None:
    async for _ in _forever():
        await _raw(writer, b"HTTP/1.1 100 Continue\r\n\r\n" * 100)


async def _stall(writer: asyncio.StreamWriter, pause: float) -> None:
    await _raw(writer, b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf a page")
    await asyncio.sleep(3600)


async def _drip(writer: asyncio.StreamWriter, pause: float) -> None:
    await _raw(writer, b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        await _raw(writer, b"x")
        await asyncio.sleep(pause)


async def _endless(writer: asyncio.StreamWriter, pause: float) -> None:
    await _raw(writer, b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n")
    async for _ in _forever():
        await _raw(writer, b"<p>more</p>" * 6000)


async def _endless_tiny_chunks(writer: asyncio.StreamWriter, pause: float) -> None:
    await _raw(writer, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
    async for _ in _forever():
        await _raw(writer, b"1\r\nx\r\n" * 1000)


async def _endless_chunk_extension(writer: asyncio.StreamWriter, pause: float) -> None:
    await _raw(writer, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5;")
    async for _ in _forever():
        await _raw(writer, b"extension=" * 1000)


async def _endless_trailers(writer: asyncio.StreamWriter, pause: float) -> None:
    await _raw(writer, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n")
    async for _ in _forever():
        await _raw(writer, b"X-Trailer: more\r\n" * 1000)


async def _reset(writer: asyncio.StreamWriter, pause: float) -> None:
    connection = writer.get_extra_info("socket")
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def _reset_in_body(writer: asyncio.StreamWriter, pause: float) -> None:
    await _raw(writer, b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf a page")
    await asyncio.sleep(0.05)
    await _reset(writer, pause)


def _says(text: bytes) -> Behaviour:
    """Write these bytes and close."""

    async def behave(writer: asyncio.StreamWriter, pause: float) -> None:
        await _raw(writer, text)

    return behave


_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n"
_ZIPPED: Final = gzipped(b"hello")
_CHUNKED: Final = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"
BEHAVIOURS: Final[dict[str, Behaviour]] = {
    "/slow-headers": _slow_headers,
    "/endless-headers": _endless_headers,
    "/endless-continue": _endless_continue,
    "/stall": _stall,
    "/drip": _drip,
    "/endless": _endless,
    "/endless-tiny-chunks": _endless_tiny_chunks,
    "/reset": _reset,
    "/reset-in-body": _reset_in_body,
    "/close": _says(b""),
    "/http09": _says(b"<html><p>no headers at all</p></html>"),
    "/garbage": _says(b"\x00\xff\x16\x03\x01garbage\r\n\r\n"),
    "/short": _says(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nonly this"),
    "/lengths/negative": _says(_HEAD + b"Content-Length: -5\r\n\r\nhello"),
    "/lengths/endless": _says(_HEAD + b"Content-Length: 99999999999999999999\r\n\r\nhello"),
    "/lengths/announced": _says(_HEAD + b"Content-Length: 9999999999\r\n\r\nhello"),
    "/lengths/too-short": _says(_HEAD + b"Content-Length: 5\r\n\r\nhello" + answer(b"a forged second answer")),
    "/lengths/and-chunked": _says(
        _HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"
    ),
    "/chunked/twice": _says(_HEAD + b"Transfer-Encoding: chunked, chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n"),
    "/chunked/unknown": _says(_HEAD + b"Transfer-Encoding: rot13\r\n\r\nuryyb"),
    "/chunked/zipped": _says(
        _HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(_ZIPPED), _ZIPPED)
    ),
    "/chunked/overflow": _says(_CHUNKED + b"FFFFFFFFFFFFFFFFF\r\nhello"),
    "/chunked/negative": _says(_CHUNKED + b"-5\r\nhello"),
    "/chunked/extension": _endless_chunk_extension,
    "/chunked/trailers": _endless_trailers,
    "/upgrade": _says(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n\x00\x00"),
    "/early-hints": _says(b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>\r\n\r\n" * 100_000 + answer(b"at last")),
    "/chunked/lying-trailers": _says(_CHUNKED + b"0\r\nContent-Length: 1\r\nLocation: http://127.0.0.1/\r\n\r\n"),
    "/chunked/cut": _says(_CHUNKED),
    "/chunked/garbage": _says(_CHUNKED + b"ZZZ\r\nwhat\r\n"),
    "/http10": _says(b"HTTP/1.0 200 OK\r\nContent-Type: text/html\r\n\r\n<p>until the end</p>"),
}
