"""The newest items, a page at a time."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from shoal.store.base import LOOKED_THROUGH, ItemFilter, ItemPage, StoredItem, like_pattern, wrong_position
from shoal.store.postgres.connection import PostgresLink
from shoal.store.postgres.read import ITEM_COLUMNS, LARGE_ITEM, READ_SECONDS, is_text, stored, where_of

PAGE_BYTES = 8 * 1024 * 1024
_ORDER = "ORDER BY item.changed_at DESC, item.spider DESC, item.key DESC"
_Position = tuple[datetime, str, str]


async def newest(link: PostgresLink, which: ItemFilter, *, limit: int, after: str, search: str) -> ItemPage:
    """Items by the time of their last change, the latest first."""
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


async def _end_of_window(link: PostgresLink, which: ItemFilter, first: _Position | None) -> _Position | None:
    """The last of the items that one search looks through; None if these are all that there are."""
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


def _where(which: ItemFilter, first: _Position | None, end: _Position | None) -> tuple[str, list[Any]]:
    clause, arguments = where_of(which, start=1)
    for sign, position in (("<", first), (">=", end)):
        if position is not None:
            marks = ", ".join(f"${len(arguments) + number}" for number in (1, 2, 3))
            clause += f" AND (item.changed_at, item.spider, item.key) {sign} ({marks})"
            arguments += position
    return clause, arguments


def _named(position: _Position | None) -> str:
    return "" if position is None else msgspec.json.encode(position).decode()


def _position(after: str) -> _Position:
    try:
        found: _Position = msgspec.json.decode(after, type=_Position)
    except msgspec.DecodeError:
        raise wrong_position(after) from None
    if found[0].tzinfo is None or "\0" in found[1] + found[2]:
        raise wrong_position(after)
    return found
