"""Feeds a crawl its start, reclaims the leases of exited workers, and watches. Never scrapes."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable

from shoal.frontier.base import Frontier
from shoal.journey.intake import Intake
from shoal.model import Crawl, CrawlState, Progress
from shoal.processes.machine import is_running, this_machine
from shoal.processes.outages import until_reachable
from shoal.processes.sources import feed, requests_of
from shoal.processes.stats import Meter, Snapshot
from shoal.spider import Spider, Stdin
from shoal.store.base import Store

WATCH_SECONDS = 0.4
LANES_SHOWN = 50
A_WEEK = 7 * 86_400.0
TIDY_SECONDS = 3600.0


class Coordinator:
    """Looks after one crawl. `show` gets a snapshot every 0.4 s, `say` gets messages for people."""

    def __init__(
        self,
        crawl: Crawl,
        *,
        frontier: Frontier,
        store: Store,
        show: Callable[[Snapshot], None],
        say: Callable[[str], None],
    ) -> None:
        self.crawl = crawl
        self.frontier = frontier
        self.store = store
        self.say = say
        self._show = show
        self._meter = Meter()
        self._has_said_spent = False

    async def reclaim_from_exited_workers(self) -> None:
        """Reclaim the leases of this machine's workers whose process has exited, before their deadline."""
        here = this_machine()
        for worker in await self.frontier.workers(within=A_WEEK):
            if worker.machine == here and worker.crawl == self.crawl.id and not is_running(worker.pid):
                await self.frontier.evict(worker.worker)

    async def feed(self, spider: Spider, *, intake: Intake) -> None:
        """Put the spider's start. If a coordinator was killed while feeding, the next one feeds from the beginning."""
        if not (isinstance(spider.start, Stdin) and sys.stdin.isatty()):
            await feed(
                self.frontier,
                self.crawl.id,
                requests_of(spider),
                intake=intake,
                max_pending=intake.settings.max_pending,
                say=self.say,
            )
        await until_reachable(lambda: self.frontier.set_feeding(self.crawl.id, feeding=False), say=self.say)

    async def watch(self) -> None:
        """Show snapshots until cancelled."""
        while True:
            self._show(await self.look())
            await asyncio.sleep(WATCH_SECONDS)

    async def tidy(self, *, retention: float) -> None:
        """Drop old lines of the fetch log, at once and then every hour, until cancelled."""
        while retention > 0:
            await until_reachable(lambda: self.store.tidy(retention=retention), say=self.say)
            await asyncio.sleep(TIDY_SECONDS)

    async def look(self, *, lanes: int = LANES_SHOWN) -> Snapshot:
        """One snapshot, with the lanes in which most tasks wait."""
        progress = await self.progress()
        self._say_if_spent(progress)
        busy = await until_reachable(lambda: self.frontier.lanes(self.crawl.id, limit=lanes), say=self.say)
        workers = await until_reachable(lambda: self.frontier.workers(within=10.0), say=self.say)
        mine = [worker for worker in workers if worker.crawl == self.crawl.id]
        return self._meter.read(self.crawl, progress, lanes=busy, workers=mine, now=time.monotonic())

    def _say_if_spent(self, progress: Progress) -> None:
        budget = self.crawl.budgets.cost
        is_spent = 0 < budget <= progress.cost and progress.state is CrawlState.PAUSED
        if is_spent and not self._has_said_spent:
            self.say(f"the budget of {budget:g} is spent: the crawl is paused; run it again with --set budget=MORE")
        self._has_said_spent = is_spent

    async def progress(self, *, stop: asyncio.Event | None = None) -> Progress:
        """The crawl's counters. Once `stop` is set, a frontier that cannot be reached is not waited for."""
        return await until_reachable(lambda: self.frontier.progress(self.crawl.id), say=self.say, stop=stop)
