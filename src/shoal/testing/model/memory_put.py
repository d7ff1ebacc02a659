"""Putting tasks into the in-memory model: each is a duplicate, refused, or accepted into its lane."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.frontier.rules.constants import STAGE_CAP
from shoal.frontier.rules.lanes import first_pace
from shoal.frontier.rules.tasks import MERGED
from shoal.model import STAGE, PutReport, Task, TaskState
from shoal.testing.model.memory_crawl import ModelCrawl, ModelLane, ModelTask


def admit(
    one: ModelCrawl, tasks: Sequence[Task], *, reasons: Sequence[str] | None = None
) -> tuple[PutReport, list[int]]:
    """Take in the tasks that are new; with reasons, as dead letters. Gives the indexes of those that are known, too."""
    new, known = 0, []
    refused: dict[int, str] = {}
    for index, task in enumerate(tasks):
        if one.knows(task.key):
            known.append(index)
            if task.hastens:
                one.hasten(task.key)
            if task.merged:
                one.reject({MERGED: 1}, [(MERGED, task.url)])
        elif reason := one.refusal(task):
            refused[task.key] = reason
            one.reject({reason: 1}, [(reason, task.url)])
        else:
            new += 1
            _accept(one, task, buried=reasons[index] if reasons else None)
    one.duplicates += len(known)
    return PutReport(new=new, duplicates=len(known), refused=refused), known


def _accept(one: ModelCrawl, task: Task, *, buried: str | None) -> None:
    lane = lane_of(one, task.lane)
    lane.known += 1
    one.shapes[task.lane, task.shape] += 1
    one.kinds.add(task.kind)
    one.last_age += 1
    entry = ModelTask(task, lane, one.last_age, state=TaskState.UNKNOWN)
    if buried is None:
        one.revive()
        one.wait(entry, task.delay)
    else:
        one.bury(entry, buried)
    one.tasks[task.key] = entry
    one.seen.add(task.key)


def lane_of(one: ModelCrawl, name: str) -> ModelLane:
    """The lane of this name, made when it is asked for first."""
    if name not in one.lanes:
        pool = one.pools.pool_of(name)
        interval, cap = first_pace(one.crawl.interval, one.crawl.cap, pool)
        if STAGE in name:
            interval, cap = 0.0, STAGE_CAP
        lane = ModelLane(name, next(one.lane_ages), one.now, interval, interval, cap)
        learnt = one.learnt_of(name) if one.crawl.fastest and STAGE not in name else None
        if learnt is not None:
            lane.interval = max(learnt, one.crawl.fastest)
        one.lanes[name] = lane
    return one.lanes[name]
