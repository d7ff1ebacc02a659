"""The nouns of shoal: what travels between a spider, a worker and a frontier. Imports nothing of ours."""

from __future__ import annotations

import enum
import random
from typing import Any

import msgspec

DIRECT = "direct"
DUPLICATE = "duplicate"  # the reason under which links to known pages are counted


class Task(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """One URL to fetch. Encoded by position: new fields go last, with a default."""

    url: str
    key: int
    lane: str
    handler: str = "parse"
    depth: int = 0
    priority: int = 0
    delay: float = 0.0
    method: str = "GET"
    headers: dict[str, str] | None = None
    body: bytes | None = None
    meta: dict[str, Any] | None = None
    max_attempts: int = 4
    pool: str = DIRECT
    parent: int | None = None
    created: float = 0.0
    hops: int = 0
    shape: int = 0
    merged: bool = False


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """A task lent to one worker. `wait` is how long to hold the start, `token` what fences a late result."""

    crawl: str
    task: Task
    token: int
    attempt: int = 1
    free_retries: int = 0
    exit: str = DIRECT
    wait: float = 0.0
    interval: float = 0.0
    base_interval: float = 0.0
    opens_lane: bool = False
    rules_version: int = 0
    shard: int = 0


class LeaseBatch(msgspec.Struct, frozen=True, kw_only=True):
    """What one lease call gave: the leases, or when to ask again.

    `at` is this process's monotonic time from which the waits count, where the backend knows it better than the
    moment the answer arrived."""

    leases: list[Lease]
    ask_again: float
    epoch: int = 0
    finished: tuple[str, ...] = ()
    at: float | None = None


class LaneUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """What a response does to its lane; applied in the same step as the settle that carries it.

    `if_interval` guards `interval`: many responses that ask for the same slow-down change the pace once.
    `base_interval` is the lane's own pace, to which an adaptive one returns.
    """

    interval: float | None = None
    if_interval: float | None = None
    base_interval: float | None = None
    cap: int | None = None
    rest_seconds: float | None = None
    rules: bytes | None = None
    rules_seconds: float = 0.0


class Done(msgspec.Struct, frozen=True, kw_only=True):
    """The task is finished; the tasks it found appear with it or not at all."""

    lease: Lease
    outcome: str = "ok"
    found: list[Task] = msgspec.field(default_factory=list)
    rejected: dict[str, int] = msgspec.field(default_factory=dict)
    samples: list[tuple[str, str]] = msgspec.field(default_factory=list)
    lane: LaneUpdate | None = None


class Retry(msgspec.Struct, frozen=True, kw_only=True):
    """Try again after `delay` seconds. A free retry gives the attempt back."""

    lease: Lease
    reason: str
    delay: float = 0.0
    free: bool = False
    lane: LaneUpdate | None = None


class Dead(msgspec.Struct, frozen=True, kw_only=True):
    """Give up; the task is kept whole with the reason."""

    lease: Lease
    reason: str
    detail: str = ""
    lane: LaneUpdate | None = None


class Released(msgspec.Struct, frozen=True, kw_only=True):
    """Handed back untouched: at shutdown, or after opening a lane. Uses up no attempt."""

    lease: Lease
    lane: LaneUpdate | None = None


Result = Done | Retry | Dead | Released


class PutReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the tasks of one put. `refused` names the budget that kept each key out."""

    new: int = 0
    duplicates: int = 0
    refused: dict[int, str] = msgspec.field(default_factory=dict)


class SettleReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one settle call: leases that were lost before it, and keys a budget kept out.

    `failed` says, by its place in the call, why a result could not be applied; its lease stands.
    """

    stale: list[Lease] = msgspec.field(default_factory=list)
    refused: dict[int, str] = msgspec.field(default_factory=dict)
    epoch: int = 0
    failed: dict[int, str] = msgspec.field(default_factory=dict)


class CrawlState(enum.StrEnum):
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    CANCELLED = "cancelled"


class Budgets(msgspec.Struct, frozen=True, kw_only=True):
    """How many tasks a crawl accepts: in all, per lane, per path shape. Zero means no limit."""

    pages: int = 0
    per_lane: int = 0
    per_shape: int = 0


class Crawl(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a spider. `interval` and `cap` are the pace a new lane starts with.

    `dedup_ttl` is how many seconds a key stays known when its task has ended; zero: for ever."""

    id: str
    spider: str
    state: CrawlState = CrawlState.RUNNING
    interval: float = 1.0
    cap: int = 8
    needs_rules: bool = False
    budgets: Budgets = msgspec.field(default_factory=Budgets)
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    feeding: bool = False
    created: float = 0.0
    finished: float | None = None
    dedup: str = "exact"
    dedup_ttl: float = 0.0


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """A crawl's counters, read in one step. `outcomes` and `rejected` count by name."""

    state: CrawlState
    feeding: bool = False
    queued: int = 0
    delayed: int = 0
    leased: int = 0
    done: int = 0
    dead: int = 0
    cancelled: int = 0
    duplicates: int = 0
    stale: int = 0
    retried: int = 0
    lost: int = 0
    outcomes: dict[str, int] = msgspec.field(default_factory=dict)
    rejected: dict[str, int] = msgspec.field(default_factory=dict)
    epoch: int = 0

    @property
    def left(self) -> int:
        return self.queued + self.delayed + self.leased

    @property
    def known(self) -> int:
        return self.left + self.done + self.dead + self.cancelled

    @property
    def is_finished(self) -> bool:
        return self.left == 0 and not self.feeding


class LaneStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One lane as people see it. `starts_in` is seconds until it may start a task."""

    lane: str
    waiting: int
    in_flight: int
    interval: float
    cap: int
    starts_in: float = 0.0
    known: int = 0
    has_rules: bool = False


class TaskState(enum.StrEnum):
    UNKNOWN = "unknown"
    QUEUED = "queued"
    DELAYED = "delayed"
    LEASED = "leased"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"


class TaskStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What the frontier knows of one key."""

    state: TaskState
    task: Task | None = None
    attempts: int = 0
    reason: str = ""
    detail: str = ""
    worker: str = ""
    due_in: float = 0.0


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A task that was given up, whole, with the reason."""

    task: Task
    reason: str
    detail: str
    attempts: int
    at: float


class DeadFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which dead letters are meant: all that match every field given."""

    lane: str | None = None
    reason: str | None = None  # a prefix
    since: float | None = None
    key: int | None = None


class WorkerBeat(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's sign of life. `machine` says where its `pid` means something."""

    worker: str
    crawl: str
    host: str
    pid: int
    version: str
    slots: int
    busy: int = 0
    pages: int = 0
    pages_per_second: float = 0.0
    memory_bytes: int = 0
    started: float = 0.0
    seen: float = 0.0
    machine: str = ""


def random_key() -> int:
    """A key that no URL has, for a task that must not be merged with any other."""
    return random.SystemRandom().getrandbits(64) - 2**63
