"""Writes items and log lines: many rows per statement, changes detected in the statement."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec

from shoal.sqlite_file import insert_rows, parts, row_marks
from shoal.store.base import FetchRow, ItemRow, ItemRule
from shoal.store.rules import Folded, fingerprint_of, fold

LARGE_BYTES = 64 * 1024

_Identity = tuple[str, str]

_ITEM_COLUMNS = "spider, key, crawl, url, data, token, first_seen, last_seen, changed_at, content, version"
_FOLDED_COLUMNS = f"{_ITEM_COLUMNS}, written_at, missing_since, gone_at, moves"
_IS_SAME = "(content = excluded.content)"
_IS_THERE = "excluded.last_seen >= missing_since"
_COMES_BACK = f"(gone_at IS NOT NULL AND {_IS_THERE})"
_REPLACE = f"""
    ON CONFLICT (spider, key) DO UPDATE SET
        crawl = excluded.crawl, url = excluded.url, data = iif({_IS_SAME}, data, excluded.data), token = excluded.token,
        last_seen = max(last_seen, excluded.last_seen),
        changed_at = iif({_IS_SAME}, changed_at, excluded.changed_at),
        version = version + (NOT {_IS_SAME}),
        content = excluded.content, written_at = NULL,
        moves = moves + {_COMES_BACK}, gone_at = iif({_IS_THERE}, NULL, gone_at),
        missing_since = iif({_IS_THERE}, NULL, missing_since)
    WHERE excluded.token >= token"""
_FOLDED = """
    ON CONFLICT (spider, key) DO UPDATE SET
        crawl = excluded.crawl, url = excluded.url, data = excluded.data, token = excluded.token,
        last_seen = max(last_seen, excluded.last_seen),
        changed_at = iif(excluded.version = version, changed_at, excluded.changed_at),
        version = excluded.version, content = excluded.content,
        written_at = iif(excluded.written_at IS NULL, NULL, coalesce(written_at, last_seen)),
        moves = excluded.moves, gone_at = iif(excluded.gone_at IS NULL, NULL, gone_at),
        missing_since = iif(excluded.missing_since IS NULL, NULL, missing_since)"""

# One row of JSON instead of a row per item: fetching a row releases the interpreter lock. JSON cuts off the last digit
# of times, so times are compared but never written back. A large item is read separately.
_READ = f"""
    SELECT json_group_array(json_array(
        wanted.column1, iif(length(data) > {LARGE_BYTES}, NULL, data), crawl, url, content, token,
        first_seen, last_seen, changed_at, version, written_at, missing_since, gone_at, moves))
    FROM (VALUES {{marks}}) AS wanted CROSS JOIN item ON item.spider = wanted.column2 AND item.key = wanted.column3"""  # noqa: S608 -- only marks
_KEEP_FORMER = """
    INSERT OR IGNORE INTO item_version (spider, key, version, crawl, url, data, changed_at)
    SELECT spider, key, version, crawl, url, data, changed_at FROM item
    WHERE (spider, key) IN (VALUES {marks})"""
_KEEP = "INSERT OR IGNORE INTO item_version (spider, key, version, crawl, url, data, changed_at) VALUES "

# The newer content is a kept version or the present one; contents of times without versions are missing.
_DROP_VERSIONS = """
    DELETE FROM item_version AS old WHERE id > :start AND id <= :end AND changed_at < :before
        AND (:spider IS NULL OR spider = :spider) AND (
            EXISTS (SELECT 1 FROM item_version AS new WHERE new.spider = old.spider AND new.key = old.key
                    AND new.version > old.version AND new.changed_at < :before)
            OR EXISTS (SELECT 1 FROM item WHERE item.spider = old.spider AND item.key = old.key
                       AND item.version > old.version AND item.changed_at < :before))"""

_FETCH_COLUMNS = FetchRow.__struct_fields__
_FETCH = f"INSERT INTO fetch ({', '.join(_FETCH_COLUMNS)})"
_KEPT = ("content_hash", "archived")
_KEEPS = "excluded.archived = '' AND archived <> ''"
_PLAIN = [column for column in _FETCH_COLUMNS if column not in ("crawl", "key", *_KEPT)]
_FETCH_CONFLICT = f"""
    ON CONFLICT (crawl, key) DO UPDATE SET
        {", ".join(f"{column} = excluded.{column}" for column in _PLAIN)},
        {", ".join(f"{name} = iif({_KEEPS}, {name}, excluded.{name})" for name in _KEPT)}
    WHERE excluded.token >= token"""


def write_items(
    connection: sqlite3.Connection, rows: Sequence[tuple[ItemRow, dict[str, Any]]], *, rule: ItemRule
) -> None:
    """Upsert rows with their decoded fields, inside the caller's transaction."""
    if rule.merge == "fill" or rule.keep_versions or rule.freshness > 0:
        for batch in _rounds([row for row, _ in rows]):
            for part in parts(batch):
                _write_folded(connection, part, rule=rule)
        return
    for part in parts(rows):
        values = [(*msgspec.structs.astuple(row), row.at, row.at, fingerprint_of(fields)) for row, fields in part]
        connection.execute(_replace_statement(len(part)), tuple(chain.from_iterable(values)))


def write_fetches(connection: sqlite3.Connection, rows: Sequence[FetchRow]) -> None:
    """Upsert log lines, inside the caller's transaction."""
    insert_rows(connection, _FETCH, list(map(msgspec.structs.astuple, rows)), _FETCH_CONFLICT)


def _rounds(rows: Sequence[ItemRow]) -> Iterator[list[ItemRow]]:
    """The rows in order, split before an item repeats: each of its contents is written and is a change for the
    outbox."""
    batch: dict[_Identity, ItemRow] = {}
    for row in rows:
        if (row.spider, row.key) in batch:
            yield list(batch.values())
            batch = {}
        batch[row.spider, row.key] = row
    yield list(batch.values())


def _write_folded(connection: sqlite3.Connection, rows: Sequence[ItemRow], *, rule: ItemRule) -> None:
    """Read, fold in Python, write. The transaction is immediate: no other process writes in between."""
    identities = list(dict.fromkeys((row.spider, row.key) for row in rows))
    before = _read(connection, identities)
    after, versions = dict(before), []
    for row in rows:
        identity = (row.spider, row.key)
        former = after.get(identity)
        after[identity] = latest = fold(former, row, rule=rule)
        if former is None or latest.version != former.version:
            versions.append((*identity, latest.version, latest.crawl, latest.url, latest.data, latest.changed_at))
    if rule.keep_versions and before:
        statement = _KEEP_FORMER.format(marks=row_marks(len(before), 2))
        connection.execute(statement, tuple(chain.from_iterable(before)))
    _upsert(connection, after, before=before)
    if rule.keep_versions:
        for part in parts(versions):
            marks = ", ".join(["(?, ?, ?, ?, ?, CAST(? AS TEXT), ?)"] * len(part))
            connection.execute(_KEEP + marks, tuple(chain.from_iterable(part)))


def _upsert(connection: sqlite3.Connection, after: dict[_Identity, Folded], *, before: dict[_Identity, Folded]) -> None:
    for part in parts([name for name, item in after.items() if item is not before.get(name)]):
        values = [_values(name, after[name], before.get(name)) for name in part]
        marks = ", ".join(["(?, ?, ?, ?, CAST(? AS TEXT), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"] * len(part))
        statement = f"INSERT INTO item ({_FOLDED_COLUMNS}) VALUES {marks}{_FOLDED}"  # noqa: S608 -- only marks
        connection.execute(statement, tuple(chain.from_iterable(values)))


def _values(name: _Identity, item: Folded, before: Folded | None) -> tuple[Any, ...]:
    # Times that were read are less exact than the stored ones: zero keeps the stored `last_seen`, and of the last three
    # only NULL matters.
    last_seen = item.last_seen if before is None or item.last_seen > before.last_seen else 0.0
    return (
        *(*name, item.crawl, item.url, item.data, item.token),
        *(item.first_seen, last_seen, item.changed_at, item.content, item.version),
        *(item.written_at, item.missing_since, item.gone_at, item.moves),
    )


def _read(connection: sqlite3.Connection, identities: Sequence[_Identity]) -> dict[_Identity, Folded]:
    numbered = tuple(chain.from_iterable((index, *identity) for index, identity in enumerate(identities)))
    (text,) = connection.execute(_READ.format(marks=row_marks(len(identities), 3)), numbered).fetchone()
    found = {}
    for index, data, *rest in msgspec.json.decode(text):
        raw = data.encode() if data is not None else _large(connection, identities[index])
        found[identities[index]] = _folded(raw, *rest)
    return found


def _folded(data: bytes, crawl: str, url: str, content: int, *rest: Any) -> Folded:
    token, first_seen, last_seen, changed_at, version, written_at, missing_since, gone_at, moves = rest
    return Folded(
        crawl=crawl,
        url=url,
        data=data,
        content=content,
        token=token,
        first_seen=first_seen,
        last_seen=last_seen,
        changed_at=changed_at,
        version=version,
        written_at=written_at,
        missing_since=missing_since,
        gone_at=gone_at,
        moves=moves,
    )


def _large(connection: sqlite3.Connection, identity: _Identity) -> bytes:
    query = "SELECT CAST(data AS BLOB) FROM item WHERE spider = ? AND key = ?"
    (data,) = connection.execute(query, identity).fetchone()
    return bytes(data)


def _replace_statement(rows: int) -> str:
    marks = ", ".join(["(?, ?, ?, ?, CAST(? AS TEXT), ?, ?, ?, ?, ?, 1)"] * rows)
    return f"INSERT INTO item ({_ITEM_COLUMNS}) VALUES {marks}{_REPLACE}"  # noqa: S608 -- only marks


def delete_items(connection: sqlite3.Connection, spider: str, crawl: str, *, limit: int) -> int:
    """Delete some items that a crawl wrote last, with their versions; returns how many."""
    chosen = "SELECT id, key FROM item WHERE crawl = ? AND +spider = ? ORDER BY id LIMIT ?"
    rows = connection.execute(chosen, (crawl, spider, limit)).fetchall()
    connection.executemany("DELETE FROM item_version WHERE spider = ? AND key = ?", [(spider, key) for _, key in rows])
    connection.executemany("DELETE FROM item WHERE id = ?", [(row_id,) for row_id, _ in rows])
    return len(rows)


def drop_versions(connection: sqlite3.Connection, spider: str | None, *, before: float, start: int, end: int) -> int:
    """Delete kept contents of these rows for which a newer content from before the time is known."""
    return connection.execute(_DROP_VERSIONS, {"start": start, "end": end, "spider": spider, "before": before}).rowcount


def delete_lines(connection: sqlite3.Connection, table: str, crawl: str, *, limit: int) -> int:
    """Delete some log lines of a crawl; returns how many."""
    query = f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} WHERE crawl = ? LIMIT ?)"  # noqa: S608 -- a table of ours
    return connection.execute(query, (crawl, limit)).rowcount


def drop_lines(connection: sqlite3.Connection, table: str, *, before: float, start: int, end: int) -> int:
    """Delete log lines of these rows that are older than `before`; returns how many."""
    query = f"DELETE FROM {table} WHERE rowid > ? AND rowid <= ? AND at < ?"  # noqa: S608 -- a table of ours
    return connection.execute(query, (start, end, before)).rowcount
