"""Conditional requests (If-None-Match, If-Modified-Since) for pages that were visited before, by the fetch log.

If a page that an earlier crawl archived has not changed, its handler runs on the archived page. In any doubt the whole
page is fetched.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from shoal.archive.base import Archive, Capture
from shoal.errors import ShoalError, StorageError
from shoal.exits.passage import Passage
from shoal.exits.refusals import Refused
from shoal.fetch.base import Fault, FaultKind, Fetch, Response
from shoal.fetch.exits import ExitConfig
from shoal.journey.results import Finished
from shoal.journey.robots import LaneRules
from shoal.model import DIRECT, Lease, Task
from shoal.policy.failures import HANDLED
from shoal.store.base import FetchRow, all_item_keys

NOT_MODIFIED: Final = "not_modified"
READ_AT_ONCE: Final = 200
# The fetch log only saves work: if it does not answer in time, the page is fetched in full.
READ_SECONDS: Final = 5.0
MOST_KEPT: Final = 5_000
UNCHANGED: Final = 304
NO_SLOT: Final = "the archived page cannot be used, and its host has no start slot soon for the whole page"
# A batch of captures is one object, and pages of one batch come soon after each other again.
OBJECTS_KEPT: Final = 16
# A 304 whose archived page is unusable costs a second request: after so many in a row, a lane is fetched in full.
MOST_IN_VAIN: Final = 3
REMEMBERED: Final = 4096
# Request headers that all requests of a spider share. Others that a page varies by, such as Cookie, may differ now.
_SAME_EACH_TIME: Final = (
    "accept",
    "dnt",
    "host",
    "origin",
    "referer",
    "save-data",
    "sec-",
    "user-agent",
    "x-requested",
)
# Headers of the 304 that replace those of the archived response.
_SAID_ANEW: Final[tuple[str, ...]] = ("cache-control", "date", "etag", "expires", "last-modified", "vary")
_CONDITIONS: Final = frozenset({"if-none-match", "if-modified-since", "if-match", "if-unmodified-since", "range"})

ReadLog = Callable[[str, Sequence[int]], Awaitable[list[FetchRow]]]
ArchiveRead = bytes | list[Capture] | StorageError
Reach = Callable[[Callable[[], Awaitable[ArchiveRead]]], Awaitable[ArchiveRead]]


class LastVisits:
    """Reads the last fetch-log rows of pages, in batches. `is_usable`: whether a row allows a conditional request."""

    def __init__(self, read: ReadLog, *, is_usable: Callable[[FetchRow], bool] | None = None) -> None:
        self._read = read
        self._is_usable = is_usable or _is_usable
        self._asked: dict[tuple[str, int], asyncio.Future[FetchRow | None]] = {}
        self._unread: list[tuple[str, int]] = []
        self._reader: asyncio.Task[None] | None = None

    async def ask(self, lease: Lease) -> None:
        """Read the row of the page ahead of its visit."""
        await asyncio.shield(self._answer(lease))

    def _answer(self, lease: Lease) -> asyncio.Future[FetchRow | None]:
        """The row of the page when it is read: asked for twice, it is read once."""
        name = (lease.crawl, lease.task.key)
        answer = self._asked.get(name)
        if answer is None:
            while len(self._asked) >= MOST_KEPT:  # those of lost leases
                self._asked.pop(next(iter(self._asked)))
            answer = self._asked[name] = asyncio.get_running_loop().create_future()
            self._unread.append(name)
            if self._reader is None:
                self._reader = asyncio.create_task(self._read_all())
        return answer

    async def of(self, lease: Lease) -> FetchRow | None:
        """The row of the last visit, if it allows a conditional request; else None."""
        try:
            # A cancelled visit must not cancel the read for the next visit of the same page.
            row = await asyncio.shield(self._answer(lease))
        finally:
            self._asked.pop((lease.crawl, lease.task.key), None)
        return row if row is not None and self._is_usable(row) else None

    async def _read_all(self) -> None:
        """Read until no row is asked for. Rows asked for meanwhile are read in the next batch."""
        await asyncio.sleep(0)
        while self._unread:
            crawl = self._unread[0][0]
            names = [name for name in self._unread if name[0] == crawl][:READ_AT_ONCE]
            self._unread = [name for name in self._unread if name not in set(names)]
            rows = await self._lines(crawl, [key for _, key in names])
            for name in names:
                answer = self._asked.get(name)
                if answer is not None and not answer.done():
                    answer.set_result(rows.get(name[1]))
        self._reader = None

    async def _lines(self, crawl: str, keys: Sequence[int]) -> dict[int, FetchRow]:
        try:
            async with asyncio.timeout(READ_SECONDS):
                return {row.key: row for row in await self._read(crawl, keys)}
        except (ShoalError, TimeoutError):
            return {}


def conditions(task: Task, last: FetchRow) -> dict[str, str] | None:
    """The headers of a conditional request for the page; None: the task has conditions of its own."""
    headers = task.headers or {}
    if not _CONDITIONS.isdisjoint(name.lower() for name in headers):
        return None
    asked = {"if-none-match": last.etag, "if-modified-since": last.last_modified}
    return {**headers, **{name: value for name, value in asked.items() if value}}


def request_for(lease: Lease, headers: dict[str, str] | None = None) -> Fetch:
    """The request of a lease's page. headers: instead of the task's own."""
    task = lease.task
    request = Fetch(url=task.url, method=task.method, headers=headers or task.headers, body=task.body, exit=lease.exit)
    return request if task.render is None else msgspec.structs.replace(request, render=task.render)


def asks_log(task: Task) -> bool:
    """Whether to read the row of the last visit: the page is plain and was visited before. Not a rendered page: its
    document may be the same while its scripts fetch other data."""
    return task.visit is not None and task.visit.visits > 0 and is_plain(task)


def is_plain(task: Task) -> bool:
    """Whether the task is a GET without a body that no browser renders."""
    return task.method == "GET" and not task.body and task.render is None


def carried_over(row: FetchRow, last: FetchRow, response: Response) -> FetchRow:
    """The row of an unchanged page, with the content of the last visit's row."""
    return msgspec.structs.replace(
        row,
        content_hash=last.content_hash,
        archived=last.archived,
        item_keys=last.item_keys,
        etag=response.headers.get("etag", "") or last.etag,
        last_modified=response.headers.get("last-modified", "") or last.last_modified,
    )


def _is_usable(row: FetchRow) -> bool:
    has_validator = bool(row.etag or row.last_modified)
    return has_validator and row.outcome in HANDLED and all_item_keys(row) is not None


class PageAnswer(NamedTuple):
    """The answer to the request of a page.

    - `last`: the row of its last visit, if the request was conditional
    - `is_archived`: the answer is the archived page, which has not changed
    """

    answer: Response | Fault | Refused
    last: FetchRow | None = None
    is_archived: bool = False


class ArchivedPages:
    """Fetches pages that earlier crawls archived, by conditional requests.

    crawls: the earlier crawls, newest first. sends_cookies: requests may carry cookies that sites have set.
    """

    def __init__(
        self,
        crawls: Sequence[str],
        *,
        read: ReadLog,
        archive: Archive,
        exits: Mapping[str, ExitConfig],
        reach: Reach,
        sends_cookies: bool = True,
    ) -> None:
        self._crawls = crawls
        self._read = read
        self._archive = archive
        self._exits = exits
        self._reach = reach
        self._varying = _SAME_EACH_TIME if sends_cookies else (*_SAME_EACH_TIME, "cookie")
        self._lines = LastVisits(self._read_lines, is_usable=_is_archived)
        self._captures: OrderedDict[str, list[Capture]] = OrderedDict()
        self._reading = asyncio.Lock()
        self._in_vain: OrderedDict[str, int] = OrderedDict()
        self._in_full: OrderedDict[int, None] = OrderedDict()

    def concern(self, lease: Lease) -> bool:
        """Whether the page may be fetched conditionally: the first visit of a plain page, without an account."""
        task = lease.task
        is_first = task.visit is None or not task.visit.visits
        return (
            is_first
            and not task.headers
            and is_plain(task)
            and task.key not in self._in_full
            and self._in_vain.get(task.lane, 0) < MOST_IN_VAIN
            and self._is_anonymous(lease.exit)
        )

    async def ask(self, lease: Lease) -> None:
        """Read the row of the page ahead of its request."""
        await self._lines.ask(lease)

    async def fetch(self, lease: Lease, passage: Passage, *, lane_rules: LaneRules) -> PageAnswer:
        """Send a conditional request; if the archived page is unusable, fetch the whole page in a further start
        slot."""
        line = await self._line_of(lease)
        headers = None if line is None else conditions(lease.task, line)
        answer = await passage.fetch(request_for(lease, headers))
        if line is None or not isinstance(answer, Response) or answer.status != UNCHANGED:
            return PageAnswer(answer)
        page = await self._page(lease.task, line, answer)
        if page is not None:
            self._in_vain.pop(lease.task.lane, None)
            return PageAnswer(page, is_archived=True)
        self._note_in_vain(lease.task)
        if not await lane_rules.wait_for_slot(lease, lease.task.url):
            return PageAnswer(Fault(kind=FaultKind.LOCAL, message=NO_SLOT, elapsed=answer.elapsed))
        return PageAnswer(await passage.fetch(request_for(lease)))

    async def _line_of(self, lease: Lease) -> FetchRow | None:
        """The newest row of the page in an earlier crawl, if it was fetched by the same URL and pool."""
        row = await self._lines.of(lease)
        if row is None or row.url != lease.task.url or _pool_of(row.exit) != _pool_of(lease.exit):
            return None
        return row

    async def _page(self, task: Task, line: FetchRow, answer: Response) -> Response | None:
        """The archived page after a 304; None: it is unusable."""
        capture = await self._capture_of(task, line)
        if capture is None or not _has_validators(capture, line) or not self._believes(line, capture, answer):
            return None
        body = await self._found(lambda: self._archive.body(line.content_hash))
        if not isinstance(body, bytes):
            return None
        anew = {name: answer.headers[name] for name in _SAID_ANEW if name in answer.headers}
        return Response(
            url=capture.final_url,
            status=capture.status,
            headers={**capture.headers, **anew},
            body=body,
            wire_size=answer.wire_size,
            elapsed=answer.elapsed,
        )

    def _is_anonymous(self, name: str) -> bool:
        """Whether the exit is no account and no gateway: these may get another page than the earlier crawl."""
        if name == DIRECT:
            return True
        config = self._exits.get(name)
        return config is not None and config.kind in ("proxy", "address")

    def _believes(self, line: FetchRow, capture: Capture, answer: Response) -> bool:
        """Whether the 304 means this very page: the same ETag, and no `Vary` by a header that may differ."""
        said = answer.headers.get("etag", "")
        if said and line.etag and _opaque(said) != _opaque(line.etag):
            return False
        if line.etag and not line.etag.startswith("W/"):
            return True  # a strong ETag names one content, whatever the page varies by
        varies = {**capture.headers, **answer.headers}.get("vary", "").lower()
        return all(name.strip().startswith(self._varying) for name in varies.split(",") if name.strip())

    def _note_in_vain(self, task: Task) -> None:
        """Fetch the page in full from now on, and after MOST_IN_VAIN in a row all pages of its lane."""
        self._in_full[task.key] = None
        self._in_vain[task.lane] = self._in_vain.pop(task.lane, 0) + 1
        if len(self._in_full) > REMEMBERED:
            self._in_full.popitem(last=False)
        if len(self._in_vain) > REMEMBERED:
            self._in_vain.popitem(last=False)

    async def _capture_of(self, task: Task, line: FetchRow) -> Capture | None:
        # One at a time: otherwise all pages of a batch would read it.
        async with self._reading:
            captures = self._captures.get(line.archived)
            if captures is None:
                found = await self._found(lambda: self._archive.captures(line.archived))
                captures = self._captures[line.archived] = found if isinstance(found, list) else []
                if len(self._captures) > OBJECTS_KEPT:
                    self._captures.popitem(last=False)
            else:
                self._captures.move_to_end(line.archived)
        names = (task.key, task.url, line.content_hash)
        matching = (one for one in captures if (one.key, one.url, one.content_hash) == names)
        return next((one for one in matching if 200 <= one.status < 300), None)

    async def _found(self, read: Callable[[], Awaitable[ArchiveRead]]) -> ArchiveRead:
        """Read from the archive, waiting until it can be reached; returns the error of a missing or damaged object."""

        async def step() -> ArchiveRead:
            try:
                return await read()
            except StorageError as error:
                return error

        return await self._reach(step)

    async def _read_lines(self, _: str, keys: Sequence[int]) -> list[FetchRow]:
        """The newest usable row of each page in the earlier crawls."""
        found: dict[int, FetchRow] = {}
        for crawl in self._crawls:
            wanted = [key for key in keys if key not in found]
            if wanted:
                found |= {row.key: row for row in await self._read(crawl, wanted) if _is_archived(row)}
        return list(found.values())


def as_archived(finished: Finished) -> Finished:
    """The end of a page whose handler ran on the archived page: its row has the 304 and no bytes."""
    row = finished.fetch
    return (
        finished
        if row is None
        else msgspec.structs.replace(finished, fetch=msgspec.structs.replace(row, status=UNCHANGED, size=0))
    )


def _is_archived(row: FetchRow) -> bool:
    """Whether the row is of a plain page that was handled and archived, with an ETag or Last-Modified."""
    is_archived = bool(row.archived and row.content_hash)
    is_handled = not row.request and row.outcome in HANDLED
    return is_archived and is_handled and bool(row.etag or row.last_modified)


def _has_validators(capture: Capture, line: FetchRow) -> bool:
    """Whether the capture has the validators that were sent: a row may name an older capture than its own visit's."""
    is_tagged = not line.etag or _opaque(capture.headers.get("etag", "")) == _opaque(line.etag)
    return is_tagged and line.last_modified in ("", capture.headers.get("last-modified", ""))


def _opaque(etag: str) -> str:
    return etag.removeprefix("W/")


def _pool_of(name: str) -> str:
    """The pool of an exit. Pages of another pool may differ: it may be in another country."""
    return name.partition("/")[0]
