"""Lending in the in-memory model: which lanes may start, and how many tasks each one lends."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from shoal.frontier.rules.constants import (
    FAR_SECONDS,
    LOOK_AGAIN_SECONDS,
    MAX_ASK_AGAIN,
    MAX_BROUGHT_BACK,
    MAX_LOOKS,
    MAX_RECLAIMED,
    MAX_WOKEN,
    MIN_ASK_AGAIN,
    TOKENS_PER_MILLISECOND,
)
from shoal.frontier.rules.hosts import Limits, turn_owed, turns_left, wants
from shoal.frontier.rules.tasks import reached
from shoal.model import DIRECT, STAGE, CrawlState, Lease, TaskState
from shoal.testing.model.memory_crawl import ModelCrawl, ModelLane, ModelTask
from shoal.testing.model.memory_exits import ModelUse
from shoal.testing.model.memory_hosts import is_held_back, only_one_per_host


class Terms(NamedTuple):
    """The terms on which a worker asks for leases."""

    worker: str
    seconds: float
    horizon: float
    kinds: Collection[str]


def reclaim_and_wake(one: ModelCrawl) -> None:
    for task in [task for task in one.in_state(TaskState.LEASED) if task.at <= one.now][:MAX_RECLAIMED]:
        one.lose(task)
    for task in [task for task in one.in_state(TaskState.DELAYED) if task.at <= one.now][:MAX_WOKEN]:
        one.wait(task)
    one.pools.refresh(one.now)


def bring_back(one: ModelCrawl) -> None:
    """Lanes whose next start lies too far ahead get a possible one."""
    far = [lane for lane in _free_lanes(one) if one.next_start(lane) > one.now + FAR_SECONDS]
    for lane in sorted(far, key=one.next_start, reverse=True)[:MAX_BROUGHT_BACK]:
        latest = max(one.now, lane.blocked_until) + FAR_SECONDS
        latest += (one.in_flight(lane) + 1) * max(lane.interval, lane.base_interval)
        if not lane.has_pool and lane.next_start > latest:
            lane.last_start = min(lane.last_start, one.now)
            lane.next_start = max(one.now, lane.last_start + lane.interval, lane.blocked_until)


def ready_lanes(one: ModelCrawl, kinds: Collection[str]) -> list[ModelLane]:
    """Lanes that could lend a task of these kinds, now or later."""
    return _free_lanes(one, kinds) if one.state == CrawlState.RUNNING else []


def _free_lanes(one: ModelCrawl, kinds: Collection[str] | None = None) -> list[ModelLane]:
    """Lanes that have waiting tasks and places for them. Those of a paused crawl keep their starts up to date too."""
    return [
        lane
        for lane in one.lanes.values()
        if one.has_waiting(lane, kinds) and one.in_flight(lane) < lane.cap and not lane.opener
    ]


def _needs_opening(one: ModelCrawl, lane: ModelLane) -> bool:
    return one.crawl.needs_rules and lane.rules_until <= one.now and STAGE not in lane.name


def pause_if_spent(one: ModelCrawl) -> None:
    budget = one.crawl.budgets.cost
    if one.state == CrawlState.RUNNING and budget and one.pools.cost >= budget and one.left:
        one.state = CrawlState.PAUSED


def stop_if_reached(one: ModelCrawl) -> None:
    limit = reached(one.crawl.limits, note=one.notes.__getitem__, ran=one.ran, wall=one.wall)
    if limit is not None and one.state == CrawlState.RUNNING and (one.left or one.is_kept_open):
        one.state, one.reason, one.finished = CrawlState.STOPPED, limit.why, one.wall


class Grant(NamedTuple):
    """What a lane may do in this call, after what other crawls leave it."""

    one: ModelCrawl
    lane: ModelLane
    limits: Limits
    turns: int

    def room(self, terms: Terms) -> int:
        """How many tasks the lane may start within the horizon."""
        one, lane, limits = self.one, self.lane, self.limits
        if _needs_opening(one, lane):
            return 1
        most = min(len(one.waiting(lane, terms.kinds)), limits.cap - one.in_flight(lane) - limits.in_flight, self.turns)
        count, start = 0, max(one.now, lane.next_start, limits.not_before)
        while count < most and start <= one.now + terms.horizon:
            count, start = count + 1, start + limits.interval
        return count


def choose(
    ours: Sequence[ModelCrawl], limit: int, terms: Terms, *, look: Callable[[ModelCrawl, ModelLane], Limits]
) -> tuple[list[Grant], list[Grant]]:
    """The lanes that may start, longest-waiting first, and those that other crawls hold back. While there are some, the
    next ones are looked at in their place, a few times."""
    held: list[Grant] = []
    for _ in range(MAX_LOOKS):
        grants = _chosen(ours, limit, terms, [grant.lane for grant in held], look)
        back = [
            grant
            for grant in grants
            if not grant.one.is_apart(grant.lane)
            and is_held_back(
                grant.one, grant.lane, grant.limits, turns=grant.turns, latest=grant.one.now + terms.horizon
            )
        ]
        held += back
        if not back:
            break
    return [grant for grant in grants if grant not in held], held


def _chosen(
    ours: Sequence[ModelCrawl],
    limit: int,
    terms: Terms,
    held: Sequence[ModelLane],
    look: Callable[[ModelCrawl, ModelLane], Limits],
) -> list[Grant]:
    able = [(one, lane) for one in ours for lane in ready_lanes(one, terms.kinds) if lane not in held]
    ready = [(one, lane) for one, lane in able if one.next_start(lane) <= one.now + terms.horizon]
    first = sorted(ready, key=lambda entry: (entry[0].starts_in(entry[1]), entry[1].age))[:limit]
    grants = []
    for one, lane in only_one_per_host(first):
        limits = look(one, lane)
        lane.turn = turn_owed(lane.turn, weight=one.weight, limits=limits, horizon=terms.horizon)
        turns = turns_left(lane.turn, weight=one.weight, limits=limits, horizon=terms.horizon, most=len(one.tasks))
        grants.append(Grant(one, lane, limits, turns))
    return grants


def shares(rooms: Sequence[int], limit: int) -> list[int]:
    """One task for each lane in turn that has room for it, until there are no more to share out."""
    shares = [0] * len(rooms)
    for index in itertools.cycle(range(len(rooms))):
        if sum(shares) == min(limit, sum(rooms)):
            break
        shares[index] += shares[index] < rooms[index]
    return shares


def lend(grant: Grant, count: int, terms: Terms, *, is_first: bool) -> list[Lease]:
    """The lane's next tasks up to the first suspect, as far as its exits allow; or a suspect alone."""
    one, lane, limits, _ = grant
    lane.next_start = max(lane.next_start, limits.not_before)
    tasks = one.waiting(lane, terms.kinds)[:count]
    last = next((index for index, task in enumerate(tasks) if task.is_suspect), len(tasks))
    tasks = tasks[:1] if last == 0 and is_first else tasks[:last]
    if not lane.has_pool:
        return [_lend(one, task, terms, limits) for task in tasks]
    if one.pools.gives_up(lane.name, one.now):
        one.give_up(lane, terms.kinds)
        return []
    leases = []
    for task in tasks:
        latest = one.now + terms.horizon
        use = one.pools.pick(lane.name, one.now, latest) if lane.next_start <= latest else None
        if use is None:
            break
        leases.append(_lend(one, task, terms, limits, use))
    if tasks and not leases and one.pools.are_used_elsewhere(lane.name):
        lane.next_start = max(lane.next_start, one.now + LOOK_AGAIN_SECONDS)
    one.pools.changed.add(lane.name)
    return leases


def note_wish(grant: Grant, *, is_served: bool) -> None:
    """Until when the lane wants a start slot and its limits count, after this call."""
    one, lane = grant.one, grant.lane
    if not one.is_apart(lane):
        lane.wants_until, lane.heeded_until = wants(
            len(one.waiting(lane)), lane.next_start, is_served=is_served, now=one.now
        )


def _lend(one: ModelCrawl, task: ModelTask, terms: Terms, limits: Limits, use: ModelUse | None = None) -> Lease:
    lane, start = task.lane, max(one.now, task.lane.next_start)
    one.last_token = max(one.last_token + 1, int(one.now * 1000) * TOKENS_PER_MILLISECOND)
    task.state, task.at, task.token, task.worker = (
        TaskState.LEASED,
        one.now + terms.seconds,
        one.last_token,
        terms.worker,
    )
    task.attempts += 1
    task.has_landed = False
    task.exit = use.exit if use else DIRECT
    if use:
        start = max(start, use.next_start)
        one.pools.start(lane.name, use, start, one.now, task.token)
    opens_lane = _needs_opening(one, lane)
    if opens_lane:
        lane.opener = task.token
    lane.start(start, one.now, interval=limits.interval)
    if not one.is_apart(lane):
        lane.turn += 1.0 / one.weight
    pool = one.pools.strict_pool(lane.name) if use else None
    return Lease(
        crawl=one.crawl.id,
        task=task.task,
        token=task.token,
        attempt=task.attempts,
        free_retries=task.free_retries,
        exit=task.exit,
        wait=start - one.now,
        interval=lane.interval if opens_lane else limits.interval,
        base_interval=lane.base_interval if opens_lane else limits.base_interval,
        exit_interval=pool.interval if pool else 0.0,
        opens_lane=opens_lane,
        rules_version=lane.rules_version if lane.rules_until > one.now else 0,
        session_version=one.pools.exit(task.exit).session[0] if use else 0,
        alone=task.is_suspect,
    )


def finish(one: ModelCrawl) -> bool:
    if one.state == CrawlState.STOPPED:
        return not one.in_state(TaskState.LEASED)
    if one.left or one.is_fed or one.state == CrawlState.PAUSED:
        return False
    if one.state == CrawlState.RUNNING:
        one.state, one.finished = CrawlState.FINISHED, one.wall
    return True


def ask_again(one: ModelCrawl, kinds: Collection[str]) -> float:
    if one.state != CrawlState.RUNNING:
        return MAX_ASK_AGAIN
    times = [one.next_start(lane) for lane in ready_lanes(one, kinds)]
    times += [task.at for task in one.in_state(TaskState.DELAYED) + one.in_state(TaskState.LEASED)]
    return max(MIN_ASK_AGAIN, min([one.now + MAX_ASK_AGAIN, *times]) - one.now)
