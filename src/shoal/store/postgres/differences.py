"""What changed between two moments: items in batches, each with its contents then."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from shoal.store.base import Difference
from shoal.store.differing import Content, History, difference
from shoal.store.postgres.connection import PostgresLink
from shoal.store.postgres.read import (
    LARGE_ITEM,
    LARGE_VERSION,
    READ_SECONDS,
    as_written,
    seconds_of,
    small_of,
)

ROWS_PER_STEP = 200


def _kept(name: str, moment: str) -> str:
    """The latest kept version of a moment. Only if the next one is known: else others may have been in between."""
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


# Only items with anything after the first moment.
_ITEMS = f"""
    SELECT item.key, item.url, {seconds_of("item.first_seen")}, {seconds_of("item.gone_at")},
           {seconds_of("item.left_at")}, {seconds_of("item.back_at")}, item.moves,
           {_content("item")}, {_content("was")}, {_content("then_")}
    FROM items AS item {_kept("was", "$3")} {_kept("then_", "$4")}
    WHERE item.spider = $1 AND item.key > $2
        AND greatest(item.first_seen, item.changed_at, item.gone_at, item.back_at) > to_timestamp($3::float8)
    ORDER BY item.key LIMIT {ROWS_PER_STEP}"""  # noqa: S608 -- columns of ours


async def differences(link: PostgresLink, spider: str, *, since: float, until: float) -> AsyncIterator[Difference]:
    """Differences by key, a transaction per batch."""
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
