"""The state of crawls, lanes, exits, tasks and dead letters, as a frontier reports it."""

from __future__ import annotations

import enum
from typing import Literal

import msgspec

from shoal.model.crawls import CrawlState
from shoal.model.leases import Task

NO_EXIT = "no_exit"
VISITS = "visits"  # the note of pages that are done until their next visit


class CrawlSize(msgspec.Struct, frozen=True, kw_only=True):
    """The storage that a crawl takes in its frontier. `is_estimate`: measured on a sample of its records."""

    bytes: int
    is_estimate: bool = True


class Progress(msgspec.Struct, frozen=True, kw_only=True):
    """A crawl's counters, read in one step. `outcomes`, `rejected` and `notes` count by name.

    - `feeders_lost`: feeders that expired before they had fed everything
    - `kinds`: queued and delayed tasks by kind; empty in a crawl that never had another kind than `http`
    - `due_in`: seconds until the first delayed task is due; 0: one is due, or there is none
    - `ran`: the seconds in which the crawl was running and had workers"""

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
    cost: float = 0.0
    notes: dict[str, int] = msgspec.field(default_factory=dict)
    reason: str = ""
    feeders_lost: int = 0
    kinds: dict[str, int] = msgspec.field(default_factory=dict)
    due_in: float = 0.0
    ran: float = 0.0

    @property
    def left(self) -> int:
        return self.queued + self.delayed + self.leased

    @property
    def known(self) -> int:
        return self.left + self.done + self.dead + self.cancelled

    @property
    def visits(self) -> int:
        """Visits that ended well, of pages that are visited again."""
        return self.notes.get(VISITS, 0)

    @property
    def ended(self) -> int:
        """How many pages were finished, for good or until their next visit; each visit counts."""
        return self.done + self.dead + self.visits

    @property
    def is_finished(self) -> bool:
        return self.left == 0 and not self.feeding


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """How another crawl holds back a lane that shares its host, by the strongest cause: "rest" (the host asked that
    crawl to wait, for `seconds` more), "rules" (it fetches robots.txt), "cap" (its requests in flight leave no room),
    "pace" (it is slower), "turn" (it waits for start slots as well).

    `interval`: the longest of all crawls whose limits count. `more`: how many other crawls do the same. `turns`: how
    many other crawls take turns with the lane."""

    crawl: str
    by: Literal["rest", "rules", "cap", "pace", "turn"]
    interval: float = 0.0
    seconds: float = 0.0
    more: int = 0
    turns: int = 0


class LaneStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One lane as shown to people.

    - `starts_in`: seconds until it may start a task; `exits_rest`: because every exit of its pool is quarantined or
      parked; `waits_for_exit`: because no exit of its pool is due before
    - `base_interval`: the pace to which an adaptive `interval` returns
    - `rests_for`: seconds for which an update still rests it
    - `why`: the reason given for its rest or for being slower than `base_interval`; `pace_why`: the reason given for a
      `base_interval` that is not the crawl's; empty: no such state, or no reason given
    - `held`: how other crawls hold it back; None: none does"""

    lane: str
    waiting: int
    in_flight: int
    interval: float
    cap: int
    starts_in: float = 0.0
    known: int = 0
    has_rules: bool = False
    exits_rest: bool = False
    base_interval: float = 0.0
    waits_for_exit: bool = False
    rests_for: float = 0.0
    why: str = ""
    pace_why: str = ""
    held: Held | None = None


class ExitStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One exit towards one host. It is quarantined for `rests_for` more seconds, and parked for every host for
    `parked_for`. If both are 0, it is healthy when its failure `streak` is 0, else on probation."""

    exit: str
    lane: str
    requests: int = 0
    ok: int = 0
    blocked: int = 0
    failed: int = 0
    in_flight: int = 0
    size: int = 0
    elapsed: float = 0.0
    cost: float = 0.0
    streak: int = 0
    rests_for: float = 0.0
    parked_for: float = 0.0


class TaskState(enum.StrEnum):
    UNKNOWN = "unknown"
    QUEUED = "queued"
    DELAYED = "delayed"
    LEASED = "leased"
    DONE = "done"
    DEAD = "dead"
    CANCELLED = "cancelled"


class TaskStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of one key. `losses`: how many leases in a row were lost with their workers, of a task that waits or is
    leased; counted higher if its handler ran when a worker died."""

    state: TaskState
    task: Task | None = None
    attempts: int = 0
    reason: str = ""
    detail: str = ""
    worker: str = ""
    due_in: float = 0.0
    losses: int = 0


class DeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A task that was given up, whole, with the reason."""

    task: Task
    reason: str
    detail: str
    attempts: int
    at: float


class DeadFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the dead letters that match every field given."""

    lane: str | None = None
    reason: str | None = None  # a prefix
    since: float | None = None
    key: int | None = None
    until: float | None = None  # given up at that time or before


class DeadCount(msgspec.Struct, frozen=True, kw_only=True):
    """How many dead letters match a filter. `is_least`: not all letters were examined, there may be more."""

    matching: int
    is_least: bool = False
