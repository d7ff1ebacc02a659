"""The seam for results: `open_store` picks the backend by URL."""

from __future__ import annotations

from shoal.errors import UsageError
from shoal.store.base import Store


async def open_store(url: str) -> Store:
    """Open `sqlite:///results.db` (four slashes for an absolute path) or a plain path that ends in .db."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return await _open_sqlite(rest[1:])
    if not separator and url.endswith(".db"):
        return await _open_sqlite(url)
    raise UsageError(f"unknown store {url!r}: give a path that ends in .db, or sqlite:///PATH")


async def _open_sqlite(path: str) -> Store:
    from shoal.store.sqlite import SqliteStore

    return await SqliteStore.open(path)
