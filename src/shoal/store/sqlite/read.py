"""Reads the tables of `schema.sql`: items, versions, log lines, and statements of users, which may only read."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from shoal.errors import StorageError, UsageError
from shoal.sqlite_file import storage_errors
from shoal.store.base import (
    LOOKED_THROUGH,
    FetchRow,
    ItemFilter,
    QueryAnswer,
    StoredItem,
    like_pattern,
    wrong_position,
)

BATCH_ROWS = 1000
BATCH_BYTES = 8 * 1024 * 1024
KEYS_PER_QUERY = 500
LINES_PER_STEP = 20_000
VALUE_BYTES = 64 * 1024 * 1024
INSTRUCTIONS_PER_CHECK = 10_000
LATEST = 2**63 - 1

_ITEMS = """
    SELECT id, spider, key, crawl, url, CAST(data AS BLOB), first_seen, last_seen, changed_at, version, gone_at
    FROM item"""
_VERSIONS = """
    SELECT kept.id, kept.spider, kept.key, kept.crawl, kept.url, CAST(kept.data AS BLOB), item.first_seen,
           iif(kept.version = item.version, item.last_seen, kept.changed_at), kept.changed_at, kept.version,
           item.gone_at
    FROM item_version AS kept CROSS JOIN item ON item.spider = kept.spider AND item.key = kept.key"""
_FETCH_COLUMNS = FetchRow.__struct_fields__
_READING = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE})

_Row = tuple[Any, ...]


def items_query(which: ItemFilter) -> tuple[str, _Row]:
    """A statement for batches of items by first arrival; its last argument is the last id so far."""
    clause, arguments = _clause(which)
    return f"{_ITEMS} WHERE {clause}item.id > ? ORDER BY item.id LIMIT {BATCH_ROWS}", arguments


def versions_query(which: ItemFilter) -> tuple[str, _Row]:
    """The same for kept versions."""
    clause, arguments = _clause(which)
    return f"{_VERSIONS} WHERE {clause}kept.id > ? ORDER BY kept.id LIMIT {BATCH_ROWS}", arguments


def batch(connection: sqlite3.Connection, query: str, arguments: _Row) -> list[tuple[int, StoredItem]]:
    """The next rows, each with its id: at most BATCH_ROWS, and about BATCH_BYTES."""
    found = []
    size = 0
    cursor = connection.execute(query, arguments)
    for row_id, spider, key, crawl, url, data, first_seen, last_seen, changed_at, version, gone_at in cursor:
        item = StoredItem(
            spider=spider,
            key=key,
            crawl=crawl,
            url=url,
            data=data,
            first_seen=first_seen,
            last_seen=last_seen,
            changed_at=changed_at,
            version=version,
            gone_at=gone_at,
        )
        found.append((row_id, item))
        size += len(data)
        if size > BATCH_BYTES:
            break
    cursor.close()
    return found


def newest(
    connection: sqlite3.Connection, which: ItemFilter, *, limit: int, after: str, search: str
) -> tuple[list[StoredItem], str]:
    """Items by falling id, and the position of the next page."""
    clause, arguments = _clause(which)
    first = LATEST if not after else _position(after)
    window = f"SELECT id FROM item WHERE {clause}item.id < ? ORDER BY item.id DESC LIMIT {LOOKED_THROUGH}"  # noqa: S608 -- column names of ours
    last, searched = 0, 0
    if search:
        extent = f"SELECT coalesce(min(id), 0), count(*) FROM ({window})"  # noqa: S608 -- column names of ours
        last, searched = connection.execute(extent, (*arguments, first)).fetchone()
    finds = (
        r"(item.key LIKE ? ESCAPE '\' OR item.url LIKE ? ESCAPE '\' OR item.data LIKE ? ESCAPE '\') AND "
        if search
        else ""
    )
    query = f"{_ITEMS} WHERE {clause}{finds}item.id < ? AND item.id >= ? ORDER BY item.id DESC LIMIT ?"
    patterns = (like_pattern(search),) * 3 if search else ()
    rows = batch(connection, query, (*arguments, *patterns, first, last, limit + 1))
    items = [item for _, item in rows[:limit]]
    if len(rows) > limit or sum(len(item.data) for item in items) > BATCH_BYTES:
        return items, str(rows[:limit][-1][0])
    return items, str(last) if searched == LOOKED_THROUGH else ""


def _position(after: str) -> int:
    if not after.isascii() or not after.isdigit() or len(after) > len(str(LATEST)):
        raise wrong_position(after)
    return min(int(after), LATEST)


def count(connection: sqlite3.Connection, which: ItemFilter) -> int:
    """Count the items that match."""
    if which.spider is not None and _is_only_spider(connection, which.spider):
        which = msgspec.structs.replace(which, spider=None)
    clause, arguments = _clause(which)
    # Without conditions SQLite counts an index, which is much smaller than the table.
    where = f" WHERE {clause}TRUE" if clause else ""
    query = f"SELECT count(*) FROM item{where}"  # noqa: S608 -- column names of ours
    (number,) = connection.execute(query, arguments).fetchone()
    return int(number)


def count_by_crawl(connection: sqlite3.Connection, spider: str) -> dict[str, int]:
    """How many items of the spider each crawl wrote last."""
    return dict(connection.execute("SELECT crawl, count(*) FROM item WHERE spider = ? GROUP BY crawl", (spider,)))


def items_named(connection: sqlite3.Connection, spider: str, keys: list[str]) -> list[StoredItem]:
    """The items with these keys."""
    query = f"{_ITEMS} WHERE spider = ? AND key = ?"
    return [item for key in keys for _, item in batch(connection, query, (spider, key))]


def has_log(connection: sqlite3.Connection, crawl: str) -> bool:
    """Whether there is a log line of this crawl."""
    return connection.execute("SELECT 1 FROM fetch WHERE crawl = ? LIMIT 1", (crawl,)).fetchone() is not None


def fetches(connection: sqlite3.Connection, crawl: str, keys: list[int]) -> list[FetchRow]:
    """The log lines of these tasks."""
    found: list[FetchRow] = []
    for start in range(0, len(keys), KEYS_PER_QUERY):
        some = keys[start : start + KEYS_PER_QUERY]
        marks = ", ".join("?" * len(some))
        query = f"SELECT {', '.join(_FETCH_COLUMNS)} FROM fetch WHERE crawl = ? AND key IN ({marks})"  # noqa: S608 -- only marks
        rows = connection.execute(query, (crawl, *some))
        found += [FetchRow(**dict(zip(_FETCH_COLUMNS, row, strict=True))) for row in rows]
    return found


def fetches_of(connection: sqlite3.Connection, crawls: Sequence[str], url: str, *, limit: int) -> list[FetchRow]:
    """The log lines with this URL. Reads the whole log, in steps: a sixth of a second per million lines. An index would
    cost every page more."""
    # Not by the index on (crawl, key): that would fetch each line separately.
    query = f"SELECT {', '.join(_FETCH_COLUMNS)} FROM fetch NOT INDEXED WHERE rowid > ? AND rowid <= ? AND url = ?"  # noqa: S608 -- columns of ours
    (last,) = connection.execute("SELECT coalesce(max(rowid), 0) FROM fetch").fetchone()
    found: list[FetchRow] = []
    for start in range(0, last, LINES_PER_STEP):
        rows = connection.execute(query, (start, start + LINES_PER_STEP, url))
        lines = [FetchRow(**dict(zip(_FETCH_COLUMNS, row, strict=True))) for row in rows]
        found += [line for line in lines if line.crawl in crawls]
        found = sorted(found, key=lambda row: (row.at, row.token), reverse=True)[:limit]
    return found


def attempts(connection: sqlite3.Connection, crawl: str, key: int) -> list[FetchRow]:
    """The log lines of one task, newest first. A line repeats the capture of an earlier attempt if it archived nothing:
    only the attempt that archived it keeps it here."""
    columns = ", ".join(_FETCH_COLUMNS)
    query = f"SELECT {columns} FROM {{}} WHERE crawl = ? AND key = ? ORDER BY token"  # noqa: S608 -- columns of ours
    found: list[FetchRow] = []
    archived = ""
    for table in ("earlier_fetch", "fetch"):
        for row in connection.execute(query.format(table), (crawl, key)):
            line = FetchRow(**dict(zip(_FETCH_COLUMNS, row, strict=True)))
            if archived and line.archived == archived:
                line = msgspec.structs.replace(line, archived="", content_hash="")
            archived = line.archived or archived
            found.append(line)
    return found[::-1]


def _is_only_spider(connection: sqlite3.Connection, spider: str) -> bool:
    """Whether all items are of this spider: two searches in the index on (spider, key)."""
    query = "SELECT (SELECT min(spider) FROM item) = ?1 AND (SELECT max(spider) FROM item) = ?1"
    (found,) = connection.execute(query, (spider,)).fetchone()
    return bool(found)


def _clause(which: ItemFilter) -> tuple[str, _Row]:
    """The conditions of a filter, each followed by AND."""
    # The plus keeps SQLite from the index on (spider, key), which would need a sort for each batch.
    conditions: list[tuple[str, Any]] = [
        ("item.crawl = ?", which.crawl),
        ("+item.spider = ?", which.spider),
        ("item.last_seen >= ?", which.since),
        ("item.changed_at >= ?", which.changed_since),
        ("instr(item.url, ?) = 1", which.url_prefix or None),
    ]
    given = [(condition, value) for condition, value in conditions if value is not None]
    clause = "".join(f"{condition} AND " for condition, _ in given)
    if which.gone is not None:
        clause += f"item.gone_at IS {'NOT NULL' if which.gone else 'NULL'} AND "
    return clause, tuple(value for _, value in given)


def reading_connection(path: Path) -> sqlite3.Connection:
    """A connection that can only read, whatever the statement."""
    with storage_errors(path):
        connection = sqlite3.connect(
            f"{path.absolute().as_uri()}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA query_only = ON")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, VALUE_BYTES)
    connection.set_authorizer(_only_reading)
    return connection


def answer(connection: sqlite3.Connection, sql: str, *, limit: int, seconds: float, path: Path) -> QueryAnswer:
    """Run one statement within `seconds`. A wrong statement, or one that writes, is a UsageError."""
    give_up = time.monotonic() + seconds
    connection.set_progress_handler(lambda: time.monotonic() > give_up, INSTRUCTIONS_PER_CHECK)
    try:
        with storage_errors(path):
            cursor = connection.execute(sql)
            rows = cursor.fetchmany(limit + 1)
            columns = cursor.description
    except (sqlite3.ProgrammingError, sqlite3.DataError, sqlite3.Warning, ValueError) as error:
        raise UsageError(f"the statement is not usable: {' '.join(str(error).split())}") from None
    except StorageError as error:
        raise _refusal(error, seconds) from None
    if columns is None:
        raise UsageError("the statement returns no rows: write a SELECT")
    return QueryAnswer(columns=tuple(name for name, *_ in columns), rows=rows[:limit], has_more=len(rows) > limit)


def _refusal(error: StorageError, seconds: float) -> Exception:
    cause = error.__cause__
    code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
    # A denial has another code if SQLite first had to read the schema again.
    if code == sqlite3.SQLITE_AUTH or str(cause) == "not authorized":
        return UsageError("only statements that read are allowed: write a SELECT")
    if str(cause).startswith("Could not decode"):
        return UsageError("the statement returns a text that is not UTF-8: write CAST(column AS BLOB) for its bytes")
    if code == sqlite3.SQLITE_INTERRUPT:
        return StorageError(f"the statement took longer than {seconds:g} s: ask for less, or narrow it down")
    if code == sqlite3.SQLITE_ERROR:
        return UsageError(f"the statement is not usable: {' '.join(str(cause).split())}")
    return error


def _only_reading(action: int, *_: str | None) -> int:
    return sqlite3.SQLITE_OK if action in _READING else sqlite3.SQLITE_DENY
