"""The start of a crawl: the URLs, sitemaps, page ranges, files and standard input in a spider's `start`, fed to the
frontier in batches. Lines are read in bounded memory."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import inspect
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from functools import partial
from typing import Any, BinaryIO, Final, TextIO

from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.journey.intake import Found, HandlerNames, Intake
from shoal.journey.sitemaps import PAGES, SITEMAP
from shoal.model import CrawlState, PutReport
from shoal.policy.limits import GOES_ON, SPIDER
from shoal.spider.spider import Pages, Request, Sitemap, Source, Spider, Stdin, StopCrawl, UrlFile, handler_name
from shoal.urls.canonical import canonical, lane_of
from shoal.worker.outages import until_reachable

LONGEST_LINE: Final = 1 << 20
MARK: Final = b"\xef\xbb\xbf"  # the UTF-8 byte order mark of Windows editors
GROUP: Final = 65_536
ARRIVING_CHUNKS = 4
# The first bytes of files that are not UTF-8 text, their kind, and a command that converts them.
_KINDS: Final = (
    (b"\x1f\x8b", "compressed by gzip", "zcat"),
    (b"\x28\xb5\x2f\xfd", "compressed by zstd", "zstdcat"),
    (b"\xfd7zXZ", "compressed by xz", "xzcat"),
    (b"BZh", "compressed by bzip2", "bzcat"),
    (b"PK\x03\x04", "a zip archive", "unzip -p"),
    (b"\xff\xfe", "UTF-16", "iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "UTF-16", "iconv -f UTF-16 -t UTF-8"),
)


def other_format(beginning: bytes) -> str:
    """Why this is not UTF-8 text, and which command converts it; empty: it may be."""
    for start, kind, tool in _KINDS:
        if beginning.startswith(start):
            return f"it is {kind}, not UTF-8 text: `{tool}` converts it"
    return ""


def open_lines(path: str, *, name: str) -> BinaryIO:
    """Open a file of lines. Refuses a file that cannot be read or is no text; `name`: for messages."""
    try:
        file = open(path, "rb")  # noqa: SIM115 -- a path as it was given; its reader closes it
        refusal = other_format(beginning_of(file))
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}") from None
    if refusal:
        file.close()
        raise UsageError(f"{name} cannot be read: {refusal}")
    return file


def beginning_of(file: BinaryIO) -> bytes:
    """The first bytes of a file, without reading past them."""
    return file.peek(8)[:8]  # type: ignore[attr-defined, no-any-return]  # a buffered reader


def lines_in(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file from its current position; too long lines are cut."""
    is_first = file.tell() == 0
    while line := file.readline(LONGEST_LINE):
        rest = line
        while len(rest) == LONGEST_LINE and not rest.endswith(b"\n"):
            rest = file.readline(LONGEST_LINE)
        yield line.removeprefix(MARK) if is_first else line
        is_first = False


def texts_in(file: BinaryIO) -> Iterator[str]:
    """The lines of a file as texts."""
    return (line.decode("utf-8", "replace") for line in lines_in(file))


def in_groups(lines: Iterator[str]) -> Iterator[list[str]]:
    """The lines in groups of about `GROUP` characters."""
    group, size = list[str](), 0
    for line in lines:
        group.append(line)
        size += len(line)
        if size >= GROUP:
            yield group
            group, size = [], 0
    if group:
        yield group


async def arriving(stream: TextIO) -> AsyncIterator[list[str]]:
    """The lines of a stream as they arrive, in groups; its writer may be slow."""
    loop = asyncio.get_running_loop()
    arrived: asyncio.Queue[bytes] = asyncio.Queue(ARRIVING_CHUNKS)

    def read() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            while chunk := stream.buffer.read1(GROUP):  # type: ignore[attr-defined]  # a buffered reader
                asyncio.run_coroutine_threadsafe(arrived.put(chunk), loop).result()
            asyncio.run_coroutine_threadsafe(arrived.put(b""), loop).result()

    # A daemon: a read that waits for input must not keep the process from ending.
    threading.Thread(target=read, name="stdin", daemon=True).start()
    rest, is_first = b"", True
    while chunk := await arrived.get():
        if is_first and (refusal := other_format(chunk)):
            raise UsageError(f"standard input cannot be read: {refusal}")
        *lines, rest = (rest + (chunk.removeprefix(MARK) if is_first else chunk)).split(b"\n")
        # Cut a line that does not end: its length shows that it is too long.
        rest, is_first = rest[:LONGEST_LINE], False
        yield [line.decode("utf-8", "replace") for line in lines]
    yield [rest.decode("utf-8", "replace")]


BATCH = 500
FULL_PAUSE_SECONDS = 0.5
START_LANES = 1000

FIELDS = ("priority", "depth", "pool", "meta")  # that a source sets for each of its requests

Say = Callable[[str], None]


async def requests_of(spider: Spider) -> AsyncIterator[Request | None]:
    """The requests of the spider's `start`, in order; None: the next one may take long."""
    start = spider.start() if callable(spider.start) else spider.start
    names = HandlerNames(spider)
    if inspect.isawaitable(start):
        start = await start
    if hasattr(start, "__aiter__"):
        async for source in start:
            names.check(getattr(source, "handler", None))
            async for request in _expand(source):
                yield request
        return
    if not hasattr(start, "__iter__") and not isinstance(start, Source):
        raise _no_source(start)
    for source in [start] if isinstance(start, Source) else start:
        names.check(getattr(source, "handler", None))
        async for request in _expand(source):
            yield request


def start_lanes(spider: Spider) -> list[str]:
    """The lanes of the URLs written in `start` itself, not of those in files or from generators."""
    sources = _listed(spider)
    urls = [source if isinstance(source, str) else getattr(source, "url", None) for source in sources[:START_LANES]]
    urls += [source.template for source in sources if isinstance(source, Pages)]
    return sorted({lane_of(canonical(url)) for url in urls if url})


def start_mark(spider: Spider) -> str:
    """A digest of the start; empty if it is not written in the spider, for example from a generator. Of a long list
    only the first sources and the length count."""
    sources = _listed(spider)
    if not sources or any(isinstance(source, Stdin) for source in sources):
        return ""
    texts = [_mark_of(source) for source in sources[:START_LANES]]
    return hashlib.sha256("\n".join([str(len(sources)), *texts]).encode("utf-8", "replace")).hexdigest()[:16]


def _mark_of(source: Any) -> str:
    if isinstance(source, str):
        return source
    named = [str(getattr(source, name, "")) for name in ("url", "method", "body", "template", "first", "last", "path")]
    # Only fields that are set: new fields do not change the marks of existing crawls.
    named += [f"{name}={value}" for name in FIELDS if (value := getattr(source, name, None))]
    return " ".join([type(source).__name__, *named, handler_name(getattr(source, "handler", None)) or ""])


def reads_input(spider: Spider) -> bool:
    """Whether the start is read from standard input, which can be read only once."""
    return any(isinstance(source, Stdin) for source in _listed(spider))


def has_start(spider: Spider | type[Spider]) -> bool:
    """Whether a spider has a start; generators count as one without being read."""
    return callable(spider.start) or hasattr(spider.start, "__aiter__") or bool(spider.start)


def check_start(spider: Spider, *, stays: bool = False) -> None:
    """Refuse a spider with an invalid start, with an unknown handler in it, or without a start, unless it `stays` for
    URLs from outside."""
    is_slip = hasattr(spider, "start_urls")
    if not has_start(spider) and (is_slip or not stays):
        hint = ", in place of start_urls" if is_slip else ", or --stay waits for URLs from outside"
        raise UsageError(f"{type(spider).__name__} has no start: give it a `start` URL or a list of them{hint}")
    start_lanes(spider)
    names = HandlerNames(spider)
    for source in _listed(spider):
        if not isinstance(source, Source):
            raise _no_source(source)
        names.check(getattr(source, "handler", None))
        if isinstance(source, UrlFile):
            _open_file(source.path).close()


def _listed(spider: Spider) -> list[Any]:
    """The sources in `start`; empty if reading would consume them, for example a generator."""
    start = spider.start
    if isinstance(start, Source):
        return [start]
    if callable(start) or hasattr(start, "__aiter__") or hasattr(start, "__next__"):
        return []
    if not hasattr(start, "__iter__"):
        raise _no_source(start)
    return list(start)


async def feed(
    frontier: Frontier,
    crawl: str,
    requests: AsyncIterator[Request | None],
    *,
    intake: Intake,
    max_pending: int,
    say: Say,
) -> PutReport:
    """Put the requests in batches; pauses while `max_pending` tasks wait. Idempotent. A start that raises StopCrawl
    ends."""
    new = duplicates = 0
    found = Found()
    try:
        async for request in requests:
            if request is not None:
                # Its own URL as the base: a start URL is always in scope.
                intake.request(request, found, parent=None, base=request.url, scoped=False)
            if len(found.tasks) >= BATCH or request is None:
                report = await _put(frontier, crawl, found, say=say)
                new, duplicates, found = new + report.new, duplicates + report.duplicates, Found()
                await _wait_for_room(frontier, crawl, max_pending, say=say)
    except StopCrawl as asked:
        await stop_crawl(frontier, crawl, reason=f"{SPIDER}{asked}", say=say)
    report = await _put(frontier, crawl, found, say=say)
    return PutReport(new=new + report.new, duplicates=duplicates + report.duplicates)


async def stop_crawl(frontier: Frontier, crawl: str, *, reason: str, say: Say) -> None:
    """Stop a crawl, unless it has ended."""
    progress = await until_reachable(partial(frontier.progress, crawl), say=say)
    if progress.state in GOES_ON:
        await until_reachable(partial(frontier.set_state, crawl, CrawlState.STOPPED, reason=reason), say=say)


async def _put(frontier: Frontier, crawl: str, found: Found, *, say: Say) -> PutReport:
    tasks = list(found.tasks.values())
    return await until_reachable(
        lambda: frontier.put(crawl, tasks, rejected=found.rejected, samples=found.samples), say=say
    )


async def _wait_for_room(frontier: Frontier, crawl: str, max_pending: int, *, say: Say) -> None:
    while True:
        progress = await until_reachable(lambda: frontier.progress(crawl), say=say)
        if progress.queued + progress.delayed < max_pending:
            return
        await asyncio.sleep(FULL_PAUSE_SECONDS)


async def _expand(source: Any) -> AsyncIterator[Request | None]:
    if isinstance(source, Stdin):
        async for lines in arriving(sys.stdin):
            for request in _lines(lines, source):
                yield request
            yield None
    else:
        for request in _expand_at_once(source):
            yield request


def _expand_at_once(source: Any) -> Iterator[Request]:
    if isinstance(source, str):
        yield Request(canonical(source))
    elif isinstance(source, Request):
        yield source
    elif isinstance(source, Sitemap):
        yield _sitemap_request(source)
    elif isinstance(source, Pages):
        yield from _pages_requests(source)
    elif isinstance(source, UrlFile):
        with _open_file(source.path) as file:
            yield from _lines(texts_in(file), source)
    else:
        raise _no_source(source)


def _no_source(source: Any) -> UsageError:
    kind = type(source).__name__
    return UsageError(f"start holds a {kind}: write URLs, requests, or Sitemap, Pages, UrlFile, Stdin")


def _sitemap_request(source: Sitemap) -> Request:
    url = canonical(source.url)
    bare = url.count("/") == 3 and url.endswith("/")
    meta: dict[str, Any] = {"handler": handler_name(source.handler) or "parse"}
    meta |= {name: value for name, value in (("meta", source.meta), ("pool", source.pool)) if value}
    return Request(
        url + "robots.txt" if bare else url,
        handler=SITEMAP,
        render=False,
        revisit=source.revisit,
        **{**_fields(source), "meta": meta},
    )


def _pages_requests(source: Pages) -> Iterator[Request]:
    if "{}" not in source.template:
        raise UsageError(f"Pages({source.template!r}) has no {{}} where the page number goes")
    if isinstance(source.last, int):
        # The last number is known: no page depends on the first one.
        for number in range(source.first, max(source.first, source.last) + 1):
            yield Request(source.template.replace("{}", str(number)), handler=source.handler, **_fields(source))
        return
    meta = {
        "handler": handler_name(source.handler) or "parse",
        "template": source.template,
        "first": source.first,
        "last": source.last,
        "meta": source.meta or {},
    }
    if source.pool:
        meta["pool"] = source.pool
    first = source.template.replace("{}", str(source.first))
    yield Request(first, handler=PAGES, **{**_fields(source), "meta": meta})


def _fields(source: Sitemap | Pages | UrlFile | Stdin) -> dict[str, Any]:
    """The fields of all requests of a source."""
    return {name: getattr(source, name) for name in FIELDS}


def _open_file(path: str) -> BinaryIO:
    return open_lines(path, name=f"the URL file {path}")


def _lines(lines: Iterable[str], source: UrlFile | Stdin) -> Iterator[Request]:
    fields = _fields(source)
    for line in lines:
        url = line.strip()
        if url and not url.startswith("#"):
            yield Request(url, handler=source.handler, **fields)
