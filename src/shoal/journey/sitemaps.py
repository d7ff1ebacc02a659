"""Reads sitemaps (a urlset, a sitemap index or a list of URLs) without trusting them.

A broken sitemap gives the URLs up to the fault, and a line that says what is wrong. No entities are expanded except
XML's own five.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from xml.parsers import expat

import msgspec

from shoal.settings import MIB

_MOST_BYTES = 50 * MIB
_MOST_RATIO = 200
_FREE_BYTES = MIB  # every body may grow to this size, whatever its ratio
_CHUNK = 8192
_DEEPEST = 64
_MOST_ELEMENTS = 3_000_000
_LONGEST_URL = 8192
_GZIP = b"\x1f\x8b"
_GZIP_WINDOW = 31  # tells zlib to expect a gzip header
_BEFORE_XML = b"\xef\xbb\xbf\xff\xfe\x00 \t\r\n"
_STRAY_AMPERSAND = re.compile(rb"&(?!(?:amp|lt|gt|quot|apos|#[0-9]{1,7}|#x[0-9A-Fa-f]{1,6});)")
_SITEMAP_LINE = re.compile(r"[\ufeff \t]*sitemap[ \t]*:[ \t]*([^\s#]+)", re.IGNORECASE)


class Sitemap(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a sitemap: pages, further sitemaps, and its `problem`, if any. URLs are as written."""

    pages: list[str] = msgspec.field(default_factory=list)
    sitemaps: list[str] = msgspec.field(default_factory=list)
    problem: str = ""


def parse_sitemap(body: bytes, *, url: str, max_urls: int = 50_000) -> Sitemap:
    """Read a sitemap in XML or plain text, gzipped or not. Never raises, whatever the body is."""
    problem = ""
    if body.startswith(_GZIP):
        body, problem = _unzip(body)
    if body.lstrip(_BEFORE_XML).startswith(b"<"):
        found = _read_xml(body.lstrip(b" \t\r\n"), max_urls)
    else:
        found = _read_lines(body, max_urls)
    problem = problem or found.problem
    return Sitemap(
        pages=list(found.pages), sitemaps=list(found.sitemaps), problem=f"sitemap {url}: {problem}" if problem else ""
    )


def sitemaps_in_robots(text: str) -> list[str]:
    """The URLs of the Sitemap lines of a robots.txt, each once, as written."""
    lines = map(_SITEMAP_LINE.match, text.splitlines())
    return list(dict.fromkeys(line[1] for line in lines if line))


class _Found:
    """The URLs read so far, each once and in order: a dict keeps both."""

    def __init__(self, most: int) -> None:
        self.pages: dict[str, None] = {}
        self.sitemaps: dict[str, None] = {}
        self.problem = ""
        self._most = most

    def add(self, url: str, into: dict[str, None]) -> None:
        if url not in into and len(self.pages) + len(self.sitemaps) >= self._most:
            raise _StopReadingError(f"it lists more than {self._most:,} URLs; the rest is left out")
        into[url] = None


class _StopReadingError(Exception):
    """Ends the parser from inside one of its handlers."""


class _Reader:
    """Collects the <loc> of each <url> and <sitemap>, whatever their namespace prefix or case."""

    def __init__(self, most: int) -> None:
        self.found = _Found(most)
        self.is_broken = False
        self._open: list[str] = []
        self._elements = 0
        self._text: str | None = None

    def read(self, body: bytes) -> None:
        """Read as far as the body is well-formed XML; `found.problem` says why reading ended early."""
        parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = self._doctype
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        try:
            parser.Parse(body, True)
        except _StopReadingError as stop:
            self.found.problem = str(stop)
        except expat.ExpatError as error:
            self.is_broken = True
            self.found.problem = f"its XML is broken: {error}"
        except (LookupError, ValueError) as error:
            self.found.problem = f"its encoding is not known: {error}"

    def _doctype(self, name: str, *_: object) -> None:
        if name.lower() == "html":
            raise _StopReadingError("it is an HTML page")
        raise _StopReadingError("it has a document type declaration, which no sitemap needs")

    def _start(self, tag: str, _: object) -> None:
        name = tag.rpartition(":")[2].lower()
        if not self._open and name not in ("urlset", "sitemapindex"):
            raise _StopReadingError(f"its root is <{tag[:40]}>, not <urlset> or <sitemapindex>")
        self._elements += 1
        if len(self._open) >= _DEEPEST or self._elements > _MOST_ELEMENTS:
            raise _StopReadingError("it has more elements, or deeper ones, than any sitemap; the rest is left out")
        if name == "loc" and self._open[-1] in ("url", "sitemap"):
            self._text = ""
        self._open.append(name)

    def _characters(self, text: str) -> None:
        if self._text is not None and len(self._text) <= _LONGEST_URL:
            self._text += text

    def _end(self, _: str) -> None:
        name = self._open.pop()
        if name != "loc" or self._text is None:
            return
        url, self._text = self._text.strip(), None
        if 0 < len(url) <= _LONGEST_URL:
            self.found.add(url, self.found.pages if self._open[-1] == "url" else self.found.sitemaps)


def _read_xml(body: bytes, most: int) -> _Found:
    reader = _Reader(most)
    reader.read(body)
    if not reader.is_broken or not _STRAY_AMPERSAND.search(body):
        return reader.found
    # Bare ampersands in URLs are the commonest fault of sitemaps. They are escaped, so nothing is expanded.
    mended = _Reader(most)
    mended.read(_STRAY_AMPERSAND.sub(b"&amp;", body))
    return mended.found


def _read_lines(body: bytes, most: int) -> _Found:
    encoding = "utf-16" if body.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8-sig"
    found = _Found(most)
    try:
        for url in _urls_in(body.decode(encoding, "replace").splitlines()):
            found.add(url, found.pages)
    except _StopReadingError as stop:
        found.problem = str(stop)
    if not found.pages:
        found.problem = "it is empty" if not body.strip() else "it is neither XML nor a list of URLs"
    return found


def _urls_in(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        url = line.strip()
        if url[:8].lower().startswith(("http://", "https://")) and len(url) <= _LONGEST_URL:
            yield url


def _unzip(body: bytes) -> tuple[bytes, str]:
    """The content of a gzip body up to the first fault or the size limit, and what was wrong."""
    most = min(_MOST_BYTES, max(_FREE_BYTES, _MOST_RATIO * len(body)))
    content = bytearray()
    member = zlib.decompressobj(_GZIP_WINDOW)
    # Small chunks: the end of each gzip member copies the rest of its chunk.
    for start in range(0, len(body), _CHUNK):
        chunk = body[start : start + _CHUNK]
        while chunk:
            if member.eof:
                if not _GZIP.startswith(chunk[:2]):
                    return bytes(content), ""  # padding after the last member
                member = zlib.decompressobj(_GZIP_WINDOW)
            try:
                content += member.decompress(chunk, most + 1 - len(content))
            except zlib.error as error:
                return bytes(content), f"its gzip data is broken: {error}"
            if len(content) > most:
                return bytes(content[:most]), f"it is larger than {most:,} bytes unpacked; the rest is left out"
            chunk = member.unused_data
    return bytes(content), "" if member.eof else "its gzip data ends too early"
