"""The exits of one crawl inside one transaction: their state for every lane, and the requests counted through them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence

from shoal.frontier.rules.constants import HEALTHY, MAX_KEPT_SESSIONS, REMOVED
from shoal.frontier.rules.exits import (
    NOT_PARKED,
    Parking,
    Quarantine,
    cost_of,
    parking_after,
    parking_on_trial,
    quarantine_after,
)
from shoal.frontier.sqlite.frontier_rows import EXIT_COLUMNS, ExitRow
from shoal.frontier.sqlite.pool_exits import NO_POOL, PoolExits, offer, read_pools
from shoal.model import VIA, ExitUse, Pool

_READ_EXIT = f"SELECT {EXIT_COLUMNS} FROM exit WHERE crawl = ? AND name = ?"  # noqa: S608 -- constant
_SAVE_EXIT = f"INSERT OR REPLACE INTO exit (crawl, name, {EXIT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 -- constant
_HOLDERS = (
    "SELECT exit.name, crawl.id, crawl.name FROM exit JOIN crawl ON crawl.id = exit.crawl"
    " WHERE exit.holder <> 0 AND crawl.apart = 0 AND crawl.state <> 'deleting'"
)
_COUNT_USE = (
    "INSERT INTO lane_exit (lane, place, requests, ok, blocked, failed, size, elapsed, cost)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET requests = requests + excluded.requests,"
    " ok = ok + excluded.ok, blocked = blocked + excluded.blocked, failed = failed + excluded.failed,"
    " size = size + excluded.size, elapsed = elapsed + excluded.elapsed, cost = cost + excluded.cost"
)
_READ_QUARANTINE = "SELECT streak, rests_until FROM lane_exit WHERE lane = ? AND place = ?"
_SAVE_QUARANTINE = "UPDATE lane_exit SET streak = ?, rests_until = ? WHERE lane = ? AND place = ?"


class Holders:
    """The accounts that are in use, each with the crawl that uses it: read when first asked for. The crawls of one
    lease call have them in common."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self._db = db
        self._found: dict[str, tuple[int, str]] | None = None

    def crawl_of(self, name: str) -> int | None:
        found = self._all().get(name)
        return found[0] if found else None

    def crawls_of(self, names: Iterable[str], *, but: int) -> list[str]:
        found = self._all()
        return [found[name][1] for name in names if name in found and found[name][0] != but]

    def hold(self, name: str, crawl: int) -> None:
        """A lease of this crawl uses the account from now on."""
        if self._found is not None:
            self._found[name] = (crawl, "")

    def read_again(self) -> None:
        self._found = None

    def _all(self) -> dict[str, tuple[int, str]]:
        if self._found is None:
            self._found = {name: (crawl, crawl_name) for name, crawl, crawl_name in self._db.execute(_HOLDERS)}
        return self._found


class CrawlExits:
    """Reads and writes only the exits that lanes use in this transaction."""

    def __init__(self, db: sqlite3.Connection, crawl: int, *, now: float, is_apart: bool) -> None:
        self.db = db
        self.now = now
        self.holders = Holders(db)
        self._is_apart = is_apart
        self.spent = 0.0
        self.put_off_so_far = 0
        self._crawl = crawl
        self._own: Mapping[str, frozenset[str]] = {}
        self._away: dict[str, bytes] = {}
        self._pools: Mapping[str, PoolExits] | None = None
        self._counts: list[tuple[int, int, bool, bool, bool, bool, int, float, float]] = []
        self._quarantines: dict[tuple[int, int], Quarantine] = {}
        self._has_rows: bool | None = None
        self._exits: dict[str, ExitRow] = {}
        self._changed_exits: set[str] = set()

    def offer(self, offers: Sequence[Pool]) -> bool:
        """The worker that this transaction is for offers these exits; gives whether pools changed."""
        self._own = {pool.name: frozenset(pool.exits) for pool in offers}
        self._pools = None
        return offer(self.db, self._crawl, offers, now=self.now)

    def away(self, pool: str, exits: PoolExits) -> bytes:
        """A mark, REMOVED, for each exit of a pool that other workers offer and this one does not; empty: none."""
        if not exits.offered:
            return b""
        found = self._away.get(pool)
        if found is None:
            theirs = exits.offered - self._own.get(pool, frozenset())
            marks = bytes(REMOVED if name in theirs else HEALTHY for name in exits.names)
            found = self._away[pool] = marks.rstrip(b"\0")
        return found

    def pool_exits(self, lane: str) -> PoolExits:
        """The exits of the pool that a lane goes via."""
        if self._pools is None:
            self._pools = read_pools(self.db, self._crawl)
        return self._pools.get(lane.partition(VIA)[2], NO_POOL)

    def begin_lane(self, lane: str) -> int:
        """How many lanes began to use the pool of this lane before it."""
        ((begun,),) = self.db.execute(
            "INSERT INTO pool_turn (crawl, pool, begun) VALUES (?, ?, 1)"
            " ON CONFLICT DO UPDATE SET begun = begun + 1 RETURNING begun",
            (self._crawl, lane.partition(VIA)[2]),
        ).fetchall()
        return int(begun) - 1

    def exit(self, name: str) -> ExitRow:
        """The exit's row, a new one if need be. In most crawls no exit has one."""
        found = self._exits.get(name)
        if found is None:
            if self._has_rows is None:
                select = "SELECT 1 FROM exit WHERE crawl = ? LIMIT 1"
                self._has_rows = self.db.execute(select, (self._crawl,)).fetchone() is not None
            row = self.db.execute(_READ_EXIT, (self._crawl, name)).fetchone() if self._has_rows else None
            found = self._exits[name] = ExitRow(Parking(*row[:5]), *row[5:]) if row else ExitRow()
        return found

    def known_exit(self, name: str) -> ExitRow | None:
        """The exit's row, or None in a crawl whose exits have none."""
        return self.exit(name) if self._has_rows is not False or name in self._exits else None

    def is_held(self, name: str, found: ExitRow | None) -> bool:
        """Whether a lease of any crawl uses the exit alone."""
        if found is not None and found.holder:
            return True
        return not self._is_apart and self.holders.crawl_of(name) not in (None, self._crawl)

    def crawls_that_hold(self, names: Sequence[str]) -> list[str]:
        """The names of other crawls of which a lease uses one of these exits alone."""
        return [] if self._is_apart else self.holders.crawls_of(names, but=self._crawl)

    def use(self, name: str, pool: Pool, token: int) -> int:
        """A lease begins to use the exit; gives the version of its session."""
        found = self.exit(name) if pool.exclusive else self.known_exit(name)
        if found is None:
            return 0
        if pool.exclusive:
            found.holder = token
            if not self._is_apart:
                self.holders.hold(name, self._crawl)
            self._changed_exits.add(name)
        parking = parking_on_trial(found.parking, pool, token=token, now=self.now)
        if parking is not found.parking:
            found.parking = parking
            self._changed_exits.add(name)
        return found.session_version

    def release(self, name: str, use: ExitUse | None, token: int) -> None:
        """A lease holds the exit no more. Store its session; a success ends its strikes and its parking."""
        has_session = use is not None and use.session is not None
        found = self.exit(name) if has_session else self.known_exit(name)
        if found is None:
            return
        if found.holder == token:
            found.holder = 0
            self._changed_exits.add(name)
        if use is None:
            return
        if use.session is not None:
            found.session = use.session
            found.sessions += 1
            self._changed_exits.add(name)
        if use.verdict == "ok" and found.parking != NOT_PARKED:
            found.parking = NOT_PARKED
            self._changed_exits.add(name)

    def keep_session(self, name: str, session: bytes, *, version: int) -> tuple[int, bytes]:
        """Store a session if its version is still this one; gives what is kept now."""
        found = self.exit(name)
        if found.session_version == version and (found.sessions or self._has_room_for_session()):
            found.session = session
            found.sessions += 1
            self._changed_exits.add(name)
        return found.session_version, found.session

    def _has_room_for_session(self) -> bool:
        select = "SELECT COUNT(*) FROM exit WHERE crawl = ? AND sessions > 0"
        ((kept,),) = self.db.execute(select, (self._crawl,)).fetchall()
        return int(kept) < MAX_KEPT_SESSIONS

    def strike(self, lane: str, name: str, pool: Pool, token: int) -> None:
        """A request towards the lane failed; after failures towards enough lanes the exit is parked."""
        found = self.exit(name)
        found.parking = parking_after(found.parking, pool, lane=lane, token=token, now=self.now)
        self._changed_exits.add(name)

    def count_use(self, lane: int, index: int, pool: Pool | None, use: ExitUse | None) -> None:
        """Count an ended request, unless the exit was not used, and its cost."""
        verdict = use.verdict if use else None
        if use is None or verdict == "unused":
            size, elapsed = 0, 0.0
        else:
            size, elapsed = use.size, use.elapsed
        cost = cost_of(pool, use)
        self.spent += cost
        self._counts.append(
            (
                lane, index, verdict != "unused", verdict == "ok", verdict == "blocked", verdict == "failed", size,
                elapsed, cost,
            )
        )  # fmt: skip

    def quarantine(self, lane: int, index: int, pool: Pool) -> float | None:
        """The exit was blocked or failed towards the lane: gives the time until which it rests there, None when it was
        quarantined already."""
        before = self._quarantines.get((lane, index))
        if before is None:
            row = self.db.execute(_READ_QUARANTINE, (lane, index)).fetchone()
            before = Quarantine(*row) if row else Quarantine()
        after = self._quarantines[lane, index] = quarantine_after(before, pool, now=self.now)
        return None if after is before else after.until

    def end_quarantine(self, lane: int, index: int) -> None:
        """The exit did well towards the lane: its failure streak ends."""
        self._quarantines[lane, index] = Quarantine()

    def flush(self) -> None:
        """Write the changes. The lanes' rosters are in the lanes' rows."""
        if self._counts:
            self.db.executemany(_COUNT_USE, self._counts)
            self._counts.clear()
        if self._quarantines:
            self.db.executemany(
                _SAVE_QUARANTINE, [(*quarantine, *where) for where, quarantine in self._quarantines.items()]
            )
            self._quarantines.clear()
        if self._changed_exits:
            rows = [(name, self._exits[name]) for name in sorted(self._changed_exits)]
            self.db.executemany(
                _SAVE_EXIT,
                [(self._crawl, name, *row.parking, row.holder, row.session, row.sessions) for name, row in rows],
            )
            self._changed_exits.clear()
            self._has_rows = True
