"""Opens the frontier, inbox, store and archive for every command and process, and closes them at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from shoal.archive import open_archive
from shoal.archive.base import Archive
from shoal.crawl.places import file_of
from shoal.frontier import REDIS_SCHEMES, open_frontier
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
    """Where a crawl lives: the URLs of its frontier and its store, and of the archive if raw pages are kept.

    `store` is empty until the crawl is known, if none was named: then it is the crawl's own. `other_store`: a store or
    an archive that is not the crawl's is meant. `inboxes` are folders of spiders that lie elsewhere than beside the
    frontier's file."""

    frontier: str
    store: str = ""
    archive: str | None = None
    other_store: bool = False
    inboxes: dict[str, str] = {}


def waiting_for(url: str, say: Say) -> Say | None:
    """`say` if a server is behind this URL of a frontier, a store or an archive: it may be away for a while, a file is
    there or not."""
    scheme, separator, _ = url.partition("://")
    return say if separator and scheme not in _FILES else None


@asynccontextmanager
async def _closing(
    open_part: Callable[[], Awaitable[Part]], *, wait: Say | None, stop: asyncio.Event | None = None
) -> AsyncIterator[Part]:
    """The part that `open_part` opens, closed at the end.

    A run or a worker waits for a server that cannot be reached, and says so with `wait`, until `stop` is set. Without
    `wait` the error is raised at once: people who look want to be told."""
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
    """The archive that a crawl keeps its raw pages in, if any: created if need be, closed at the end."""
    if places.archive is None:
        yield None
        return
    async with archive_at(places.archive, wait=wait, create=True) as archive:
        yield archive


class SharedResults:
    """Stores and archives, each opened when it is first asked for, used by many, and closed at the end."""

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
        """The archive at a URL, created if need be and `create` says so; None where raw pages are not kept."""
        if url is None:
            return None
        async with self._lock:
            if url not in self._archives:
                opening = archive_at(url, wait=wait, stop=stop, create=create)
                self._archives[url] = await self._stack.enter_async_context(opening)
            return self._archives[url]


def inbox_beside(places: Places) -> Inbox:
    """The inbox beside the frontier. It connects when it is asked."""
    if places.frontier.partition("://")[0] in REDIS_SCHEMES:
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
    """The inbox beside the frontier, closed at the end."""
    inbox = inbox_beside(places)
    try:
        yield inbox
    finally:
        await inbox.close()


@asynccontextmanager
async def shared_results(*, connections: int = STORE_CONNECTIONS) -> AsyncIterator[SharedResults]:
    """Stores and archives that are opened on the way, closed at the end."""
    async with AsyncExitStack() as stack:
        yield SharedResults(stack, connections=connections)
