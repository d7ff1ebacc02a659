"""Changes of a crawl by a command or over HTTP: state, priority, dead letters, the pace of a host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from shoal.crawl.record import with_priority
from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.insight.bounds import PACE_CHANGED
from shoal.insight.stats import spent_budget, stopping_limit
from shoal.model import STAGE, VIA, Crawl, CrawlState, DeadFilter, LaneUpdate, Progress
from shoal.policy.politeness import lent_interval
from shoal.settings.values import parse_rate
from shoal.urls.canonical import canonical, lane_of

STEP = 500
_VERBS = {CrawlState.PAUSED: "pause", CrawlState.RUNNING: "resume", CrawlState.CANCELLED: "cancel"}


def check_change(crawl: Crawl, progress: Progress, state: CrawlState) -> None:
    """Refuse a state that this crawl cannot change to."""
    if progress.state is CrawlState.FINISHED:
        raise UsageError(f"{crawl.id} is finished: there is nothing to {_VERBS[state]}")
    if state is CrawlState.RUNNING and (spent := spent_budget(crawl, progress)):
        raise UsageError(f"{crawl.id}: {spent}")
    if state is CrawlState.RUNNING and (limit := stopping_limit(crawl, progress)):
        raise UsageError(f"{crawl.id}: {limit}")
    if state is CrawlState.PAUSED and progress.state is CrawlState.STOPPED:
        raise UsageError(f"{crawl.id} is stopped: there is nothing to pause")


def lane_given(host: str) -> str:
    """The lane of a host, a host:port, or a URL; with " via POOL" the lane via that pool, with " stage KIND" the lane
    of fetched pages that wait for workers of this kind."""
    host, mark, name = host.partition(STAGE if STAGE in host else VIA)
    try:
        return lane_of(canonical(host if "://" in host else f"https://{host}/")) + mark + name
    except UsageError:
        raise UsageError(f"{host!r} is no host: write it as example.com or example.com:8080") from None


def check_pool(lane: str, crawl: Crawl) -> None:
    """Refuse a lane via a pool that the crawl does not have."""
    _, via, pool = lane.partition(VIA)
    names = [known.name for known in crawl.pools]
    if via and pool not in names:
        raise UsageError(f"{crawl.id} has no pool {pool!r}, only {', '.join(names) or 'direct requests'}")


async def clear_dead(
    crawl: Crawl,
    which: DeadFilter,
    verb: Literal["requeue", "drop"],
    *,
    frontier: Frontier,
    told: Callable[[int], None] | None = None,
) -> int:
    """Requeue or drop the matching dead letters, in steps. Returns how many; `told` gets the number so far."""
    # At most as many as there are now: requeued tasks may die again meanwhile, without end.
    left = (await frontier.progress(crawl.id)).dead
    clear, total = frontier.requeue_dead if verb == "requeue" else frontier.drop_dead, 0
    while left > 0 and (number := await clear(crawl.id, which, limit=min(STEP, left))):
        total, left = total + number, left - number
        if told is not None:
            told(total)
    return total


async def set_priority(crawl: Crawl, priority: int, *, frontier: Frontier) -> int:
    """Set the priority of a crawl, from the next lease on. Returns the former one."""
    if not crawl.settings:
        raise UsageError(f"{crawl.id} was begun by a program that keeps no settings with it: it has no priority")
    await frontier.open_crawl(with_priority(crawl, priority))
    return crawl.priority


async def set_pace(crawl: Crawl, lane: str, rate: str, *, frontier: Frontier) -> float:
    """Set the pace of a lane, from the next request on. Returns its interval."""
    check_pool(lane, crawl)
    interval = lent_interval(parse_rate(rate))
    update = LaneUpdate(interval=interval, base_interval=interval, why=PACE_CHANGED)
    await frontier.update_lane(crawl.id, lane, update)
    return interval
