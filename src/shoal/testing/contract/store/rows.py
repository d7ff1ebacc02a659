"""Helpers of the store's contract tests: rows to write, and the usual calls."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any

import msgspec

from shoal.store.base import FetchRow, ItemFilter, ItemRow, Store, StoredItem

Reopen = Callable[[], Awaitable[Store]]


@asynccontextmanager
async def reopening(open_one: Reopen) -> AsyncIterator[Reopen]:
    """Yields a function that opens one more handle per call; all are closed at the end."""
    async with AsyncExitStack() as opened:

        async def open_again() -> Store:
            store = await open_one()
            opened.push_async_callback(store.close)
            return store

        yield open_again


def item(key: str = "k", **changes: Any) -> ItemRow:
    """An item row; `changes` are its fields. `data` may be bytes, or an object to be encoded."""
    fields: dict[str, Any] = {
        "spider": "books",
        "key": key,
        "crawl": "c1",
        "url": f"https://a.test/{key}",
        "data": b'{"title":"A"}',
        "token": 1,
        "at": 100.0,
    }
    row = fields | changes
    if not isinstance(row["data"], bytes):
        row["data"] = msgspec.json.encode(row["data"])
    return ItemRow(**row)


def fetch(key: int = 1, **changes: Any) -> FetchRow:
    """A log line; `changes` are its fields."""
    fields: dict[str, Any] = {
        "crawl": "c1",
        "key": key,
        "url": f"https://a.test/{key}",
        "outcome": "ok",
        "token": 1,
        "attempt": 1,
        "at": 100.0,
    }
    return FetchRow(**(fields | changes))


async def everything(store: Store, **which: Any) -> list[StoredItem]:
    """All items of the stream; `which` are fields of an `ItemFilter`."""
    return [stored async for stored in store.items(ItemFilter(**which))]


async def contents(store: Store, **which: Any) -> list[Any]:
    """The decoded data of the items: stores may spell the same JSON differently."""
    return [content(stored) for stored in await everything(store, **which)]


async def kept(store: Store, **which: Any) -> list[tuple[str, int, Any]]:
    """The kept versions: key, number, content."""
    return [(row.key, row.version, content(row)) async for row in store.versions(ItemFilter(**which))]


async def only(store: Store) -> StoredItem:
    """The only item."""
    (stored,) = await everything(store)
    return stored


def content(stored: StoredItem) -> Any:
    """The decoded data of an item."""
    return msgspec.json.decode(stored.data)


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """Simulate a full disk for this process: no file may grow beyond this size."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
