"""Changes to a crawl of the in-memory model besides lending: results applied, settings and pools taken over."""

from __future__ import annotations

import msgspec

from shoal.frontier.rules.constants import MAX_KINDS
from shoal.model import (
    REGION,
    STAGE,
    VIA,
    Crawl,
    Dead,
    DeadFilter,
    Done,
    Handed,
    Released,
    Result,
    Retry,
    Task,
    TaskState,
)
from shoal.testing.model.memory_crawl import ModelCrawl, ModelTask
from shoal.testing.model.memory_put import lane_of


def flaw_of(result: Result) -> str:
    """Why a result cannot be applied."""
    if not isinstance(result, Result):
        return f"{type(result).__name__} is not a result"
    try:
        msgspec.msgpack.encode(result)
    except (TypeError, ValueError, OverflowError) as error:
        return str(error)
    return ""


def apply(one: ModelCrawl, task: ModelTask, result: Result) -> None:
    """Apply a result, except for the tasks it found."""
    if result.lane is not None:
        task.lane.update(result.lane, one.now)
    one.end_lease(task, result.exit)
    if not isinstance(result, Released):
        one.notes.update(result.notes)
    match result:
        case Done():
            if result.again is None:
                one.retire(task.task.key)
            else:
                go_on(one, task, result.again, delay=result.again_in)
            one.outcomes[result.outcome] += 1
            one.reject(result.rejected, result.samples)
        case Retry():
            retry(one, task, result)
        case Dead():
            one.bury(task, result.reason, result.detail)
        case Released():
            one.release(task)
        case Handed():
            go_on(one, task, result.task)


def go_on(one: ModelCrawl, task: ModelTask, following: Task, *, delay: float = 0.0) -> None:
    """The task waits as its new self, with all its attempts."""
    one.kinds.add(following.kind)
    task.task, task.lane = following, lane_of(one, following.lane)
    task.attempts = task.free_retries = task.losses = 0
    task.reason = ""
    one.wait(task, delay)


def lacks_room(one: ModelCrawl, result: Result) -> bool:
    """Whether the result would give the crawl too many kinds."""
    following = result.task if isinstance(result, Handed) else result.again if isinstance(result, Done) else None
    return following is not None and following.kind not in one.kinds and len(one.kinds) >= MAX_KINDS


def retry(one: ModelCrawl, task: ModelTask, result: Retry) -> None:
    if not result.free and task.attempts >= task.task.max_attempts:
        one.bury(task, result.reason)
        return
    one.retried += 1
    task.losses = 0
    if result.free:
        task.attempts -= 1
        task.free_retries += 1
    task.reason = result.reason
    one.wait(task, result.delay)


def matching_dead(one: ModelCrawl, which: DeadFilter) -> list[ModelTask]:
    """Matching dead letters, newest first."""
    return [task for task in reversed(one.in_state(TaskState.DEAD)) if task.matches(which)]


def take_over(one: ModelCrawl, crawl: Crawl) -> None:
    now = one.now
    one.change_ttl(crawl.dedup_ttl)
    before = one.crawl
    kept = {
        "spider": before.spider,
        "created": before.created,
        "dedup_ttl": before.dedup_ttl,
        "keys": before.keys,
        "pace_scope": before.pace_scope,
    }
    one.crawl = msgspec.structs.replace(crawl, **kept)
    one.pools.take_over(crawl.pools, now)
    old_pools = {pool.name: pool for pool in before.pools}
    for lane in one.lanes.values():
        if STAGE in lane.name:
            continue
        if not lane.has_pool or VIA + REGION in lane.name:
            lane.follow((before.interval, before.cap), (crawl.interval, crawl.cap), now)
            if crawl.fastest != before.fastest:
                lane.stay_within(crawl.fastest)
        elif (old := old_pools.get(lane.name.partition(VIA)[2])) and (new := one.pools.pool_of(lane.name)):
            lane.follow((old.host_interval, old.host_cap), (new.host_interval, new.host_cap), now)


def described(one: ModelCrawl) -> Crawl:
    return msgspec.structs.replace(one.crawl, state=one.state, feeding=one.feeding, finished=one.finished)
