"""Feeds a crawl its start, reclaims the leases of exited workers, and watches. Never scrapes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

from shoal.fetch.robots import Robots
from shoal.frontier.base import Frontier
from shoal.journey.intake import Intake
from shoal.model import Crawl, CrawlState, LaneStatus, Progress, WorkerBeat
from shoal.processes.bounds import Look, bound_of, is_repaced, paced_lane
from shoal.processes.crawl_record import record_of
from shoal.processes.crew import SILENT_SECONDS, is_at_work
from shoal.processes.feeder import Feeder
from shoal.processes.machine import is_running, this_machine
from shoal.processes.outages import is_outage, until_reachable
from shoal.processes.stats import Meter, Silence, Snapshot
from shoal.spider import Spider
from shoal.store.base import Store

WATCH_SECONDS = 0.4
LANES_SHOWN = 50
A_WEEK = 7 * 86_400.0
TIDY_SECONDS = 3600.0


class Coordinator:
    """Looks after one crawl. `show` gets a snapshot every 0.4 s, `say` gets messages for people.

    `waiting` gives what was waited for lately, as far as it was said here."""

    def __init__(
        self,
        crawl: Crawl,
        *,
        frontier: Frontier,
        show: Callable[[Snapshot], None],
        say: Callable[[str], None],
        waiting: Callable[[], str] = str,
    ) -> None:
        self.crawl = crawl
        self.frontier = frontier
        self.say = say
        self.feeder = Feeder(crawl.id, frontier=frontier, say=say)
        self._show = show
        self._meter = Meter()
        self._has_said_spent = False
        self._waiting = waiting
        self._silence = Silence()
        self._troubles: dict[str, None] = {}
        self._rules: dict[tuple[str, float], tuple[int, float | None]] = {}

    async def reclaim_from_exited_workers(self) -> None:
        """Reclaim the leases of this machine's workers whose process has exited, before their deadline."""
        here = this_machine()
        workers = await until_reachable(lambda: self.frontier.workers(within=A_WEEK), say=self.say)
        for worker in workers:
            if worker.machine == here and worker.crawl == self.crawl.id and not is_running(worker.pid):
                await until_reachable(partial(self.frontier.evict, worker.worker), say=self.say)

    async def feed(self, spider: Spider, *, intake: Intake) -> None:
        """Put the spider's start. If a coordinator was killed while feeding, the next one feeds from the beginning."""
        await self.feeder.begin()
        await self.feeder.feed(spider, intake=intake)

    async def watch(self) -> None:
        """Show snapshots until cancelled."""
        while True:
            self._show(await self.look())
            await asyncio.sleep(WATCH_SECONDS)

    async def tidy(self, store: Store, *, retention: float) -> None:
        """Drop old lines of the fetch log, at once and then every hour, until cancelled."""
        while retention > 0:
            await until_reachable(lambda: store.tidy(retention=retention), say=self.say)
            await asyncio.sleep(TIDY_SECONDS)

    async def look(self, *, lanes: int = LANES_SHOWN) -> Snapshot:
        """One snapshot, with the lanes in which most tasks wait."""
        progress = await self.progress()
        self._say_if_spent(progress)
        busy = await until_reachable(lambda: self.frontier.lanes(self.crawl.id, limit=lanes), say=self.say)
        workers = await until_reachable(lambda: self.frontier.workers(within=SILENT_SECONDS), say=self.say)
        mine = [worker for worker in workers if worker.crawl == self.crawl.id and is_at_work(worker)]
        self._say_troubles(mine)
        now = time.monotonic()
        version, delay = await self._rules_of_bound_lane(busy)
        look = Look(
            crawl=self.crawl,
            progress=progress,
            lanes=busy,
            workers=mine,
            rules_version=version,
            crawl_delay=delay,
            quiet_seconds=self._silence.read(mine, now=now),
            waiting=self._waiting(),
        )
        return self._meter.read(self.crawl, progress, lanes=busy, workers=mine, now=now, bound=bound_of(look))

    async def _rules_of_bound_lane(self, lanes: Sequence[LaneStatus]) -> tuple[int, float | None]:
        """The version of the rules of the lane that bounds the crawl, and their Crawl-delay, if it is to be explained
        why that lane has not the pace that was asked for. Read once for every pace."""
        lane = paced_lane(lanes, self.crawl)
        if lane is None or not is_repaced(lane, self.crawl):
            return 0, None
        about = (lane.lane, lane.base_interval)
        if about not in self._rules:
            version, rules = await until_reachable(lambda: self.frontier.rules(self.crawl.id, lane.lane), say=self.say)
            agent = record_of(self.crawl).settings.user_agent if version else ""
            self._rules = {about: (version, Robots(rules, agent).crawl_delay if version else None)}
        return self._rules[about]

    def _say_troubles(self, workers: Sequence[WorkerBeat]) -> None:
        """Say the troubles that workers newly report. Outages are said by those who wait."""
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
        """The crawl's counters. Once `stop` is set, a frontier that cannot be reached is not waited for."""
        return await until_reachable(lambda: self.frontier.progress(self.crawl.id), say=self.say, stop=stop)
