"""Reads snapshots of one crawl: its counts, its rate, what bounds it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from shoal.crawl.record import record_of
from shoal.fetch.robots import Robots
from shoal.frontier.base import Frontier
from shoal.insight.bounds import CrawlReading, bound_of, is_repaced, paced_lane
from shoal.insight.stats import Meter, Silence, Snapshot
from shoal.model import Crawl, Heartbeat, LaneStatus
from shoal.worker.workers import SILENT_SECONDS, crawls_beside, is_at_work

LANES_SHOWN = 50

T = TypeVar("T")


class Reach(Protocol):
    """Runs a call of the frontier: at once, or as soon as the frontier can be reached."""

    async def __call__(self, step: Callable[[], Awaitable[T]], /) -> T: ...


async def at_once(step: Callable[[], Awaitable[T]]) -> T:
    """Run the call once; errors are raised."""
    return await step()


class SnapshotReader:
    """Reads one crawl again and again: the rate, and how long its workers are silent, follow from earlier readings.

    `waiting` returns what this process waits for, if anything."""

    def __init__(
        self, crawl: Crawl, *, frontier: Frontier, reach: Reach = at_once, waiting: Callable[[], str] = str
    ) -> None:
        self.crawl = crawl
        self.frontier = frontier
        self._reach = reach
        self._waiting = waiting
        self._meter = Meter()
        self._silence = Silence()
        self._rules: dict[tuple[str, float], tuple[int, float | None]] = {}

    async def look(self, *, lanes: int = LANES_SHOWN, workers: Sequence[Heartbeat] | None = None) -> Snapshot:
        """Read one snapshot, with the lanes in which most tasks wait. `workers`: the workers of all crawls, if the
        caller has just read them. No lanes are read of a crawl with nothing left."""
        crawl = self.crawl
        progress = await self._reach(lambda: self.frontier.progress(crawl.id))
        busy = await self._reach(lambda: self.frontier.lanes(crawl.id, limit=lanes)) if progress.left else []
        if workers is None:
            workers = await self._reach(lambda: self.frontier.workers(within=SILENT_SECONDS))
        mine = [worker for worker in workers if worker.crawl == crawl.id and is_at_work(worker)]
        now = time.monotonic()
        version, delay = await self._rules_of_bound_lane(busy)
        reading = CrawlReading(
            crawl=crawl,
            progress=progress,
            lanes=busy,
            workers=mine,
            rules_version=version,
            crawl_delay=delay,
            quiet_seconds=self._silence.read(mine, now=now),
            waiting=self._waiting(),
            beside=crawls_beside(mine, workers),
        )
        return self._meter.read(crawl, progress, lanes=busy, workers=mine, now=now, bound=bound_of(reading))

    async def _rules_of_bound_lane(self, lanes: Sequence[LaneStatus]) -> tuple[int, float | None]:
        """The version and Crawl-delay of the robots.txt of the lane that bounds the crawl; read once per pace, and only
        if the lane does not have the pace that was asked for."""
        lane = paced_lane(lanes, self.crawl)
        if lane is None or not is_repaced(lane, self.crawl):
            return 0, None
        about = (lane.lane, lane.base_interval)
        if about not in self._rules:
            version, rules = await self._reach(lambda: self.frontier.rules(self.crawl.id, lane.lane))
            agent = record_of(self.crawl).settings.user_agent if version else ""
            self._rules = {about: (version, Robots(rules, agent).crawl_delay if version else None)}
        return self._rules[about]
