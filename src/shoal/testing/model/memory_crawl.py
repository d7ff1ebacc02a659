"""One crawl of the in-memory model: everything is counted when asked for, nothing is cached."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from shoal.frontier.rules.constants import (
    GENERATIONS_PER_TTL,
    KEPT_GENERATIONS,
    LEARNT_SECONDS,
    LONGEST_WHY,
    MAX_GIVEN_UP,
    MAX_KINDS,
    MAX_PRIORITY,
    MAX_SAMPLES,
    SAME_INTERVAL,
    SHORT_REST,
    STAYER,
    SUSPECT_LOSSES,
)
from shoal.frontier.rules.crawl_time import is_noted, ran_since, reckon, was_away
from shoal.frontier.rules.exits import no_exit_reason
from shoal.frontier.rules.hosts import effective_weight
from shoal.frontier.rules.keys import keys_dropped, not_finished
from shoal.frontier.rules.tasks import (
    DROPPED,
    KNOWN_KEYS,
    MAX_PAGES,
    MAX_PER_HOST,
    MAX_PER_SHAPE,
    TOO_MANY_KINDS,
    WORKER_LOST,
    lost_detail,
    outcome_of,
)
from shoal.model import (
    DIRECT,
    DUPLICATE,
    HTTP,
    STAGE,
    VIA,
    Crawl,
    CrawlState,
    DeadFilter,
    ExitUse,
    LaneUpdate,
    Task,
    TaskState,
)
from shoal.testing.model.memory_exits import ModelPools
from shoal.testing.model.memory_history import ModelHistory


@dataclass(eq=False)
class ModelLane:
    """Where the tasks of one host wait."""

    name: str
    age: int
    next_start: float
    interval: float
    base_interval: float
    cap: int
    last_start: float = 0.0
    blocked_until: float = 0.0
    known: int = 0
    opener: int = 0
    rules: bytes = b""
    rules_until: float = 0.0
    rules_version: int = 0
    why: str = ""
    pace_why: str = ""
    rules_delay: float = 0.0
    rules_why: str = ""
    learnt: float = 0.0
    learnt_until: float = 0.0
    turn: float = 0.0
    wants_until: float = 0.0
    heeded_until: float = 0.0

    @property
    def has_pool(self) -> bool:
        return VIA in self.name

    def start(self, at: float, now: float, *, interval: float | None = None) -> None:
        """A request starts. `interval`: the longest of all crawls; the lane's own if it is not given."""
        interval = self.interval if interval is None else interval
        # In a lane without an interval, a start that its exit delays must not delay requests through other exits.
        self.last_start = at if interval else min(at, max(now, self.next_start))
        self.next_start = max(self.last_start + interval, self.blocked_until)

    def reserved_start(self, missed: float, now: float) -> float:
        """When a request may start that has missed a slot, or that had none."""
        is_latest = missed > 0 and abs(now - missed - self.last_start) < self.interval / 2
        return max(now, self.blocked_until if is_latest else self.next_start)

    def follow(self, old: tuple[float, int], new: tuple[float, int], now: float) -> None:
        """The interval and cap of the crawl or the pool changed; the lane changes what it had from there."""
        if self.cap == old[1]:
            self.cap = new[1]
        if self.base_interval == old[0] != new[0]:
            if self.interval == self.base_interval:
                self.interval = new[0]
            self.base_interval = new[0]
            self._move(self.last_start + new[0], now)

    def stay_within(self, fastest: float) -> None:
        """Searches may make it no faster than this now; 0: there are none any more."""
        least = min(fastest or self.base_interval, self.base_interval)
        if self.interval < least:
            self.interval, self.next_start = least, max(self.next_start, self.last_start + least)

    def _move(self, start: float, now: float) -> None:
        """Start at another time, but not in the past; a lane that is due already keeps its place in the queue."""
        self.next_start = max(start, self.blocked_until, min(self.next_start, now))

    def update(self, update: LaneUpdate, now: float) -> None:
        blocked_until, interval = self.blocked_until, self.interval
        self._change(update, now)
        rests = self.blocked_until > now and self.blocked_until > blocked_until
        is_searched = interval != self.interval < self.base_interval
        is_other = update.base_interval is None and (self.interval > interval or is_searched)
        if rests or (is_other and blocked_until <= now):
            self.why = update.why[:LONGEST_WHY]
        if update.base_interval is not None:
            self.pace_why = update.why[:LONGEST_WHY]

    def _change(self, update: LaneUpdate, now: float) -> None:
        of_former_wave = update.started is not None and update.started < self.blocked_until
        if update.interval is not None and self._takes(update, update.interval, of_former_wave=of_former_wave):
            self.interval = update.interval
            self._move(self.last_start + self.interval, now)
            if update.started is not None:
                self.blocked_until = max(self.blocked_until, now)
        if update.base_interval is not None:
            self.base_interval = update.base_interval
        if update.cap is not None:
            self.cap = update.cap
        if update.rest_seconds is not None and (update.rest_seconds > SHORT_REST or not of_former_wave):
            self.blocked_until = max(self.blocked_until, now + update.rest_seconds)
            self.next_start = max(self.next_start, self.blocked_until)
        if update.rules is not None:
            self.rules = update.rules
            self.rules_until = now + update.rules_seconds
            self.rules_version += 1
            self.rules_delay = update.base_interval or 0.0
            self.rules_why = update.why[:LONGEST_WHY] if update.base_interval else ""
        if update.learnt is not None:
            self.learnt, self.learnt_until = update.learnt, now + LEARNT_SECONDS

    def _takes(self, update: LaneUpdate, interval: float, *, of_former_wave: bool) -> bool:
        """Whether the update's interval counts: it has no guard, or the lane's interval is the one it saw, or it is the
        first refusal of a wave."""
        if update.if_interval is None:
            return True
        if update.started is None:
            return abs(update.if_interval - self.interval) <= SAME_INTERVAL
        return interval > self.interval and not of_former_wave


@dataclass(eq=False)
class ModelTask:
    """A task that is not done."""

    task: Task
    lane: ModelLane
    age: int
    state: TaskState = TaskState.QUEUED
    at: float = 0.0
    token: int = 0
    has_landed: bool = False
    attempts: int = 0
    free_retries: int = 0
    losses: int = 0
    worker: str = ""
    exit: str = DIRECT
    reason: str = ""
    detail: str = ""

    @property
    def is_suspect(self) -> bool:
        return self.losses >= SUSPECT_LOSSES

    @property
    def waits_for_visit(self) -> bool:
        """A task that was lent before and has all its attempts: it was visited, and is again."""
        is_fresh = not self.attempts and not self.free_retries
        return self.state == TaskState.DELAYED and self.token > 0 and is_fresh

    @property
    def order(self) -> tuple[int, int]:
        return -max(-MAX_PRIORITY, min(self.task.priority, MAX_PRIORITY)), self.age

    def matches(self, which: DeadFilter) -> bool:
        return (
            which.lane in (None, self.lane.name)
            and self.reason.startswith(which.reason or "")
            and (which.since is None or self.at >= which.since)
            and which.key in (None, self.task.key)
            and (which.until is None or self.at <= which.until)
        )


@dataclass(eq=False)
class ModelCrawl:
    """A crawl with its tasks. The frontier sets `now` at the beginning of every verb.

    `lane_ages` counts the lanes of all crawls in the order in which they were made. `learnt_of` gives the interval that
    searches of other crawls have learnt of a host."""

    crawl: Crawl
    age: int
    epoch: int
    now: float
    lane_ages: Iterator[int]
    wall: float = 0.0
    expected: float | None = None
    clock_last: float = 0.0
    clock_shift: float = 0.0
    next_shift: float = 0.0
    ran: float = 0.0
    state: CrawlState = CrawlState.RUNNING
    feeding: bool = False
    feeders: dict[str, float] = field(default_factory=dict)
    finished: float | None = None
    tasks: dict[int, ModelTask] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    lanes: dict[str, ModelLane] = field(default_factory=dict)
    shapes: Counter[tuple[str, int]] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    notes: Counter[str] = field(default_factory=Counter)
    reason: str = ""
    samples: dict[str, list[str]] = field(default_factory=dict)
    done: int = 0
    duplicates: int = 0
    stale: int = 0
    retried: int = 0
    lost: int = 0
    last_age: int = 0
    last_token: int = 0
    pools: ModelPools = field(default_factory=ModelPools)
    ended: dict[int, int] = field(default_factory=dict)
    generation: int = 0
    generation_began: float = 0.0
    history: ModelHistory = field(default_factory=ModelHistory)
    kinds: set[str] = field(default_factory=lambda: {HTTP})
    learnt_of: Callable[[str], float | None] = lambda _: None

    def set_time(self, wall: float, *, expected: float | None) -> None:
        """A verb begins: the crawl's own time never goes back, nor further ahead than a caller can know."""
        self.wall, self.expected = wall, expected
        self.now, self.next_shift = reckon(wall, last=self.clock_last, shift=self.clock_shift, expected=expected)

    def note_presence(self, seconds: float) -> bool:
        """A worker is there. Leases that ended while nobody could ask last once more."""
        last, ends = self.clock_last, self.now + seconds
        if was_away(self.now, last=last, expected=self.expected, seconds=seconds):
            for task in self.in_state(TaskState.LEASED):
                task.at = ends if last < task.at <= ends else task.at
        if not is_noted(self.now, last=last):
            return False
        if self.state == CrawlState.RUNNING:
            self.ran += ran_since(self.now, last=last)
        self.clock_last = self.now
        return True

    @property
    def generations_due(self) -> int:
        """Generations of ended keys that should have begun after the current one."""
        if not self.crawl.dedup_ttl:
            return 0
        age, length = self.now - self.generation_began, self.crawl.dedup_ttl / GENERATIONS_PER_TTL
        return max(0, math.floor(age / length))

    def expire_keys(self) -> None:
        """Begin the generations that are due; the keys of old ones are forgotten."""
        due, length = self.generations_due, self.crawl.dedup_ttl / GENERATIONS_PER_TTL
        if due:
            self._begin_generations(due, at=self.generation_began + due * length)

    def change_ttl(self, seconds: float) -> None:
        """Only in a crawl that has one. A generation that is too old for a shorter one ends here."""
        if self.crawl.dedup_ttl and seconds and seconds != self.crawl.dedup_ttl:
            self.expire_keys()
            self.crawl = msgspec.structs.replace(self.crawl, dedup_ttl=seconds)
            if self.generations_due:
                self._begin_generations(1, at=self.now)

    def retire(self, key: int) -> None:
        """The task with this key has ended."""
        del self.tasks[key]
        self.done += 1
        if self.crawl.dedup_ttl:
            self.ended[key] = self.generation

    def forget(self, key: int) -> None:
        self.seen.discard(key)
        self.ended.pop(key, None)

    def drop_keys(self) -> None:
        """Forget the keys of a finished crawl, for good."""
        if self.crawl.keys == "known" and self.state != CrawlState.FINISHED:
            raise not_finished(self.crawl.id, self.state)
        self.crawl = msgspec.structs.replace(self.crawl, keys="dropped")
        self.seen.clear()
        self.ended.clear()

    def check_keys(self) -> None:
        """Refuse a change that needs the keys, if they were dropped."""
        if self.crawl.keys != "known":
            raise keys_dropped(self.crawl.id)

    def know(self, key: int) -> bool:
        """The key is known without a task; gives whether it is new."""
        if self.knows(key):
            return False
        self.seen.add(key)
        if self.crawl.dedup_ttl:
            self.ended[key] = self.generation
        self.notes[KNOWN_KEYS] += 1
        return True

    def knows(self, key: int) -> bool:
        oldest = self.generation + self.generations_due - KEPT_GENERATIONS + 1
        return key in self.seen and self.ended.get(key, oldest) >= oldest

    def _begin_generations(self, count: int, *, at: float) -> None:
        self.generation += count
        self.generation_began = at
        self.epoch += 1
        for key in [key for key in self.ended if not self.knows(key)]:
            self.forget(key)

    def count(self, state: TaskState) -> int:
        return sum(task.state == state for task in self.tasks.values())

    @property
    def left(self) -> int:
        return sum(self.count(state) for state in (TaskState.QUEUED, TaskState.DELAYED, TaskState.LEASED))

    def in_state(self, state: TaskState) -> list[ModelTask]:
        """Tasks in this state, earliest `at` first."""
        found = [task for task in self.tasks.values() if task.state == state]
        return sorted(found, key=lambda task: (task.at, task.age))

    def waiting(self, lane: ModelLane, kinds: Collection[str] | None = None) -> list[ModelTask]:
        """A lane's queued tasks, of these kinds or all, in the order in which they are lent."""
        found = [task for task in self.tasks.values() if task.lane is lane and task.state == TaskState.QUEUED]
        ours = [task for task in found if kinds is None or task.task.kind in kinds]
        return sorted(ours, key=lambda task: task.order)

    def has_waiting(self, lane: ModelLane, kinds: Collection[str] | None = None) -> bool:
        return any(
            task.lane is lane and task.state == TaskState.QUEUED and (kinds is None or task.task.kind in kinds)
            for task in self.tasks.values()
        )

    def in_flight(self, lane: ModelLane) -> int:
        return sum(
            task.lane is lane and task.state == TaskState.LEASED and not task.has_landed for task in self.tasks.values()
        )

    def reject(self, counts: Mapping[str, int], samples: Iterable[tuple[str, str]]) -> None:
        self.duplicates += counts.get(DUPLICATE, 0)
        self.rejected.update({reason: count for reason, count in counts.items() if reason != DUPLICATE})
        for reason, url in samples:
            kept = self.samples.setdefault(reason, [])
            if len(kept) < MAX_SAMPLES and url not in kept:
                kept.append(url)

    def wait(self, task: ModelTask, delay: float = 0.0) -> None:
        """The task waits, in its lane's queue or until its delay is over."""
        if self.state == CrawlState.CANCELLED:
            state = TaskState.CANCELLED
        else:
            state = TaskState.DELAYED if delay > 0 else TaskState.QUEUED
        if state == TaskState.QUEUED and not self.has_waiting(task.lane):
            task.lane.next_start = max(task.lane.next_start, self.now)
        task.state = state
        task.at = self.now + delay if delay > 0 else 0.0

    def hasten(self, key: int) -> None:
        """The next visit of the task with this key, if it waits for one, is due now."""
        task = self.tasks.get(key)
        if task is not None and task.waits_for_visit:
            task.at = min(task.at, self.now)

    @property
    def weight(self) -> float:
        """By which it shares hosts with other crawls."""
        return effective_weight(self.crawl.weight, self.crawl.priority)

    def starts_in(self, lane: ModelLane) -> float:
        """When the lane may start, by a clock that all crawls share."""
        return self.next_start(lane) - self.clock_shift

    def next_start(self, lane: ModelLane) -> float:
        """When the lane may start, as far as its pace and its exits go."""
        return max(lane.next_start, self.pools.ready_at(lane.name)) if lane.has_pool else lane.next_start

    def give_up(self, lane: ModelLane, kinds: Collection[str]) -> None:
        """The lane's exits rested for too long: give up its tasks of these kinds, a bounded number at a time."""
        exists = self.pools.pool_of(lane.name) is not None
        for task in self.waiting(lane, kinds)[:MAX_GIVEN_UP]:
            self.bury(task, no_exit_reason(lane.name, is_known=exists))
        if exists and not self.has_waiting(lane):
            self.pools.of(lane.name).starved_since = self.now
        self.pools.changed.add(lane.name)

    def end_lease(self, task: ModelTask, use: ExitUse | None = None) -> None:
        """The lease is over, with any result or none."""
        lane = task.lane
        if lane.has_pool:
            self.pools.end(lane.name, task.exit, use, self.now, task.token)
        if lane.opener == task.token:
            lane.opener = 0
            lane.start(max(lane.last_start, self.now), self.now)
        task.worker = ""

    def bury(self, task: ModelTask, reason: str, detail: str = "") -> None:
        task.state, task.at, task.reason, task.detail = TaskState.DEAD, self.wall, reason, detail
        task.losses = 0
        self.outcomes[outcome_of(reason)] += 1

    def release(self, task: ModelTask) -> None:
        """The lease is over without a result: it is as if the task had not been lent."""
        task.attempts, task.reason = task.attempts - 1, ""
        self.wait(task)

    def lose(self, task: ModelTask, *, suspects: Sequence[int] = (), cause: str | None = None) -> None:
        """The lease expired, or its worker is gone with a cause, which may be ""."""
        worker, was_alone = task.worker, task.is_suspect
        self.end_lease(task)
        self.lost += 1
        reason = f"{WORKER_LOST}: {cause}" if cause else WORKER_LOST
        is_charged = was_alone and (not suspects or task.token in suspects)
        if is_charged and task.attempts >= task.task.max_attempts:
            self.bury(task, reason, lost_detail(worker, has_exited=cause is not None))
            return
        if is_charged or not was_alone:
            task.losses += 1
        if not is_charged:
            task.attempts -= 1
        if task.token in suspects:
            task.losses = max(task.losses, SUSPECT_LOSSES)
        task.reason, task.detail = reason, ""
        self.wait(task)

    def drop(self, task: ModelTask) -> None:
        """A dead letter counts as done from now on."""
        self.retire(task.task.key)
        self.outcomes[outcome_of(task.reason)] -= 1
        self.outcomes[DROPPED] += 1

    def is_apart(self, lane: ModelLane) -> bool:
        """Whether the lane shares its host with no other crawl."""
        return self.crawl.pace_scope == "crawl" or STAGE in lane.name

    @property
    def is_fed(self) -> bool:
        return self.feeding and any(until > self.now for until in self.feeders.values() or [math.inf])

    @property
    def is_kept_open(self) -> bool:
        return any(until > self.now and name.startswith(STAYER) for name, until in self.feeders.items())

    def set_feeding(self, feeder: str, seconds: float, *, makes_up: float | None) -> None:
        lost = self.now + makes_up if makes_up is not None else -math.inf
        self.feeders = {
            name: until
            for name, until in self.feeders.items()
            if until > (self.now if name.startswith(STAYER) else lost)
        }
        self.feeders.pop(feeder, None)
        if seconds > 0:
            self.feeders[feeder] = self.now + seconds
            self.revive()
        self.feeding = any(until > self.now for until in self.feeders.values())

    def revive(self) -> None:
        if self.state == CrawlState.FINISHED:
            self.state, self.finished = CrawlState.RUNNING, None
            self.begin_to_run()

    def begin_to_run(self) -> None:
        """The time before is none of its own, unless leases are out."""
        if not self.in_state(TaskState.LEASED):
            self.clock_last = self.now

    def refusal(self, task: Task) -> str:
        """The budget that refuses the task; empty: none."""
        budgets, lane = self.crawl.budgets, self.lanes.get(task.lane)
        if task.kind not in self.kinds and len(self.kinds) >= MAX_KINDS:
            return TOO_MANY_KINDS
        if budgets.pages and len(self.tasks) + self.done >= budgets.pages:
            return MAX_PAGES
        if budgets.per_lane and lane and lane.known >= budgets.per_lane:
            return MAX_PER_HOST
        if budgets.per_shape and task.shape and self.shapes[task.lane, task.shape] >= budgets.per_shape:
            return MAX_PER_SHAPE
        return ""
