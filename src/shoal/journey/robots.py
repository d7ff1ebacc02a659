"""robots.txt in a worker: fetched once per lane for all workers, within the lane's pace, and kept on the lane."""

from __future__ import annotations

import asyncio
import time
from functools import partial

from shoal.exits.passage import Passage
from shoal.exits.troubles import Shortage
from shoal.fetch.base import Fetcher
from shoal.fetch.robots import LONGEST_REST, UNAVAILABLE, Robots, RulesVerdict, fetch_rules
from shoal.frontier.base import Frontier
from shoal.frontier.clock import wait_for_slot
from shoal.model import VIA, LaneUpdate, Lease, Released, Retry
from shoal.policy.politeness import lent_interval
from shoal.settings.table import Settings
from shoal.urls.canonical import lane_of, origin_of

LANES_KEPT = 2000
BYTES_KEPT = 64 * 1024 * 1024
LONGEST_SLOT_WAIT = 30.0
LONGEST_CRAWL_DELAY = 300.0
MOST_FAILURES = 4
CLOSED_SECONDS = 3600.0


class LaneRules:
    """The robots.txt rules of a worker's lanes, each parsed once."""

    def __init__(self, *, frontier: Frontier, settings: Settings) -> None:
        self._frontier = frontier
        self._settings = settings
        self._parsed: dict[str, tuple[int, Robots]] = {}
        self._weight = 0

    def cached(self, lane: str) -> Robots | None:
        """The rules of a lane, if this worker has parsed them; no I/O."""
        entry = self._parsed.get(lane)
        return entry[1] if entry else None

    def at_hand(self, lease: Lease) -> Robots | None:
        """The lease's version of the rules, if this worker has parsed it; no I/O."""
        entry = self._parsed.get(lease.task.lane)
        return entry[1] if entry is not None and entry[0] == lease.rules_version else None

    async def of(self, lease: Lease) -> Robots | None:
        """The lease's version of the rules; None: it has expired since."""
        return self.at_hand(lease) or await self._read(lease.crawl, lease.task.lane)

    async def of_lane(self, crawl: str, lane: str) -> Robots | None:
        """The rules of any lane; None: it has no valid ones."""
        return self.cached(lane) or await self._read(crawl, lane)

    async def open(self, lease: Lease, passage: Passage) -> Released | Retry | Shortage:
        """Fetch robots.txt with the start slot of this lease; the result carries the rules to the lane.

        If the host does not answer, the task is retried for free; after MOST_FAILURES the lane is closed for
        CLOSED_SECONDS, so that its tasks end. A Shortage of this machine does not count."""
        found = await self._ask(lease, passage.fetcher, failures=passage.robots_failures)
        return found if isinstance(found, Shortage) else passage.after_robots(found)

    async def wait_for_slot(self, lease: Lease, url: str) -> bool:
        """Wait for a start slot for a further request of the lease; False: none within LONGEST_SLOT_WAIT."""
        _, via, pool = lease.task.lane.partition(VIA)
        return await self._take_slot(lease, f"{lane_of(url)}{via}{pool}") <= LONGEST_SLOT_WAIT

    async def _ask(self, lease: Lease, fetcher: Fetcher, *, failures: int) -> Released | Retry | Shortage:
        async def reserve(url: str) -> RulesVerdict | None:
            # Nothing else starts on a lane that is being opened: waiting for its interval is enough.
            host, via, pool = lease.task.lane.partition(VIA)
            if lane_of(url) == host:
                await asyncio.sleep(max(lease.interval, lease.exit_interval))
                return None
            return await self._elsewhere(lease, url, f"{lane_of(url)}{via}{pool}")

        verdict = await fetch_rules(
            origin_of(lease.task.url), fetcher=fetcher, settings=self._settings, reserve=reserve, failures=failures
        )
        if verdict.shortage:
            return Shortage(verdict.shortage)
        rest = verdict.rest_seconds
        if rest is not None and failures < MOST_FAILURES:
            update = LaneUpdate(rest_seconds=rest, why=_unread(verdict.problem))
            return Retry(lease=lease, reason=verdict.problem, delay=rest, free=True, lane=update)
        if rest is not None:
            closed = LaneUpdate(rules=UNAVAILABLE, rules_seconds=CLOSED_SECONDS)
            return Released(lease=lease, lane=closed)
        delay = verdict.crawl_delay
        slower = delay is not None and lent_interval(delay) > lease.interval
        pace = lent_interval(min(delay, LONGEST_CRAWL_DELAY)) if delay is not None and slower else None
        why = f"robots.txt has Crawl-delay {delay:g} s" if pace is not None else ""
        update = LaneUpdate(
            rules=verdict.rules, rules_seconds=verdict.seconds, interval=pace, base_interval=pace, why=why
        )
        return Released(lease=lease, lane=update)

    async def _elsewhere(self, lease: Lease, url: str, lane: str) -> RulesVerdict | None:
        """Wait for a slot of the host that robots.txt redirects to; or return that host's known rules."""
        if url == f"{origin_of(url)}/robots.txt":
            _, rules = await self._frontier.rules(lease.crawl, lane)
            if rules and rules != UNAVAILABLE:
                delay = Robots(rules, self._settings.user_agent).crawl_delay
                return RulesVerdict(rules=rules, seconds=self._settings.robots_seconds, crawl_delay=delay)
        wait = await self._take_slot(lease, lane)
        if wait > LONGEST_SLOT_WAIT:
            # Otherwise many hosts that redirect to one slow host would occupy every slot of the worker.
            return RulesVerdict(rest_seconds=min(wait, LONGEST_REST), problem="robots.txt: redirects to a busy host")
        return None

    async def _take_slot(self, lease: Lease, lane: str) -> float:
        """Reserve the next start slot of a lane; wait for it, unless it is too late. Returns the seconds until it."""
        reserve = partial(self._frontier.reserve, lease.crawl, lane, exit=lease.exit)
        wait = await reserve()
        if wait <= LONGEST_SLOT_WAIT:
            # The interval of another host's lane is not known here: the lease's own is used.
            interval = max(lease.interval, lease.exit_interval)
            await wait_for_slot(time.monotonic() + wait, interval=interval, reserve=reserve)
        return wait

    async def _read(self, crawl: str, lane: str) -> Robots | None:
        version, blob = await self._frontier.rules(crawl, lane)
        if not version:
            return None
        robots = Robots(blob, self._settings.user_agent)
        self._remember(lane, (version, robots))
        return robots

    def _remember(self, lane: str, entry: tuple[int, Robots]) -> None:
        former = self._parsed.pop(lane, None)
        self._weight += entry[1].weight - (former[1].weight if former else 0)
        self._parsed[lane] = entry
        # Also limited by size: each of a domain's thousand hosts may have long rules.
        while len(self._parsed) > LANES_KEPT or (self._weight > BYTES_KEPT and len(self._parsed) > 1):
            self._weight -= self._parsed.pop(next(iter(self._parsed)))[1].weight


def _unread(problem: str) -> str:
    """Why the lane rests: only the kind of the problem, as its text may contain a URL."""
    kind = problem.removeprefix("robots.txt: ").partition(": ")[0].removeprefix("http_")
    return f"robots.txt could not be read ({kind})"
