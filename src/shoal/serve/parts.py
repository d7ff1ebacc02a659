"""What the app is built from.

The frontier and the stores of `serve`: opened when they are first needed, and again after they were lost.

The parts of a serving process, from the places that were named.
"""

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
from shoal.serve.answers import Refusal
from shoal.serve.board import Board, Surveyor
from shoal.serve.gate import Access
from shoal.serve.starting import Spiders
from shoal.sinks.urls import SinkUrl
from shoal.store import open_store
from shoal.store.base import Store
from shoal.text.secrets import masked

# So long is an answer waited for; people who look want to be told soon.
ANSWER_SECONDS = 2.0

Part = TypeVar("Part", bound=Closable)


class Reached(Generic[Part]):
    """One server or file. `problem` is why it could not be used when it was last asked; empty: it answered."""

    def __init__(self, what: str, opening: Callable[[], Awaitable[Part]]) -> None:
        self._what = what
        self._opening = opening
        self._part: Part | None = None
        self._lock = asyncio.Lock()
        self.problem = ""

    @asynccontextmanager
    async def asking(self, *, seconds: float | None = ANSWER_SECONDS) -> AsyncIterator[Part]:
        """The part, for a few calls that together take no longer than `seconds`."""
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
        """The part itself, for callers that have a time limit of their own."""
        async with self._lock:
            if self._part is None:
                self._part = await self._opening()
            return self._part

    async def probe(self, look: Callable[[Part], Awaitable[object]]) -> str:
        """The problem after one look; empty: it answers."""
        try:
            async with self.asking() as part:
                await look(part)
        except (ShoalError, OSError) as error:
            self.problem = str(error)
        return self.problem

    async def close(self) -> None:
        """Close it. It is opened again when it is asked for."""
        part, self._part = self._part, None
        if part is not None:
            await part.close()


@dataclass(kw_only=True)
class Parts:
    """The parts of one serving process. `schedules` are those of shoal.toml; None: this process starts no runs of
    schedules, also of those that were made over HTTP. `stopping` is set when the process ends: streams end with it.
    `sinks` are given with their passwords."""

    places: Places
    frontier: Reached[Frontier]
    inbox: Reached[Inbox]
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
    stores: dict[str, Reached[Store]] = field(default_factory=dict)
    archives: dict[str, Reached[Archive]] = field(default_factory=dict)

    def store_of(self, crawl: Crawl) -> Reached[Store]:
        """The store of a crawl: the one that was named, else its own."""
        try:
            return self._store(existing_store(crawl, self.places))
        except UsageError as error:
            raise Refusal(409, str(error)) from None

    def archive_of(self, crawl: Crawl) -> Reached[Archive]:
        """The archive of a crawl. Refuses a crawl that has none."""
        url = archive_to_read(crawl, self.places)
        if url is None:
            raise UsageError(f"{crawl.id} keeps no raw pages: run it with --archive")
        if url not in self.archives:
            self.archives[url] = Reached(f"the archive {masked(url)}", lambda: open_archive(url))
        return self.archives[url]

    async def probe(self) -> list[str]:
        """What cannot be reached now, a line each."""
        await asyncio.gather(self.frontier.probe(_look_at_frontier), self.probe_stores())
        return self.problems()

    async def probe_stores(self) -> None:
        """Find out which stores answer: the one that was named, and those that were asked for before."""
        if self._is_store_there():
            self._store(self.places.store)
        await asyncio.gather(*(store.probe(_look_at_store) for store in self.stores.values()))

    def problems(self) -> list[str]:
        """What could not be reached when it was last asked, a line each."""
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

    def _store(self, url: str) -> Reached[Store]:
        if url not in self.stores:
            self.stores[url] = Reached(f"the store {masked(url)}", lambda: open_store(url, create=False))
        return self.stores[url]

    def _is_store_there(self) -> bool:
        """Whether a store was named that can be looked at: a file that no crawl has made yet is not created."""
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
    """The parts for these places. Nothing is opened yet."""
    frontier = Reached(f"the frontier {masked(places.frontier)}", _opening(places.frontier))
    folder = Spiders(spiders, places)
    _check_spiders(schedules or {}, folder)
    return Parts(
        places=places,
        frontier=frontier,
        inbox=Reached(f"the inboxes of {masked(places.frontier)}", partial(_inbox, places)),
        access=access,
        spiders=folder,
        alerts=alerts,
        schedules=schedules,
    )


async def _inbox(places: Places) -> Inbox:
    return inbox_beside(places)


def _check_spiders(schedules: Mapping[str, Schedule], folder: Spiders) -> None:
    """Refuse schedules of spiders that may not be started here: they would fail when nobody looks."""
    for schedule in schedules.values():
        try:
            folder.reference(schedule.spider)
        except UsageError as error:
            raise UsageError(f"[[schedules]] {schedule.name!r}: {error}") from None


def _opening(url: str) -> Callable[[], Awaitable[Frontier]]:
    """What opens the frontier. A file is made at first; one that was there and is gone is not replaced by a new one."""
    path, was_open = file_of(url), False

    async def opening() -> Frontier:
        nonlocal was_open
        if was_open and path is not None and not os.path.exists(path):  # noqa: ASYNC240 -- a look at a local file
            raise StorageError(f"{path} is gone: put it back, or restart `shoal serve` for a new one")
        frontier = await open_frontier(url)
        was_open = True
        return frontier

    return opening
