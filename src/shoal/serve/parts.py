"""The parts of one `shoal serve` process: its frontier, inboxes, stores and archives, opened when first needed and
again after they were lost."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Generic, TypeVar

from shoal.archive import open_archive
from shoal.archive.base import Archive
from shoal.crawl.inbox import Inbox
from shoal.crawl.joining import archive_to_read, existing_store
from shoal.crawl.opening import Closable, Places, inbox_beside
from shoal.crawl.places import file_of, path_of
from shoal.duties.alerts.config import AlertConfig
from shoal.duties.schedules.config import Schedule
from shoal.errors import ServerUnreachable, ShoalError, StorageBroken, StorageError, UsageError
from shoal.frontier import open_frontier
from shoal.frontier.base import Frontier
from shoal.model import Crawl
from shoal.serve.access import Access
from shoal.serve.answers import Refusal
from shoal.serve.board import Board, Surveyor
from shoal.serve.spiders import Spiders
from shoal.sinks.urls import SinkUrl
from shoal.store import open_store
from shoal.store.base import Store
from shoal.text.secrets import masked

# The time limit of a read: people wait for the answer.
ANSWER_SECONDS = 2.0

Part = TypeVar("Part", bound=Closable)


class Connection(Generic[Part]):
    """A connection to one server or file. `problem` is why the last use failed; empty: it succeeded."""

    def __init__(self, what: str, opening: Callable[[], Awaitable[Part]]) -> None:
        self._what = what
        self._opening = opening
        self._part: Part | None = None
        self._lock = asyncio.Lock()
        self.problem = ""

    @asynccontextmanager
    async def using(self, *, seconds: float | None = ANSWER_SECONDS) -> AsyncIterator[Part]:
        """The part, opened if needed, for calls that together take at most `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                yield await self.opened()
        except TimeoutError:
            self.problem = f"{self._what} gives no answer within {seconds:g} s"
            raise ServerUnreachable(self.problem) from None
        except StorageBroken as error:
            self.problem = str(error)
            await self.close()
            raise
        except (ServerUnreachable, StorageError, OSError) as error:
            self.problem = str(error)
            raise
        else:
            self.problem = ""

    async def opened(self) -> Part:
        """The part, for callers with a time limit of their own."""
        async with self._lock:
            if self._part is None:
                self._part = await self._opening()
            return self._part

    async def probe(self, look: Callable[[Part], Awaitable[object]]) -> str:
        """Use it once; returns the problem, empty if there is none."""
        try:
            async with self.using() as part:
                await look(part)
        except (ShoalError, OSError) as error:
            self.problem = str(error)
        return self.problem

    async def close(self) -> None:
        """Close it. The next use opens it again."""
        part, self._part = self._part, None
        if part is not None:
            await part.close()


@dataclass(kw_only=True)
class Parts:
    """The parts of one serving process. `schedules` are those of shoal.toml; None: this process starts no runs of
    schedules at all. `stopping` is set when the process ends, which ends event streams. `sinks` have their
    passwords."""

    places: Places
    frontier: Connection[Frontier]
    inbox: Connection[Inbox]
    access: Access
    spiders: Spiders
    board: Board = field(default_factory=Board)
    surveyor: Surveyor = field(default_factory=Surveyor)
    alerts: AlertConfig | None = None
    schedules: Mapping[str, Schedule] | None = None
    feeds_sinks: bool = False
    marks_gone: bool = False
    sinks: Sequence[SinkUrl] = ()
    stopping: asyncio.Event = field(default_factory=asyncio.Event)
    stores: dict[str, Connection[Store]] = field(default_factory=dict)
    archives: dict[str, Connection[Archive]] = field(default_factory=dict)

    def store_of(self, crawl: Crawl) -> Connection[Store]:
        """The store of a crawl: the store of this process, else the crawl's own."""
        try:
            return self._store(existing_store(crawl, self.places))
        except UsageError as error:
            raise Refusal(409, str(error)) from None

    def archive_of(self, crawl: Crawl) -> Connection[Archive]:
        """The archive of a crawl. UsageError: it has none."""
        url = archive_to_read(crawl, self.places)
        if url is None:
            raise UsageError(f"{crawl.id} keeps no raw pages: run it with --archive")
        if url not in self.archives:
            self.archives[url] = Connection(f"the archive {masked(url)}", lambda: open_archive(url))
        return self.archives[url]

    async def probe(self) -> list[str]:
        """Check the frontier and the stores; returns a line for each problem."""
        await asyncio.gather(self.frontier.probe(_look_at_frontier), self.probe_stores())
        return self.problems()

    async def probe_stores(self) -> None:
        """Check the store of this process and all stores that were used before."""
        if self._is_store_there():
            self._store(self.places.store)
        await asyncio.gather(*(store.probe(_look_at_store) for store in self.stores.values()))

    def problems(self) -> list[str]:
        """The problems of the last uses, a line each."""
        lines = [self.frontier.problem, *(store.problem for store in self.stores.values())]
        return [line for line in lines if line]

    async def close(self) -> None:
        """Close everything that was opened."""
        self.stopping.set()
        await self.frontier.close()
        await self.inbox.close()
        for store in self.stores.values():
            await store.close()
        for archive in self.archives.values():
            await archive.close()

    def _store(self, url: str) -> Connection[Store]:
        if url not in self.stores:
            self.stores[url] = Connection(f"the store {masked(url)}", lambda: open_store(url, create=False))
        return self.stores[url]

    def _is_store_there(self) -> bool:
        """Whether this process has a store that exists: a file that no crawl has created yet is not created here."""
        if not self.places.store:
            return False
        path = path_of(self.places.store)
        return path is None or Path(path).exists()


async def _look_at_frontier(frontier: Frontier) -> object:
    return await frontier.workers(within=0.0)


async def _look_at_store(store: Store) -> object:
    return await store.count_by_crawl("")


def parts_at(
    places: Places,
    *,
    access: Access,
    spiders: Path | None = None,
    alerts: AlertConfig | None = None,
    schedules: Mapping[str, Schedule] | None = None,
) -> Parts:
    """The parts at these places. Nothing is opened yet."""
    frontier = Connection(f"the frontier {masked(places.frontier)}", _opening(places.frontier))
    folder = Spiders(spiders, places)
    _check_spiders(schedules or {}, folder)
    return Parts(
        places=places,
        frontier=frontier,
        inbox=Connection(f"the inboxes of {masked(places.frontier)}", partial(_inbox, places)),
        access=access,
        spiders=folder,
        alerts=alerts,
        schedules=schedules,
    )


async def _inbox(places: Places) -> Inbox:
    return inbox_beside(places)


def _check_spiders(schedules: Mapping[str, Schedule], folder: Spiders) -> None:
    """UsageError for schedules of spiders that may not be started here: known now instead of at the first run."""
    for schedule in schedules.values():
        try:
            folder.reference(schedule.spider)
        except UsageError as error:
            raise UsageError(f"[[schedules]] {schedule.name!r}: {error}") from None


def _opening(url: str) -> Callable[[], Awaitable[Frontier]]:
    """Opens the frontier. A file is created at first; one that was open and is gone is not replaced by a new one."""
    path, was_open = file_of(url), False

    async def opening() -> Frontier:
        nonlocal was_open
        if was_open and path is not None and not os.path.exists(path):  # noqa: ASYNC240 -- a local file
            raise StorageError(f"{path} is gone: put it back, or restart `shoal serve` for a new one")
        frontier = await open_frontier(url)
        was_open = True
        return frontier

    return opening
