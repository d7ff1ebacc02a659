"""The store's contract: where items and the fetch log go."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec


class ItemRow(msgspec.Struct, frozen=True, kw_only=True):
    """One result. `(spider, key)` is its identity; `token` fences older scrapes; `data` is JSON."""

    spider: str
    key: str
    crawl: str
    url: str
    data: bytes
    token: int
    at: float


class FetchRow(msgspec.Struct, frozen=True, kw_only=True):
    """The latest attempt at one task: the line of the fetch log that `shoal why` reads."""

    crawl: str
    key: int
    url: str
    outcome: str
    token: int
    attempt: int
    at: float
    status: int = 0
    final_url: str = ""
    worker: str = ""
    exit: str = ""
    size: int = 0
    elapsed: float = 0.0
    error: str = ""
    parent: int | None = None


class StoredItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item as it lies in the store."""

    spider: str
    key: str
    crawl: str
    url: str
    data: bytes
    first_seen: float
    last_seen: float


class Store(Protocol):
    async def write(self, items: Sequence[ItemRow], fetches: Sequence[FetchRow]) -> None:
        """Write all rows or none. Writing a row again is harmless; an older token never overwrites a newer.

        Several rows of one identity in one call: the newest token wins, among equals the last."""

    def items(self, spider: str | None = None, *, crawl: str | None = None) -> AsyncIterator[StoredItem]:
        """Stream items in a stable order, in flat memory: those there at the start come once each, also when they
        are written again meanwhile. `crawl` means the crawl that wrote an item last."""

    async def count_items(self, spider: str | None = None, *, crawl: str | None = None) -> int:
        """How many items `items` would give."""

    async def fetches(self, crawl: str, keys: Sequence[int]) -> list[FetchRow]:
        """The log lines of these tasks."""

    async def delete_crawl(self, crawl: str) -> None:
        """Remove the crawl's fetch log. Items stay: they belong to the spider."""

    async def close(self) -> None:
        """Flush and let go."""
