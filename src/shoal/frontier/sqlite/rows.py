"""Rows of the SQLite frontier: read once per transaction, changed in Python, written back with few statements.

Few, because each step of a statement releases the interpreter lock, and beside a busy event loop waits up to 5 ms to
get it back.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from itertools import chain
from typing import Any

import msgspec

from shoal.frontier.clock import SteadyTimes
from shoal.frontier.rules.constants import MAX_KINDS, WANTS_SECONDS
from shoal.frontier.rules.exits import NOT_PARKED, Parking
from shoal.frontier.rules.lanes import Pace, bring_back, reserved_start, take_slot, update_pace
from shoal.model import HTTP, STAGE, VIA, LaneUpdate, Lease
from shoal.sqlite_file import STATEMENT_ROWS, filled_size, update_rows


class Moment(msgspec.Struct, frozen=True):
    """When and how a method runs. `wall`: the time of day; `times`: what this process knows of the times of its crawls
    (see `rules/crawl_time.py`); `mended`: unreadable records were set aside just before."""

    wall: float
    times: SteadyTimes
    writes: bool
    mended: bool = False


# The states of a task, as numbered in its row and in the indexes of `schema.sql`.
QUEUED, DELAYED, LEASED, DEAD, CANCELLED = range(5)
STATE_NAMES = ("queued", "delayed", "leased", "dead", "cancelled")  # by state; also the names of the crawl's counters

CRAWL_COLUMNS = (
    "id, name, state, feeding, interval, cap, needs_rules, max_pages, max_per_lane, max_per_shape, max_cost, cost,"
    " finished, dedup_ttl, generation, generation_began, epoch,"
    " last_seq, last_token, queued, delayed, leased, done, dead, cancelled, duplicates, stale, retried, lost,"
    " clock_last, clock_shift, kinds, ran, limits, keys, apart, share, fastest"
)
LANE_COLUMNS = (
    "id, name, next_start, last_start, blocked_until, interval, base_interval, cap, in_flight, waiting, known, opener,"
    " rules_until, rules_version, exits, exits_next"
)
LENDING_COLUMNS = f"{LANE_COLUMNS}, sharing, turn"  # for lease calls; most methods need fewer
READY_AT = (2, 15)  # the indexes of next_start and exits_next among these columns
SHARING = 16  # the index of sharing
UNREAD = -2  # the column `sharing` was not read
# Conditions on lanes, and when a lane may start, as the index `lane_ready` has them.
MAY_START = "in_flight < cap AND opener = 0"
IS_READY = f"waiting > 0 AND {MAY_START}"
STARTS_AT = "max(next_start, exits_next)"
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
    keys: str
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
    """A row of `lane`, and its changes."""

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
        """Until when the lane would take a start slot."""
        return self.wish + WANTS_SECONDS if self.wish > 0 else 0.0

    @property
    def is_stage(self) -> bool:
        return STAGE in self.name

    @property
    def ready_at(self) -> float:
        """When the lane may start, by its pace and its exits."""
        return max(self.next_start, self.exits_next)

    def start(self, at: float, *, now: float, interval: float | None = None) -> None:
        """A request starts at this time; the next one may start an `interval` later, by default the lane's own."""
        if interval is None:
            interval = self.interval
        self.last_start, self.next_start = take_slot(
            at, next_start=self.next_start, interval=interval, blocked_until=self.blocked_until, now=now
        )

    def reserved_start(self, missed: float, *, now: float) -> float:
        """When a request may start that belongs to no new lease."""
        return reserved_start(
            next_start=self.next_start,
            last_start=self.last_start,
            interval=self.interval,
            blocked_until=self.blocked_until,
            missed=missed,
            now=now,
        )

    def wait(self, *, now: float) -> None:
        """One more task waits. A lane that was empty queues up behind the lanes that have waited longer."""
        if self.waiting == 0:
            self.queue_up(now=now)
        self.waiting += 1

    def queue_up(self, *, now: float) -> None:
        """Queue up behind the lanes that have waited longer."""
        self.next_start = max(self.next_start, now)

    def close_opening(self, *, now: float) -> None:
        """The lease that opened the lane has ended. Its request was a start."""
        self.opener = 0
        self.start(max(self.last_start, now), now=now)

    def bring_back(self, *, now: float) -> None:
        """Correct a next start that is later than possible."""
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
    """A row of `exit`; its first columns are the parking."""

    parking: Parking = NOT_PARKED
    holder: int = 0
    session: bytes = b""
    sessions: int = 0

    @property
    def session_version(self) -> int:
        return self.sessions if self.session else 0


TaskRow = tuple[int, int, int, int, int, bytes]
LentRow = tuple[int, float, int, str]

ON_THEIR_WAY = (
    "SELECT json_group_array(json_array(task.id, task.lane)) FROM json_each(?)"
    f" CROSS JOIN task ON task.crawl = ? AND task.key = json_extract(json_each.value, '$[0]') AND task.state = {LEASED}"
    " WHERE task.token = json_extract(json_each.value, '$[1]') AND typeof(task.lane) = 'integer'"
)
NEXT_TASKS = (
    "SELECT lane, id, attempts, losses, free_retries, payload FROM task"
    f" WHERE lane = ? AND kind = 0 AND state = {QUEUED} ORDER BY ord LIMIT ?"
)
_LAND = "UPDATE task SET token = -token WHERE id IN (SELECT value FROM json_each(?))"
FREE = (
    "UPDATE lane SET in_flight = in_flight - landed.column2 FROM (VALUES {rows}) AS landed"
    " WHERE lane.id = landed.column1 AND typeof(lane.in_flight) = 'integer'"
)
LEND = (
    f"UPDATE task SET state = {LEASED}, at = lent.column2, token = lent.column3, attempts = attempts + 1, worker = ?,"
    " exit = lent.column4 FROM (VALUES {rows}) AS lent WHERE task.id = lent.column1"
)
START = (
    "UPDATE lane SET next_start = new.column2, last_start = new.column3, in_flight = new.column4,"
    " waiting = new.column5, opener = new.column6, turn = new.column7, wish = new.column8"
    " FROM (VALUES {rows}) AS new WHERE lane.id = new.column1"
)

WISH = "UPDATE lane SET turn = new.column2, wish = new.column3 FROM (VALUES {rows}) AS new WHERE lane.id = new.column1"


def land(db: sqlite3.Connection, crawl: int, leases: Iterable[Lease]) -> list[int]:
    """The requests of these leases were answered: they no longer count as in flight in their lanes, which are given.
    Ended leases, and leases that landed before, change nothing."""
    listed = msgspec.json.encode([(lease.task.key, lease.token) for lease in leases]).decode()
    (found,) = db.execute(ON_THEIR_WAY, (listed, crawl)).fetchone()
    landed = dict(msgspec.json.decode(found, type=list[tuple[int, int]]))
    if not landed:
        return []
    db.execute(_LAND, (msgspec.json.encode(list(landed)).decode(),))
    lanes = Counter(landed.values())
    if update_rows(db, FREE, list(lanes.items())) != len(lanes):
        raise ValueError("a lane with requests on their way is missing or damaged")
    return list(lanes)


def next_tasks(db: sqlite3.Connection, wanted: Sequence[tuple[int, int]]) -> dict[int, list[TaskRow]]:
    """By lane, its next tasks. `wanted`: pairs of a lane and how many."""
    found: dict[int, list[TaskRow]] = {}
    for start in range(0, len(wanted), STATEMENT_ROWS):
        part = wanted[start : start + STATEMENT_ROWS]
        # Padded with lanes of no tasks: so a few prepared statements serve every size.
        size = filled_size(len(part))
        values = (*chain.from_iterable(part), *(None, 0) * (size - len(part)))
        for row in db.execute(tasks_select(size), values).fetchall():
            found.setdefault(row[0], []).append(row)
    return found


def write_leases(db: sqlite3.Connection, worker: str, lent: Sequence[LentRow]) -> None:
    """Write the leases of this worker. `lent`: rows of task id, end of the lease, token, exit."""
    update_rows(db, LEND, lent, worker)


def write_lanes(db: sqlite3.Connection, lanes: Iterable[LaneRow]) -> None:
    """Write the columns that a lease changes in a lane without a pool."""
    rows = [
        (
            lane.id, lane.next_start, lane.last_start, lane.in_flight, lane.waiting, lane.opener, lane.turn,
            lane.wish,
        )
        for lane in lanes
    ]  # fmt: skip
    update_rows(db, START, rows)


def write_wishes(db: sqlite3.Connection, lanes: Iterable[LaneRow]) -> None:
    """Write turn and wish of lanes whose other columns the ledger writes."""
    update_rows(db, WISH, [(lane.id, lane.turn, lane.wish) for lane in lanes])


@cache
def tasks_select(lanes: int) -> str:
    """NEXT_TASKS for this many lanes."""
    return " UNION ALL ".join([f"SELECT * FROM ({NEXT_TASKS})"] * lanes)


HTTP_NUMBER = 0  # `task.kind` of http; that of another kind is its position in `crawl.kinds`, from 1 on

_SAVE = (
    "INSERT INTO lane_kind (lane, kind, crawl, waiting) VALUES (?, ?, ?, ?)"
    " ON CONFLICT DO UPDATE SET waiting = excluded.waiting"
)
_DUE = f"(SELECT iif({MAY_START}, {STARTS_AT}, NULL) FROM lane WHERE lane.id = lane_kind.lane)"
REFRESH = f"UPDATE lane_kind SET due = {_DUE} WHERE lane IN (SELECT value FROM json_each(?))"
REFRESH_ALL = f"UPDATE lane_kind SET due = {_DUE} WHERE crawl = ?"
_OF_KIND = "FROM lane_kind WHERE crawl = ? AND kind = ? AND waiting > 0 AND due IS NOT NULL"
READY_OF_KIND = (
    f"SELECT {LENDING_COLUMNS} FROM lane WHERE id IN (SELECT lane {_OF_KIND} AND due <= ? ORDER BY due, lane LIMIT ?)"
)
FAR_OF_KIND = (
    f"SELECT {LENDING_COLUMNS} FROM lane WHERE id IN (SELECT lane {_OF_KIND} AND due > ? ORDER BY due DESC LIMIT ?)"
)
NEXT_OF_KIND = f"SELECT due {_OF_KIND} ORDER BY due LIMIT 1"
NEXT_TASKS_OF_KIND = (
    "SELECT ord, kind, lane, id, attempts, losses, free_retries, payload FROM task"
    f" WHERE lane = ? AND kind = ? AND state = {QUEUED} ORDER BY ord LIMIT ?"
)


class KindQueues:
    """A crawl's kinds other than http: their queues, with the counts that this transaction reads or changes."""

    def __init__(self, db: sqlite3.Connection, crawl: int, names: str) -> None:
        self._db = db
        self._crawl = crawl
        self.names = names.split(",") if names else []
        self._waiting: dict[int, dict[int, int]] = {}
        self._changed: set[tuple[int, int]] = set()

    def number(self, kind: str) -> int | None:
        """The number of a kind; None: the crawl does not have it."""
        if kind == HTTP:
            return HTTP_NUMBER
        return self.names.index(kind) + 1 if kind in self.names else None

    def numbers(self, kinds: Iterable[str]) -> list[int]:
        """The numbers of the kinds among these that the crawl has."""
        return [number for kind in kinds if (number := self.number(kind)) is not None]

    def has_room_for(self, kind: str) -> bool:
        """Whether the crawl has tasks of this kind, or may have them."""
        return kind in self.names or len(self.names) + 1 < MAX_KINDS

    def add(self, kind: str) -> int:
        """The number of a kind, which the crawl has from now on."""
        if kind not in self.names:
            self.names.append(kind)
            self._db.execute("UPDATE crawl SET kinds = ? WHERE id = ?", (",".join(self.names), self._crawl))
        return self.names.index(kind) + 1

    def change(self, lane: int, number: int, amount: int) -> None:
        """Add to the number of waiting tasks of this kind in the lane."""
        waiting = self._of(lane)
        waiting[number] = waiting.get(number, 0) + amount
        self._changed.add((lane, number))

    def waiting(self, lane: int, numbers: Collection[int] | None = None) -> int:
        """How many tasks of other kinds than http wait in the lane: of these kinds, or of all."""
        return sum(count for number, count in self._of(lane).items() if numbers is None or number in numbers)

    def ready(self, numbers: Iterable[int], *, latest: float, limit: int) -> list[tuple[Any, ...]]:
        """The rows of lanes that may start tasks of these kinds by then."""
        rows = {}
        for number in numbers:
            for row in self._db.execute(READY_OF_KIND, (self._crawl, number, latest, limit)):
                rows[row[0]] = row
        return list(rows.values())

    def far_ahead(self, *, latest: float, limit: int) -> list[tuple[Any, ...]]:
        """The rows of lanes whose tasks of other kinds are due after that time."""
        found = []
        for number in range(1, len(self.names) + 1):
            found += self._db.execute(FAR_OF_KIND, (self._crawl, number, latest, limit)).fetchall()
        return found

    def next_due(self, numbers: Iterable[int]) -> float | None:
        """When the next lane may start a task of these kinds."""
        rows = [self._db.execute(NEXT_OF_KIND, (self._crawl, number)).fetchone() for number in numbers]
        return min([row[0] for row in rows if row], default=None)

    def next_tasks(self, lane: int, numbers: Iterable[int], limit: int) -> list[tuple[int, TaskRow]]:
        """The next tasks of these kinds, which may include http, as (number of the kind, row)."""
        rows = []
        for number in numbers:
            rows += self._db.execute(NEXT_TASKS_OF_KIND, (lane, number, limit)).fetchall()
        rows.sort(key=lambda row: row[0])
        return [(row[1], row[2:]) for row in rows[:limit]]

    def refresh(self, lanes: Sequence[int] | None = None) -> None:
        """Write anew when the queues of these lanes are due, or of all lanes: their pace has changed."""
        if lanes is None:
            self._db.execute(REFRESH_ALL, (self._crawl,))
        else:
            self._db.execute(REFRESH, (msgspec.json.encode(lanes).decode(),))

    def flush(self, lanes: Collection[int]) -> None:
        """Write the changed counts, and when the queues of these lanes are due: their rows were just written."""
        rows = [(lane, number, self._crawl, self._waiting[lane][number]) for lane, number in sorted(self._changed)]
        self._db.executemany(_SAVE, rows)
        self.refresh(sorted({*lanes, *(lane for lane, _ in self._changed)}))
        self._waiting.clear()
        self._changed.clear()

    def _of(self, lane: int) -> dict[int, int]:
        waiting = self._waiting.get(lane)
        if waiting is None:
            rows = self._db.execute("SELECT kind, waiting FROM lane_kind WHERE lane = ?", (lane,))
            waiting = self._waiting[lane] = dict(rows.fetchall())
        return waiting
