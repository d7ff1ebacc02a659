"""A store for tests of other parts: SQLite's, in memory, without a thread or a file of its own."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import ParamSpec, TypeVar

from shoal.sqlite_file import storage_errors
from shoal.store.base import FetchRow, ItemFilter, StoredItem
from shoal.store.sqlite import read
from shoal.store.sqlite.store import SqliteStore, _connect

_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")


class MemoryStore(SqliteStore):
    """Made without `open`, and gone when nobody refers to it. Every call works at once, in the caller's thread."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        path = Path(":memory:")
        connection = _connect(path, create=True)
        super().__init__(connection, path=path, thread=ThreadPoolExecutor(1), clock=clock)
        weakref.finalize(self, connection.close)

    @property
    def rows(self) -> dict[tuple[str, str], StoredItem]:
        """The items, by spider and key."""
        query, arguments = read.items_query(ItemFilter())
        found, last_id = dict[tuple[str, str], StoredItem](), 0
        while batch := read.batch(self._connection, query, (*arguments, last_id)):
            found |= {(item.spider, item.key): item for _, item in batch}
            last_id = batch[-1][0]
        return found

    @property
    def log(self) -> dict[tuple[str, int], FetchRow]:
        """The newest log line of each task, by crawl and key."""
        names = self._connection.execute("SELECT DISTINCT crawl, key FROM fetch ORDER BY rowid").fetchall()
        return {(crawl, key): row for crawl, key in names for row in read.fetches(self._connection, crawl, [key])}

    def outcomes(self) -> dict[str, str]:
        """The outcome of each URL in the log."""
        return {row.url: row.outcome for row in self.log.values()}

    async def close(self) -> None:
        """Nothing: a test may look at the store after the part that it tests has closed it."""

    async def _run(
        self, work: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Result:
        with storage_errors(self._path):
            return work(*args, **kwargs)
