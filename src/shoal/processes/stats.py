"""The state of a running crawl for people: its rate, the time left, and what limits it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence

import msgspec

from shoal.exits.figures import clock_time, money
from shoal.model import Crawl, CrawlState, LaneStatus, Progress, WorkerBeat
from shoal.policy.politeness import allowed_interval

WINDOW_SECONDS = 60.0
BOUND_SHARE = 0.7
SLOWED = 1.01
LAST_LANES = 3


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A crawl at one moment. `rate` is tasks ended per second over the last minute at most.

    `last_lanes` finish last at their pace, the slowest first."""

    crawl: Crawl
    progress: Progress
    lanes: Sequence[LaneStatus] = ()
    workers: Sequence[WorkerBeat] = ()
    elapsed: float = 0.0
    rate: float = 0.0
    eta_seconds: float | None = None
    last_lanes: Sequence[LaneStatus] = ()
    bound: str = ""

    @property
    def slowest_lane(self) -> str:
        """The lane that finishes last at its pace."""
        return self.last_lanes[0].lane if self.last_lanes else ""


class RecentRate:
    """The rate at which a count grows: per second, over the last minute at most."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, int]] = deque()

    def __bool__(self) -> bool:
        """Whether anything was read yet."""
        return bool(self._readings)

    def read(self, now: float, count: int) -> float:
        """Take in one reading."""
        self._readings.append((now, count))
        while len(self._readings) > 2 and now - self._readings[0][0] > WINDOW_SECONDS:
            self._readings.popleft()
        then, before = self._readings[0]
        return (count - before) / (now - then) if now > then else 0.0


class Meter:
    """Turns one reading after another into snapshots."""

    def __init__(self) -> None:
        self._rate = RecentRate()
        self._began: float | None = None

    def read(
        self,
        crawl: Crawl,
        progress: Progress,
        *,
        lanes: Sequence[LaneStatus],
        workers: Sequence[WorkerBeat],
        now: float,
    ) -> Snapshot:
        """Take in one reading."""
        began = self._began = now if self._began is None else self._began
        is_first = not self._rate
        rate = self._rate.read(now, progress.done + progress.dead)
        if is_first:
            rate = sum((worker.pages_per_second for worker in workers), 0.0)
        last = sorted(lanes, key=seconds_left, reverse=True)[:LAST_LANES]
        polite = seconds_left(last[0]) if last else 0.0
        return Snapshot(
            crawl=crawl,
            progress=progress,
            lanes=lanes,
            workers=workers,
            elapsed=now - began,
            rate=rate,
            eta_seconds=eta(progress, rate, polite),
            last_lanes=last,
            bound=why_paused(crawl, progress) or bound_of(progress, lanes, workers, interval=crawl.interval),
        )


def eta(progress: Progress, rate: float, polite_seconds: float) -> float | None:
    """Seconds until all tasks known now are done: as the hosts' pace demands, or at this rate if that takes longer."""
    if progress.left == 0:
        return 0.0
    if rate <= 0:
        return polite_seconds or None
    return max(polite_seconds, progress.left / rate)


def bound_of(progress: Progress, lanes: Sequence[LaneStatus], workers: Sequence[WorkerBeat], *, interval: float) -> str:
    """What limits the crawl right now, in one line. `interval` is the pace that was asked for."""
    if progress.state is not CrawlState.RUNNING:
        return str(progress.state)
    if progress.left == 0:
        return "waiting for a source" if progress.feeding else "finished"
    if not workers:
        return "workers: none is at work"
    busy, slots = sum(worker.busy for worker in workers), sum(worker.slots for worker in workers)
    resting = [lane for lane in lanes if lane.waiting and lane.starts_in > max(2.0, 2 * lane.interval)]
    waiting = [lane for lane in lanes if lane.waiting]
    if waiting and len(resting) == len(waiting):
        first = min(resting, key=lambda lane: lane.starts_in)
        return _no_exit(first) or f"every host rests; {first.lane} for {first.starts_in:.0f} s more"
    slow = max(waiting, key=seconds_left, default=None)
    if slow is not None and exits_back(slow):
        return _no_exit(slow)
    if slow is not None and _is_paced(slow):
        pace = f"politeness: {slow.lane} at {describe_interval(slow.interval)}"
        if slow.interval > SLOWED * interval:
            return f"{pace}, slower than asked for: its robots.txt or its answers call for that"
        return f"{pace}; --rate changes it"
    if slots and busy >= BOUND_SHARE * slots:
        return "the answers of the sites, or this machine: --concurrency and --workers change it"
    if progress.delayed and progress.delayed == progress.left:
        return "retries that wait for their time"
    return "the sites' answers"


def exits_back(lane: LaneStatus) -> str:
    """The time from which an exit of the lane may be used again; empty if one may be used now."""
    if not lane.exits_rest or not lane.waiting or lane.starts_in <= 0:
        return ""
    return clock_time(time.time() + lane.starts_in)


def _no_exit(lane: LaneStatus) -> str:
    back = exits_back(lane)
    return back and f"{lane.lane}: every exit is quarantined or parked until {back}"


def cost_so_far(crawl: Crawl, progress: Progress) -> str:
    """What the crawl's exits have cost, with the budget if there is one; empty when nothing costs anything."""
    budget = crawl.budgets.cost
    if not budget:
        return f"cost {money(progress.cost)}" if progress.cost else ""
    return f"cost {money(progress.cost)} of {money(budget)}"


def spent_budget(crawl: Crawl, progress: Progress) -> str:
    """Why the crawl is paused and what to do, if its budget is the reason; else empty."""
    budget = crawl.budgets.cost
    if progress.state is not CrawlState.PAUSED or not budget or progress.cost < budget:
        return ""
    return f"the budget of {money(budget)} is spent; run it again with --set budget={raised_budget(crawl):g}"


def raised_budget(crawl: Crawl) -> float:
    """A budget that lets a crawl go on whose budget is spent."""
    return 2 * crawl.budgets.cost


def why_paused(crawl: Crawl, progress: Progress) -> str:
    """Why the crawl is paused, if that is known; else empty."""
    return spent_budget(crawl, progress) or (progress.reason if progress.state is CrawlState.PAUSED else "")


def describe_interval(interval: float) -> str:
    """A lane's interval as the rate people write: 4/s."""
    if interval <= 0:
        return "unlimited"
    interval = allowed_interval(interval)
    if interval <= 1:
        return f"{1 / interval:.3g}/s"
    if interval <= 60:
        return f"{60 / interval:.3g}/m"
    return f"{3600 / interval:.3g}/h"


def _is_paced(lane: LaneStatus) -> bool:
    """Whether the lane waits for its interval. A lane at its cap of requests in flight is due already."""
    return lane.interval > 0 and lane.starts_in > 0


def seconds_left(lane: LaneStatus) -> float:
    """How many seconds the tasks that wait in the lane take at its pace."""
    return lane.waiting * lane.interval + lane.starts_in if lane.waiting else 0.0
