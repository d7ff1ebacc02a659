"""Seeds a crawl, takes back what the gone have left, and watches. Never scrapes."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import time
from collections.abc import Callable

from shoal.frontier.base import Frontier
from shoal.intake import Intake
from shoal.model import Crawl, Progress
from shoal.patience import patiently
from shoal.sources import feed, requests_of
from shoal.spider import Spider, Stdin
from shoal.stats import Meter, Snapshot
from shoal.store.base import Store

WATCH_SECONDS = 0.4
LANES_SHOWN = 50
A_WEEK = 7 * 86_400.0


class Coordinator:
    """Looks after one crawl. `show` gets a snapshot every moment, `say` a line now and then."""

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

    async def take_back_from_the_gone(self) -> None:
        """Leases of this machine's workers whose process no longer runs need not wait for their deadline."""
        host = socket.gethostname()
        for worker in await self.frontier.workers(within=A_WEEK):
            if worker.host == host and worker.crawl == self.crawl.id and not _is_running(worker.pid):
                await self.frontier.evict(worker.worker)

    async def feed(self, spider: Spider, *, intake: Intake) -> None:
        """Put what the spider starts from. What a killed coordinator left half fed is fed again from the start."""
        settings_limit = intake.settings.max_pending
        if not (isinstance(spider.start, Stdin) and sys.stdin.isatty()):
            await feed(
                self.frontier,
                self.crawl.id,
                requests_of(spider),
                intake=intake,
                max_pending=settings_limit,
                say=self.say,
            )
        await patiently(lambda: self.frontier.set_feeding(self.crawl.id, feeding=False), say=self.say)

    async def watch(self) -> None:
        """Show how it goes until cancelled."""
        while True:
            self._show(await self.look())
            await asyncio.sleep(WATCH_SECONDS)

    async def look(self) -> Snapshot:
        """One reading."""
        progress = await self.progress()
        lanes = await patiently(lambda: self.frontier.lanes(self.crawl.id, limit=LANES_SHOWN), say=self.say)
        workers = await patiently(lambda: self.frontier.workers(within=10.0), say=self.say)
        mine = [worker for worker in workers if worker.crawl == self.crawl.id]
        return self._meter.read(self.crawl, progress, lanes=lanes, workers=mine, now=time.monotonic())

    async def progress(self) -> Progress:
        """The crawl's counters."""
        return await patiently(lambda: self.frontier.progress(self.crawl.id), say=self.say)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
