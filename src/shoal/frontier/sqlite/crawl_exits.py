"""The exits of one crawl inside one transaction: what holds for them whatever the lane, and what went through them."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from shoal.frontier.rules.constants import STRIKES
from shoal.frontier.rules.exits import cost_of, rest_seconds
from shoal.frontier.sqlite.exit_rows import (
    COUNT_USE,
    EXIT_COLUMNS,
    READ_ILLNESS,
    SAVE_EXIT,
    SAVE_ILLNESS,
    ExitRow,
    Illness,
)
from shoal.frontier.sqlite.lane_exits import LaneExits
from shoal.frontier.sqlite.pools import NO_ROLL, Roll, read_rolls
from shoal.frontier.sqlite.roster import Roster, decode
from shoal.model import VIA, ExitUse, Pool

if TYPE_CHECKING:
    from shoal.frontier.sqlite.ledger import LaneRow


class Exits:
    """Reads and writes only what the lanes that go via a pool need."""

    def __init__(self, db: sqlite3.Connection, crawl: int, *, now: float) -> None:
        self.db = db
        self.now = now
        self.spent = 0.0
        self.put_off_so_far = 0
        self._crawl = crawl
        self._rolls: Mapping[str, Roll] | None = None
        self._lanes: dict[int, LaneExits] = {}
        self._counts: list[tuple[int, int, bool, bool, bool, bool, int, float, float]] = []
        self._illnesses: dict[tuple[int, int], Illness] = {}
        self._has_rows: bool | None = None
        self._exits: dict[str, ExitRow] = {}
        self._changed_exits: set[str] = set()

    def roll_of(self, lane: str) -> Roll:
        """The roll of the pool that a lane goes via."""
        if self._rolls is None:
            self._rolls = read_rolls(self.db, self._crawl)
        return self._rolls.get(lane.partition(VIA)[2], NO_ROLL)

    def of(self, lane: LaneRow) -> LaneExits:
        """The exits of a lane. It begins with another one than the lane before it."""
        found = self._lanes.get(lane.id)
        if found is None:
            roll = self.roll_of(lane.name)
            roster = decode(lane.exits) if lane.exits else self._begin(lane.name, roll)
            found = self._lanes[lane.id] = LaneExits(self, lane, roll, roster)
        return found

    def _begin(self, lane: str, roll: Roll) -> Roster:
        ((begun,),) = self.db.execute(
            "INSERT INTO pool_turn (crawl, pool, begun) VALUES (?, ?, 1)"
            " ON CONFLICT DO UPDATE SET begun = begun + 1 RETURNING begun",
            (self._crawl, lane.partition(VIA)[2]),
        ).fetchall()
        return Roster((begun - 1) % max(1, len(roll.names)), roll.marks)

    def exit(self, name: str) -> ExitRow:
        """What holds for the exit whatever the lane. Most crawls have no exit of which there is anything to say."""
        found = self._exits.get(name)
        if found is None:
            if self._has_rows is None:
                select = "SELECT 1 FROM exit WHERE crawl = ? LIMIT 1"
                self._has_rows = self.db.execute(select, (self._crawl,)).fetchone() is not None
            select = f"SELECT {EXIT_COLUMNS} FROM exit WHERE crawl = ? AND name = ?"  # noqa: S608 -- constant
            row = self.db.execute(select, (self._crawl, name)).fetchone() if self._has_rows else None
            found = self._exits[name] = ExitRow(*row) if row else ExitRow()
        return found

    def known_exit(self, name: str) -> ExitRow | None:
        """The same, or None where there is nothing to say."""
        return self.exit(name) if self._has_rows is not False or name in self._exits else None

    def keep_exit(self, name: str) -> None:
        """Written back with the next flush."""
        self._changed_exits.add(name)

    def let_go(self, name: str, report: ExitUse | None, token: int) -> None:
        """A lease holds the exit no more; keep what is to be kept for it. If it works, what failed counts no more."""
        has_session = report is not None and report.session is not None
        found = self.exit(name) if has_session else self.known_exit(name)
        if found is None:
            return
        if found.holder == token:
            found.holder = 0
            self.keep_exit(name)
        if report is None:
            return
        if report.session is not None:
            found.session = report.session
            found.sessions += 1
            self.keep_exit(name)
        if report.verdict == "ok" and (found.strikes or found.parked_until):
            found.strikes = found.parkings = found.trial = 0
            found.struck_lane, found.parked_until = "", 0.0
            self.keep_exit(name)

    def strike(self, lane: str, name: str, pool: Pool, token: int) -> None:
        """The exit failed; after failures towards enough lanes it rests for all of them."""
        found = self.exit(name)
        if found.struck_lane != lane:
            found.strikes, found.struck_lane = found.strikes + 1, lane
        if found.strikes >= STRIKES and (found.parked_until <= self.now or found.trial == token):
            found.parkings += 1
            found.parked_until, found.trial = self.now + rest_seconds(pool, found.parkings), 0
        self.keep_exit(name)

    def count_use(self, lane: int, place: int, pool: Pool | None, report: ExitUse | None) -> None:
        """What went through the exit, and what that costs."""
        verdict = report.verdict if report else None
        if report is None or verdict == "unused":
            size, elapsed = 0, 0.0
        else:
            size, elapsed = report.size, report.elapsed
        cost = cost_of(pool, report) if pool and verdict != "unused" else 0.0
        self.spent += cost
        self._counts.append(
            (
                lane, place, verdict != "unused", verdict == "ok", verdict == "blocked", verdict == "failed", size,
                elapsed, cost,
            )
        )  # fmt: skip

    def illness(self, lane: int, place: int) -> Illness:
        """How often in a row the lane turned the exit away. Written back with the next flush."""
        found = self._illnesses.get((lane, place))
        if found is None:
            row = self.db.execute(READ_ILLNESS, (lane, place)).fetchone()
            found = self._illnesses[lane, place] = Illness(*row) if row else Illness()
        return found

    def flush(self) -> None:
        """Write back what changed; what a lane knows goes into its row."""
        for exits in self._lanes.values():
            exits.save()
        self._lanes.clear()
        if self._counts:
            self.db.executemany(COUNT_USE, self._counts)
            self._counts.clear()
        if self._illnesses:
            rows = [(one.streak, one.rests_until, *where) for where, one in self._illnesses.items()]
            self.db.executemany(SAVE_ILLNESS, rows)
            self._illnesses.clear()
        if self._changed_exits:
            changed = [(name, self._exits[name]) for name in sorted(self._changed_exits)]
            self.db.executemany(
                SAVE_EXIT, [(self._crawl, name, *msgspec.structs.astuple(row)) for name, row in changed]
            )
            self._changed_exits.clear()
            self._has_rows = True
