"""Writing to the tables of `postgres.sql`: arrays of columns, one statement per batch, the guard inside it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from shoal.store.base import FetchRow, ItemRow, ItemRule
from shoal.store.postgres_link import Connection

STATEMENT_ROWS = 2000
STATEMENT_BYTES = 32 * 1024 * 1024
LONGEST_HOST = 255
LATEST = 253_402_300_799.0  # the end of 9999; a clock that says more is wrong anyway

# Arrays of columns in one prepared statement, not COPY into a staging table. Measured with `bench.postgres`' rows:
# 16 µs of the server per row, against 20 µs with a temporary table per transaction, 45 µs with one that stays (it is
# emptied each time) and 27 µs with a statement per row; and no transaction leaves catalogue rows behind.
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
_FRESH = "(excluded.fence = old.fence OR excluded.last_seen - old.last_seen >= make_interval(secs => $9))"

# The content before and the content after: whichever was not kept yet. Locked, so that nobody changes it in between.
_KEEP = """
    WITH present AS (
        SELECT items.* FROM unnest($1::text[], $2::text[]) AS wanted (spider, key) JOIN items USING (spider, key)
        ORDER BY spider, key FOR UPDATE OF items)
    INSERT INTO item_versions (spider, key, version, crawl, url, data, changed_at)
    SELECT spider, key, version, crawl, url, data, changed_at FROM present ON CONFLICT DO NOTHING"""

_IDENTITY = ("crawl", "key", "token", "at")
_TYPES = {
    "crawl": "text", "key": "bigint", "url": "text", "host": "text", "final_url": "text", "status": "bigint",
    "outcome": "text", "attempt": "bigint", "token": "bigint", "worker": "text", "exit": "text", "size": "bigint",
    "content_hash": "text", "archived": "text", "elapsed": "float8", "error": "text", "parent": "bigint",
    "at": "float8",
}  # fmt: skip
_REST = [column for column in _TYPES if column not in _IDENTITY]
_ARRAYS = ", ".join(f"${place}::{kind}[]" for place, kind in enumerate(_TYPES.values(), start=1))
# A line that comes again is the same line: then nothing is written.
_LOG = f"""
    INSERT INTO fetches AS old ({", ".join(_TYPES)})
    SELECT {", ".join("to_timestamp(at)" if column == "at" else column for column in _TYPES)}
    FROM unnest({_ARRAYS}) AS line ({", ".join(_TYPES)})
    ON CONFLICT ({", ".join(_IDENTITY)}) DO UPDATE SET {", ".join(f"{column} = excluded.{column}" for column in _REST)}
    WHERE ({", ".join(f"old.{column}" for column in _REST)})
        IS DISTINCT FROM ({", ".join(f"excluded.{column}" for column in _REST)})"""  # noqa: S608 -- columns of ours


async def write_items(connection: Connection, rows: Sequence[ItemRow], *, rule: ItemRule) -> None:
    """Upsert rows, inside a transaction of the caller's; several of one identity one after the other."""
    statement = item_statement(rule)
    fresh = (rule.freshness,) if rule.freshness > 0 else ()
    for batch in _rounds(rows):
        for part in _parts(batch):
            spiders, keys = [row.spider for row in part], [row.key for row in part]
            if rule.keep_versions:
                await connection.execute(_KEEP, spiders, keys)
            await connection.execute(
                statement,
                spiders,
                keys,
                [row.crawl for row in part],
                [row.url for row in part],
                [host_of(row.url) for row in part],
                [row.data.decode() for row in part],
                [row.token for row in part],
                [kept_time(row.at) for row in part],
                *fresh,
            )
            if rule.keep_versions:
                await connection.execute(_KEEP, spiders, keys)


async def write_fetches(connection: Connection, rows: Sequence[FetchRow]) -> None:
    """Add log lines, inside a transaction of the caller's."""
    lines = {(row.crawl, row.key, row.token, kept_time(row.at)): row for row in rows}
    ordered = [lines[identity] for identity in sorted(lines)]
    for start in range(0, len(ordered), STATEMENT_ROWS):
        part = ordered[start : start + STATEMENT_ROWS]
        columns: dict[str, list[Any]] = {
            name: [getattr(row, name) for row in part] for name in _TYPES if name not in ("host", "at")
        }
        columns["host"] = [host_of(row.url) for row in part]
        columns["at"] = [kept_time(row.at) for row in part]
        await connection.execute(_LOG, *(columns[name] for name in _TYPES))


def item_statement(rule: ItemRule) -> str:
    """The upsert with the guard that a rule asks for."""
    is_fill = rule.merge == "fill"
    after = _FILLED if is_fill else _REPLACED
    conditions = ([] if is_fill else ["excluded.fence >= old.fence"]) + ([_FRESH] if rule.freshness > 0 else [])
    where = f" WHERE {' AND '.join(conditions)}" if conditions else ""
    newer = _NEWER if is_fill else "excluded.{0}"
    return f"""{_INSERT}{_ROWS}
        ON CONFLICT (spider, key) DO UPDATE SET
            crawl = {newer.format("crawl")}, url = {newer.format("url")}, host = {newer.format("host")},
            fence = greatest(old.fence, excluded.fence),
            last_seen = greatest(old.last_seen, excluded.last_seen),
            data = CASE WHEN old.data = {after} THEN old.data ELSE {after} END,
            version = old.version + CASE WHEN old.data = {after} THEN 0 ELSE 1 END,
            changed_at = CASE WHEN old.data = {after} THEN old.changed_at ELSE excluded.changed_at END{where}"""


def host_of(url: str) -> str:
    """The host of a canonical URL, with its port if it has one."""
    parts = url.split("/", 3)
    return parts[2][:LONGEST_HOST] if len(parts) > 2 and not parts[1] else ""


def kept_time(at: float) -> float:
    """As the server keeps it: microseconds, within its calendar."""
    return round(min(max(at, 0.0), LATEST), 6)


def _rounds(rows: Sequence[ItemRow]) -> Iterator[list[ItemRow]]:
    """Batches with each identity once: a statement cannot touch a row twice. Sorted, so that writers never deadlock."""
    batches: list[dict[tuple[str, str], ItemRow]] = []
    met: dict[tuple[str, str], int] = {}
    for row in rows:
        identity = (row.spider, row.key)
        number = met[identity] = met.get(identity, -1) + 1
        if number == len(batches):
            batches.append({})
        batches[number][identity] = row
    for batch in batches:
        yield [batch[identity] for identity in sorted(batch)]


def _parts(rows: list[ItemRow]) -> Iterator[list[ItemRow]]:
    """Cut where a statement would get too large."""
    part: list[ItemRow] = []
    size = 0
    for row in rows:
        if part and (len(part) >= STATEMENT_ROWS or size + len(row.data) > STATEMENT_BYTES):
            yield part
            part, size = [], 0
        part.append(row)
        size += len(row.data)
    if part:
        yield part
