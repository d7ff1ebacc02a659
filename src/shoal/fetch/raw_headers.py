"""Header values with bytes beyond ASCII, read and made by a round trip over a loopback socket.

The HTTP client reads header values only as ASCII text and writes them only as UTF-8, but it can forward a received set
of headers unchanged. So a response's headers are sent on to a socket of our own, which reads their bytes; and a value
that is no UTF-8 is made by a response of that socket. No site gets a second request. Most responses have only ASCII
headers and skip all this.
"""

from __future__ import annotations

import asyncio
import errno
import re
import secrets
import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import Final

from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import PyreqwestError
from pyreqwest.http import HeaderMap
from pyreqwest.multipart import FormBuilder, PartBuilder
from pyreqwest.request import RequestBuilder

from shoal.fetch.clients import build_plain
from shoal.fetch.descriptors import is_used_up

LOOPBACK: Final = "127.0.0.1"
ROUND_TRIP_SECONDS: Final = 5.0
ROUND_TRIP_FILES: Final = 3  # files that a round trip has open at once
_SURROGATES: Final = re.compile("[\udc80-\udcff]")
_NO_CONTENT: Final = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n%s\r\n"
# In a part of a form, the boundary and Content-Disposition come before the part's headers.
_LINES_BEFORE: Final = 2


def raw_values(headers: Mapping[str, str]) -> dict[str, bytes]:
    """The headers of a request that are no UTF-8, as bytes: in the text, each invalid byte is a surrogate."""
    return {
        name: value.encode("utf-8", "surrogateescape")
        for name, value in headers.items()
        if _SURROGATES.search(value) is not None
    }


class RawHeaders:
    """Reads and makes headers that the client cannot convert. Opens its client on first use."""

    def __init__(self) -> None:
        self._client: Client | None = None

    async def read(self, headers: HeaderMap) -> list[tuple[str, str]]:
        """The headers in the order received, values read as Latin-1."""
        # Inside a form they have no meaning for the client, as a Transfer-Encoding of the request would.
        form = FormBuilder().part("headers", PartBuilder.from_bytes(b"").headers(headers))
        async with _EchoServer() as server:
            await self._send(self._request("POST", server).multipart(form))
            lines = server.received().partition(b"\r\n\r\n")[0].split(b"\r\n")[_LINES_BEFORE:]
        return [(name, value) for name, _, value in (line.decode("latin-1").partition(": ") for line in lines)]

    async def make(self, name: str, value: bytes) -> HeaderMap:
        """A header with exactly these bytes, for a request."""
        async with _EchoServer(b"%s: %s\r\n" % (name.encode(), value)) as server:
            headers = await self._send(self._request("GET", server))
        del headers["connection"]
        return headers

    async def close(self) -> None:
        """Close the client, if there is one."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    def _request(self, method: str, server: _EchoServer) -> RequestBuilder:
        if self._client is None:
            builder = ClientBuilder().no_proxy().http1_only().follow_redirects(False).default_cookie_store(False)
            self._client = build_plain(builder.timeout(timedelta(seconds=ROUND_TRIP_SECONDS)))
        return self._client.request(method, server.url)

    async def _send(self, request: RequestBuilder) -> HeaderMap:
        try:
            return (await request.build().send()).headers
        except PyreqwestError as error:
            # Not the site's fault: an OSError does not count against it.
            number = errno.EMFILE if is_used_up(needed=ROUND_TRIP_FILES) else errno.EIO
            raise OSError(number, "the headers of an answer could not be read over loopback") from error


class _EchoServer:
    """A server for one request: keeps its body, and responds with the given lines as headers."""

    def __init__(self, lines: bytes = b"") -> None:
        self._lines = lines
        # Other processes of this machine can find the port, but not this path.
        self._path = f"/{secrets.token_hex(16)}"
        self._body: bytes | None = None
        self.url = ""

    async def __aenter__(self) -> _EchoServer:
        listening = socket.create_server((LOOPBACK, 0))
        self.url = f"http://{LOOPBACK}:{listening.getsockname()[1]}{self._path}"
        self._server = await asyncio.start_server(self._serve, sock=listening)
        return self

    async def __aexit__(self, *error: object) -> None:
        self._server.close()

    def received(self) -> bytes:
        """The body of the request."""
        if self._body is None:
            raise OSError("the headers of an answer did not come back over loopback")
        return self._body

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            if head.split(b" ", 2)[1] == self._path.encode():
                self._body = await reader.readexactly(_content_length(head))
                writer.write(_NO_CONTENT % self._lines)
                await writer.drain()
        except (OSError, EOFError, LookupError, ValueError, asyncio.LimitOverrunError):
            pass  # another process, which does not know the path
        finally:
            writer.close()


def _content_length(head: bytes) -> int:
    lines = (line.partition(b":") for line in head.split(b"\r\n"))
    return next((int(value) for name, _, value in lines if name.lower() == b"content-length"), 0)
