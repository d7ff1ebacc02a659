"""Items and the fetch log in `shoal.db`, shared by all processes of one machine."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import msgspec

from shoal.sqlite_file import connect, storage_errors, transaction
from shoal.store.base import FetchRow, ItemRow, StoredItem

SCHEMA_VERSION = 1
WAL_PAGES = 16_000
STATEMENT_ROWS = 128
PAGE_ROWS = 1000
PAGE_BYTES = 8 * 1024 * 1024
KEYS_PER_QUERY = 500
DELETED_PER_STEP = 5000

_ITEM = "INSERT INTO item (spider, key, crawl, url, data, token, first_seen, last_seen) VALUES "
_ITEM_ROW = "(?, ?, ?, ?, CAST(? AS TEXT), ?, ?, ?)"
_ITEM_CONFLICT = """
    ON CONFLICT (spider, key) DO UPDATE SET
        crawl = excluded.crawl, url = excluded.url, data = excluded.data,
        token = excluded.token, last_seen = excluded.last_seen
    WHERE excluded.token >= token"""
_SELECT_ITEMS = "SELECT id, spider, key, crawl, url, CAST(data AS BLOB), first_seen, last_seen FROM item"

_FETCH_COLUMNS = FetchRow.__struct_fields__
_FETCH = f"INSERT INTO fetch ({', '.join(_FETCH_COLUMNS)}) VALUES "  # noqa: S608 -- field names of ours
_FETCH_ROW = f"({', '.join('?' * len(_FETCH_COLUMNS))})"
_FETCH_CONFLICT = f"""
    ON CONFLICT (crawl, key) DO UPDATE SET
        {", ".join(f"{column} = excluded.{column}" for column in _FETCH_COLUMNS if column not in ("crawl", "key"))}
    WHERE excluded.token >= token"""

_Result = TypeVar("_Result")
_Arguments = ParamSpec("_Arguments")
_Row = tuple[Any, ...]


class SqliteStore:
    """Keeps `Store` in one SQLite file. All work on the connection is done by one thread."""

    def __init__(self, connection: sqlite3.Connection, *, path: Path, thread: ThreadPoolExecutor) -> None:
        self._connection = connection
        self._path = path
        self._thread = thread
        self._is_open = True

    @classmethod
    async def open(cls, path: str | Path) -> SqliteStore:
        """Open the file, creating it or its tables if need be."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="shoal-store")
        try:
            connection = await asyncio.get_running_loop().run_in_executor(thread, _connect, path)
        except BaseException:
            thread.shutdown(wait=False)
            raise
        return cls(connection, path=Path(path), thread=thread)

    async def write(self, items: Sequence[ItemRow], fetches: Sequence[FetchRow]) -> None:
        """Write all rows or none, in one transaction."""
        if items or fetches:
            await self._run(self._write, items, fetches)

    async def items(self, spider: str | None = None, *, crawl: str | None = None) -> AsyncIterator[StoredItem]:
        """Stream items in the order of their first arrival, a page at a time: no transaction outlives a page."""
        query, arguments = _item_query(spider, crawl)
        last_id = 0
        while page := await self._run(self._page, query, (*arguments, last_id)):
            for _, item in page:
                yield item
            last_id = page[-1][0]

    async def count_items(self, spider: str | None = None, *, crawl: str | None = None) -> int:
        """How many items `items` would give."""
        where, arguments = _where({"spider": spider, "crawl": crawl})
        query = f"SELECT count(*) FROM item{where}"  # noqa: S608 -- column names of ours
        return await self._run(self._count, query, arguments)

    async def fetches(self, crawl: str, keys: Sequence[int]) -> list[FetchRow]:
        """The log lines of these tasks."""
        return await self._run(self._fetches, crawl, list(dict.fromkeys(keys)))

    async def delete_crawl(self, crawl: str) -> None:
        """Remove the crawl's fetch log, in steps that let other writers in between."""
        while await self._run(self._delete_some, crawl):
            pass

    async def close(self) -> None:
        """Wait for writes under way and close the file. Closing again is harmless."""
        if self._is_open:
            self._is_open = False
            await self._run(self._connection.close)
            self._thread.shutdown(wait=False)

    async def _run(
        self, work: Callable[_Arguments, _Result], *args: _Arguments.args, **kwargs: _Arguments.kwargs
    ) -> _Result:
        def translated() -> _Result:
            with storage_errors(self._path):
                return work(*args, **kwargs)

        return await asyncio.get_running_loop().run_in_executor(self._thread, translated)

    def _write(self, items: Sequence[ItemRow], fetches: Sequence[FetchRow]) -> None:
        item_rows = [(*msgspec.structs.astuple(row), row.at) for row in items]
        fetch_rows = [msgspec.structs.astuple(row) for row in fetches]
        try:
            self._upsert(item_rows, fetch_rows)
        except UnicodeEncodeError:
            # Half a surrogate pair in one page's text must not keep its whole batch out for ever.
            self._upsert([_mended(row) for row in item_rows], [_mended(row) for row in fetch_rows])

    def _upsert(self, items: list[_Row], fetches: list[_Row]) -> None:
        with transaction(self._connection):
            for part in _parts(items):
                self._connection.execute(_item_statement(len(part)), tuple(chain.from_iterable(part)))
            for part in _parts(fetches):
                self._connection.execute(_fetch_statement(len(part)), tuple(chain.from_iterable(part)))

    def _page(self, query: str, arguments: _Row) -> list[tuple[int, StoredItem]]:
        page = []
        size = 0
        cursor = self._connection.execute(query, arguments)
        for row_id, spider, key, item_crawl, url, data, first_seen, last_seen in cursor:
            item = StoredItem(
                spider=spider,
                key=key,
                crawl=item_crawl,
                url=url,
                data=data,
                first_seen=first_seen,
                last_seen=last_seen,
            )
            page.append((row_id, item))
            size += len(data)
            if size > PAGE_BYTES:
                break
        cursor.close()
        return page

    def _count(self, query: str, arguments: _Row) -> int:
        (count,) = self._connection.execute(query, arguments).fetchone()
        return int(count)

    def _fetches(self, crawl: str, keys: list[int]) -> list[FetchRow]:
        found: list[FetchRow] = []
        for start in range(0, len(keys), KEYS_PER_QUERY):
            some = keys[start : start + KEYS_PER_QUERY]
            marks = ", ".join("?" * len(some))
            query = f"SELECT {', '.join(_FETCH_COLUMNS)} FROM fetch WHERE crawl = ? AND key IN ({marks})"  # noqa: S608 -- only marks
            rows = self._connection.execute(query, (crawl, *some))
            found += [FetchRow(**dict(zip(_FETCH_COLUMNS, row, strict=True))) for row in rows]
        return found

    def _delete_some(self, crawl: str) -> int:
        query = "DELETE FROM fetch WHERE rowid IN (SELECT rowid FROM fetch WHERE crawl = ? LIMIT ?)"
        with transaction(self._connection):
            return self._connection.execute(query, (crawl, DELETED_PER_STEP)).rowcount


def _connect(path: str | Path) -> sqlite3.Connection:
    schema = files("shoal.store").joinpath("sqlite.sql").read_text(encoding="utf-8")
    connection = connect(path, part="store", version=SCHEMA_VERSION, schema_sql=schema)
    # Hashed keys touch the same index pages again and again: rare checkpoints write each of them once.
    connection.execute(f"PRAGMA wal_autocheckpoint = {WAL_PAGES}")
    return connection


def _parts(rows: list[_Row]) -> Iterator[list[_Row]]:
    """Cut into powers of two, so that a few prepared statements serve batches of every size."""
    start = 0
    while left := len(rows) - start:
        size = min(STATEMENT_ROWS, 1 << (left.bit_length() - 1))
        yield rows[start : start + size]
        start += size


# Many rows per statement, not `executemany`: that gives the interpreter lock away at every row, and beside a
# busy event loop each way back costs a switch interval. Measured: a tenth of the rows per second.
def _item_statement(rows: int) -> str:
    return _ITEM + ", ".join([_ITEM_ROW] * rows) + _ITEM_CONFLICT


def _fetch_statement(rows: int) -> str:
    return _FETCH + ", ".join([_FETCH_ROW] * rows) + _FETCH_CONFLICT


def _mended(row: Iterable[Any]) -> _Row:
    return tuple(
        value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value for value in row
    )


def _item_query(spider: str | None, crawl: str | None) -> tuple[str, _Row]:
    # The plus keeps SQLite from choosing the index on (spider, key) and sorting everything anew for each page.
    where, arguments = _where({"crawl": crawl, "+spider": spider})
    return f"{_SELECT_ITEMS}{where} {'AND' if where else 'WHERE'} id > ? ORDER BY id LIMIT {PAGE_ROWS}", arguments


def _where(conditions: dict[str, str | None]) -> tuple[str, _Row]:
    given = {column: value for column, value in conditions.items() if value is not None}
    clause = " AND ".join(f"{column} = ?" for column in given)
    return f" WHERE {clause}" if given else "", tuple(given.values())
