"""Headers with bytes beyond ASCII, of which the HTTP client gives and takes no value: they make a detour over loopback.

The client reads header values only as ASCII text and writes them only as UTF-8. It also sends a whole set of headers as
it got them. So the headers of such an answer are sent once more, to a socket of our own, which reads their bytes; bytes
that are no UTF-8 become a header of the client by the way back. No site is asked twice: a second request
may be a POST, takes a start slot, and may get another answer. Answers with ASCII headers never come here.
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

from shoal.fetch.clients import plain_built
from shoal.fetch.descriptors import is_used_up

LOOPBACK: Final = "127.0.0.1"
DETOUR_SECONDS: Final = 5.0
DETOUR_FILES: Final = 3  # that the detour has open at once
_SURROGATES: Final = re.compile("[\udc80-\udcff]")
_NO_CONTENT: Final = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n%s\r\n"
# In a part of a form: the boundary and Content-Disposition come before the headers of the part.
_LINES_BEFORE: Final = 2


def raw_values(headers: Mapping[str, str]) -> dict[str, bytes]:
    """The headers of a request that are no UTF-8, as bytes: each byte that is none stands there as a surrogate."""
    return {
        name: value.encode("utf-8", "surrogateescape")
        for name, value in headers.items()
        if _SURROGATES.search(value) is not None
    }


class RawHeaders:
    """Reads and makes headers that the client has no text for. Opens nothing before it is needed."""

    def __init__(self) -> None:
        self._client: Client | None = None

    async def read(self, headers: HeaderMap) -> list[tuple[str, str]]:
        """The headers in the order received, each byte of a value as the Latin-1 character of its number."""
        # Inside a form the client reads no meaning into them, as it would into a Transfer-Encoding of the request.
        form = FormBuilder().part("headers", PartBuilder.from_bytes(b"").headers(headers))
        async with _Mirror() as mirror:
            await self._send(self._request("POST", mirror).multipart(form))
            lines = mirror.received().partition(b"\r\n\r\n")[0].split(b"\r\n")[_LINES_BEFORE:]
        return [(name, value) for name, _, value in (line.decode("latin-1").partition(": ") for line in lines)]

    async def make(self, name: str, value: bytes) -> HeaderMap:
        """A header with exactly these bytes, to be sent with a request."""
        async with _Mirror(b"%s: %s\r\n" % (name.encode(), value)) as mirror:
            headers = await self._send(self._request("GET", mirror))
        del headers["connection"]
        return headers

    async def close(self) -> None:
        """Close the client, if there is one."""
        if self._client is not None:
            await self._client.close()
            self._client = None

    def _request(self, method: str, mirror: _Mirror) -> RequestBuilder:
        if self._client is None:
            builder = ClientBuilder().no_proxy().http1_only().follow_redirects(False).default_cookie_store(False)
            self._client = plain_built(builder.timeout(timedelta(seconds=DETOUR_SECONDS)))
        return self._client.request(method, mirror.url)

    async def _send(self, request: RequestBuilder) -> HeaderMap:
        try:
            return (await request.build().send()).headers
        except PyreqwestError as error:
            # Not the site's fault: nothing here may count against it.
            number = errno.EMFILE if is_used_up(needed=DETOUR_FILES) else errno.EIO
            raise OSError(number, "the headers of an answer could not be read over loopback") from error


class _Mirror:
    """A socket for one request: keeps the body that it gets, and answers with the given lines as headers."""

    def __init__(self, lines: bytes = b"") -> None:
        self._lines = lines
        # Another process of this machine can find the port, but not this path.
        self._path = f"/{secrets.token_hex(16)}"
        self._body: bytes | None = None
        self.url = ""

    async def __aenter__(self) -> _Mirror:
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
            pass  # some other process that does not know the path
        finally:
            writer.close()


def _content_length(head: bytes) -> int:
    lines = (line.partition(b":") for line in head.split(b"\r\n"))
    return next((int(value) for name, _, value in lines if name.lower() == b"content-length"), 0)
