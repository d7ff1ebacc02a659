"""Lending in the in-memory model: which lanes may start, and how much each one lends."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.model import CrawlState, Lease, TaskState
from shoal.testing.memory_crawl import ModelCrawl, ModelLane, ModelTask

MAX_TAKEN_BACK = 200
MAX_WOKEN = 500


def take_back_and_wake(one: ModelCrawl) -> None:
    for task in [task for task in one.in_state(TaskState.LEASED) if task.at <= one.now][:MAX_TAKEN_BACK]:
        one.lose(task)
    for task in [task for task in one.in_state(TaskState.DELAYED) if task.at <= one.now][:MAX_WOKEN]:
        one.wait(task)


def ready_lanes(one: ModelCrawl) -> list[ModelLane]:
    """Lanes that could lend a task, now or later."""
    if one.state != CrawlState.RUNNING:
        return []
    return [
        lane for lane in one.lanes.values() if one.waiting(lane) and one.in_flight(lane) < lane.cap and not lane.opener
    ]


def _needs_opening(one: ModelCrawl, lane: ModelLane) -> bool:
    return one.crawl.needs_rules and lane.rules_until <= one.now


def room(one: ModelCrawl, lane: ModelLane, horizon: float) -> int:
    """How many tasks the lane may start within the horizon."""
    if _needs_opening(one, lane):
        return 1
    count, start = 0, max(one.now, lane.next_start)
    while count < min(len(one.waiting(lane)), lane.cap - one.in_flight(lane)) and start <= one.now + horizon:
        count, start = count + 1, start + lane.interval
    return count


def shares(rooms: Sequence[int], limit: int) -> list[int]:
    """The same share for each lane, and what is left to those that can take more."""
    shares = [0] * len(rooms)
    while limit and (hungry := [index for index, room in enumerate(rooms) if shares[index] < room]):
        share = max(1, limit // len(hungry))
        for index in hungry:
            more = min(share, rooms[index] - shares[index], limit)
            shares[index] += more
            limit -= more
    return shares


def lend(one: ModelCrawl, task: ModelTask, worker: str, seconds: float) -> Lease:
    lane, start = task.lane, max(one.now, task.lane.next_start)
    one.last_token = max(one.last_token + 1, int(one.now * 1000) * 1024)
    task.state, task.at, task.token, task.worker = TaskState.LEASED, one.now + seconds, one.last_token, worker
    task.attempts += 1
    opens_lane = _needs_opening(one, lane)
    if opens_lane:
        lane.opener = task.token
    lane.start(start)
    return Lease(
        crawl=one.crawl.id,
        task=task.task,
        token=task.token,
        attempt=task.attempts,
        free_retries=task.free_retries,
        wait=start - one.now,
        interval=lane.interval,
        base_interval=lane.base_interval,
        opens_lane=opens_lane,
        rules_version=lane.rules_version if lane.rules_until > one.now else 0,
    )


def finish(one: ModelCrawl) -> bool:
    if one.left or one.feeding or one.state == CrawlState.PAUSED:
        return False
    if one.state == CrawlState.RUNNING:
        one.state, one.finished = CrawlState.FINISHED, one.now
    return True


def ask_again(ours: Sequence[ModelCrawl], now: float) -> float:
    running = [one for one in ours if one.state == CrawlState.RUNNING]
    times = [lane.next_start for one in running for lane in ready_lanes(one)]
    times += [task.at for one in running for task in one.in_state(TaskState.DELAYED) + one.in_state(TaskState.LEASED)]
    return max(0.01, min([now + 1.0, *times]) - now)
