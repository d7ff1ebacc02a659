"""Pages that an earlier crawl of the spider archived: asked for only if they have changed since.

The site's answer that a page has not changed stands for the archived page: its handler runs on that, so that its items
and its links come as ever. Whatever leaves a doubt ends in a request for the whole page.

What the fetch log says of the last visits of pages, for requests that ask whether a page has changed since.
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
# The log is asked for a saving only: a page is fetched in full when no answer comes in time.
READ_SECONDS: Final = 5.0
MOST_KEPT: Final = 5_000
_CONDITIONS: Final = frozenset({"if-none-match", "if-modified-since", "if-match", "if-unmodified-since", "range"})

ReadLog = Callable[[str, Sequence[int]], Awaitable[list[FetchRow]]]
Answered = asyncio.Future[FetchRow | None]


class LastVisits:
    """Reads the last log lines of pages, those of many pages together. `is_usable`: whether a line says enough."""

    def __init__(self, read: ReadLog, *, is_usable: Callable[[FetchRow], bool] | None = None) -> None:
        self._read = read
        self._is_usable = is_usable or _is_usable
        self._asked: dict[tuple[str, int], Answered] = {}
        self._unread: list[tuple[str, int]] = []
        self._reader: asyncio.Task[None] | None = None

    async def ask(self, lease: Lease) -> None:
        """Read the line of the page ahead of its visit."""
        await asyncio.shield(self._answer(lease))

    def _answer(self, lease: Lease) -> Answered:
        """The line of the page, when it is there: asked twice, it is read once."""
        name = (lease.crawl, lease.task.key)
        answer = self._asked.get(name)
        if answer is None:
            while len(self._asked) >= MOST_KEPT:  # of leases that were lost before their pages were fetched
                self._asked.pop(next(iter(self._asked)))
            answer = self._asked[name] = asyncio.get_running_loop().create_future()
            self._unread.append(name)
            if self._reader is None:
                self._reader = asyncio.create_task(self._read_all())
        return answer

    async def of(self, lease: Lease) -> FetchRow | None:
        """The line of the last visit, if an answer that the page has not changed says all about it; else None."""
        try:
            # A visit that is given up must not take the answer away from the next one of the same page.
            row = await asyncio.shield(self._answer(lease))
        finally:
            self._asked.pop((lease.crawl, lease.task.key), None)
        return row if row is not None and self._is_usable(row) else None

    async def _read_all(self) -> None:
        """Read until nothing is asked for. What is asked meanwhile is read together, in the next call."""
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
    """The headers of a request for the page, if it has changed since its last visit; None: the task has its own."""
    headers = task.headers or {}
    if not _CONDITIONS.isdisjoint(name.lower() for name in headers):
        return None
    asked = {"if-none-match": last.etag, "if-modified-since": last.last_modified}
    return {**headers, **{name: value for name, value in asked.items() if value}}


def request_for(lease: Lease, headers: dict[str, str] | None = None) -> Fetch:
    """The request of a lease's page, with these headers in place of the task's own, if there are any."""
    task = lease.task
    request = Fetch(url=task.url, method=task.method, headers=headers or task.headers, body=task.body, exit=lease.exit)
    return request if task.render is None else msgspec.structs.replace(request, render=task.render)


def asks_log(task: Task) -> bool:
    """Whether the last visit of the page may spare its body: a plain page that was visited before. Not one that a
    browser renders: its first document may be the same while what its scripts fetch is not."""
    return task.visit is not None and task.visit.visits > 0 and is_plain(task)


def is_plain(task: Task) -> bool:
    """Whether the task is a GET without a body that no browser renders."""
    return task.method == "GET" and not task.body and task.render is None


def carried_over(row: FetchRow, last: FetchRow, response: Response) -> FetchRow:
    """The log line of a page that has not changed: what it knows of the page's content is that of the last visit."""
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


UNCHANGED: Final = 304
NO_SLOT: Final = "the archived page cannot be used, and its host has no start slot soon for the whole page"
# A batch of captures is one object, and pages of one batch come soon after each other again.
OBJECTS_KEPT: Final = 16
# A page that must be fetched in full after all costs two requests: so many in a row, and its lane is asked no more.
MOST_IN_VAIN: Final = 3
REMEMBERED: Final = 4096
# Headers of a request that are the same for every request of a spider. What a page varies by besides them, such as
# Cookie, may be another one this time.
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
# What a 304 says anew of the page; the other headers are those of the archived answer.
_SAID_ANEW: Final[tuple[str, ...]] = ("cache-control", "date", "etag", "expires", "last-modified", "vary")

Found = bytes | list[Capture] | StorageError
Reach = Callable[[Callable[[], Awaitable[Found]]], Awaitable[Found]]


class Asked(NamedTuple):
    """The answer to the request of a page. `last`: its last visit, if it was asked whether the page has changed since.
    `is_archived`: the answer is the archived page, which has not changed."""

    answer: Response | Fault | Refused
    last: FetchRow | None = None
    is_archived: bool = False


class FormerPages:
    """Finds what earlier crawls know of a page, and gives the archived page where the site says that it still holds.

    `crawls`: those crawls, newest first. `sends_cookies`: whether requests may carry cookies that sites have set."""

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
        """Whether a page may be asked for in this way: the first visit of a plain page, by nobody in particular."""
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
        """Read the line of the page ahead of its request."""
        await self._lines.ask(lease)

    async def fetch(self, lease: Lease, passage: Passage, *, lane_rules: LaneRules) -> Asked:
        """Ask for the page if it has changed since; where that comes to nothing, for the whole page, in a start slot of
        its own."""
        line = await self._line_of(lease)
        headers = None if line is None else conditions(lease.task, line)
        answer = await passage.fetch(request_for(lease, headers))
        if line is None or not isinstance(answer, Response) or answer.status != UNCHANGED:
            return Asked(answer)
        page = await self._page(lease.task, line, answer)
        if page is not None:
            self._in_vain.pop(lease.task.lane, None)
            return Asked(page, is_archived=True)
        self._note_in_vain(lease.task)
        if not await lane_rules.wait_for_slot(lease, lease.task.url):
            return Asked(Fault(kind=FaultKind.LOCAL, message=NO_SLOT, elapsed=answer.elapsed))
        return Asked(await passage.fetch(request_for(lease)))

    async def _line_of(self, lease: Lease) -> FetchRow | None:
        """The newest line of the page in an earlier crawl, if it names the archived page that this request would give
        again."""
        row = await self._lines.of(lease)
        if row is None or row.url != lease.task.url or _pool_of(row.exit) != _pool_of(lease.exit):
            return None
        return row

    async def _page(self, task: Task, line: FetchRow, answer: Response) -> Response | None:
        """The archived page for the site's answer that it has not changed since; None: it must be fetched in full."""
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
        """Whether everybody would get the same page: not through an account. Services behind gateways answer in their
        own way."""
        if name == DIRECT:
            return True
        config = self._exits.get(name)
        return config is not None and config.kind in ("proxy", "address")

    def _believes(self, line: FetchRow, capture: Capture, answer: Response) -> bool:
        """Whether the answer says that this very page has not changed."""
        said = answer.headers.get("etag", "")
        if said and line.etag and _opaque(said) != _opaque(line.etag):
            return False
        if line.etag and not line.etag.startswith("W/"):
            return True  # a strong one names one content, whatever the page varies by
        varies = {**capture.headers, **answer.headers}.get("vary", "").lower()
        return all(name.strip().startswith(self._varying) for name in varies.split(",") if name.strip())

    def _note_in_vain(self, task: Task) -> None:
        """The page is fetched in full, also at its next attempt; after several in a row so are all of its lane."""
        self._in_full[task.key] = None
        self._in_vain[task.lane] = self._in_vain.pop(task.lane, 0) + 1
        if len(self._in_full) > REMEMBERED:
            self._in_full.popitem(last=False)
        if len(self._in_vain) > REMEMBERED:
            self._in_vain.popitem(last=False)

    async def _capture_of(self, task: Task, line: FetchRow) -> Capture | None:
        # One at a time: the pages of one batch would all read it.
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

    async def _found(self, read: Callable[[], Awaitable[Found]]) -> Found:
        """What is in the archive, or the error of what is missing or damaged. An archive that is away is waited for."""

        async def step() -> Found:
            try:
                return await read()
            except StorageError as error:
                return error

        return await self._reach(step)

    async def _read_lines(self, _: str, keys: Sequence[int]) -> list[FetchRow]:
        """The newest usable line of each page in the earlier crawls."""
        found: dict[int, FetchRow] = {}
        for crawl in self._crawls:
            wanted = [key for key in keys if key not in found]
            if wanted:
                found |= {row.key: row for row in await self._read(crawl, wanted) if _is_archived(row)}
        return list(found.values())


def as_archived(finished: Finished) -> Finished:
    """The end of a page that was handled as it is archived: its log line says what the site has sent."""
    row = finished.fetch
    return (
        finished
        if row is None
        else msgspec.structs.replace(finished, fetch=msgspec.structs.replace(row, status=UNCHANGED, size=0))
    )


def _is_archived(row: FetchRow) -> bool:
    """Whether the line is of a plain page that was handled and archived, with what tells the site its state then."""
    is_archived = bool(row.archived and row.content_hash)
    is_handled = not row.request and row.outcome in HANDLED
    return is_archived and is_handled and bool(row.etag or row.last_modified)


def _has_validators(capture: Capture, line: FetchRow) -> bool:
    """Whether the archived page is the one whose validators were sent. After a visit that archived nothing, a line may
    name an older capture."""
    is_tagged = not line.etag or _opaque(capture.headers.get("etag", "")) == _opaque(line.etag)
    return is_tagged and line.last_modified in ("", capture.headers.get("last-modified", ""))


def _opaque(etag: str) -> str:
    return etag.removeprefix("W/")


def _pool_of(name: str) -> str:
    """The pool of an exit. Its proxies stand for each other; those of another pool may be in another country."""
    return name.partition("/")[0]
