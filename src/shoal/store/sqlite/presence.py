"""Items that are missing, gone or back: applying scraped pages, marking items as gone, and differences between two
moments."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from shoal.store.base import Difference, ScrapedPage
from shoal.store.rules import Content, History, content_at, difference
from shoal.store.sqlite.read import BATCH_BYTES

ROWS_PER_STEP = 200

# Only items that changed after the first moment. Paged by id: an item that is written meanwhile keeps its id.
_ITEMS = f"""
    SELECT id, key, url, version, changed_at, CAST(data AS BLOB), first_seen, gone_at, left_at,
           back_at, moves
    FROM item WHERE id > ? AND +spider = ?
        AND max(first_seen, changed_at, coalesce(gone_at, 0), coalesce(back_at, 0)) > ?
    ORDER BY id LIMIT {ROWS_PER_STEP}"""  # noqa: S608 -- a number of ours
# The latest kept version at a moment, only if the next version is known: else unknown versions may be in between.
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
    """The differences among the next items, and the id of the last item that was read; 0 at the end."""
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


ITEMS_PER_STEP = 1000

# Created with the first scraped page: spiders that never revisit a page do not pay for it. Not on (spider, url): few
# spiders share a page.
_BY_URL = "CREATE INDEX IF NOT EXISTS item_by_url ON item (url)"
# `token` 0: unknown.
_SEEN = """
    UPDATE item SET
        written_at = iif(:at > last_seen, coalesce(written_at, last_seen), written_at),
        last_seen = max(last_seen, :at),
        moves = moves + (gone_at IS NOT NULL AND :at >= missing_since),
        gone_at = iif(:at >= missing_since, NULL, gone_at),
        missing_since = iif(:at >= missing_since, NULL, missing_since)
    WHERE spider = :spider AND key IN (SELECT value FROM json_each(:keys)) AND (:token = 0 OR :token >= token)
        AND (last_seen < :at OR :at >= missing_since)"""
# The token fences older scrapes: an older scrape that is stored later does not bring the item back.
_MISSING = """
    UPDATE item SET missing_since = :at, token = max(token, :token)
    WHERE url = :url AND +spider = :spider AND missing_since IS NULL AND last_seen < :at
        AND (:token = 0 OR :token >= token) AND key NOT IN (SELECT value FROM json_each(:keys))"""

_GONE = "UPDATE item SET gone_at = ?, moves = moves + 1, missing_since = coalesce(missing_since, ?)"
_GONE_MISSING = f"""{_GONE} WHERE id IN (
    SELECT id FROM item WHERE missing_since < ? AND missing_since IS NOT NULL AND gone_at IS NULL AND +spider = ?
    ORDER BY missing_since LIMIT {ITEMS_PER_STEP})"""  # noqa: S608 -- a number of ours
_GONE_UNSEEN = f"{_GONE} WHERE id > ? AND id <= ? AND +spider = ? AND gone_at IS NULL AND last_seen < ?"


def write_pages(connection: sqlite3.Connection, pages: Sequence[ScrapedPage]) -> None:
    """Apply pages, inside the caller's transaction."""
    if pages:
        connection.execute(_BY_URL)
    for page in pages:
        values = {
            "spider": page.spider,
            "url": page.url,
            "keys": msgspec.json.encode(page.keys).decode(),
            "at": page.at,
            "token": page.token,
        }
        if page.keys:
            connection.execute(_SEEN, values)
        connection.execute(_MISSING, values)


def mark_missing_gone(connection: sqlite3.Connection, spider: str, *, at: float, missing_before: float) -> int:
    """Mark some items that have been missing for long; returns how many, 0 at the end."""
    return connection.execute(_GONE_MISSING, (at, None, missing_before, spider)).rowcount


def mark_unseen_gone(connection: sqlite3.Connection, spider: str, *, at: float, unseen_since: float, start: int) -> int:
    """Among the next ITEMS_PER_STEP items, mark those not seen since; returns how many."""
    values = (at, unseen_since, start, start + ITEMS_PER_STEP, spider, unseen_since)
    return connection.execute(_GONE_UNSEEN, values).rowcount
