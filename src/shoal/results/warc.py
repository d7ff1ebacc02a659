"""Exports archived pages as a WARC file: a complete response record for every capture.

Bodies are decompressed, as handlers saw them. Headers about the bytes on the wire are renamed, as other crawlers do:
X-Crawler-Content-Encoding."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime
from http import HTTPStatus
from typing import IO, Any

from shoal.archive.base import Capture
from shoal.errors import UsageError
from shoal.version import __version__, install_command

WIRE_HEADERS = frozenset({"content-encoding", "transfer-encoding", "content-length"})
# Characters that would end a header too early.
_BREAKS = re.compile(r"[\x00\r\n]+")
_NOT_IN_URLS = re.compile(r"[\x00-\x20\x7f]")


class WarcFile:
    """Writes a WARC file, record by record."""

    def __init__(self, file: IO[bytes], *, name: str, crawl: str, compressed: bool) -> None:
        try:
            from warcio.statusandheaders import StatusAndHeaders
            from warcio.warcwriter import WARCWriter
        except ModuleNotFoundError as error:
            if error.name != "warcio":
                raise
            raise UsageError(f"a WARC file needs the warcio library: {install_command('warc')}") from None
        self.pages = 0
        self._headers: Any = _with_raw_bytes(StatusAndHeaders)
        self._writer: Any = WARCWriter(file, gzip=compressed, warc_version="1.1")
        about = {"software": f"shoal/{__version__}", "format": "WARC File Format 1.1", "isPartOf": crawl}
        self._writer.write_record(self._writer.create_warcinfo_record(name, about))

    def add(self, capture: Capture, body: bytes) -> None:
        """One page as a response record."""
        status = f"{capture.status} {_phrase(capture.status)}"
        date = datetime.fromtimestamp(capture.at, UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        record = self._writer.create_warc_record(
            _NOT_IN_URLS.sub(lambda match: f"%{ord(match[0]):02X}", capture.final_url),
            "response",
            payload=io.BytesIO(body),
            length=len(body),
            warc_headers_dict={"WARC-Date": date},
            http_headers=self._headers(status, _headers_of(capture, body), protocol="HTTP/1.1"),
        )
        self._writer.write_record(record)
        self.pages += 1


def _with_raw_bytes(kind: Any) -> Any:
    """Headers of a record that keep the received bytes; warcio would percent-encode bytes beyond ASCII."""

    class RawHeaders(kind):  # type: ignore[misc] # the library has no types
        def to_ascii_bytes(self, filter_func: Any = None) -> bytes:
            return bytes(self.to_bytes(filter_func, encoding="latin-1"))

    return RawHeaders


def _on_the_wire(value: str) -> str:
    """A header value of a capture, one character per byte."""
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        return value.encode("utf-8", "replace").decode("latin-1")
    return value


def _headers_of(capture: Capture, body: bytes) -> list[tuple[str, str]]:
    """The received headers; those about the bytes on the wire are renamed."""
    headers = []
    for name, value in capture.headers.items():
        shown = _BREAKS.sub(" ", name)
        if name in WIRE_HEADERS:
            shown = f"x-crawler-{shown}"
        # Each cookie is a line of the value: they must stay separate headers.
        values = value.split("\n") if name == "set-cookie" else [value]
        headers += [(shown, _BREAKS.sub(" ", _on_the_wire(one))) for one in values if shown]
    return [*headers, ("content-length", str(len(body)))]


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
