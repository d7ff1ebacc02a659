"""Opens the frontier, the store and the archive for every command and process, and closes them at the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol, TypeVar

import msgspec

from shoal.archive import open_archive
from shoal.archive.base import Archive
from shoal.frontier import open_frontier
from shoal.frontier.base import Frontier
from shoal.processes.outages import until_reachable
from shoal.store import STORE_CONNECTIONS, open_store
from shoal.store.base import Store

Say = Callable[[str], None]


class Closable(Protocol):
    """A connection, a file or a folder that is closed after use."""

    async def close(self) -> None: ...


Part = TypeVar("Part", bound=Closable)


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Where a crawl lives: the URLs of its frontier and its store, and of the archive if raw pages are kept."""

    frontier: str
    store: str
    archive: str | None = None


@asynccontextmanager
async def _closing(open_part: Callable[[], Awaitable[Part]], *, wait: Say | None) -> AsyncIterator[Part]:
    """The part that `open_part` opens, closed at the end.

    A worker that is part of a fleet waits for a server that cannot be reached, and says so with `wait`. Without
    `wait` the error is raised at once: people who type a command want to be told."""
    part = await (open_part() if wait is None else until_reachable(open_part, say=wait))
    try:
        yield part
    finally:
        await part.close()


def frontier_at(url: str, *, wait: Say | None = None) -> AbstractAsyncContextManager[Frontier]:
    """The frontier at a URL, closed at the end."""
    return _closing(lambda: open_frontier(url), wait=wait)


def store_at(
    url: str, *, wait: Say | None = None, connections: int = STORE_CONNECTIONS
) -> AbstractAsyncContextManager[Store]:
    """The store at a URL, closed at the end."""
    return _closing(lambda: open_store(url, connections=connections), wait=wait)


def archive_at(url: str, *, wait: Say | None = None, create: bool = False) -> AbstractAsyncContextManager[Archive]:
    """The archive at a URL, closed at the end."""
    return _closing(lambda: open_archive(url, create=create), wait=wait)


@asynccontextmanager
async def opened(
    places: Places, *, wait: Say | None = None, store_connections: int = STORE_CONNECTIONS
) -> AsyncIterator[tuple[Frontier, Store]]:
    """The frontier and the store of a crawl, closed at the end."""
    async with (
        frontier_at(places.frontier, wait=wait) as frontier,
        store_at(places.store, wait=wait, connections=store_connections) as store,
    ):
        yield frontier, store


@asynccontextmanager
async def archive_of(places: Places, *, wait: Say | None = None) -> AsyncIterator[Archive | None]:
    """The archive that a crawl keeps its raw pages in, if any: created if need be, closed at the end."""
    if places.archive is None:
        yield None
        return
    async with archive_at(places.archive, wait=wait, create=True) as archive:
        yield archive
