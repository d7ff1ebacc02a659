"""Items that are missing, gone or back: applying scraped pages, marking items as gone, and differences between two
moments."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import msgspec

from shoal.store.base import Difference, ItemRow, ScrapedPage
from shoal.store.postgres.connection import Connection, PostgresLink
from shoal.store.postgres.read import (
    LARGE_ITEM,
    LARGE_VERSION,
    READ_SECONDS,
    as_written,
    seconds_of,
    small_of,
)
from shoal.store.postgres.write import kept_time
from shoal.store.rules import Content, History, difference

ROWS_PER_STEP = 200


def _kept(name: str, moment: str) -> str:
    """Joins the latest kept version at a moment, only if the next version is known: else unknown versions may be in
    between."""
    return f"""
    LEFT JOIN LATERAL (
        SELECT version, changed_at, data FROM item_versions AS kept
        WHERE kept.spider = item.spider AND kept.key = item.key AND kept.changed_at <= to_timestamp({moment}::float8)
        ORDER BY version DESC LIMIT 1
    ) AS {name} ON item.changed_at > to_timestamp({moment}::float8) AND ({name}.version + 1 = item.version OR EXISTS (
        SELECT FROM item_versions AS next
        WHERE next.spider = item.spider AND next.key = item.key AND next.version = {name}.version + 1))"""  # noqa: S608 -- names of ours


def _content(name: str) -> str:
    return f"{name}.version, {seconds_of(f'{name}.changed_at')}, {small_of(f'{name}.data')}"


# Only items that changed after the first moment.
_ITEMS = f"""
    SELECT item.key, item.url, {seconds_of("item.first_seen")}, {seconds_of("item.gone_at")},
           {seconds_of("item.left_at")}, {seconds_of("item.back_at")}, item.moves,
           {_content("item")}, {_content("was")}, {_content("then_")}
    FROM items AS item {_kept("was", "$3")} {_kept("then_", "$4")}
    WHERE item.spider = $1 AND item.key > $2
        AND greatest(item.first_seen, item.changed_at, item.gone_at, item.back_at) > to_timestamp($3::float8)
    ORDER BY item.key LIMIT {ROWS_PER_STEP}"""  # noqa: S608 -- columns of ours


async def differences(link: PostgresLink, spider: str, *, since: float, until: float) -> AsyncIterator[Difference]:
    """Differences by key, one transaction per batch."""
    after = ""
    while True:
        async with link.transaction(seconds=READ_SECONDS, reads=True) as connection:
            batch = await connection.fetch(_ITEMS, spider, after, since, until)
        for row in batch:
            after = row[0]
            found = difference(await _history(link, spider, row, since, until), since=since, until=until)
            if found is not None:
                yield found
        if len(batch) < ROWS_PER_STEP:
            return


async def _history(link: PostgresLink, spider: str, row: Any, since: float, until: float) -> History:
    key, changed_at = row[0], row[8]

    async def content(moment: float, start: int) -> Content | None:
        is_current = changed_at <= moment
        version, at, text = row[7:10] if is_current else row[start : start + 3]
        if version is None:
            return None
        if text is None:
            async with link.transaction(seconds=READ_SECONDS, reads=True) as connection:
                text = await connection.fetchval(LARGE_ITEM if is_current else LARGE_VERSION, spider, key, version)
        return Content(version=version, at=at, data=as_written(text.encode()))

    return History(
        key=key,
        url=row[1],
        first_seen=row[2],
        changed_at=changed_at,
        gone_at=row[3],
        left_at=row[4],
        back_at=row[5],
        moves=row[6],
        was=await content(since, 10),
        then=await content(until, 13),
    )


ITEMS_PER_STEP = 1000

# Runs before the items are written, in the order in which writers lock rows, so that two writers do not deadlock.
_LOCK = """
    SELECT count(*) FROM (
        SELECT FROM items WHERE (spider, key) IN (
            SELECT * FROM unnest($1::text[], $2::text[])
            UNION SELECT spider, key FROM items WHERE url = ANY($3::text[]))
        ORDER BY spider, key FOR UPDATE) AS locked"""
# Token 0: unknown.
_SEEN = """
    UPDATE items AS old SET
        written_at = CASE WHEN page.at > last_seen THEN coalesce(written_at, last_seen) ELSE written_at END,
        last_seen = greatest(last_seen, page.at),
        moves = moves + CASE WHEN gone_at IS NOT NULL AND page.at >= missing_since THEN 1 ELSE 0 END,
        left_at = CASE WHEN gone_at IS NOT NULL AND page.at >= missing_since THEN gone_at ELSE left_at END,
        back_at = CASE WHEN gone_at IS NOT NULL AND page.at >= missing_since THEN greatest(last_seen, page.at)
                       ELSE back_at END,
        gone_at = CASE WHEN page.at >= missing_since THEN NULL ELSE gone_at END,
        missing_since = CASE WHEN page.at >= missing_since THEN NULL ELSE missing_since END
    FROM (SELECT spider, key, to_timestamp(seconds) AS at, token
          FROM unnest($1::text[], $2::text[], $3::float8[], $4::bigint[])
              AS given (spider, key, seconds, token)) AS page
    WHERE old.spider = page.spider AND old.key = page.key AND (page.token = 0 OR page.token >= fence)
        AND (last_seen < page.at OR page.at >= missing_since)"""
# The fence keeps out older scrapes: an older scrape that is stored later does not bring the item back.
_MISSING = """
    UPDATE items AS old SET missing_since = page.at, fence = greatest(fence, page.token)
    FROM (SELECT spider, url, keys, to_timestamp(seconds) AS at, token
          FROM unnest($1::text[], $2::text[], $3::jsonb[], $4::float8[], $5::bigint[])
              AS given (spider, url, keys, seconds, token)) AS page
    WHERE old.url = page.url AND old.spider = page.spider AND missing_since IS NULL AND last_seen < page.at
        AND (page.token = 0 OR page.token >= fence) AND NOT page.keys ? old.key"""

_MISSING_KEYS = f"""
    SELECT key FROM items WHERE missing_since < to_timestamp($2) AND gone_at IS NULL AND spider = $1
    LIMIT {ITEMS_PER_STEP}"""  # noqa: S608 -- a number of ours
_NEXT_KEYS = f"SELECT key FROM items WHERE spider = $1 AND key > $2 ORDER BY key LIMIT {ITEMS_PER_STEP}"  # noqa: S608 -- a number of ours
# The condition is checked twice: a row may change while its lock is waited for.
_GONE = """
    WITH chosen AS MATERIALIZED (
        SELECT spider, key FROM items WHERE spider = $1 AND key = ANY($2::text[]) AND gone_at IS NULL
            AND {condition} ORDER BY spider, key FOR UPDATE)
    UPDATE items AS old SET gone_at = to_timestamp($3), moves = moves + 1,
        missing_since = coalesce(missing_since, to_timestamp($4))
    FROM chosen WHERE old.spider = chosen.spider AND old.key = chosen.key AND gone_at IS NULL AND {condition}
    RETURNING old.key"""
_GONE_MISSING = _GONE.format(condition="missing_since < to_timestamp($4)")
_GONE_UNSEEN = _GONE.format(condition="last_seen < to_timestamp($4)")

# Locked in the order of writers, as above.
_DELETE = """
    WITH chosen AS MATERIALIZED (
        SELECT spider, key FROM items WHERE spider = $1 AND key = ANY($2::text[]) AND crawl = $3
        ORDER BY spider, key FOR UPDATE)
    DELETE FROM items AS old USING chosen
    WHERE old.spider = chosen.spider AND old.key = chosen.key AND old.crawl = $3 RETURNING old.key"""


async def lock_items(connection: Connection, items: Sequence[ItemRow], pages: Sequence[ScrapedPage]) -> None:
    """Lock the rows that a write with pages will change, at the beginning of its transaction."""
    names = {(row.spider, row.key) for row in items} | {(page.spider, key) for page in pages for key in page.keys}
    values = [spider for spider, _ in names], [key for _, key in names], [page.url for page in pages]
    await connection.execute(_LOCK, *values)


async def write_pages(connection: Connection, pages: Sequence[ScrapedPage]) -> None:
    """Apply pages, inside the caller's transaction."""
    for some in _rounds(pages):
        named = [(page, key) for page in some for key in page.keys]
        if named:
            await connection.execute(
                _SEEN,
                [page.spider for page, _ in named],
                [key for _, key in named],
                [kept_time(page.at) for page, _ in named],
                [page.token for page, _ in named],
            )
        await connection.execute(
            _MISSING,
            [page.spider for page in some],
            [page.url for page in some],
            [msgspec.json.encode(page.keys).decode() for page in some],
            [kept_time(page.at) for page in some],
            [page.token for page in some],
        )


def _rounds(pages: Sequence[ScrapedPage]) -> Iterator[list[ScrapedPage]]:
    """The pages in order, split before a page or item repeats: a statement cannot change a row twice."""
    batch: list[ScrapedPage] = []
    met: set[tuple[str, str, bool]] = set()
    for page in pages:
        names = {(page.spider, key, False) for key in page.keys} | {(page.spider, page.url, True)}
        if names & met:
            yield batch
            batch, met = [], set()
        batch.append(page)
        met |= names
    if batch:
        yield batch


async def mark_missing_gone(link: PostgresLink, spider: str, *, at: float, missing_before: float) -> int:
    """Mark items that have been missing for long, a batch per transaction."""
    gone = 0
    while True:
        async with link.transaction() as connection:
            keys = [row["key"] for row in await connection.fetch(_MISSING_KEYS, spider, missing_before)]
            if not keys:
                return gone
            gone += len(await connection.fetch(_GONE_MISSING, spider, keys, kept_time(at), missing_before))


async def mark_unseen_gone(link: PostgresLink, spider: str, *, at: float, unseen_since: float) -> int:
    """Mark items not seen since, by key, a batch per transaction."""
    gone, after = 0, ""
    while True:
        async with link.transaction() as connection:
            keys = [row["key"] for row in await connection.fetch(_NEXT_KEYS, spider, after)]
            if not keys:
                return gone
            gone += len(await connection.fetch(_GONE_UNSEEN, spider, keys, kept_time(at), unseen_since))
            after = keys[-1]


async def delete_items(link: PostgresLink, spider: str, crawl: str) -> int:
    """Delete the items that a crawl wrote last, with their versions, a batch of keys per transaction."""
    ahead = "SELECT key FROM items WHERE spider = $1 AND ($2::text IS NULL OR key > $2) ORDER BY key LIMIT $3"
    gone, last = 0, None
    while True:
        async with link.transaction() as connection:
            rows = await connection.fetch(ahead, spider, last, ITEMS_PER_STEP)
            if not rows:
                return gone
            keys, last = [row["key"] for row in rows], rows[-1]["key"]
            deleted = await connection.fetch(_DELETE, spider, keys, crawl)
            names = [row["key"] for row in deleted]
            await connection.execute(
                "DELETE FROM item_versions WHERE spider = $1 AND key = ANY($2::text[])", spider, names
            )
            gone += len(names)
