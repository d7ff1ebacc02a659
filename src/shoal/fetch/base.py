"""The contract of a fetcher: one request in, a response or a fault out; it never raises, whatever a site does."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, Protocol

import msgspec

from shoal.model import DIRECT, Render

REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


class FaultKind(enum.StrEnum):
    """Why there is no response. The table in `policy/retries.py` says what each one means for the task."""

    DNS = "dns"
    REFUSED_ADDRESS = "refused_address"
    CONNECT = "connect"
    TLS = "tls"
    TIMEOUT_CONNECT = "timeout_connect"
    TIMEOUT_FIRST_BYTE = "timeout_first_byte"
    TIMEOUT_IDLE = "timeout_idle"
    TIMEOUT_TOTAL = "timeout_total"
    TRUNCATED = "truncated"
    TOO_LARGE = "too_large"
    BOMB = "bomb"
    BAD_ENCODING = "bad_encoding"
    BAD_URL = "bad_url"
    PROTOCOL = "protocol"
    EXIT = "exit"
    LOCAL = "local"
    BROWSER = "browser"
    SHORTAGE = "shortage"


class Fetch(msgspec.Struct, frozen=True, kw_only=True):
    """One request to send through one exit. The URL is in canonical form; with `render`, a browser renders the page."""

    url: str
    method: str = "GET"
    headers: dict[str, str] | None = None
    body: bytes | None = None
    exit: str = DIRECT
    render: Render | None = None


class Response(msgspec.Struct, frozen=True, kw_only=True):
    """A site's response. Header names are lower case; bytes of values beyond ASCII are read as Latin-1, like browsers.

    - `body`: decompressed; `wire_size`: its size before that
    - `body_elapsed`: the part of `elapsed` in which the body was read
    - `screenshot`: of a rendered page (PNG), if requested
    - `page_requests`: requests that a rendered page made itself; `page_refused`: its connections that the guard refused
    """

    url: str
    status: int
    headers: dict[str, str]
    body: bytes
    wire_size: int
    elapsed: float
    body_elapsed: float = 0.0
    screenshot: bytes = b""
    page_requests: int = 0
    page_refused: int = 0


def location_of(headers: Mapping[str, str]) -> str:
    """The Location header; empty if there is none. Like browsers, bytes beyond ASCII are percent-encoded unchanged: a
    UTF-8 path stays UTF-8, a Latin-1 path stays Latin-1."""
    location = headers.get("location", "")
    if location.isascii():
        return location
    try:
        raw = location.encode("latin-1")
    except UnicodeEncodeError:
        return location
    return "".join(chr(byte) if byte < 0x80 else f"%{byte:02X}" for byte in raw)


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Why there is no response, in one line.

    - `is_certain`: it is the exit's fault, not the target's
    - `page_requests`, `page_refused`: as of a `Response`
    """

    kind: FaultKind
    message: str
    elapsed: float = 0.0
    is_certain: bool = False
    page_requests: int = 0
    page_refused: int = 0


class Fetcher(Protocol):
    """Sends requests."""

    async def fetch(self, request: Fetch) -> Response | Fault:
        """Send the request and read the whole response, within every limit. Follows no redirect."""

    async def close(self) -> None:
        """Close idle connections."""
