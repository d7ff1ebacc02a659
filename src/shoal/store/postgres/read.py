"""Reads the tables of `schema.sql`: items, versions, log lines, the newest items by page, and statements of users."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any

import asyncpg
import msgspec

from shoal.errors import StorageError, UsageError
from shoal.store.base import (
    ATTEMPTS_KEPT,
    LOOKED_THROUGH,
    FetchRow,
    ItemFilter,
    ItemPage,
    QueryAnswer,
    StoredItem,
    like_pattern,
    wrong_position,
)
from shoal.store.postgres.connection import Connection, PostgresLink

BATCH_ROWS = 500
LARGE_BYTES = 16 * 1024
KEYS_PER_QUERY = 500
LINES_PER_STEP = 5000
READ_SECONDS = 600.0
LONGEST_INTEGER = 40
SIGNIFICANT_DIGITS = 17

# A superuser's statement runs as a role that may only read. These functions could undo that: they change the role, or
# run a text as a statement after it has changed. The last alternative: names spelled with escapes.
READER = "pg_read_all_data"
_LEADS_BACK = re.compile(
    r"(?<![a-z0-9_$])(set_config|query_to_xml\w*|cursor_to_xml\w*|ts_stat|ts_rewrite|crosstab\w*|connectby|xpath_table|dblink\w*)"
    r"(?![a-z0-9_$])|u&\"",
    re.IGNORECASE,
)

_LONG_NUMBER = re.compile(rb"\d{%d}" % LONGEST_INTEGER)


def seconds_of(column: str) -> str:
    """A time column as Unix time."""
    return f"extract(epoch FROM {column})::float8"


def small_of(column: str) -> str:
    """A data column, NULL for a large item, which is read separately so that memory stays flat."""
    return f"CASE WHEN pg_column_size({column}) <= {LARGE_BYTES} THEN {column}::text END"


ITEM_COLUMNS = f"""item.spider, item.key, item.version, item.crawl, item.url, {small_of("item.data")},
           {seconds_of("item.first_seen")}, {seconds_of("item.last_seen")}, {seconds_of("item.changed_at")},
           {seconds_of("item.gone_at")}"""
_ITEMS = f"""
    SELECT {ITEM_COLUMNS}
    FROM items AS item WHERE (item.spider, item.key) > ($1, $2) AND $3::int >= 0"""  # noqa: S608 -- columns of ours
LARGE_ITEM = "SELECT data::text FROM items WHERE spider = $1 AND key = $2 AND $3::int >= 0"
_NAMED_ITEMS = f"""
    SELECT {ITEM_COLUMNS}
    FROM items AS item WHERE item.spider = $1 AND item.key = ANY($2::text[])"""  # noqa: S608 -- columns of ours
_ITEM_ORDER = " ORDER BY item.spider, item.key"
_VERSIONS = f"""
    SELECT kept.spider, kept.key, kept.version, kept.crawl, kept.url, {small_of("kept.data")},
           {seconds_of("item.first_seen")},
           {seconds_of("CASE WHEN kept.version = item.version THEN item.last_seen ELSE kept.changed_at END")},
           {seconds_of("kept.changed_at")}, {seconds_of("item.gone_at")}
    FROM item_versions AS kept JOIN items AS item ON item.spider = kept.spider AND item.key = kept.key
    WHERE (kept.spider, kept.key, kept.version) > ($1, $2, $3)"""  # noqa: S608 -- columns of ours
LARGE_VERSION = "SELECT data::text FROM item_versions WHERE spider = $1 AND key = $2 AND version = $3"
_VERSION_ORDER = " ORDER BY kept.spider, kept.key, kept.version"

_LINE = FetchRow.__struct_fields__
_COLUMNS = ", ".join(seconds_of("at") + " AS at" if name == "at" else name for name in _LINE)
_LATEST = f"""
    SELECT DISTINCT ON (key) {_COLUMNS} FROM fetches AS line WHERE crawl = $1 AND key = ANY($2::bigint[])
    ORDER BY key, token DESC, line.at DESC"""  # noqa: S608 -- columns of ours
_ATTEMPTS = f"""
    SELECT {_COLUMNS} FROM fetches AS line WHERE crawl = $1 AND key = $2 ORDER BY token DESC, line.at DESC LIMIT $3"""  # noqa: S608 -- columns of ours
_ARCHIVED = """
    SELECT DISTINCT ON (key) key, content_hash, archived FROM fetches
    WHERE crawl = $1 AND key = ANY($2::bigint[]) AND archived <> '' ORDER BY key, token DESC, at DESC"""

_OF_URL = """
    SELECT crawl, key FROM fetches WHERE crawl = ANY($1::text[]) AND url = $2
    GROUP BY crawl, key ORDER BY max(at) DESC, max(token) DESC LIMIT $3"""

_Position = tuple[str, str, int]


def items(link: PostgresLink, which: ItemFilter) -> AsyncIterator[StoredItem]:
    """Items by spider and key, one transaction per batch."""
    where, arguments = where_of(which)
    return _stream(link, f"{_ITEMS}{where}{_ITEM_ORDER} LIMIT {BATCH_ROWS}", arguments, large=LARGE_ITEM)


def versions(link: PostgresLink, which: ItemFilter) -> AsyncIterator[StoredItem]:
    """The kept versions by spider, key and number."""
    where, arguments = where_of(which)
    return _stream(link, f"{_VERSIONS}{where}{_VERSION_ORDER} LIMIT {BATCH_ROWS}", arguments, large=LARGE_VERSION)


async def count(link: PostgresLink, which: ItemFilter) -> int:
    """Count the items that match."""
    where, arguments = where_of(which)
    query = f"SELECT count(*) FROM items AS item WHERE $1::text = $2 AND $3::int >= 0{where}"  # noqa: S608 -- columns of ours
    async with link.transaction(seconds=READ_SECONDS, reads=True) as connection:
        return int(await connection.fetchval(query, "", "", 0, *arguments))


async def count_by_crawl(link: PostgresLink, spider: str) -> dict[str, int]:
    """How many items of the spider each crawl wrote last."""
    query = "SELECT crawl, count(*) FROM items WHERE spider = $1 GROUP BY crawl"
    async with link.transaction(seconds=READ_SECONDS, reads=True) as connection:
        return {row[0]: int(row[1]) for row in await connection.fetch(query, spider)}


async def items_named(link: PostgresLink, spider: str, keys: list[str]) -> list[StoredItem]:
    """The items with these keys, in the order of the keys."""
    async with link.transaction(reads=True) as connection:
        rows = {row[1]: row for row in await connection.fetch(_NAMED_ITEMS, spider, keys)}
    found = []
    for row in (rows[key] for key in keys if key in rows):
        text = row[5]
        if text is None:
            async with link.transaction(reads=True) as connection:
                text = await connection.fetchval(LARGE_ITEM, row[0], row[1], 0)
        if text is not None:
            found.append(stored(row, text))
    return found


async def attempts(link: PostgresLink, crawl: str, key: int) -> list[FetchRow]:
    """The lines of one task, newest first."""
    async with link.transaction(reads=True) as connection:
        return [FetchRow(**dict(row)) for row in await connection.fetch(_ATTEMPTS, crawl, key, ATTEMPTS_KEPT)]


async def fetches(link: PostgresLink, crawl: str, keys: list[int]) -> list[FetchRow]:
    """The latest line of each task. If that attempt archived nothing, the line names the latest archived capture."""
    found: list[FetchRow] = []
    for start in range(0, len(keys), KEYS_PER_QUERY):
        some = keys[start : start + KEYS_PER_QUERY]
        async with link.transaction(reads=True) as connection:
            rows = [FetchRow(**dict(row)) for row in await connection.fetch(_LATEST, crawl, some)]
            bare = [row.key for row in rows if not row.archived]
            kept = {row["key"]: row for row in await connection.fetch(_ARCHIVED, crawl, bare)} if bare else {}
        for row in rows:
            if row.key in kept:
                _, content_hash, archived = kept[row.key]
                row = msgspec.structs.replace(row, content_hash=content_hash, archived=archived)
            found.append(row)
    return found


async def fetches_of(link: PostgresLink, crawls: Sequence[str], url: str, *, limit: int) -> list[FetchRow]:
    """The latest line of each task with this URL, newest first."""
    if "\0" in url or not is_text(url):
        return []
    async with link.transaction(reads=True) as connection:
        tasks = [(row["crawl"], row["key"]) for row in await connection.fetch(_OF_URL, list(crawls), url, limit)]
    found: dict[tuple[str, int], FetchRow] = {}
    for crawl in dict(tasks):
        rows = await fetches(link, crawl, [key for owner, key in tasks if owner == crawl])
        found |= {(crawl, row.key): row for row in rows}
    return [found[task] for task in tasks if task in found]


async def has_log(link: PostgresLink, crawl: str) -> bool:
    """Whether there is a log line of this crawl."""
    async with link.transaction(reads=True) as connection:
        return bool(await connection.fetch("SELECT 1 FROM fetches WHERE crawl = $1 LIMIT 1", crawl))


async def delete_crawl(link: PostgresLink, crawl: str) -> None:
    """Delete a crawl's lines by key, a batch per transaction."""
    ahead = "SELECT key FROM fetches WHERE crawl = $1 AND key >= $2 ORDER BY key LIMIT $3"
    key = -(2**63)
    while True:
        async with link.transaction() as connection:
            rows = await connection.fetch(ahead, crawl, key, LINES_PER_STEP)
            if not rows:
                return
            last = rows[-1]["key"]
            await connection.execute("DELETE FROM fetches WHERE crawl = $1 AND key BETWEEN $2 AND $3", crawl, key, last)
            key = last


async def answer(link: PostgresLink, sql: str, *, limit: int, seconds: float) -> QueryAnswer:
    """Run one read-only statement within `seconds`. A wrong statement, or one that writes, is a UsageError."""
    if "\0" in sql or not is_text(sql):
        raise UsageError("the statement is not usable: it holds characters that are no text")
    async with link.transaction(seconds=seconds, reads=True, schemas=", public") as connection:
        try:
            await _drop_superuser(connection, sql, link)
            # Prepared: accepts only one statement. With a cursor: fetches no more rows than needed.
            statement = await connection.prepare(sql)
            columns = tuple(column.name for column in statement.get_attributes())
            if not columns:
                raise UsageError("the statement returns no rows: write a SELECT")
            rows = await (await statement.cursor()).fetch(limit + 1)
        except asyncpg.PostgresError as error:
            raise _refusal(error, link, seconds) from None
        except asyncpg.InternalClientError as error:
            if connection.is_closed():
                raise
            raise UsageError(f"the statement is not usable: {link.address.without_secrets(str(error))}") from None
        except (ValueError, OverflowError) as error:
            # From the driver: the server has times before the year 1 and after 9999.
            raise UsageError(
                f"the answer has a time that Python does not know ({error}): take it as text, such as changed_at::text"
            ) from None
    return QueryAnswer(columns=columns, rows=[tuple(row) for row in rows[:limit]], has_more=len(rows) > limit)


async def _drop_superuser(connection: Connection, sql: str, link: PostgresLink) -> None:
    """Let a superuser only read until the transaction ends: READ ONLY does not prevent writing files."""
    if await connection.fetchval("SELECT current_setting('is_superuser')") != "on":
        return
    if found := _LEADS_BACK.search(sql):
        raise UsageError(f"{found[0]} is not allowed to a superuser: leave it out, or give the URL of an ordinary user")
    try:
        await connection.execute(f"SET LOCAL ROLE {READER}")
    except (asyncpg.UndefinedObjectError, asyncpg.InvalidParameterValueError, asyncpg.InsufficientPrivilegeError):
        raise UsageError(
            f"PostgreSQL at {link.address.shown} gives us superuser rights and has no role {READER}: give the URL of an"
            " ordinary user"
        ) from None


def _refusal(error: asyncpg.PostgresError, link: PostgresLink, seconds: float) -> Exception:
    code, text = error.sqlstate or "", link.address.without_secrets(str(error))
    if code == "25006":
        return UsageError("only statements that read are allowed: write a SELECT")
    if code == "57014":
        return StorageError(f"the statement took longer than {seconds:g} s: ask for less, or narrow it down")
    if code[:2] in ("08", "40", "53", "57", "58", "XX"):
        return error
    return UsageError(f"the statement is not usable: {text}")


def is_text(sql: str) -> bool:
    """Whether a text can be sent: half of a surrogate pair cannot."""
    try:
        sql.encode()
    except UnicodeEncodeError:
        return False
    return True


async def _stream(link: PostgresLink, query: str, arguments: Sequence[Any], *, large: str) -> AsyncIterator[StoredItem]:
    position: _Position = ("", "", 0)
    while True:
        async with link.transaction(seconds=READ_SECONDS, reads=True) as connection:
            batch = await connection.fetch(query, *position, *arguments)
        for row in batch:
            position = (row[0], row[1], row[2])
            text = row[5]
            if text is None:
                async with link.transaction(seconds=READ_SECONDS, reads=True) as connection:
                    text = await connection.fetchval(large, *position)
            yield stored(row, text)
        if len(batch) < BATCH_ROWS:
            return


def stored(row: Any, text: str) -> StoredItem:
    """A row of ITEM_COLUMNS with its data."""
    return StoredItem(
        spider=row[0],
        key=row[1],
        version=row[2],
        crawl=row[3],
        url=row[4],
        data=as_written(text.encode()),
        first_seen=row[6],
        last_seen=row[7],
        changed_at=row[8],
        gone_at=row[9],
    )


def as_written(data: bytes) -> bytes:
    """The server writes 1e300 with all its digits: a number with so many digits, nearly all zeros, was a float."""
    if _LONG_NUMBER.search(data) is None:
        return data
    return msgspec.json.encode(_with_floats(msgspec.json.decode(data)))


def _with_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _with_floats(field) for name, field in value.items()}
    if isinstance(value, list):
        return [_with_floats(field) for field in value]
    if (
        isinstance(value, int)
        and abs(value) >= 10**LONGEST_INTEGER
        and value % 10 ** (len(str(abs(value))) - SIGNIFICANT_DIGITS) == 0
    ):
        return float(value)
    return value


def where_of(which: ItemFilter, *, start: int = 4) -> tuple[str, list[Any]]:
    """The conditions of a filter, and its arguments, numbered from `start`."""
    conditions: list[tuple[str, Any]] = [
        ("item.spider = ${}", which.spider),
        ("item.crawl = ${}", which.crawl),
        ("item.last_seen >= to_timestamp(${}::float8)", which.since),
        ("item.changed_at >= to_timestamp(${}::float8)", which.changed_since),
        ("starts_with(item.url, ${})", which.url_prefix or None),
    ]
    given = [(condition, value) for condition, value in conditions if value is not None]
    clause = "".join(f" AND {condition.format(position)}" for position, (condition, _) in enumerate(given, start=start))
    if which.gone is not None:
        clause += f" AND item.gone_at IS {'NOT NULL' if which.gone else 'NULL'}"
    return clause, [value for _, value in given]


PAGE_BYTES = 8 * 1024 * 1024
_ORDER = "ORDER BY item.changed_at DESC, item.spider DESC, item.key DESC"
_NewestPosition = tuple[datetime, str, str]


async def newest(link: PostgresLink, which: ItemFilter, *, limit: int, after: str, search: str) -> ItemPage:
    """Items by their last change, latest first."""
    if not is_text(search) or "\0" in search:
        return ItemPage(items=[])
    first = _position(after) if after else None
    end = await _end_of_window(link, which, first) if search else None
    where, arguments = _where(which, first, end)
    if search:
        arguments.append(like_pattern(search))
        pattern = f"${len(arguments)}"
        where += f" AND (item.key ILIKE {pattern} OR item.url ILIKE {pattern} OR item.data::text ILIKE {pattern})"
    query = f"SELECT {ITEM_COLUMNS}, item.changed_at FROM items AS item WHERE TRUE{where} {_ORDER} LIMIT {limit + 1}"  # noqa: S608 -- columns of ours
    async with link.transaction(seconds=READ_SECONDS, reads=True) as connection:
        rows = await connection.fetch(query, *arguments)
    items, size, last = list[StoredItem](), 0, None
    for row in rows[:limit]:
        items.append(await _whole(link, row))
        last, size = (row[-1], row[0], row[1]), size + len(items[-1].data)
        if size > PAGE_BYTES:
            break
    is_more = len(rows) > len(items)
    return ItemPage(items=items, after=_named(last if is_more else end))


async def _end_of_window(
    link: PostgresLink, which: ItemFilter, first: _NewestPosition | None
) -> _NewestPosition | None:
    """The last of the items that one search reads; None if it reads all of them."""
    where, arguments = _where(which, first, None)
    query = (
        f"SELECT item.changed_at, item.spider, item.key FROM items AS item WHERE TRUE{where} {_ORDER}"  # noqa: S608 -- columns of ours
        f" OFFSET {LOOKED_THROUGH - 1} LIMIT 1"
    )
    async with link.transaction(seconds=READ_SECONDS, reads=True) as connection:
        row = await connection.fetchrow(query, *arguments)
    return None if row is None else (row[0], row[1], row[2])


async def _whole(link: PostgresLink, row: Any) -> StoredItem:
    text = row[5]
    if text is None:
        async with link.transaction(seconds=READ_SECONDS, reads=True) as connection:
            text = await connection.fetchval(LARGE_ITEM, row[0], row[1], row[2])
    return stored(row, text if text is not None else "{}")


def _where(which: ItemFilter, first: _NewestPosition | None, end: _NewestPosition | None) -> tuple[str, list[Any]]:
    clause, arguments = where_of(which, start=1)
    for sign, position in (("<", first), (">=", end)):
        if position is not None:
            marks = ", ".join(f"${len(arguments) + number}" for number in (1, 2, 3))
            clause += f" AND (item.changed_at, item.spider, item.key) {sign} ({marks})"
            arguments += position
    return clause, arguments


def _named(position: _NewestPosition | None) -> str:
    return "" if position is None else msgspec.json.encode(position).decode()


def _position(after: str) -> _NewestPosition:
    try:
        found: _NewestPosition = msgspec.json.decode(after, type=_NewestPosition)
    except msgspec.DecodeError:
        raise wrong_position(after) from None
    if found[0].tzinfo is None or "\0" in found[1] + found[2]:
        raise wrong_position(after)
    return found
