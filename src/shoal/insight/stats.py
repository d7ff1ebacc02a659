"""Snapshots of a crawl for people: its rate, the time left, costs and limits; and the kinds of its tasks that workers
do or leave. Pure."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from shoal.errors import UsageError
from shoal.exits.figures import clock_time, money
from shoal.exits.pools import plain_kind, region_of
from shoal.model import BROWSER, HTTP, VIA, Crawl, CrawlState, Heartbeat, LaneStatus, Pool, Progress
from shoal.policy.limits import raised, reached_by
from shoal.policy.politeness import allowed_interval
from shoal.settings.table import Settings
from shoal.spider.spider import Spider, handler_kinds
from shoal.text.errors import several
from shoal.worker.tally import RecentRate

LAST_LANES = 3


def kinds_of(spider: type[Spider], settings: Settings) -> tuple[str, ...]:
    """The kinds that a spider names: of its requests and of its handlers."""
    own = BROWSER if settings.render else settings.kind
    return tuple(dict.fromkeys([own, *handler_kinds(spider).values()]))


def handled_elsewhere(spider: type[Spider], kinds: Iterable[str]) -> dict[str, str]:
    """The handlers that workers of other kinds run, with their kinds."""
    return {name: kind for name, kind in handler_kinds(spider).items() if kind not in kinds}


def check_stages(spider: type[Spider], settings: Settings, kinds: Collection[str], *, has_archive: bool) -> None:
    """UsageError for some kinds of a spider without an archive: pages pass from one kind to the next through it."""
    named = kinds_of(spider, settings)
    if len(named) > 1 and not has_archive and kinds and not {*named} <= {*kinds}:
        name, kind = next(iter(handler_kinds(spider).items()))
        raise UsageError(
            f"the handler {name} runs in workers of the kind {kind}, which get its pages from the archive:"
            f" give --archive, or do all kinds here with --kinds {','.join(named)}"
        )


class KindShown(NamedTuple):
    """A kind of a crawl's tasks: how many wait, and how many workers do them."""

    kind: str
    waiting: int
    workers: int


def kinds_shown(progress: Progress, workers: Iterable[Heartbeat]) -> list[KindShown]:
    """The kinds of a crawl that has several, oldest first."""
    return _shown(progress.kinds, list(workers))


def unserved(progress: Progress, workers: Iterable[Heartbeat]) -> list[KindShown]:
    """The kinds of a running crawl whose tasks wait and that no worker does."""
    if progress.state is not CrawlState.RUNNING:
        return []
    # A crawl with one kind may have only workers of another kind.
    kinds = progress.kinds or {HTTP: progress.queued + progress.delayed}
    return [one for one in _shown(kinds, list(workers)) if one.waiting and not one.workers]


def _shown(kinds: Mapping[str, int], workers: Sequence[Heartbeat]) -> list[KindShown]:
    return [KindShown(kind, waiting, sum(kind in beat.kinds for beat in workers)) for kind, waiting in kinds.items()]


def unserved_line(kinds: Sequence[KindShown], crawl: Crawl, workers: Iterable[Heartbeat] = ()) -> str:
    """The line that no worker does these kinds, with the command that starts one. `workers` are at work."""
    spider = crawl.settings.get("spider") or "FILE"
    if regional := [one for one in kinds if region_of(one.kind)]:
        offered = dict.fromkeys(region_of(kind) for worker in workers for kind in worker.kinds if region_of(kind))
        return _unoffered_line(regional, spider, offered=sorted(offered))
    waiting = sum(one.waiting for one in kinds)
    names = " and ".join(one.kind for one in kinds)
    verb, which = ("waits", "that kind") if waiting == 1 else ("wait", "such tasks")
    started = f"shoal worker {spider} --kinds {','.join(one.kind for one in kinds)}"
    return f"{several(waiting, 'task')} of the kind {names} {verb}, and no worker does {which}: `{started}` does"


def _unoffered_line(kinds: Sequence[KindShown], spider: str, *, offered: Sequence[str]) -> str:
    """The line that no worker offers exits of these regions, or that workers with such exits do not do the kind.
    `offered`: the regions with exits."""
    waiting = sum(one.waiting for one in kinds)
    regions = " and ".join(dict.fromkeys(region_of(one.kind) for one in kinds))
    others = ",".join(dict.fromkeys(plain_kind(one.kind) for one in kinds if plain_kind(one.kind) != HTTP))
    started = f"shoal worker {spider} --exits FILE{f' --kinds {others}' if others else ''}"
    verb = "waits" if waiting == 1 else "wait"
    who = f"no worker of the kind {others.replace(',', ' or ')}" if others else "no worker"
    is_there = any(region_of(one.kind) in offered for one in kinds)
    only = f", only in {', '.join(offered)}" if offered and not is_there else ""
    return (
        f"{several(waiting, 'task')} {verb} for the region {regions}, and {who} offers an exit there{only}: `{started}`"
        f" does, where FILE has an exit of that region"
    )


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A crawl at one moment. `rate` is tasks ended per second, over the last minute at most.

    `last_lanes` are the lanes that finish last at their pace, slowest first."""

    crawl: Crawl
    progress: Progress
    lanes: Sequence[LaneStatus] = ()
    workers: Sequence[Heartbeat] = ()
    elapsed: float = 0.0
    rate: float = 0.0
    eta_seconds: float | None = None
    last_lanes: Sequence[LaneStatus] = ()
    bound: str = ""

    @property
    def slowest_lane(self) -> str:
        """The lane that finishes last at its pace."""
        return self.last_lanes[0].lane if self.last_lanes else ""


class Silence:
    """How long no worker has sent a heartbeat, by this process's clock."""

    def __init__(self) -> None:
        self._latest = 0.0
        self._since: float | None = None

    def read(self, workers: Sequence[Heartbeat], *, now: float) -> float:
        """Take in one reading."""
        latest = max((worker.seen for worker in workers), default=0.0)
        if latest != self._latest or self._since is None:
            self._latest, self._since = latest, now
        return now - self._since


class Meter:
    """Turns successive readings into snapshots."""

    def __init__(self) -> None:
        self._rate = RecentRate()
        self._began: float | None = None

    def read(
        self,
        crawl: Crawl,
        progress: Progress,
        *,
        lanes: Sequence[LaneStatus],
        workers: Sequence[Heartbeat],
        now: float,
        bound: str = "",
    ) -> Snapshot:
        """Take in one reading. `bound` is what limits the crawl (see `bound_of`)."""
        began = self._began = now if self._began is None else self._began
        is_first = not self._rate
        rate = self._rate.read(now, progress.ended)
        if is_first:
            rate = sum((worker.pages_per_second for worker in workers), 0.0)
        last = sorted((with_exits(lane, crawl) for lane in lanes), key=seconds_left, reverse=True)[:LAST_LANES]
        polite = seconds_left(last[0]) if last else 0.0
        # Tasks that no worker does wait for as long as that is so.
        nobody_does_some = bool(workers) and bool(unserved(progress, workers))
        return Snapshot(
            crawl=crawl,
            progress=progress,
            lanes=lanes,
            workers=workers,
            elapsed=now - began,
            rate=rate,
            eta_seconds=None if nobody_does_some else eta(progress, rate, polite),
            last_lanes=last,
            bound=bound,
        )


def eta(progress: Progress, rate: float, polite_seconds: float) -> float | None:
    """Seconds until all tasks known now are done: as the hosts' pace demands, or at this rate if that takes longer."""
    if progress.left == 0:
        return 0.0
    if rate <= 0:
        return polite_seconds or None
    return max(polite_seconds, progress.left / rate)


def exits_back(lane: LaneStatus) -> str:
    """The time from which an exit of the lane may be used again; empty if one may be used now."""
    if not lane.exits_rest or not lane.waiting or lane.starts_in <= 0:
        return ""
    return clock_time(time.time() + lane.starts_in)


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


def stopping_limit(crawl: Crawl, progress: Progress) -> str:
    """The limit that would stop the crawl at once, and what to do; empty: none."""
    limit = reached_by(crawl, progress, now=time.time())
    if limit is None:
        return ""
    changes = " ".join(f"--set {name}={value!r}" for name, value in raised(crawl, progress).items())
    return f"{limit.why}; run it again{f' with {changes}' if changes else ''}"


def raised_budget(crawl: Crawl) -> float:
    """A budget with which a crawl can go on after it has spent its own."""
    return 2 * crawl.budgets.cost


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


def pool_of(lane: LaneStatus, crawl: Crawl) -> Pool | None:
    """The pool of the lane; None: no pool, or one that no longer exists."""
    _, via, name = lane.lane.partition(VIA)
    return next((pool for pool in crawl.pools if via and pool.name == name), None)


def with_others(lane: LaneStatus) -> LaneStatus:
    """The lane with the interval that remains beside other crawls of the same weight."""
    if lane.held is None:
        return lane
    return msgspec.structs.replace(lane, interval=max(lane.interval, lane.held.interval) * (1 + lane.held.turns))


def with_exits(lane: LaneStatus, crawl: Crawl) -> LaneStatus:
    """The lane with the shortest interval that its exits and other crawls allow."""
    pool, lane = pool_of(lane, crawl), with_others(lane)
    if pool is None or not pool.exits or pool.interval / len(pool.exits) <= lane.interval:
        return lane
    return msgspec.structs.replace(lane, interval=pool.interval / len(pool.exits))


def may_start_in(lane: LaneStatus) -> float:
    """Seconds until the lane may start a task. If all its healthy exits are in use it may when a request ends: 0."""
    is_in_use = lane.waits_for_exit and lane.in_flight > 0 and not lane.exits_rest and lane.rests_for <= 0
    return 0.0 if is_in_use else lane.starts_in


def seconds_left(lane: LaneStatus) -> float:
    """Seconds that the waiting tasks of the lane take at its pace."""
    return lane.waiting * lane.interval + may_start_in(lane) if lane.waiting else 0.0
