"""Opens the frontier, inbox, store and archive of commands and processes, and closes them at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from shoal.archive import open_archive
from shoal.archive.base import Archive
from shoal.backends import is_redis
from shoal.crawl.places import file_of
from shoal.frontier import open_frontier
from shoal.frontier.base import Frontier
from shoal.model import Crawl
from shoal.store import STORE_CONNECTIONS, open_store
from shoal.store.base import Store
from shoal.worker.outages import until_reachable

if TYPE_CHECKING:
    from shoal.crawl.inbox import Inbox

Say = Callable[[str], None]
StoreOf = Callable[[Crawl], Awaitable[Store | None]]
_FILES = ("sqlite", "files", "file")


class Closable(Protocol):
    """A connection, a file or a folder that is closed after use."""

    async def close(self) -> None: ...


Part = TypeVar("Part", bound=Closable)


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """The URLs of a crawl's frontier and store, and of its archive if raw pages are kept.

    `store` is empty if none was named, until the crawl is known: then it is the crawl's own. `other_store`: a store or
    archive that is not the crawl's own is allowed. `inboxes`: folders of spiders that are not beside the frontier's
    file."""

    frontier: str
    store: str = ""
    archive: str | None = None
    other_store: bool = False
    inboxes: dict[str, str] = {}


def waiting_for(url: str, say: Say) -> Say | None:
    """`say` if this URL is a server's, which may come back; None for a file."""
    scheme, separator, _ = url.partition("://")
    return say if separator and scheme not in _FILES else None


@asynccontextmanager
async def _closing(
    open_part: Callable[[], Awaitable[Part]], *, wait: Say | None, stop: asyncio.Event | None = None
) -> AsyncIterator[Part]:
    """Open a part, and close it at the end. With `wait`, waits for a server that cannot be reached, and says so, until
    `stop` is set; without, raises at once."""
    part = await (open_part() if wait is None else until_reachable(open_part, say=wait, stop=stop))
    try:
        yield part
    finally:
        await part.close()


def frontier_at(
    url: str, *, wait: Say | None = None, stop: asyncio.Event | None = None
) -> AbstractAsyncContextManager[Frontier]:
    """The frontier at a URL, closed at the end."""
    return _closing(lambda: open_frontier(url), wait=wait, stop=stop)


def store_at(
    url: str,
    *,
    wait: Say | None = None,
    stop: asyncio.Event | None = None,
    connections: int = STORE_CONNECTIONS,
) -> AbstractAsyncContextManager[Store]:
    """The store at a URL, closed at the end."""
    return _closing(lambda: open_store(url, connections=connections), wait=wait, stop=stop)


def archive_at(
    url: str, *, wait: Say | None = None, stop: asyncio.Event | None = None, create: bool = False
) -> AbstractAsyncContextManager[Archive]:
    """The archive at a URL, closed at the end."""
    return _closing(lambda: open_archive(url, create=create), wait=wait, stop=stop)


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
    """A crawl's archive, if it has one: created if missing, closed at the end."""
    if places.archive is None:
        yield None
        return
    async with archive_at(places.archive, wait=wait, create=True) as archive:
        yield archive


class SharedResults:
    """Stores and archives of several crawls, each opened at its first use, closed at the end."""

    def __init__(self, stack: AsyncExitStack, *, connections: int = STORE_CONNECTIONS) -> None:
        self._stack = stack
        self._connections = connections
        self._stores: dict[str, Store] = {}
        self._archives: dict[str, Archive] = {}
        self._lock = asyncio.Lock()

    async def store(self, url: str, *, wait: Say | None = None, stop: asyncio.Event | None = None) -> Store:
        """The store at a URL."""
        async with self._lock:
            if url not in self._stores:
                opening = store_at(url, wait=wait, stop=stop, connections=self._connections)
                self._stores[url] = await self._stack.enter_async_context(opening)
            return self._stores[url]

    async def archive(
        self, url: str | None, *, wait: Say | None = None, stop: asyncio.Event | None = None, create: bool = True
    ) -> Archive | None:
        """The archive at a URL, created if missing and `create` is set; None: raw pages are not kept."""
        if url is None:
            return None
        async with self._lock:
            if url not in self._archives:
                opening = archive_at(url, wait=wait, stop=stop, create=create)
                self._archives[url] = await self._stack.enter_async_context(opening)
            return self._archives[url]


def inbox_beside(places: Places) -> Inbox:
    """The inbox of a frontier; connects at its first use."""
    if is_redis(places.frontier):
        from shoal.frontier.redis.inbox import RedisInbox

        return RedisInbox(places.frontier)
    if (file := file_of(places.frontier)) is not None:
        from shoal.crawl.folder_inbox import FOLDER, FolderInbox

        own = {name: Path(folder) for name, folder in places.inboxes.items()}
        return FolderInbox(Path(file).parent / FOLDER, own=own)
    from shoal.crawl.inbox import NoInbox

    return NoInbox()


@asynccontextmanager
async def inbox_at(places: Places) -> AsyncIterator[Inbox]:
    """The inbox of a frontier, closed at the end."""
    inbox = inbox_beside(places)
    try:
        yield inbox
    finally:
        await inbox.close()


@asynccontextmanager
async def shared_results(*, connections: int = STORE_CONNECTIONS) -> AsyncIterator[SharedResults]:
    """`SharedResults`, closed at the end."""
    async with AsyncExitStack() as stack:
        yield SharedResults(stack, connections=connections)
