"""What changed between two moments: items in steps, each with its contents then."""

from __future__ import annotations

import sqlite3
from typing import Any

from shoal.store.base import Difference
from shoal.store.differing import Content, History, content_at, difference
from shoal.store.sqlite.read import BATCH_BYTES

ROWS_PER_STEP = 200

# Only items with anything after the first moment. By their ids: an item that is written meanwhile keeps its own.
_ITEMS = f"""
    SELECT id, key, url, version, changed_at, CAST(data AS BLOB), first_seen, gone_at, left_at,
           back_at, moves
    FROM item WHERE id > ? AND +spider = ?
        AND max(first_seen, changed_at, coalesce(gone_at, 0), coalesce(back_at, 0)) > ?
    ORDER BY id LIMIT {ROWS_PER_STEP}"""  # noqa: S608 -- a number of ours
# The latest kept version of a moment. Only if the next one is known: else others may have been in between.
_KEPT = """
    SELECT version, changed_at, CAST(data AS BLOB) FROM (
        SELECT * FROM item_version WHERE spider = :spider AND key = :key AND changed_at <= :moment
        ORDER BY version DESC LIMIT 1) AS kept
    WHERE kept.version + 1 = :version OR EXISTS (
        SELECT 1 FROM item_version AS next
        WHERE next.spider = :spider AND next.key = :key AND next.version = kept.version + 1)"""


def step(
    connection: sqlite3.Connection, spider: str, *, since: float, until: float, last_id: int
) -> tuple[list[Difference], int]:
    """The differences of the next items, and the id of the last one that was looked at; 0 at the end."""
    found: list[Difference] = []
    size, reached = 0, 0
    cursor = connection.execute(_ITEMS, (last_id, spider, since))
    for row_id, *columns in cursor:
        reached = row_id
        one = difference(_history(connection, spider, columns, since, until), since=since, until=until)
        if one is not None:
            found.append(one)
            size += len(one.before or b"") + len(one.after or b"")
        if size > BATCH_BYTES:
            break
    cursor.close()
    return found, reached


def _history(connection: sqlite3.Connection, spider: str, columns: list[Any], since: float, until: float) -> History:
    key, url, version, changed_at, data, first_seen, gone_at, left_at, back_at, moves = columns
    current = Content(version=version, at=changed_at, data=data)

    def kept(moment: float) -> Content | None:
        values = {"spider": spider, "key": key, "moment": moment, "version": version}
        row = connection.execute(_KEPT, values).fetchone()
        return None if row is None else Content(version=row[0], at=row[1], data=row[2])

    return History(
        key=key,
        url=url,
        first_seen=first_seen,
        changed_at=changed_at,
        gone_at=gone_at,
        left_at=left_at,
        back_at=back_at,
        moves=moves,
        was=content_at(since, current, kept),
        then=content_at(until, current, kept),
    )
