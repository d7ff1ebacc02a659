"""Items and the fetch log in `shoal.db`, shared by all processes of one machine."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from shoal.sqlite_file import FileConnection, connect, storage_errors, transaction
from shoal.store.base import (
    Difference,
    FetchRow,
    ItemFilter,
    ItemPage,
    ItemRow,
    ItemRule,
    QueryAnswer,
    ScrapedPage,
    StoredItem,
)
from shoal.store.rules import check_moments, mended, storable, storable_keys, storable_pages
from shoal.store.sqlite import presence, read, write
from shoal.store.sqlite.log_weeks import LOG_TABLES, ROWS_PER_STEP, SqliteLogWeeks
from shoal.store.sqlite.outbox import SqliteOutbox
from shoal.store.sqlite.views import SqliteViews

DELETED_PER_STEP = 2000
MAX_PAUSE_SECONDS = 0.05  # between two steps of long work
QUERY_SECONDS = 60.0
# Smaller than the frontier's: a write changes fewer pages, and an export reads each page once.
CACHE_BYTES = 1024 * 1024

_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")


class SqliteStore:
    """Implements `Store` in one SQLite file. One thread does all work on the connection."""

    wants_hashes = False

    def __init__(
        self, connection: FileConnection, *, path: Path, thread: ThreadPoolExecutor, clock: Callable[[], float]
    ) -> None:
        self._connection = connection
        self._path = path
        self._thread = thread
        self._clock = clock
        self._is_open = True
        self.outbox = SqliteOutbox(connection, run=self._run, clock=clock)
        self.views = SqliteViews(connection, run=self._run)
        self.log_weeks = SqliteLogWeeks(connection, path=path, run=self._run, clock=clock)

    @classmethod
    async def open(
        cls, path: str | Path, *, clock: Callable[[], float] = time.time, create: bool = True
    ) -> SqliteStore:
        """Open the file and create missing tables; `create` also creates the file."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="shoal-store")
        try:
            connection = await asyncio.get_running_loop().run_in_executor(
                thread, partial(_connect, path, create=create)
            )
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return cls(connection, path=Path(path), thread=thread, clock=clock)

    async def write(
        self,
        items: Sequence[ItemRow],
        fetches: Sequence[FetchRow],
        *,
        rule: ItemRule = ItemRule(),
        pages: Sequence[ScrapedPage] = (),
    ) -> dict[int, str]:
        """Write all rows or none in one transaction; returns why items can never be stored."""
        return await self._run(self._write, items, fetches, rule, pages) if items or fetches or pages else {}

    async def mark_gone(
        self, spider: str, *, at: float, missing_before: float | None = None, unseen_since: float | None = None
    ) -> int:
        """Mark items as gone, in steps that let other processes write in between."""
        gone = 0
        if missing_before is not None:
            while some := await self._step(presence.mark_missing_gone, spider, at=at, missing_before=missing_before):
                gone += some
        if unseen_since is not None:
            last = await self._run(self._last_line, "item")
            for start in range(0, last, presence.ITEMS_PER_STEP):
                gone += await self._step(
                    presence.mark_unseen_gone, spider, at=at, unseen_since=unseen_since, start=start
                )
        return gone

    def items(self, which: ItemFilter = ItemFilter()) -> AsyncIterator[StoredItem]:
        """Stream items in the order of their first arrival."""
        return self._stream(*read.items_query(which))

    def versions(self, which: ItemFilter = ItemFilter()) -> AsyncIterator[StoredItem]:
        """Stream the kept versions, in the order of their arrival."""
        return self._stream(*read.versions_query(which))

    async def differences(self, spider: str, *, since: float, until: float) -> AsyncIterator[Difference]:
        """Stream differences in the order of the items' first arrival, a transaction per step."""
        check_moments(since, until)
        last_id, is_over = 0, False
        while not is_over:
            found, last_id = await self._run(
                presence.step, self._connection, spider, since=since, until=until, last_id=last_id
            )
            for one in found:
                yield one
            is_over = last_id == 0

    async def count_items(self, which: ItemFilter = ItemFilter()) -> int:
        """Count the items that match."""
        return await self._run(read.count, self._connection, which)

    async def count_by_crawl(self, spider: str) -> dict[str, int]:
        """How many items of the spider each crawl wrote last."""
        return await self._run(read.count_by_crawl, self._connection, spider)

    async def newest(
        self, which: ItemFilter = ItemFilter(), *, limit: int, after: str = "", search: str = ""
    ) -> ItemPage:
        """Items by first arrival, the latest first."""
        items, then = await self._run(read.newest, self._connection, which, limit=limit, after=after, search=search)
        return ItemPage(items=items, after=then)

    async def items_named(self, spider: str, keys: Sequence[str]) -> list[StoredItem]:
        """The items with these keys."""
        return await self._run(read.items_named, self._connection, spider, storable_keys(keys))

    async def fetches(self, crawl: str, keys: Sequence[int]) -> list[FetchRow]:
        """The log lines of these tasks."""
        return await self._run(read.fetches, self._connection, crawl, list(dict.fromkeys(keys)))

    async def fetches_of(self, crawls: Sequence[str], url: str, *, limit: int = 1000) -> list[FetchRow]:
        """The log lines of the tasks with this URL."""
        return await self._run(read.fetches_of, self._connection, crawls, url, limit=limit)

    async def attempts(self, crawl: str, key: int) -> list[FetchRow]:
        """The log lines of one task, newest first."""
        return await self._run(read.attempts, self._connection, crawl, key)

    async def tidy(self, *, retention: float) -> int:
        """Delete log lines older than `retention` seconds, in steps that let other processes write in between."""
        before = self._clock() - retention
        gone = 0
        for table in LOG_TABLES:
            last = await self._run(self._last_line, table)
            for start in range(0, last, ROWS_PER_STEP):
                gone += await self._step(write.drop_lines, table, before=before, start=start, end=start + ROWS_PER_STEP)
        return gone

    async def tidy_versions(self, spider: str | None, *, retention: float) -> int:
        """Delete contents that were replaced long ago, in steps that let other processes write in between."""
        before, gone = self._clock() - retention, 0
        last = await self._run(self._last_line, "item_version")
        for start in range(0, last, ROWS_PER_STEP):
            gone += await self._step(write.drop_versions, spider, before=before, start=start, end=start + ROWS_PER_STEP)
        return gone

    async def query(self, sql: str, *, limit: int, seconds: float = QUERY_SECONDS) -> QueryAnswer:
        """Run one read-only statement, on a separate connection: writers do not wait for it."""
        connection = await asyncio.to_thread(read.reading_connection, self._path)
        asking = asyncio.ensure_future(
            asyncio.to_thread(read.answer, connection, sql, limit=limit, seconds=seconds, path=self._path)
        )
        try:
            return await asyncio.shield(asking)
        finally:
            connection.interrupt()
            await asyncio.wait([asking])
            connection.close()

    async def has_log(self, crawl: str) -> bool:
        """Whether the fetch log has a line of this crawl."""
        return await self._run(read.has_log, self._connection, crawl)

    async def delete_crawl(self, crawl: str) -> None:
        """Delete the crawl's fetch log, in steps that let other processes write in between."""
        for table in LOG_TABLES:
            while await self._step(write.delete_lines, table, crawl, limit=DELETED_PER_STEP):
                pass

    async def delete_items(self, spider: str, crawl: str) -> int:
        """Delete items with their versions, in steps that let other processes write in between."""
        gone = 0
        while deleted := await self._step(write.delete_items, spider, crawl, limit=DELETED_PER_STEP):
            gone += deleted
        return gone

    async def close(self) -> None:
        """Wait for running writes and close the file. Closing again is harmless."""
        if self._is_open:
            self._is_open = False
            await self._run(self._connection.close)
            self._thread.shutdown(wait=False)

    async def _run(
        self, work: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Result:
        def translated() -> _Result:
            with storage_errors(self._path):
                result = work(*args, **kwargs)
                if self._is_open:
                    self._connection.check_in_place()
                return result

        return await asyncio.get_running_loop().run_in_executor(self._thread, translated)

    async def _step(
        self,
        work: Callable[Concatenate[sqlite3.Connection, _Arguments], _Result],
        *args: _Arguments.args,
        **kwargs: _Arguments.kwargs,
    ) -> _Result:
        """Run one transaction of long work, then pause: waiting processes try the lock of SQLite only now and then."""

        def step() -> _Result:
            with transaction(self._connection):
                return work(self._connection, *args, **kwargs)

        began = time.monotonic()
        result = await self._run(step)
        await asyncio.sleep(min(MAX_PAUSE_SECONDS, time.monotonic() - began))
        return result

    async def _stream(self, query: str, arguments: tuple[Any, ...]) -> AsyncIterator[StoredItem]:
        """Stream the rows, one transaction per batch."""
        last_id = 0
        while batch := await self._run(read.batch, self._connection, query, (*arguments, last_id)):
            for _, item in batch:
                yield item
            last_id = batch[-1][0]

    def _write(
        self, items: Sequence[ItemRow], fetches: Sequence[FetchRow], rule: ItemRule, pages: Sequence[ScrapedPage]
    ) -> dict[int, str]:
        good, refused = storable(items)
        lines = [mended(row) for row in fetches]
        with transaction(self._connection):
            write.write_items(self._connection, good, rule=rule)
            presence.write_pages(self._connection, storable_pages(pages))
            write.write_fetches(self._connection, lines)
        return refused

    def _last_line(self, table: str) -> int:
        (last,) = self._connection.execute(f"SELECT coalesce(max(rowid), 0) FROM {table}").fetchone()  # noqa: S608 -- a table of ours
        return int(last)


def _connect(path: str | Path, *, create: bool) -> FileConnection:
    connection = connect(path, part="store", create=create)
    connection.execute(f"PRAGMA cache_size = -{CACHE_BYTES // 1024}")
    return connection
