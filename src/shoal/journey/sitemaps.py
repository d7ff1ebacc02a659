"""Tasks from sitemaps (urlset, sitemap index), feeds (RSS, RDF, Atom), lists of URLs, and ranges of numbered pages.

The files are not trusted. A faulty file is read up to its fault, around bad bytes and without unusable entries; the
problem is one line. No entities are expanded except XML's own five.
"""

from __future__ import annotations

import asyncio
import datetime
import re
import zlib
from functools import partial
from xml.parsers import expat

import msgspec

from shoal.journey.intake import Found, Intake
from shoal.model import Visit
from shoal.settings.table import MIB
from shoal.settings.values import written_revisit
from shoal.spider.page import Page
from shoal.spider.spider import Request
from shoal.urls.canonical import lane_of
from shoal.urls.charset import charset_named, declared_in_xml, is_utf8, marked_charset, text_of, xml_label

# Names of shoal's own handlers in tasks.
SITEMAP = "@sitemap"
PAGES = "@pages"

MOST_PAGES = 1_000_000
FEWEST_COMPARED = 20  # pages of a sitemap whose times of change are compared
MOST_LEVELS = 3  # robots.txt, an index, an index in it, their sitemaps
MOST_ELSEWHERE = 1_000  # sitemaps on other hosts that one file may name, whatever the scope

_MOST_BYTES = 50 * MIB
_MOST_RATIO = 200
_FREE_BYTES = MIB  # every body may grow to this size, whatever its ratio
_CHUNK = 8192
_DEEPEST = 64
_MOST_ELEMENTS = 3_000_000
_LONGEST_URL = 8192
_LINE_SHOWN = 60
_MOST_MENDED = 1_000
_MOST_AMPERSANDS = 500_000  # ten for each URL of the largest sitemap; each takes a hundred bytes of memory
_MOST_LINES = 500_000
_FED = MIB  # bytes per call of the XML parser
_LONGEST_TAG = MIB  # the parser keeps every attribute of a tag
_LONGEST_MODIFIED = 40
_LONGEST_DAY = len("2026-05-01")
_DAY = 86_400.0
_WEB = ("http://", "https://")
_GZIP = b"\x1f\x8b"
_GZIP_WINDOW = 31  # tells zlib to expect a gzip header
_BLANK = b"\xef\xbb\xbf\0 \t\r\n"
_STRAY_AMPERSAND = re.compile(rb"&(?!(?:amp|lt|gt|quot|apos|#[0-9]{1,7}|#x[0-9A-Fa-f]{1,6});)")
_NOT_IN_XML = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]|\xef\xbf[\xbe\xbf]")
_REPLACED = "\ufffd".encode()
# The start of the XML after other text, such as warnings of PHP.
_XML_START = re.compile(rb"<(?:\?xml\s|(?:\w+:)?(?:urlset|sitemapindex|rss|feed|RDF)[\s>])")
_LOOKED_THROUGH = 4096
_LINE = re.compile(r"[^\r\n]+")
_SITEMAP_LINE = re.compile(r"[\ufeff \t]*sitemap[ \t]*:[ \t]*([^\s#]+)", re.IGNORECASE)
# The elements that name a page or a sitemap, by the root of their document.
_ENTRIES = {
    "urlset": ("url", "sitemap"),
    "sitemapindex": ("url", "sitemap"),
    "rss": ("item",),
    "rdf": ("item",),
    "feed": ("entry",),
}
_FEEDS = ("rss", "rdf", "feed")
_HTML = ("html", "head", "body")
_HTML_TYPE = re.compile(rb"<!doctype\s+html\b", re.IGNORECASE)  # in XML it could not be in lower case


class Sitemap(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a sitemap: pages, further sitemaps, and its `problem`, if any. URLs are as written.

    - `modified`: the `lastmod` of pages, as written, by URL
    - `skipped`: number of entries or lines without a usable URL
    - `is_whole`: whether nothing else is missing
    """

    pages: list[str] = msgspec.field(default_factory=list)
    sitemaps: list[str] = msgspec.field(default_factory=list)
    problem: str = ""
    skipped: int = 0
    is_whole: bool = True
    modified: dict[str, str] = msgspec.field(default_factory=dict)


def parse_sitemap(body: bytes, *, url: str, max_urls: int = 50_000) -> Sitemap:
    """Read a sitemap, feed or list of URLs, gzipped or not, in any charset. Never raises."""
    broken_gzip = ""
    if body.startswith(_GZIP):
        body, broken_gzip = _unzip(body)
    body, faults = _in_utf8(body)
    start = _XML_START.search(body, 0, _LOOKED_THROUGH) if not body.startswith(b"<") else None
    if start:
        faults.append("there is text before its XML")
        body = body[start.start() :]
    found = _read_xml(body, max_urls) if body.startswith(b"<") else _read_lines(body, max_urls)
    problems = [broken_gzip] if broken_gzip else [*found.problems, *faults]
    said = "; ".join([*problems, found.skipped_said()] if found.skipped else problems)
    return Sitemap(
        pages=list(found.pages),
        sitemaps=list(found.sitemaps),
        problem=f"sitemap {url}: {said}" if said else "",
        skipped=found.skipped,
        is_whole=not problems,
        modified=found.modified,
    )


def modified_at(text: str) -> tuple[float, ...]:
    """The times at which a page may have changed by its `lastmod`: one moment, or the start and the end of a day; empty
    if it is no ISO date."""
    try:
        moment = datetime.datetime.fromisoformat(text)
    except ValueError:
        return ()
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    try:
        at = moment.timestamp()
    except (OverflowError, ValueError):
        return ()
    return (at, at + _DAY) if len(text) <= _LONGEST_DAY else (at,)


def sitemaps_in_robots(text: str) -> list[str]:
    """The URLs of the Sitemap lines of a robots.txt, each once, as written."""
    lines = map(_SITEMAP_LINE.match, text.splitlines())
    return list(dict.fromkeys(line[1] for line in lines if line))


class _Urls:
    """The URLs read so far, each once and in order: a dict keeps both."""

    def __init__(self, most: int) -> None:
        self.pages: dict[str, None] = {}
        self.sitemaps: dict[str, None] = {}
        self.modified: dict[str, str] = {}
        self.problems: list[str] = []
        self.skipped = 0
        self._first_skipped = ""
        self._most = most

    def add(self, url: str, into: dict[str, None]) -> None:
        if url not in into and len(self.pages) + len(self.sitemaps) >= self._most:
            raise _StopReadingError(f"it lists more than {self._most:,} URLs; the rest is left out")
        into[url] = None

    def skip(self, what: str) -> None:
        self.skipped += 1
        self._first_skipped = self._first_skipped or what

    def skipped_said(self) -> str:
        if self.skipped == 1:
            return f"1 entry names no usable URL: {self._first_skipped}"
        return f"{self.skipped:,} entries name no usable URL, the first is {self._first_skipped}"


class _StopReadingError(Exception):
    """Ends the parser from inside one of its handlers."""


class _Reader:
    """Collects the URL of each entry of a sitemap or feed, ignoring namespace prefixes and case."""

    def __init__(self, most: int) -> None:
        self.found = _Urls(most)
        self.is_broken = False
        self._entries: tuple[str, ...] = ()
        self._open: list[str] = []
        self._elements = 0
        self._entry = -1  # the index of the open entry among the open elements
        self._number = 0  # of the entry in the document
        self._has_url = False
        self._guid = ""
        self._url, self._modified = "", ""
        self._text: str | None = None

    def read(self, body: bytes) -> None:
        """Read as far as the body is well-formed XML; `found.problems` says why it ended early."""
        parser = expat.ParserCreate("utf-8")
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = self._doctype
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        parser.SkippedEntityHandler = self._entity
        try:
            for start in range(0, len(body), _FED):
                parser.Parse(body[start : start + _FED], False)
                if start - parser.CurrentByteIndex > _LONGEST_TAG:
                    raise _StopReadingError("it has a longer tag than any sitemap; the rest is left out")
            parser.Parse(b"", True)
        except _StopReadingError as stop:
            self.found.problems.append(str(stop))
        except expat.ExpatError as error:
            if not self._elements and _HTML_TYPE.search(body, 0, _LOOKED_THROUGH):
                self.found.problems.append("it is an HTML page")
                return
            self.is_broken = True
            self.found.problems.append(f"its XML is broken: {error}")

    def _doctype(self, name: str, _system: object, _public: object, has_subset: object) -> None:
        name = name.rpartition(":")[2].lower()
        if name == "html":
            raise _StopReadingError("it is an HTML page")
        # Old feeds name a document type. It is not fetched; one with declarations of its own is refused.
        if has_subset or name not in _FEEDS:
            raise _StopReadingError("it has a document type declaration, which no sitemap needs")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        name = tag.rpartition(":")[2].lower()
        if not self._open:
            self._check_root(tag, name)
        self._elements += 1
        if len(self._open) >= _DEEPEST or self._elements > _MOST_ELEMENTS:
            raise _StopReadingError("it has more elements, or deeper ones, than any sitemap; the rest is left out")
        if self._entry < 0:
            if name in self._entries:
                self._entry, self._has_url, self._guid = len(self._open), False, ""
                self._url = self._modified = ""
                self._number += 1
        elif len(self._open) == self._entry + 1:
            self._start_in_entry(name, attributes)
        self._open.append(name)

    def _check_root(self, tag: str, name: str) -> None:
        if name in _HTML:
            raise _StopReadingError("it is an HTML page")
        if name not in _ENTRIES:
            raise _StopReadingError(f"its root is <{tag[:40]}>, not that of a sitemap or a feed")
        self._entries = _ENTRIES[name]

    def _start_in_entry(self, name: str, attributes: dict[str, str]) -> None:
        match self._open[self._entry], name:
            case ("url" | "sitemap", "loc" | "lastmod") | ("item", "link"):
                self._text = ""
            case ("item", "guid") if attributes.get("isPermaLink", "").strip().lower() != "false":
                self._text = ""
            case ("entry", "link") if attributes.get("rel", "alternate").strip().lower() == "alternate":
                self._take(attributes.get("href", ""))

    def _characters(self, text: str) -> None:
        if self._text is not None and len(self._text) <= _LONGEST_URL:
            self._text += text

    def _entity(self, name: str, _is_parameter: object) -> None:
        # An entity of a document type, which was not fetched: it stays as written.
        self._characters(f"&{name};")

    def _end(self, _: str) -> None:
        depth = len(self._open) - 1
        if self._text is not None and depth == self._entry + 1:
            text, self._text = self._text, None
            if self._open[-1] == "guid":
                self._guid = text.strip()
            elif self._open[-1] == "lastmod":
                self._modified = text.strip()[:_LONGEST_MODIFIED]
            else:
                self._take(text)
        elif depth == self._entry:
            self._end_entry()
        self._open.pop()

    def _end_entry(self) -> None:
        if not self._has_url and self._guid.lower().startswith(_WEB):
            self._take(self._guid)
        if not self._has_url:
            self.found.skip(f"<{self._open[-1]}> number {self._number:,}")
        elif self._modified and self._open[-1] == "url":
            self.found.modified[self._url] = self._modified
        self._entry = -1

    def _take(self, text: str) -> None:
        url = text.strip()
        if _is_usable(url):
            self._has_url, self._url = True, url
            is_sitemap = self._open[self._entry] == "sitemap"
            self.found.add(url, self.found.sitemaps if is_sitemap else self.found.pages)


def _is_usable(url: str) -> bool:
    # With a replaced byte it would be the URL of another page.
    return 0 < len(url) <= _LONGEST_URL and "\ufffd" not in url


def _in_utf8(body: bytes) -> tuple[bytes, list[str]]:
    """The body in UTF-8, without leading white space, and the problems of its charset."""
    start = body.lstrip(_BLANK)
    label = xml_label(start)
    problems = [f"its encoding is not known: {label[:40]!r}"] if label and not charset_named(label) else []
    # The default of sitemaps is UTF-8: without a declaration nothing else is tried.
    charset = marked_charset(body) or declared_in_xml(body) or declared_in_xml(start) or "utf-8"
    if charset == "utf-8" and is_utf8(start):
        return start, problems
    text = text_of(body, charset)
    if "\ufffd" in text:
        problems.append(f"some of its bytes mean nothing in its charset, {charset}")
    return text.encode("utf-8", "replace").lstrip(_BLANK), problems


def _read_xml(body: bytes, most: int) -> _Urls:
    reader = _Reader(most)
    reader.read(body)
    if not reader.is_broken:
        return reader.found
    # Bare ampersands in URLs are the most common fault of sitemaps. They are escaped, so no entity is expanded.
    mended, controls = _NOT_IN_XML.subn(_REPLACED, body, count=_MOST_MENDED)
    mended, ampersands = _STRAY_AMPERSAND.subn(b"&amp;", mended, count=_MOST_AMPERSANDS)
    if not controls and not ampersands:
        return reader.found
    again = _Reader(most)
    again.read(mended)
    if controls:
        again.found.problems.insert(0, "it has characters that XML forbids")
    return again.found


def _read_lines(body: bytes, most: int) -> _Urls:
    found = _Urls(most)
    try:
        for number, line in enumerate(_LINE.finditer(body.decode("utf-8", "replace"))):
            if number >= _MOST_LINES:
                raise _StopReadingError(f"it has more than {_MOST_LINES:,} lines; the rest is left out")
            url = line[0].strip("\0\ufeff \t")
            if not url or url.startswith("#"):
                continue
            if url[:8].lower().startswith(_WEB) and _is_usable(url):
                found.add(url, found.pages)
            else:
                found.skip(f"the line {url[:_LINE_SHOWN]!r}")
    except _StopReadingError as stop:
        found.problems.append(str(stop))
    if not found.pages:
        found.problems.append("it is neither XML nor a list of URLs" if found.skipped else "it is empty")
        found.skipped = 0
    return found


def _unzip(body: bytes) -> tuple[bytes, str]:
    """The content of a gzip body up to the first fault or the size limit, and the problem."""
    most = min(_MOST_BYTES, max(_FREE_BYTES, _MOST_RATIO * len(body)))
    content = bytearray()
    member = zlib.decompressobj(_GZIP_WINDOW)
    # Small chunks, because the end of each gzip member copies the rest of its chunk.
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


async def take_sitemap(page: Page, found: Found, *, intake: Intake) -> str:
    """Take in the pages and further sitemaps that a sitemap, a feed or a robots.txt names.

    Returns the problem of the file in one line; empty if it has none."""
    handler, task = page.meta["handler"], page.task
    request_for = partial(
        Request,
        handler=handler,
        depth=task.depth,
        priority=task.priority,
        pool=page.meta.get("pool"),
        meta=page.meta.get("meta"),
    )
    if page.url.endswith("/robots.txt"):
        sitemap = _of_robots(page.content[: intake.settings.max_robots_bytes], page.url)
    else:
        sitemap = await asyncio.to_thread(parse_sitemap, page.body, url=page.url)
    if not sitemap.is_whole:
        found.reject("bad_sitemap", page.url)
    if sitemap.skipped:
        found.reject("sitemap_entry", page.url)
        found.rejected["sitemap_entry"] += sitemap.skipped - 1
    await _take_nested(sitemap.sitemaps, page, found, intake=intake)
    changed = _changed(sitemap, task.visit, now=intake.clock())
    for number, url in enumerate(sitemap.pages):
        if number % 1000 == 0:
            await asyncio.sleep(0)
        intake.request(request_for(url), found, parent=task, base=page.url, hastens=url in changed)
    return sitemap.problem


def _changed(sitemap: Sitemap, visit: Visit | None, *, now: float) -> set[str]:
    """The pages whose `lastmod` lies between the last visit of this sitemap and now.

    A sitemap with the same `lastmod` for all pages only tells its own date: no page counts as changed. A future
    `lastmod` counts once it is past, so that each one hastens one visit."""
    if visit is None or not visit.visits:
        return set()
    if len(sitemap.modified) >= FEWEST_COMPARED and len(set(sitemap.modified.values())) == 1:
        return set()
    return {
        url for url, text in sitemap.modified.items() if any(visit.at < moment <= now for moment in modified_at(text))
    }


def _of_robots(text: str, url: str) -> Sitemap:
    sitemaps = sitemaps_in_robots(text)
    problem = "" if sitemaps else f"sitemap {url}: it names no sitemap"
    return Sitemap(sitemaps=sitemaps, problem=problem, is_whole=bool(sitemaps))


async def _take_nested(urls: list[str], page: Page, found: Found, *, intake: Intake) -> None:
    """Take in the sitemaps that a sitemap or a robots.txt names.

    The spider's start file may name sitemaps on any host; the sitemaps it leads to only on their own host or in scope.
    MOST_LEVELS ends a chain."""
    task, level = page.task, page.meta.get("level", 0) + 1
    meta = {**page.meta, "level": level}
    revisit = None if task.visit is None else written_revisit(task.visit.asked)
    elsewhere = 0
    for number, url in enumerate(urls):
        if number % 1000 == 0:
            await asyncio.sleep(0)
        link = intake.rules.resolve(url, page.url)
        if level > MOST_LEVELS:
            found.reject("sitemap_chain", link.url)
            continue
        is_elsewhere = link.lane != lane_of(page.url)
        elsewhere += is_elsewhere
        scoped = is_elsewhere and (level > 1 or elsewhere > MOST_ELSEWHERE)
        request = Request(
            url,
            handler=SITEMAP,
            meta=meta,
            depth=task.depth,
            priority=task.priority,
            pool=meta.get("pool"),
            render=False,
            revisit=revisit,
        )
        intake.request(request, found, parent=task, base=page.url, scoped=scoped)


async def take_page_range(page: Page, found: Found, *, intake: Intake) -> None:
    """Take in the numbered pages after `page`, the first one."""
    options, task = page.meta, page.task
    last = last_page(page, options["last"], options["template"])
    # The frontier takes no more of one shape, and a page may claim any number.
    most = options["first"] + (intake.settings.max_per_shape or MOST_PAGES)
    if last > most:
        found.reject("max_per_shape", options["template"].replace("{}", str(last)[:20]))
    for number in range(options["first"] + 1, min(last, most) + 1):
        if number % 1000 == 0:
            await asyncio.sleep(0)
        request = Request(
            options["template"].replace("{}", str(number)),
            handler=options["handler"],
            meta=options["meta"] or None,
            depth=task.depth,
            priority=task.priority,
            pool=options.get("pool"),
        )
        intake.request(request, found, parent=task, base=page.url)


def last_page(page: Page, last: int | str, template: str) -> int:
    """The number of the last page: given, or read from an element's link, value or text."""
    if isinstance(last, int):
        return last
    elements = page.css(last)
    if not elements:
        raise LookupError(f"no element matches {last!r}, so the last page is not known")
    element = elements[-1]
    pattern = re.escape(template.rpartition("/")[2]).replace(re.escape("{}"), r"(\d+)")
    linked = re.search(pattern, element.attr("href"))
    if linked:
        return int(linked[1])
    numbers = re.findall(r"\d+", element.attr("value") or element.text())
    if not numbers:
        raise LookupError(f"the element {last!r} names no number, so the last page is not known")
    return int(numbers[-1])
