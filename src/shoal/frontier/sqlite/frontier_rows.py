"""Rows of the SQLite frontier that are read once per transaction, changed in Python and written back."""

from __future__ import annotations

import msgspec

from shoal.frontier.rules.constants import WANTS_SECONDS
from shoal.frontier.rules.exits import NOT_PARKED, Parking
from shoal.frontier.rules.lanes import Pace, bring_back, reserved_start, take_slot, update_pace
from shoal.model import STAGE, VIA, LaneUpdate

# The states of a task, as its row has them.
QUEUED, DELAYED, LEASED, DEAD, CANCELLED = range(5)
COUNTS = ("queued", "delayed", "leased", "dead", "cancelled")  # the counter of each state, in the order of the states

CRAWL_COLUMNS = (
    "id, name, state, feeding, interval, cap, needs_rules, max_pages, max_per_lane, max_per_shape, max_cost, cost,"
    " finished, dedup_ttl, generation, turned, epoch,"
    " last_seq, last_token, queued, delayed, leased, done, dead, cancelled, duplicates, stale, retried, lost,"
    " clock_last, clock_shift, kinds, ran, limits, keys, apart, share, fastest"
)
LANE_COLUMNS = (
    "id, name, next_start, last_start, blocked_until, interval, base_interval, cap, in_flight, waiting, known, opener,"
    " rules_until, rules_version, exits, exits_next"
)
LENDING_COLUMNS = f"{LANE_COLUMNS}, sharing, turn"  # of lanes that may lend: most verbs need less
READY_AT = (2, 15)  # the indexes of next_start and exits_next among these columns
SHARING = 16  # the index of sharing
UNREAD = -2  # how a lane stands to those of other crawls was not read
EXIT_COLUMNS = "strikes, struck_lane, parked_until, parkings, trial, holder, session, sessions"


class CrawlRow(msgspec.Struct):
    """A row of `crawl`."""

    id: int
    name: str
    state: str
    feeding: int
    interval: float
    cap: int
    needs_rules: int
    max_pages: int
    max_per_lane: int
    max_per_shape: int
    max_cost: float
    cost: float
    finished: float | None
    dedup_ttl: float
    generation: int
    generation_began: float
    epoch: int
    last_seq: int
    last_token: int
    queued: int
    delayed: int
    leased: int
    done: int
    dead: int
    cancelled: int
    duplicates: int
    stale: int
    retried: int
    lost: int
    clock_last: float
    clock_shift: float
    kinds: str
    ran: float
    limits: str
    keys: int
    apart: int
    share: float
    fastest: float

    @property
    def left(self) -> int:
        return self.queued + self.delayed + self.leased

    @property
    def known(self) -> int:
        return self.left + self.done + self.dead + self.cancelled


class LaneRow(msgspec.Struct):
    """A row of `lane`, and the changes it may go through."""

    id: int
    name: str
    next_start: float
    last_start: float
    blocked_until: float
    interval: float
    base_interval: float
    cap: int
    in_flight: int
    waiting: int
    known: int
    opener: int
    rules_until: float
    rules_version: int
    exits: bytes
    exits_next: float
    sharing: int = UNREAD
    turn: float = 0.0
    wish: float = 0.0

    @property
    def has_pool(self) -> bool:
        return VIA in self.name

    @property
    def wants_until(self) -> float:
        """Until when it would take a start slot if it got one."""
        return self.wish + WANTS_SECONDS if self.wish > 0 else 0.0

    @property
    def is_stage(self) -> bool:
        return STAGE in self.name

    @property
    def ready_at(self) -> float:
        """When the lane may start, as far as its pace and its exits go."""
        return max(self.next_start, self.exits_next)

    def start(self, at: float, *, now: float, interval: float | None = None) -> None:
        """A request starts at this time; the next one may start an interval later: the lane's own, or the longest of
        all crawls that is given."""
        if interval is None:
            interval = self.interval
        self.last_start, self.next_start = take_slot(
            at, next_start=self.next_start, interval=interval, blocked_until=self.blocked_until, now=now
        )

    def reserved_start(self, missed: float, *, now: float) -> float:
        """When a request may start that takes a slot beside those that were lent."""
        return reserved_start(
            next_start=self.next_start,
            last_start=self.last_start,
            interval=self.interval,
            blocked_until=self.blocked_until,
            missed=missed,
            now=now,
        )

    def wait(self, *, now: float) -> None:
        """One task more waits. A lane that was empty queues up behind the lanes that waited longer."""
        if self.waiting == 0:
            self.queue_up(now=now)
        self.waiting += 1

    def queue_up(self, *, now: float) -> None:
        """Wait behind the lanes that waited longer."""
        self.next_start = max(self.next_start, now)

    def close_opening(self, *, now: float) -> None:
        """The lease that opened the lane has ended. Its request was a start."""
        self.opener = 0
        self.start(max(self.last_start, now), now=now)

    def bring_back(self, *, now: float) -> None:
        """Start no later than is possible."""
        pace = bring_back(self.pace, in_flight=self.in_flight, now=now)
        self.last_start, self.next_start = pace.last_start, pace.next_start

    def apply(self, update: LaneUpdate, *, now: float) -> None:
        """Change the pace, or rest. The ledger stores the update's rules and reasons."""
        self.next_start, self.last_start, self.blocked_until, self.interval, self.base_interval, self.cap = update_pace(
            self.pace, update, now=now
        )

    @property
    def pace(self) -> Pace:
        return Pace(self.next_start, self.last_start, self.blocked_until, self.interval, self.base_interval, self.cap)


class ExitRow(msgspec.Struct):
    """A row of `exit`. Its first columns are the parking."""

    parking: Parking = NOT_PARKED
    holder: int = 0
    session: bytes = b""
    sessions: int = 0

    @property
    def session_version(self) -> int:
        return self.sessions if self.session else 0
