"""Looking at a crawl of the in-memory model: its counters, lanes and tasks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from shoal.frontier.rules.constants import STAYER
from shoal.model import HTTP, CrawlState, Held, LaneStatus, Progress, TaskState, TaskStatus
from shoal.testing.model.memory_crawl import ModelCrawl, ModelLane

HELD = (CrawlState.PAUSED, CrawlState.CANCELLED, CrawlState.STOPPED)


def progress(one: ModelCrawl) -> Progress:
    return Progress(
        state=one.state,
        feeding=one.is_fed,
        queued=one.count(TaskState.QUEUED),
        delayed=one.count(TaskState.DELAYED),
        leased=one.count(TaskState.LEASED),
        done=one.done,
        dead=one.count(TaskState.DEAD),
        cancelled=one.count(TaskState.CANCELLED),
        duplicates=one.duplicates,
        stale=one.stale,
        retried=one.retried,
        lost=one.lost,
        outcomes={name: value for name, value in one.outcomes.items() if value},
        rejected={name: value for name, value in one.rejected.items() if value},
        epoch=one.epoch,
        cost=one.pools.cost,
        notes={name: value for name, value in one.notes.items() if value},
        reason=one.reason if one.state in HELD else "",
        feeders_lost=sum(until <= one.now for name, until in one.feeders.items() if not name.startswith(STAYER)),
        kinds=_kinds(one),
        due_in=min((max(0.0, task.at - one.now) for task in one.in_state(TaskState.DELAYED)), default=0.0),
        ran=one.ran,
    )


def _kinds(one: ModelCrawl) -> dict[str, int]:
    """How many tasks of each kind wait; empty, if there never was another than http."""
    waiting = [task for task in one.tasks.values() if task.state in (TaskState.QUEUED, TaskState.DELAYED)]
    if one.kinds == {HTTP}:
        return {}
    return {kind: sum(task.task.kind == kind for task in waiting) for kind in one.kinds}


def lanes(
    one: ModelCrawl, *, held: Callable[[ModelLane], Held | None], limit: int, skip: int = 0, search: str = ""
) -> list[LaneStatus]:
    found = [
        LaneStatus(
            lane=lane.name,
            waiting=len(one.waiting(lane)),
            in_flight=one.in_flight(lane),
            interval=lane.interval,
            cap=lane.cap,
            starts_in=max(
                0.0, (lane.next_start if math.isinf(one.next_start(lane)) else one.next_start(lane)) - one.now
            ),
            known=lane.known,
            has_rules=lane.rules_until > one.now,
            exits_rest=one.pools.are_starved(lane.name),
            base_interval=lane.base_interval,
            waits_for_exit=max(lane.next_start, one.now) < one.next_start(lane) < math.inf,
            rests_for=max(0.0, lane.blocked_until - one.now),
            why=lane.why if lane.blocked_until > one.now or lane.interval != lane.base_interval else "",
            pace_why=lane.pace_why,
            held=held(lane) if one.waiting(lane) else None,
        )
        for lane in one.lanes.values()
    ]
    busy = [lane for lane in found if (lane.waiting or lane.in_flight) and search in lane.lane]
    return sorted(busy, key=lambda lane: (-lane.waiting, -lane.in_flight))[skip : skip + limit]


def look_up(one: ModelCrawl, key: int) -> TaskStatus:
    task = one.tasks.get(key)
    if task is None:
        return TaskStatus(state=TaskState.DONE if one.knows(key) else TaskState.UNKNOWN)
    timed = task.state in (TaskState.DELAYED, TaskState.LEASED)
    return TaskStatus(
        state=task.state,
        task=task.task,
        attempts=task.attempts,
        reason=task.reason,
        detail=task.detail,
        worker=task.worker,
        due_in=max(0.0, task.at - one.now) if timed else 0.0,
        losses=task.losses,
    )


def tasks_of(one: ModelCrawl, url: str, *, lanes: Sequence[str]) -> list[TaskStatus]:
    tasks = [model.task for model in one.tasks.values()]
    return [look_up(one, task.key) for task in tasks if task.url == url and task.lane in lanes]
