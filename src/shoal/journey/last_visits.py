"""What the fetch log says of the last visits of pages, for requests that ask whether a page has changed since."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from shoal.errors import ShoalError
from shoal.fetch.base import Fetch, Response
from shoal.model import Lease, Task
from shoal.policy.verdicts import HANDLED
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
