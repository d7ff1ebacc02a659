"""One crawl inside one transaction: its row, lanes and named counters are read once, changed and written back once."""

from __future__ import annotations

import math
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from shoal.frontier.rules.constants import LEARNT_SECONDS, LONGEST_WHY, MAX_SAMPLES, STAGE_CAP, STAYER
from shoal.frontier.rules.crawl_time import is_noted, ran_since, reckon, was_away
from shoal.frontier.rules.hosts import ALONE, APART, SHARED, first_sharing, in_time_of
from shoal.frontier.rules.keys import keys_dropped
from shoal.frontier.rules.lanes import first_pace, takes_why
from shoal.frontier.sqlite.exits import NO_OTHERS, CrawlExits, LaneExits, OtherExits, begin_roster
from shoal.frontier.sqlite.pools import decode
from shoal.frontier.sqlite.rows import (
    CANCELLED,
    CRAWL_COLUMNS,
    DELAYED,
    HTTP_NUMBER,
    LANE_COLUMNS,
    LEASED,
    QUEUED,
    STATE_NAMES,
    UNREAD,
    CrawlRow,
    KindQueues,
    LaneRow,
    Moment,
)
from shoal.model import DUPLICATE, HTTP, STAGE, VIA, CrawlState, LaneUpdate
from shoal.sqlite_file import insert_rows, update_rows

WRITE_LANES = (
    "UPDATE lane SET next_start = new.column2, last_start = new.column3, blocked_until = new.column4,"
    " interval = new.column5, base_interval = new.column6, cap = new.column7, in_flight = new.column8,"
    " waiting = new.column9, known = new.column10, opener = new.column11, rules_until = new.column12,"
    " rules_version = new.column13, exits = new.column14, exits_next = new.column15"
    " FROM (VALUES {rows}) AS new WHERE lane.id = new.column1"
)
_LOAD = f"SELECT {CRAWL_COLUMNS} FROM crawl WHERE name = ? AND state <> 'deleting'"
REST, PACE = "rest", "pace"  # values of `lane_why.kind`
WAITING = "waiting"  # value of `counter.kind`: waiting tasks of other kinds than http
_NEW_LANE = (
    "INSERT INTO lane (crawl, name, next_start, last_start, blocked_until, interval, base_interval, cap, in_flight,"
    " waiting, known, opener, rules_until, rules_version, exits, exits_next, sharing)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
)
_HAS_COMPANY = (
    f"SELECT 1 FROM lane WHERE name = ? AND sharing <> {APART} UNION ALL SELECT 1 FROM host WHERE name = ? LIMIT 1"
)
_LEARNT = (
    "SELECT until, lane_learnt.interval, clock_shift FROM lane JOIN lane_learnt ON lane_learnt.lane = lane.id"
    f" JOIN crawl ON crawl.id = lane.crawl WHERE lane.name = ? AND sharing <> {APART}"
    " UNION ALL SELECT learnt_until, learnt, 0.0 FROM host WHERE name = ? AND until > ?"
)
# The test of APART selects the index.
NOT_ALONE = (
    f"UPDATE lane SET sharing = {SHARED} WHERE name = ? AND sharing <> {APART} AND sharing = {ALONE} AND id <> ?"
)
_SPARE = f"UPDATE task SET at = ? WHERE crawl = ? AND state = {LEASED} AND at > ? AND at <= ?"


class Ledger:
    """A crawl's row, and the lanes and named counters that this transaction changes. `now`: the crawl's own time;
    `wall`: the time of day, for people."""

    def __init__(self, db: sqlite3.Connection, crawl: CrawlRow, *, at: Moment) -> None:
        self.db = db
        self.crawl = crawl
        self.wall = at.wall
        self.expected = at.times.expected(crawl.name)
        self.now, shift = reckon(at.wall, last=crawl.clock_last, shift=crawl.clock_shift, expected=self.expected)
        if shift != crawl.clock_shift and at.writes:
            crawl.clock_shift = shift
            db.execute("UPDATE crawl SET clock_shift = ? WHERE id = ?", (shift, crawl.id))
        self._lanes: dict[int, LaneRow] = {}
        self._lane_ids: dict[str, int] = {}
        self._tallies: Counter[tuple[str, str]] = Counter()
        self._samples: list[tuple[str, str]] = []
        self.exits = CrawlExits(db, crawl.id, now=self.now, is_apart=bool(crawl.apart))
        self._lane_exits: dict[int, LaneExits] = {}
        # The exits of other crawls towards a lane's host, by lane.
        self.other_exits: dict[int, OtherExits] = {}
        # None: all tasks are of the kind http, as in most crawls.
        self.kinds = KindQueues(db, crawl.id, crawl.kinds) if crawl.kinds else None
        # A lane whose rules expire at this time or before needs new ones.
        self.rules_due = self.now if crawl.needs_rules else -math.inf
        # How much one start adds to a lane's turn at a shared host.
        self.turn = 1.0 / crawl.share

    @classmethod
    def load(cls, db: sqlite3.Connection, name: str, *, at: Moment) -> Ledger | None:
        row = db.execute(_LOAD, (name,)).fetchone()
        return None if row is None else cls(db, CrawlRow(*row), at=at)

    def note_presence(self, *, seconds: float) -> bool:
        """Note that a worker asks for leases, or renews them; gives whether the time was written. `seconds`: how long
        leases last: leases that ended while no worker could reach the frontier get that time once more, for their
        workers to renew them."""
        crawl, last = self.crawl, self.crawl.clock_last
        if was_away(self.now, last=last, expected=self.expected, seconds=seconds):
            ends = self.now + seconds
            self.db.execute(_SPARE, (ends, crawl.id, last, ends))
        if not is_noted(self.now, last=last):
            return False
        if crawl.state == CrawlState.RUNNING:
            crawl.ran += ran_since(self.now, last=last)
        crawl.clock_last = self.now
        return True

    def read_lanes(self, ids: Iterable[int]) -> None:
        """Read these lanes with one statement."""
        select = f"SELECT {LANE_COLUMNS} FROM lane WHERE id IN (SELECT value FROM json_each(?))"
        for row in self.db.execute(select, (msgspec.json.encode(list(ids)).decode(),)):
            self.adopt(row)

    def lane_by_id(self, lane_id: int) -> LaneRow:
        lane = self._lanes.get(lane_id)
        if lane is None:
            row = self.db.execute(f"SELECT {LANE_COLUMNS} FROM lane WHERE id = ?", (lane_id,)).fetchone()
            lane = self.adopt(row)
        return lane

    def lane(self, name: str) -> LaneRow:
        """The lane of this name; a new one starts with the pace of its pool or of the crawl."""
        lane_id = self._lane_ids.get(name)
        if lane_id is not None:
            return self._lanes[lane_id]
        crawl = self.crawl
        select = f"SELECT {LANE_COLUMNS} FROM lane WHERE crawl = ? AND name = ?"
        row = self.db.execute(select, (crawl.id, name)).fetchone()
        if row is None:
            pool = self.exits.pool_exits(name).pool if VIA in name else None
            interval, cap = first_pace(crawl.interval, crawl.cap, pool) if STAGE not in name else (0.0, STAGE_CAP)
            row = self._new_lane(name, interval, cap)
        return self.adopt(row)

    def _new_lane(self, name: str, base_interval: float, cap: int) -> tuple[Any, ...]:
        """Insert a lane; gives its row. It is SHARED if other crawls have lanes for the host, or the host's state is
        kept. In a crawl that searches paces, it begins with the interval learnt for the host, within `fastest`."""
        crawl = self.crawl
        is_apart = bool(crawl.apart) or STAGE in name
        sharing, interval = first_sharing(name, is_apart=is_apart), base_interval
        if not is_apart:
            if self.db.execute(_HAS_COMPANY, (name, name)).fetchone() is not None:
                sharing = SHARED
            if crawl.fastest and (learnt := self._learnt(name)) is not None:
                interval = max(learnt, crawl.fastest)
        columns = (
            name, self.now, 0.0, 0.0, interval, base_interval, cap, 0, 0, 0, 0, 0.0, 0, b"", 0.0, sharing,
        )  # fmt: skip
        return (self.db.execute(_NEW_LANE, (crawl.id, *columns)).lastrowid, *columns)

    def _learnt(self, name: str) -> float | None:
        """The interval that the latest search has learnt for this host, if it is still valid."""
        own_shift = self.crawl.clock_shift
        rows = self.db.execute(_LEARNT, (name, name, self.wall)).fetchall()
        found = [(in_time_of(until, shift=shift, own_shift=own_shift), interval) for until, interval, shift in rows]
        until, interval = max(found, default=(0.0, 0.0), key=lambda entry: entry[0])
        return interval if until > self.now else None

    def adopt(self, row: tuple[Any, ...]) -> LaneRow:
        """The lane with this row; one that this transaction has read before keeps its changes."""
        lane = self._lanes.get(row[0])
        if lane is None:
            lane = self._lanes[row[0]] = LaneRow(*row)
            self._lane_ids[lane.name] = lane.id
        elif lane.sharing == UNREAD:
            self.read_sharing(lane)
        return lane

    def read_sharing(self, lane: LaneRow) -> None:
        """Read the columns that only lease calls read for every lane."""
        if lane.sharing == UNREAD:
            select = "SELECT sharing, turn, wish FROM lane WHERE id = ?"
            lane.sharing, lane.turn, lane.wish = self.db.execute(select, (lane.id,)).fetchone()

    def has(self, lane_id: int) -> bool:
        """Whether this ledger writes the lane."""
        return lane_id in self._lanes

    def exits_of(self, lane: LaneRow) -> LaneExits:
        """The exits of a lane that goes via a pool."""
        found = self._lane_exits.get(lane.id)
        if found is None:
            roster = decode(lane.exits) if lane.exits else begin_roster(self.exits, lane.name)
            others = self.other_exits.get(lane.id, NO_OTHERS)
            found = self._lane_exits[lane.id] = LaneExits(self.exits, lane, roster, others)
        return found

    @property
    def was_passed_over(self) -> bool:
        """Whether a lane leased nothing because all its due exits belong to other workers."""
        return any(exits.was_passed_over for exits in self._lane_exits.values())

    def update_lane(self, lane: LaneRow, update: LaneUpdate) -> None:
        before, is_own_pace = lane.pace, update.base_interval is not None
        lane.apply(update, now=self.now)
        if lane.interval > before.interval or lane.blocked_until > before.blocked_until:
            self._share(lane)
        if takes_why(before, lane.pace, is_own_pace=is_own_pace, now=self.now):
            self._keep_why(lane, REST, update.why)
        if is_own_pace:
            self._keep_why(lane, PACE, update.why)
        if update.rules is not None:
            lane.rules_until = self.now + update.rules_seconds
            lane.rules_version += 1
            delay = update.base_interval or 0.0
            self.keep_rules(lane, update.rules, delay, update.why[:LONGEST_WHY] if delay else "")
        if update.learnt is not None:
            kept = (lane.id, update.learnt, self.now + LEARNT_SECONDS)
            self.db.execute("INSERT OR REPLACE INTO lane_learnt (lane, interval, until) VALUES (?, ?, ?)", kept)

    def keep_rules(self, lane: LaneRow, rules: bytes, delay: float, why: str) -> None:
        """Store the lane's rules, with the interval `delay` that came with them and the reason for it."""
        insert = "INSERT OR REPLACE INTO lane_rules (lane, rules, delay, why) VALUES (?, ?, ?, ?)"
        self.db.execute(insert, (lane.id, rules, delay, why))

    def _share(self, lane: LaneRow) -> None:
        """The lane has become slower or rests: an ALONE lane becomes SHARED, and so does an ALONE lane of another
        crawl beside a SHARED one."""
        self.read_sharing(lane)
        if lane.sharing == ALONE:
            self.change_sharing(lane, SHARED)
        elif lane.sharing == SHARED:
            self.db.execute(NOT_ALONE, (lane.name, lane.id))

    def change_sharing(self, lane: LaneRow, sharing: int) -> None:
        """Write how the lane stands to the lanes of other crawls."""
        lane.sharing = sharing
        self.db.execute("UPDATE lane SET sharing = ? WHERE id = ?", (sharing, lane.id))

    def _keep_why(self, lane: LaneRow, kind: str, why: str) -> None:
        if why:
            kept = (lane.id, kind, why[:LONGEST_WHY])
            self.db.execute("INSERT OR REPLACE INTO lane_why (lane, kind, why) VALUES (?, ?, ?)", kept)
        else:
            self.db.execute("DELETE FROM lane_why WHERE lane = ? AND kind = ?", (lane.id, kind))

    def count(self, state: int, amount: int) -> None:
        """Change the crawl's counter of tasks in this state."""
        name = STATE_NAMES[state]
        setattr(self.crawl, name, getattr(self.crawl, name) + amount)

    def wait(self, lane: LaneRow, *, kind: int = HTTP_NUMBER, delay: float = 0.0) -> tuple[int, float]:
        """Count a task of this lane that begins to wait; gives its state and due time."""
        state = QUEUED if delay <= 0 else DELAYED
        if self.crawl.state == CrawlState.CANCELLED:
            state = CANCELLED
        self.count(state, 1)
        if self.kinds is not None:
            self._wait_by_kind(self.kinds, lane, kind, is_queued=state == QUEUED)
        elif state == QUEUED:
            lane.wait(now=self.now)
        return state, self.now + delay if delay > 0 else 0.0

    def _wait_by_kind(self, kinds: KindQueues, lane: LaneRow, kind: int, *, is_queued: bool) -> None:
        if kind != HTTP_NUMBER:
            self.tally(WAITING, kinds.names[kind - 1])
        if is_queued and not lane.waiting and not kinds.waiting(lane.id):
            lane.queue_up(now=self.now)
        # Also with 0: resuming a cancelled crawl counts only the queues that have a row.
        self.change_waiting(lane, kind, int(is_queued))

    def change_waiting(self, lane: LaneRow, kind: int, amount: int) -> None:
        """Add to the number of queued tasks of this kind."""
        if self.kinds is None or kind == HTTP_NUMBER:
            lane.waiting += amount
        else:
            self.kinds.change(lane.id, kind, amount)

    def stop_waiting(self, lane: LaneRow, kind: int) -> None:
        """Count a task of the lane that is no longer queued."""
        self.change_waiting(lane, kind, -1)
        self.forget_waiting(kind)

    def forget_waiting(self, kind: int) -> None:
        """Uncount a waiting task of another kind than http: it ends its wait, or is counted again right after."""
        if self.kinds is not None and kind != HTTP_NUMBER:
            self.tally(WAITING, self.kinds.names[kind - 1], -1)

    def has_room_for(self, kind: str) -> bool:
        """Whether the crawl has tasks of this kind, or may have them."""
        return kind == HTTP or self.kinds is None or self.kinds.has_room_for(kind)

    def add_kind(self, kind: str) -> int:
        """The number of a kind, which the crawl has from now on. Check `has_room_for` first."""
        if kind == HTTP:
            return HTTP_NUMBER
        if self.kinds is None:
            self.kinds = KindQueues(self.db, self.crawl.id, "")
        return self.kinds.add(kind)

    def tally(self, kind: str, name: str, amount: int = 1) -> None:
        self._tallies[kind, name] += amount

    def note(self, counts: Mapping[str, int]) -> None:
        """Add to the crawl's notes."""
        for name, amount in counts.items():
            self.tally("note", name, amount)

    def noted(self, name: str) -> int:
        """The stored sum of a note."""
        select = "SELECT value FROM counter WHERE crawl = ? AND kind = 'note' AND name = ?"
        row = self.db.execute(select, (self.crawl.id, name)).fetchone()
        return 0 if row is None else int(row[0])

    def sample(self, reason: str, url: str) -> None:
        self._samples.append((reason, url))

    def reject(self, counts: Mapping[str, int], samples: Iterable[tuple[str, str]]) -> None:
        """Count links that did not become tasks, and keep a few of their URLs."""
        for reason, count in counts.items():
            if reason == DUPLICATE:
                self.crawl.duplicates += count
            else:
                self.tally("rejected", reason, count)
        self._samples += samples

    def samples(self, reason: str) -> list[str]:
        """The URLs kept for this reason, oldest first."""
        select = "SELECT url FROM sample WHERE crawl = ? AND reason = ? ORDER BY position"
        return [url for (url,) in self.db.execute(select, (self.crawl.id, reason))]

    @property
    def is_fed(self) -> bool:
        """Whether any feeder has not expired. A crawl that was opened to be fed waits for its first feeder."""
        if not self.crawl.feeding:
            return False
        select = "SELECT coalesce(max(until) > ?, 1) FROM feeder WHERE crawl = ?"
        return bool(self.db.execute(select, (self.now, self.crawl.id)).fetchone()[0])

    @property
    def is_kept_open(self) -> bool:
        """Whether a STAYER keeps the crawl open for tasks from outside."""
        select = "SELECT count(*) FROM feeder WHERE crawl = ? AND until > ? AND substr(name, 1, ?) = ?"
        stayers = (self.crawl.id, self.now, len(STAYER), STAYER)
        return bool(self.crawl.feeding) and bool(self.db.execute(select, stayers).fetchone()[0])

    @property
    def feeders_lost(self) -> int:
        """How many feeders expired before they had fed everything."""
        select = "SELECT count(*) FROM feeder WHERE crawl = ? AND until <= ? AND substr(name, 1, ?) <> ?"
        return int(self.db.execute(select, (self.crawl.id, self.now, len(STAYER), STAYER)).fetchone()[0])

    def check_keys(self) -> None:
        """Refuse a change that needs the keys, if they were dropped."""
        if self.crawl.keys != "known":
            raise keys_dropped(self.crawl.name)

    def revive(self) -> None:
        """A task or a feeder has come: a finished crawl runs again."""
        if self.crawl.state == CrawlState.FINISHED:
            self.crawl.state = CrawlState.RUNNING
            self.crawl.finished = None
            self.begin_to_run()

    def begin_to_run(self) -> None:
        """The crawl runs from now on: `ran` must not count the time before. If tasks are leased, the latest time stays:
        `note_presence` needs it to renew their leases."""
        if not self.crawl.leased:
            self.crawl.clock_last = self.now

    def flush(self) -> None:
        """Write everything back."""
        crawl = self.crawl
        for exits in self._lane_exits.values():
            exits.save()
        self._lane_exits.clear()
        self.exits.flush()
        if self.exits.spent:
            crawl.cost += self.exits.spent
            self.exits.spent = 0.0
        self.db.execute(
            "UPDATE crawl SET state = ?, feeding = ?, cost = ?, finished = ?, epoch = ?, last_seq = ?, last_token = ?,"
            " queued = ?, delayed = ?, leased = ?, done = ?, dead = ?, cancelled = ?, duplicates = ?, stale = ?,"
            " retried = ?, lost = ?, clock_last = ?, ran = ? WHERE id = ?",
            (
                str(crawl.state), crawl.feeding, crawl.cost, crawl.finished, crawl.epoch, crawl.last_seq,
                crawl.last_token, crawl.queued, crawl.delayed, crawl.leased, crawl.done, crawl.dead, crawl.cancelled,
                crawl.duplicates, crawl.stale, crawl.retried, crawl.lost, crawl.clock_last, crawl.ran,
                crawl.id,
            ),
        )  # fmt: skip
        if self._lanes:
            self._flush_lanes()
        if self._tallies:
            self._flush_tallies()
        if self._samples:
            self._flush_samples()

    def write_lanes(self, lanes: Iterable[LaneRow]) -> None:
        """Write these lanes, except `sharing`, which is written when it changes, and `turn` and `wish`, which the lease
        call writes."""
        rows = [
            (
                lane.id, lane.next_start, lane.last_start, lane.blocked_until, lane.interval, lane.base_interval,
                lane.cap, lane.in_flight, lane.waiting, lane.known, lane.opener, lane.rules_until, lane.rules_version,
                lane.exits, lane.exits_next,
            )
            for lane in lanes
        ]  # fmt: skip
        update_rows(self.db, WRITE_LANES, rows)

    def _flush_lanes(self) -> None:
        self.write_lanes(self._lanes.values())
        if self.kinds is not None:
            self.kinds.flush(self._lanes.keys())
        self._lanes.clear()
        self._lane_ids.clear()

    def _flush_tallies(self) -> None:
        rows = [(self.crawl.id, kind, name, amount) for (kind, name), amount in self._tallies.items()]
        insert_rows(
            self.db,
            "INSERT INTO counter (crawl, kind, name, value)",
            rows,
            " ON CONFLICT DO UPDATE SET value = value + excluded.value",
        )
        self._tallies.clear()

    def _flush_samples(self) -> None:
        kept: dict[str, list[str]] = {}
        for reason, url in self._samples:
            if reason not in kept:
                kept[reason] = self.samples(reason)
            urls = kept[reason]
            if len(urls) < MAX_SAMPLES and url not in urls:
                self.db.execute(
                    "INSERT INTO sample (crawl, reason, position, url) VALUES (?, ?, ?, ?)",
                    (self.crawl.id, reason, len(urls), url),
                )
                urls.append(url)
        self._samples.clear()
