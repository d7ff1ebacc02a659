"""The exits of one crawl inside one transaction: what a request does to them, and when a lane may use one next."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from shoal.frontier.exit_rules import BUSY_SECONDS, STRIKES, cost_of, rest_of
from shoal.frontier.sqlite_exit_rows import (
    COUNT_USE,
    EXIT_COLUMNS,
    READ_ILLNESS,
    SAVE_EXIT,
    SAVE_ILLNESS,
    ExitRow,
    Illness,
)
from shoal.frontier.sqlite_pools import NO_ROLL, Roll, end_rest, read_rolls, rest
from shoal.frontier.sqlite_roster import GONE, ILL, OFF, RING, TRIED, Roster, decode
from shoal.model import VIA, ExitUse, Pool

if TYPE_CHECKING:
    from shoal.frontier.sqlite_ledger import LaneRow


class Exits:
    """Reads and writes only what the lanes that go via a pool need."""

    def __init__(self, db: sqlite3.Connection, crawl: int, *, now: float) -> None:
        self.db = db
        self.now = now
        self.spent = 0.0
        self._crawl = crawl
        self._rolls: Mapping[str, Roll] | None = None
        self._rosters: dict[int, Roster] = {}
        self._changed_rosters: set[int] = set()
        self._counts: list[tuple[int, str, int, bool, bool, bool, int, float, float]] = []
        self._illnesses: dict[tuple[int, str], Illness] = {}
        self._has_rows: bool | None = None
        self._exits: dict[str, ExitRow] = {}
        self._changed_exits: set[str] = set()

    def roll_of(self, lane: str) -> Roll:
        """The roll of the pool that a lane goes via."""
        if self._rolls is None:
            self._rolls = read_rolls(self.db, self._crawl)
        return self._rolls.get(lane.partition(VIA)[2], NO_ROLL)

    def pool_of(self, lane: str) -> Pool | None:
        """The pool that a lane goes via, if the crawl has it."""
        return self.roll_of(lane).pool

    def roster(self, lane: LaneRow) -> Roster:
        """What the lane knows of its exits. It begins with another one than the lane before it."""
        found = self._rosters.get(lane.id)
        if found is None:
            roll = self.roll_of(lane.name)
            if lane.exits:
                found = decode(lane.exits, len(roll.names))
            else:
                found = Roster(bytearray(roll.marks), self._next_turn(lane.name) % max(1, len(roll.names)))
            self._rosters[lane.id] = found
        return found

    def _next_turn(self, lane: str) -> int:
        ((begun,),) = self.db.execute(
            "INSERT INTO pool_turn (crawl, pool, begun) VALUES (?, ?, 1)"
            " ON CONFLICT DO UPDATE SET begun = begun + 1 RETURNING begun",
            (self._crawl, lane.partition(VIA)[2]),
        ).fetchall()
        return int(begun) - 1

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

    def stuck(self, pool: Pool, lane: LaneRow) -> int | None:
        """The exit that a host of a sticky pool keeps, while it is healthy."""
        roster = self.roster(lane)
        if not pool.sticky or roster.stuck < 0 or roster.marks[roster.stuck] != RING:
            return None
        is_old = pool.rotate > 0 and self.now >= roster.stuck_since + pool.rotate
        found = self.known_exit(self.roll_of(lane.name).names[roster.stuck])
        return None if is_old or (found and found.parked_until > self.now) else roster.stuck

    def is_held(self, lane: LaneRow, place: int) -> bool:
        """Whether a lease holds the exit for itself."""
        found = self.known_exit(self.roll_of(lane.name).names[place])
        return found is not None and found.holder != 0

    def put_off_until(self, lane: LaneRow, place: int) -> float | None:
        """The time until which the exit is parked, or held for somebody else; None when it is neither."""
        found = self.known_exit(self.roll_of(lane.name).names[place])
        if found is None:
            return None
        at = self.roster(lane).nexts.get(place, 0.0)
        if found.parked_until > max(self.now, at):
            return found.parked_until
        return max(at, self.now + BUSY_SECONDS) if found.holder else None

    def put_off(self, lane: LaneRow, place: int, *, until: float) -> None:
        """The exit may not be used before that."""
        roster = self.roster(lane)
        mark = roster.marks[place]
        if mark != RING:
            end_rest(self.db, lane.id, roster, place)
        rest(self.db, lane.id, roster, place, ILL if mark == ILL else OFF, until=until)

    def start(self, lane: LaneRow, pool: Pool, place: int, at: float, token: int) -> tuple[str, int]:
        """A request goes out through the exit; gives its name, and the version of what is kept for it."""
        roster, name = self.roster(lane), self.roll_of(lane.name).names[place]
        if roster.marks[place] == RING:
            roster.place = place + 1
        else:
            end_rest(self.db, lane.id, roster, place)
        roster.start(place, next_start=at + pool.interval, now=self.now)
        found = self.exit(name) if pool.exclusive else self.known_exit(name)
        if found is None:
            return name, 0
        if pool.exclusive:
            found.holder = token
            self._changed_exits.add(name)
        if found.strikes >= STRIKES:
            found.parked_until, found.trial = self.now + pool.quarantine, token
            self._changed_exits.add(name)
        return name, found.session_version

    def reserve(self, lane: LaneRow, name: str, start: float) -> float:
        """Take the exit's next slot, not before `start`; gives its time. An exit that rests has no slots."""
        roll, roster = self.roll_of(lane.name), self.roster(lane)
        place = roll.places.get(name)
        if roll.pool is None or place is None or roster.marks[place] != RING:
            return start
        start = max(start, roster.nexts.get(place, 0.0))
        roster.nexts[place] = start + roll.pool.interval
        self.touch(lane)
        return start

    def end(self, lane: LaneRow, name: str, report: ExitUse | None, token: int) -> None:
        """A lease of the lane is over."""
        roll, roster = self.roll_of(lane.name), self.roster(lane)
        place, pool = roll.places[name], roll.pool
        roster.end(place)
        self.touch(lane)
        self._let_go(name, report, token)
        self._count(lane.id, name, pool, report)
        verdict = report.verdict if report else "unknown"
        if verdict in ("blocked", "failed"):
            if pool:
                self._fall_ill(lane, place, pool, token, has_failed=verdict == "failed")
        elif verdict == "ok":
            self._forgive(name)
            if roster.marks[place] in (TRIED, GONE):
                self._recover(lane, place)
        if roster.marks[place] == TRIED and place not in roster.flights:
            rest(self.db, lane.id, roster, place, ILL, until=max(roster.nexts.get(place, 0.0), self.now))

    def _let_go(self, name: str, report: ExitUse | None, token: int) -> None:
        """Nobody holds the exit any more; keep what is to be kept for it."""
        has_session = report is not None and report.session is not None
        found = self.exit(name) if has_session else self.known_exit(name)
        if found is None:
            return
        if found.holder == token:
            found.holder = 0
            self._changed_exits.add(name)
        if report is not None and report.session is not None:
            found.session = report.session
            found.sessions += 1
            self._changed_exits.add(name)

    def _count(self, lane: int, name: str, pool: Pool | None, report: ExitUse | None) -> None:
        if report is None or report.verdict != "unused":
            cost = cost_of(pool, report) if pool else 0.0
            self.spent += cost
            if report is None:
                self._counts.append((lane, name, 1, False, False, False, 0, 0.0, cost))
            else:
                verdict = report.verdict
                self._counts.append(
                    (lane, name, 1, verdict == "ok", verdict == "blocked", verdict == "failed", report.size,
                     report.elapsed, cost)
                )  # fmt: skip
        else:
            self._counts.append((lane, name, 0, False, False, False, 0, 0.0, 0.0))

    def _illness(self, lane: int, name: str) -> Illness:
        found = self._illnesses.get((lane, name))
        if found is None:
            row = self.db.execute(READ_ILLNESS, (lane, name)).fetchone()
            found = self._illnesses[lane, name] = Illness(*row) if row else Illness()
        return found

    def _fall_ill(self, lane: LaneRow, place: int, pool: Pool, token: int, *, has_failed: bool) -> None:
        roster, name = self.roster(lane), self.roll_of(lane.name).names[place]
        illness = self._illness(lane.id, name)
        # Many requests in flight when a host shuts an exit out are one reason to rest, not many.
        if not illness.streak or self.now >= illness.rests_until:
            illness.streak += 1
            illness.rests_until = self.now + rest_of(pool, illness.streak)
            at = roster.nexts.get(place, 0.0)
            if roster.marks[place] == OFF:
                at = end_rest(self.db, lane.id, roster, place)
            roster.nexts[place] = max(at, illness.rests_until)
            if roster.marks[place] != GONE:
                roster.marks[place] = TRIED
        if has_failed:
            self._strike(lane.name, name, pool, token)

    def _recover(self, lane: LaneRow, place: int) -> None:
        roster = self.roster(lane)
        self._illness(lane.id, self.roll_of(lane.name).names[place]).streak = 0
        if roster.marks[place] != GONE:
            roster.marks[place] = RING

    def _forgive(self, name: str) -> None:
        """The exit works: what it failed before counts no more."""
        found = self.known_exit(name)
        if found is not None and (found.strikes or found.parked_until):
            found.strikes = found.parkings = found.trial = 0
            found.struck_lane, found.parked_until = "", 0.0
            self._changed_exits.add(name)

    def _strike(self, lane: str, name: str, pool: Pool, token: int) -> None:
        found = self.exit(name)
        if found.struck_lane != lane:
            found.strikes, found.struck_lane = found.strikes + 1, lane
        if found.strikes >= STRIKES and (found.parked_until <= self.now or found.trial == token):
            found.parkings += 1
            found.parked_until, found.trial = self.now + rest_of(pool, found.parkings), 0
        self._changed_exits.add(name)

    def touch(self, lane: LaneRow) -> None:
        """The lane's exits change: `flush` says anew when it may start."""
        self.roster(lane)
        self._changed_rosters.add(lane.id)

    def flush(self, lanes: Mapping[int, LaneRow]) -> None:
        """Write back what changed; what a lane knows goes into its row."""
        for lane_id, roster in self._rosters.items():
            lane = lanes[lane_id]
            if lane_id in self._changed_rosters:
                self._refresh(lane, roster)
            lane.exits = roster.encode(now=self.now)
        self._rosters.clear()
        self._changed_rosters.clear()
        if self._counts:
            self.db.executemany(COUNT_USE, self._counts)
            self._counts.clear()
        if self._illnesses:
            self._save_illnesses()
        if self._changed_exits:
            self._save_exits()

    def _save_illnesses(self) -> None:
        rows = [(one.streak, one.rests_until, *where) for where, one in self._illnesses.items()]
        self.db.executemany(SAVE_ILLNESS, rows)
        self._illnesses.clear()

    def _save_exits(self) -> None:
        rows = [(self._crawl, name, *msgspec.structs.astuple(self._exits[name])) for name in self._changed_exits]
        self.db.executemany(SAVE_EXIT, rows)
        self._changed_exits.clear()
        self._has_rows = True

    def _refresh(self, lane: LaneRow, roster: Roster) -> None:
        """Say on the lane when an exit is free next."""
        pool = self.pool_of(lane.name)
        if pool is None:
            return
        if (stuck := self.stuck(pool, lane)) is not None:
            at = roster.nexts.get(stuck, 0.0) if roster.flights.get(stuck, 0) < pool.cap else math.inf
            lane.exits_next = at if at > self.now else 0.0
            return
        lane.exits_next = roster.next_free(pool.cap, now=self.now)
        if roster.has_healthy:
            roster.starved_since = 0.0
        else:
            roster.starved_since = roster.starved_since or self.now
            lane.exits_next = min(lane.exits_next, roster.starved_since + pool.patience)

    def do_rest(self, lane: LaneRow) -> bool:
        """Whether all exits of the lane were turned away or failed."""
        return bool(lane.exits) and self.pool_of(lane.name) is not None and self.roster(lane).starved_since > 0
