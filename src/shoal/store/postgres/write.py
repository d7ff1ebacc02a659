"""Writes items and log lines: one statement per batch, with arrays of columns and the check of tokens inside."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from shoal.store.base import FetchRow, ItemRow, ItemRule
from shoal.store.postgres.connection import Connection, PostgresLink
from shoal.store.rules import why_unstorable

ITEMS_PER_STATEMENT = 128
LINES_PER_STATEMENT = 2000
VERSIONS_PER_STEP = 5000
STATEMENT_BYTES = 32 * 1024 * 1024
LONGEST_HOST = 255
LATEST = 253_402_300_799.0  # the end of the year 9999, the latest time of the server

# Arrays of columns in one prepared statement, not COPY to a staging table. Measured on a busy machine, with rows of 1
# kB and only the primary key: 16 µs of the server per row, against 20 µs with a temporary table per transaction, 45 µs
# with a permanent table that is emptied each time, and 27 µs with a statement per row. No transaction leaves catalogue
# rows behind.
_ROWS = """
    SELECT spider, key, crawl, url, host, data, token, at, at, at
    FROM (SELECT *, to_timestamp(seconds) AS at FROM unnest(
        $1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::jsonb[], $7::bigint[], $8::float8[]
    ) AS given (spider, key, crawl, url, host, data, token, seconds)) AS row"""
_INSERT = "INSERT INTO items AS old (spider, key, crawl, url, host, data, fence, first_seen, last_seen, changed_at)"
_REPLACED = "excluded.data"
_FILLED = """CASE WHEN excluded.fence >= old.fence THEN filled(old.data, excluded.data)
             ELSE filled(old.data, filled(excluded.data, old.data)) END"""
_NEWER = "CASE WHEN excluded.fence >= old.fence THEN excluded.{0} ELSE old.{0} END"
_IS_THERE = "excluded.fence >= old.fence AND excluded.last_seen >= old.missing_since"
_PRESENCE = f"""
            moves = old.moves + CASE WHEN old.gone_at IS NOT NULL AND {_IS_THERE} THEN 1 ELSE 0 END,
            left_at = CASE WHEN old.gone_at IS NOT NULL AND {_IS_THERE} THEN old.gone_at ELSE old.left_at END,
            back_at = CASE WHEN old.gone_at IS NOT NULL AND {_IS_THERE} THEN greatest(old.last_seen, excluded.last_seen)
                           ELSE old.back_at END,
            gone_at = CASE WHEN {_IS_THERE} THEN NULL ELSE old.gone_at END,
            missing_since = CASE WHEN {_IS_THERE} THEN NULL ELSE old.missing_since END"""
# If not due, the item was seen and not written: see `ItemRule.freshness`.
_IS_DUE = """(excluded.fence = old.fence OR
            excluded.last_seen - coalesce(old.written_at, old.last_seen) >= make_interval(secs => $9))"""

# Runs before and after the write: stores the present content as a version. The rows are locked: no change comes in
# between.
_KEEP = """
    WITH present AS (
        SELECT items.* FROM unnest($1::text[], $2::text[]) AS wanted (spider, key) JOIN items USING (spider, key)
        ORDER BY spider, key FOR UPDATE OF items)
    INSERT INTO item_versions (spider, key, version, crawl, url, data, changed_at)
    SELECT spider, key, version, crawl, url, data, changed_at FROM present ON CONFLICT DO NOTHING"""

_NEXT_VERSIONS = f"""
    SELECT spider, key, version FROM item_versions
    WHERE (spider, key, version) > ($1, $2, $3) AND ($4::text IS NULL OR spider = $4)
    ORDER BY spider, key, version LIMIT {VERSIONS_PER_STEP}"""  # noqa: S608 -- a number of ours
# The newer content is a kept version or the present one; contents of times without versions are missing.
_DROP_VERSIONS = """
    DELETE FROM item_versions AS old
    USING unnest($1::text[], $2::text[], $3::integer[]) AS looked (spider, key, version),
        (SELECT now() - make_interval(secs => $4) AS moment) AS before
    WHERE old.spider = looked.spider AND old.key = looked.key AND old.version = looked.version
        AND old.changed_at < before.moment AND (
            EXISTS (SELECT FROM item_versions AS new WHERE new.spider = old.spider AND new.key = old.key
                    AND new.version > old.version AND new.changed_at < before.moment)
            OR EXISTS (SELECT FROM items WHERE items.spider = old.spider AND items.key = old.key
                       AND items.version > old.version AND items.changed_at < before.moment))"""

_IDENTITY = ("crawl", "key", "token", "at")
_TYPES = {
    "crawl": "text", "key": "bigint", "url": "text", "host": "text", "final_url": "text", "status": "bigint",
    "outcome": "text", "attempt": "bigint", "token": "bigint", "worker": "text", "exit": "text", "size": "bigint",
    "content_hash": "text", "archived": "text", "elapsed": "float8", "error": "text", "parent": "bigint",
    "at": "float8", "request": "text", "item_keys": "text", "etag": "text",
    "last_modified": "text",
}  # fmt: skip
_REST = [column for column in _TYPES if column not in _IDENTITY]
_ARRAYS = ", ".join(f"${index}::{kind}[]" for index, kind in enumerate(_TYPES.values(), start=1))
# A line that is written again changes nothing.
_LOG = f"""
    INSERT INTO fetches AS old ({", ".join(_TYPES)})
    SELECT {", ".join("to_timestamp(at)" if column == "at" else column for column in _TYPES)}
    FROM unnest({_ARRAYS}) AS line ({", ".join(_TYPES)})
    ON CONFLICT ({", ".join(_IDENTITY)}) DO UPDATE SET {", ".join(f"{column} = excluded.{column}" for column in _REST)}
    WHERE ({", ".join(f"old.{column}" for column in _REST)})
        IS DISTINCT FROM ({", ".join(f"excluded.{column}" for column in _REST)})"""  # noqa: S608 -- columns of ours


async def write_items(
    connection: Connection, items: Sequence[ItemRow], *, rule: ItemRule, indexes: Iterable[int] | None = None
) -> dict[int, str]:
    """Upsert rows, or the rows with these indexes, inside the caller's transaction; rows of one identity one after the
    other. Returns why rows can never be stored, by index."""
    refused: dict[int, str] = {}
    running: asyncio.Future[None] | None = None
    try:
        for part in _parts(items, range(len(items)) if indexes is None else indexes):
            # Checked and packed while the server works on the previous part: this is a third of the time.
            rows = _checked(items, part, refused)
            columns = _columns(rows)
            if running is not None:
                await running
            running = asyncio.ensure_future(_write_part(connection, columns, rule=rule)) if rows else None
            await asyncio.sleep(0)
        if running is not None:
            await running
    finally:
        if running is not None and not running.done():
            running.cancel()
            await asyncio.wait([running])
    return refused


async def _write_part(connection: Connection, columns: tuple[list[Any], ...], *, rule: ItemRule) -> None:
    if rule.keep_versions:
        await connection.execute(_KEEP, *columns[:2])
    fresh = (rule.freshness,) if rule.freshness > 0 else ()
    await connection.execute(item_statement(rule), *columns, *fresh)
    if rule.keep_versions:
        await connection.execute(_KEEP, *columns[:2])


def _checked(items: Sequence[ItemRow], part: list[int], refused: dict[int, str]) -> list[ItemRow]:
    rows = []
    for index in part:
        why = why_unstorable(items[index])
        if why is None:
            rows.append(items[index])
        else:
            refused[index] = why
    return rows


def _columns(rows: list[ItemRow]) -> tuple[list[Any], ...]:
    return (
        [row.spider for row in rows],
        [row.key for row in rows],
        [row.crawl for row in rows],
        [row.url for row in rows],
        [host_of(row.url) for row in rows],
        [row.data.decode() for row in rows],
        [row.token for row in rows],
        [kept_time(row.at) for row in rows],
    )


async def write_fetches(connection: Connection, rows: Sequence[FetchRow]) -> None:
    """Add log lines, inside the caller's transaction."""
    lines = {(row.crawl, row.key, row.token, kept_time(row.at)): row for row in rows}
    ordered = [lines[identity] for identity in sorted(lines)]
    for start in range(0, len(ordered), LINES_PER_STATEMENT):
        part = ordered[start : start + LINES_PER_STATEMENT]
        columns: dict[str, list[Any]] = {
            name: [getattr(row, name) for row in part] for name in _TYPES if name not in ("host", "at")
        }
        columns["host"] = [host_of(row.url) for row in part]
        columns["at"] = [kept_time(row.at) for row in part]
        await connection.execute(_LOG, *(columns[name] for name in _TYPES))


def item_statement(rule: ItemRule) -> str:
    """The upsert that applies a rule."""
    is_fill = rule.merge == "fill"
    after = _FILLED if is_fill else _REPLACED
    where = "" if is_fill else " WHERE excluded.fence >= old.fence"
    newer = _NEWER if is_fill else "excluded.{0}"
    # By column: its new value, and its value while the item is too fresh to be written.
    columns = {
        "crawl": (newer.format("crawl"), "old.crawl"),
        "url": (newer.format("url"), "old.url"),
        "host": (newer.format("host"), "old.host"),
        "fence": ("greatest(old.fence, excluded.fence)", "old.fence"),
        "data": (f"CASE WHEN old.data = {after} THEN old.data ELSE {after} END", "old.data"),
        "version": (f"old.version + CASE WHEN old.data = {after} THEN 0 ELSE 1 END", "old.version"),
        "changed_at": (
            f"CASE WHEN old.data = {after} THEN old.changed_at ELSE excluded.changed_at END",
            "old.changed_at",
        ),
        "written_at": ("NULL", "coalesce(old.written_at, old.last_seen)"),
    }
    is_fresh = rule.freshness > 0
    changes = ",\n            ".join(
        f"{name} = CASE WHEN {_IS_DUE} THEN {written} ELSE {fresh} END" if is_fresh else f"{name} = {written}"
        for name, (written, fresh) in columns.items()
    )
    return f"""{_INSERT}{_ROWS}
        ON CONFLICT (spider, key) DO UPDATE SET
            last_seen = greatest(old.last_seen, excluded.last_seen),{_PRESENCE},
            {changes}{where}"""


def host_of(url: str) -> str:
    """The host of a canonical URL, with its port if it has one."""
    parts = url.split("/", 3)
    return parts[2][:LONGEST_HOST] if len(parts) > 2 and not parts[1] else ""


def kept_time(at: float) -> float:
    """The time as the server stores it: microseconds, within its calendar."""
    return round(min(max(at, 0.0), LATEST), 6)


def _parts(items: Sequence[ItemRow], indexes: Iterable[int]) -> Iterator[list[int]]:
    """The row indexes of each statement, split at the limits of rows and bytes."""
    for batch in _rounds(items, indexes):
        part: list[int] = []
        size = 0
        for index in batch:
            length = len(items[index].data)
            if part and (len(part) >= ITEMS_PER_STATEMENT or size + length > STATEMENT_BYTES):
                yield part
                part, size = [], 0
            part.append(index)
            size += length
        yield part


def _rounds(items: Sequence[ItemRow], indexes: Iterable[int]) -> Iterator[list[int]]:
    """Batches with each identity once: a statement cannot change a row twice. Sorted, so that writers never
    deadlock."""
    batches: list[dict[tuple[str, str], int]] = []
    met: dict[tuple[str, str], int] = {}
    for index in indexes:
        identity = (items[index].spider, items[index].key)
        number = met[identity] = met.get(identity, -1) + 1
        if number == len(batches):
            batches.append({})
        batches[number][identity] = index
    for batch in batches:
        yield [batch[identity] for identity in sorted(batch)]


async def drop_versions(link: PostgresLink, spider: str | None, *, retention: float) -> int:
    """Delete kept contents for which a newer content from over `retention` seconds ago is known."""
    gone, last = 0, ("", "", 0)
    while True:
        async with link.transaction() as connection:
            rows = await connection.fetch(_NEXT_VERSIONS, *last, spider)
            if not rows:
                return gone
            columns = [[row[column] for row in rows] for column in range(3)]
            gone += int((await connection.execute(_DROP_VERSIONS, *columns, retention)).rpartition(" ")[2])
            last = rows[-1][0], rows[-1][1], rows[-1][2]
