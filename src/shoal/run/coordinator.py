"""The coordinator of a crawl: feeds its start, reclaims leases of exited workers, shows its state. Never scrapes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

from shoal.crawl.feeder import Feeder
from shoal.duties.gone import GoneMarker
from shoal.duties.history import Historian
from shoal.errors import ShoalError, StorageError
from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import POINT_SECONDS
from shoal.insight.deadline import DeadlineWatch
from shoal.insight.snapshots import LANES_SHOWN, SnapshotReader
from shoal.insight.stats import Snapshot
from shoal.journey.intake import Intake
from shoal.logs import Events
from shoal.model import Crawl, CrawlState, Heartbeat, Progress
from shoal.spider.spider import Spider
from shoal.store.base import Store
from shoal.worker.machine import is_running, this_machine
from shoal.worker.outages import is_outage, until_reachable


class StateChanges:
    """Logs changes of crawls' states: paused, resumed, cancelled, finished."""

    def __init__(self) -> None:
        self._states: dict[str, CrawlState] = {}

    def see(self, crawl: str, state: CrawlState, *, reason: str = "") -> None:
        """Log the state if it has changed since the last call for this crawl."""
        before = self._states.get(crawl)
        self._states[crawl] = state
        if before is not None and before is not state:
            word = "resumed" if state is CrawlState.RUNNING else str(state)
            Events(crawl=crawl).tell(logging.INFO, f"crawl {word}", reason=reason)


WATCH_SECONDS = 0.4
A_WEEK = 7 * 86_400.0
LAST_POINT_SECONDS = 2.0

T = TypeVar("T")


class Coordinator:
    """Coordinates one crawl. `show` gets a snapshot every 0.4 s, `say` gets messages for people. `waiting`: the last
    message about waiting for a server."""

    def __init__(
        self,
        crawl: Crawl,
        *,
        frontier: Frontier,
        show: Callable[[Snapshot], None],
        say: Callable[[str], None],
        waiting: Callable[[], str] = str,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.crawl = crawl
        self.frontier = frontier
        self.say = say
        self.feeder = Feeder(crawl.id, frontier=frontier, say=say)
        self._show = show
        self._clock = clock
        self._historian = Historian(frontier, crawl.id)
        self._looker = SnapshotReader(crawl, frontier=frontier, reach=self._reach, waiting=waiting)
        self._has_said_spent = False
        self._deadline = DeadlineWatch()
        self._states = StateChanges()
        self._troubles: dict[str, None] = {}

    async def reclaim_from_exited_workers(self) -> None:
        """Reclaim the leases of this machine's workers whose process has exited, before their deadline."""
        here = this_machine()
        workers = await until_reachable(lambda: self.frontier.workers(within=A_WEEK), say=self.say)
        for worker in workers:
            if worker.machine == here and worker.crawl == self.crawl.id and not is_running(worker.pid):
                await until_reachable(partial(self.frontier.evict, worker.worker), say=self.say)

    async def feed(self, spider: Spider, *, intake: Intake) -> None:
        """Put the spider's start. If the process is killed, the next coordinator feeds from the beginning."""
        await self.feeder.begin()
        await self.feeder.feed(spider, intake=intake)

    async def watch(self) -> None:
        """Show snapshots until cancelled."""
        while True:
            self._show(await self.snapshot())
            await asyncio.sleep(WATCH_SECONDS)

    async def mark_gone(self, store: Store) -> None:
        """Mark the items that are gone from their pages, repeatedly, until cancelled."""
        marker = GoneMarker(self.crawl, say=self.say, clock=self._clock)
        while marker.every:
            await asyncio.sleep(marker.every)
            await until_reachable(partial(marker.mark, store), say=self.say)

    async def keep_history(self) -> None:
        """Record a point of the crawl's history now and then every 10 s, until cancelled. Ignores a frontier that
        refuses: other parts report that."""
        while True:
            with contextlib.suppress(StorageError):
                await until_reachable(self._historian.keep, say=self.say)
            await asyncio.sleep(POINT_SECONDS)

    async def end_history(self) -> None:
        """Record the last point. Gives up soon: nothing depends on it."""
        with contextlib.suppress(TimeoutError, ShoalError):
            async with asyncio.timeout(LAST_POINT_SECONDS):
                await self._historian.keep()

    async def snapshot(self, *, lanes: int = LANES_SHOWN) -> Snapshot:
        """A snapshot, with the lanes in which most tasks wait."""
        snapshot = await self._looker.look(lanes=lanes)
        self._states.see(self.crawl.id, snapshot.progress.state, reason=snapshot.progress.reason)
        self._say_if_spent(snapshot.progress)
        if late := self._deadline.look(snapshot, now=self._clock()):
            self.say(late)
        self._say_troubles(snapshot.workers)
        return snapshot

    async def _reach(self, step: Callable[[], Awaitable[T]]) -> T:
        return await until_reachable(step, say=self.say)

    def _say_troubles(self, workers: Sequence[Heartbeat]) -> None:
        """Say the new troubles of workers. Not outages: whoever waits says so."""
        found = {line: None for worker in workers for line in worker.troubles if not is_outage(line)}
        for line in found:
            if line not in self._troubles:
                self.say(line)
        self._troubles = found

    def _say_if_spent(self, progress: Progress) -> None:
        budget = self.crawl.budgets.cost
        is_spent = 0 < budget <= progress.cost and progress.state is CrawlState.PAUSED
        if is_spent and not self._has_said_spent:
            self.say(f"the budget of {budget:g} is spent: the crawl is paused; run it again with --set budget=MORE")
        self._has_said_spent = is_spent

    async def progress(self, *, stop: asyncio.Event | None = None) -> Progress:
        """The crawl's counters. Once `stop` is set, does not wait for a frontier that cannot be reached."""
        progress = await until_reachable(lambda: self.frontier.progress(self.crawl.id), say=self.say, stop=stop)
        self._states.see(self.crawl.id, progress.state, reason=progress.reason)
        return progress
