"""What the app is built from."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from shoal.archive import open_archive
from shoal.archive.base import Archive
from shoal.crawl.inbox import Inbox
from shoal.crawl.joining import archive_to_read, existing_store
from shoal.crawl.opening import Places
from shoal.crawl.places import path_of
from shoal.duties.alerts.config import AlertConfig
from shoal.duties.schedules.config import Schedule
from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.model import Crawl
from shoal.serve.access import Access
from shoal.serve.answers import Refusal
from shoal.serve.board import Board
from shoal.serve.reach import Reached
from shoal.serve.starting import Spiders
from shoal.serve.surveyor import Surveyor
from shoal.sinks.urls import SinkUrl
from shoal.store import open_store
from shoal.store.base import Store
from shoal.text.secrets import masked


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
