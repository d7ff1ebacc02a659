"""Exits inside one transaction: `CrawlExits` for all lanes of a crawl, `LaneExits` for one lane, which picks one."""

from __future__ import annotations

import heapq
import math
import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from shoal.frontier.rules.constants import (
    BUSY_SECONDS,
    HEALTHY,
    HELD,
    MAX_KEPT_SESSIONS,
    MAX_PUT_OFF,
    ON_PROBATION,
    PARKED,
    QUARANTINED,
    REMOVED,
)
from shoal.frontier.rules.exits import (
    NOT_PARKED,
    Parking,
    Quarantine,
    cost_of,
    gives_up,
    is_out_of_patience,
    keeps_exit,
    look_again_at,
    parking_after,
    parking_on_trial,
    put_off,
    quarantine_after,
    starved_since,
)
from shoal.frontier.rules.lanes import reserved_start
from shoal.frontier.sqlite.pools import NO_POOL, PoolExits, Roster, end_rest, first_rested, offer, read_pools, rest
from shoal.frontier.sqlite.rows import EXIT_COLUMNS, ExitRow, LaneRow
from shoal.model import VIA, ExitUse, Pool

_READ_EXIT = f"SELECT {EXIT_COLUMNS} FROM exit WHERE crawl = ? AND name = ?"
_SAVE_EXIT = f"INSERT OR REPLACE INTO exit (crawl, name, {EXIT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_HOLDERS = (
    "SELECT exit.name, crawl.id, crawl.name FROM exit JOIN crawl ON crawl.id = exit.crawl"
    " WHERE exit.holder <> 0 AND crawl.apart = 0 AND crawl.state <> 'deleting'"
)
_COUNT_USE = (
    "INSERT INTO lane_exit (lane, exit_index, requests, ok, blocked, failed, size, elapsed, cost)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET requests = requests + excluded.requests,"
    " ok = ok + excluded.ok, blocked = blocked + excluded.blocked, failed = failed + excluded.failed,"
    " size = size + excluded.size, elapsed = elapsed + excluded.elapsed, cost = cost + excluded.cost"
)
_READ_QUARANTINE = "SELECT streak, rests_until FROM lane_exit WHERE lane = ? AND exit_index = ?"
_SAVE_QUARANTINE = "UPDATE lane_exit SET streak = ?, rests_until = ? WHERE lane = ? AND exit_index = ?"


class Holders:
    """The accounts in use, each with its crawl. Read at the first use; shared by the crawls of one lease call."""

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
        """Note that a lease of this crawl uses the account."""
        if self._found is not None:
            self._found[name] = (crawl, "")

    def read_again(self) -> None:
        self._found = None

    def _all(self) -> dict[str, tuple[int, str]]:
        if self._found is None:
            self._found = {name: (crawl, crawl_name) for name, crawl, crawl_name in self._db.execute(_HOLDERS)}
        return self._found


class CrawlExits:
    """The exits of one crawl. Reads and writes only those that lanes use in this transaction."""

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
        """Note the exits that the calling worker offers; gives whether pools changed."""
        self._own = {pool.name: frozenset(pool.exits) for pool in offers}
        self._pools = None
        return offer(self.db, self._crawl, offers, now=self.now)

    def away(self, pool: str, exits: PoolExits) -> bytes:
        """The mark REMOVED for each exit of a pool that only other workers offer; empty: none."""
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
        """How many lanes began to use this lane's pool before it."""
        ((begun,),) = self.db.execute(
            "INSERT INTO pool_turn (crawl, pool, begun) VALUES (?, ?, 1)"
            " ON CONFLICT DO UPDATE SET begun = begun + 1 RETURNING begun",
            (self._crawl, lane.partition(VIA)[2]),
        ).fetchall()
        return int(begun) - 1

    def exit(self, name: str) -> ExitRow:
        """The exit's row, or a new one. In most crawls no exit has a row."""
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
        """Whether a lease of any crawl holds the exit."""
        if found is not None and found.holder:
            return True
        return not self._is_apart and self.holders.crawl_of(name) not in (None, self._crawl)

    def crawls_that_hold(self, names: Sequence[str]) -> list[str]:
        """The names of other crawls with a lease that holds one of these exits."""
        return [] if self._is_apart else self.holders.crawls_of(names, but=self._crawl)

    def use(self, name: str, pool: Pool, token: int) -> int:
        """Note that a lease begins to use the exit; gives the version of the exit's session."""
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
        """Note that a lease no longer uses the exit. Stores its session; a success ends its strikes and its parking."""
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
        """Store a session if the stored version is still `version`; gives the stored version and session."""
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
        """Count a failed request towards the lane; after failures towards enough lanes the exit is parked."""
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
        """Quarantine an exit that was blocked or failed towards the lane; gives until when, None if it was already."""
        before = self._quarantines.get((lane, index))
        if before is None:
            row = self.db.execute(_READ_QUARANTINE, (lane, index)).fetchone()
            before = Quarantine(*row) if row else Quarantine()
        after = self._quarantines[lane, index] = quarantine_after(before, pool, now=self.now)
        return None if after is before else after.until

    def end_quarantine(self, lane: int, index: int) -> None:
        """End the exit's failure streak towards the lane: a request succeeded."""
        self._quarantines[lane, index] = Quarantine()

    def flush(self) -> None:
        """Write the changes, except the rosters, which are written with their lanes."""
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


def begin_roster(exits: CrawlExits, lane: str) -> Roster:
    """The roster of a lane that uses its pool for the first time. Lanes begin with different exits, in turn."""
    pool_exits = exits.pool_exits(lane)
    return Roster(exits.begin_lane(lane) % max(1, len(pool_exits.names)), pool_exits.marks)


class OtherExits(NamedTuple):
    """The exits of other crawls towards the host of a lane: the pools whose limits count, and by exit name the requests
    in flight and the next starts of healthy exits."""

    pools: tuple[Pool, ...]
    in_flight: Mapping[str, int]
    next_starts: Mapping[str, float]

    def strictest(self, pool: Pool) -> Pool:
        """This pool with the strictest limits of all crawls."""
        return msgspec.structs.replace(
            pool,
            interval=max([pool.interval, *(other.interval for other in self.pools)]),
            cap=min([pool.cap, *(other.cap for other in self.pools)]),
        )


NO_OTHERS = OtherExits((), {}, {})


def joined(others: Sequence[OtherExits]) -> OtherExits:
    """The exits of several crawls, combined."""
    in_flight: Counter[str] = Counter()
    next_starts: dict[str, float] = {}
    for other in others:
        in_flight.update(other.in_flight)
        for name, at in other.next_starts.items():
            next_starts[name] = max(at, next_starts.get(name, 0.0))
    return OtherExits(tuple(pool for other in others for pool in other.pools), in_flight, next_starts)


class LaneExits:
    """The exits of one lane that goes via a pool. Changes its roster; `save` writes that into the lane's row."""

    __slots__ = (
        "_away",
        "_exits",
        "_indexes",
        "_lane",
        "_later",
        "_names",
        "_others",
        "has_changed",
        "pool",
        "roster",
        "was_passed_over",
    )

    def __init__(self, exits: CrawlExits, lane: LaneRow, roster: Roster, others: OtherExits = NO_OTHERS) -> None:
        pool_exits = exits.pool_exits(lane.name)
        self.roster = roster
        self.pool = pool_exits.pool
        self.has_changed = False
        self.was_passed_over = False
        self._away = exits.away(lane.name.partition(VIA)[2], pool_exits)
        self._exits = exits
        self._lane = lane
        self._names = pool_exits.names
        self._others = others
        self._indexes = pool_exits.indexes
        self._later: list[tuple[float, int]] | None = None

    @property
    def are_starved(self) -> bool:
        """Whether all exits rest."""
        return self.pool is not None and self.roster.starved_since > 0

    @property
    def are_given_up(self) -> bool:
        """Whether the lane gives up its tasks because no exit was usable for too long."""
        roster = self.roster
        return gives_up(
            self.pool,
            starved_since=roster.starved_since,
            has_healthy=roster.has_healthy(len(self._names)),
            first_rest=roster.first_rest,
            now=self._exits.now,
        )

    def take(self, start: float, token: int, *, latest: float) -> tuple[float, str, float, int] | None:
        """Take a slot of the next exit, not before `start`; gives its time, the exit, its interval and the version of
        its session. None: no exit has a slot until `latest`."""
        if self.pool is None or start > latest:
            return None
        pool = self._strict_pool(self.pool)
        index = self._pick(pool, latest=latest)
        if index is None:
            self.was_passed_over = bool(self._away)
            return None
        start = max(start, self.roster.next_starts.get(index, 0.0))
        name, session_version = self._start(index, pool, start, token)
        return start, name, pool.interval, session_version

    def _pick(self, pool: Pool, *, latest: float) -> int | None:
        """The next exit that is neither parked nor held, in the order of `rules/exits.py`."""
        if pool.sticky and (kept := self._kept(pool)) is not None:
            return self._use_kept(kept, pool, latest=latest)
        while (index := self._first(pool, latest=latest)) is not None:
            wait = self._wait_of(index)
            if wait is None:
                if pool.sticky:
                    self.roster.kept_index, self.roster.kept_since = index, self._exits.now
                return index
            self._put_off(index, *wait)
            self._exits.put_off_so_far += 1
            if self._exits.put_off_so_far >= MAX_PUT_OFF:
                return None
        return None

    def _strict_pool(self, pool: Pool) -> Pool:
        return self._others.strictest(pool) if self._others.pools else pool

    @property
    def are_used_elsewhere(self) -> bool:
        """Whether other crawls have requests in flight through exits towards this host."""
        return bool(self._others.in_flight)

    def heed(self, others: OtherExits) -> None:
        """Delay healthy exits to the next starts that other crawls have noted for them."""
        self._others = others
        for name, due in others.next_starts.items():
            index, roster = self._indexes.get(name), self.roster
            if index is None or roster.mark_of(index) != HEALTHY:
                continue
            if due > max(roster.next_starts.get(index, 0.0), self._exits.now):
                roster.next_starts[index] = due
                self.has_changed = True

    def _not_to_use(self, cap: int) -> bytes:
        """The mark REMOVED for each exit that this worker lacks, or that is at its cap over all crawls."""
        if not self._others.in_flight:
            return self._away
        marks = bytearray(self._away.ljust(len(self._names), b"\0"))
        for name, theirs in self._others.in_flight.items():
            index = self._indexes.get(name)
            if index is not None and theirs + self.roster.flights.get(index, 0) >= cap:
                marks[index] = REMOVED
        return bytes(marks.rstrip(b"\0"))

    def _first(self, pool: Pool, *, latest: float) -> int | None:
        away = self._not_to_use(pool.cap)
        exits, roster = self._exits, self.roster.without(away)
        if roster.first_rest <= exits.now:
            index = first_rested(exits.db, self._lane.id, now=exits.now, away=away)
            if index is not None:
                return index
        if self._later is None:
            index = roster.due_in_ring(len(self._names), pool.cap, now=exits.now)
            if index is not None:
                return index
            self._later = roster.due_later(pool.cap, now=exits.now)
            heapq.heapify(self._later)
        while self._later and self._later[0][0] <= latest:
            index = heapq.heappop(self._later)[1]
            if index >= len(away) or not away[index]:
                return index
        return None

    def _kept(self, pool: Pool) -> int | None:
        """The exit that a host of a sticky pool keeps, while it is healthy."""
        roster = self.roster
        if roster.kept_index < 0 or roster.mark_of(roster.kept_index) != HEALTHY:
            return None
        found = self._exits.known_exit(self._names[roster.kept_index])
        parked_until = found.parking.parked_until if found else 0.0
        is_kept = keeps_exit(pool, since=roster.kept_since, parked_until=parked_until, now=self._exits.now)
        return roster.kept_index if is_kept else None

    def _use_kept(self, index: int, pool: Pool, *, latest: float) -> int | None:
        """The kept exit, if this worker has it and it may be used until `latest`."""
        if index < len(self._away) and self._away[index]:
            return None
        at = self.roster.next_starts.get(index, 0.0)
        found = self._exits.known_exit(self._names[index])
        if self._exits.is_held(self._names[index], found):
            self.roster.next_starts[index] = max(at, self._exits.now + BUSY_SECONDS)
            return None
        in_flight = self.roster.flights.get(index, 0) + self._others.in_flight.get(self._names[index], 0)
        return index if at <= latest and in_flight < pool.cap else None

    def _wait_of(self, index: int) -> tuple[int, float] | None:
        """The mark PARKED or HELD of the exit, and until when; None: it may be used."""
        name = self._names[index]
        found = self._exits.known_exit(name)
        is_held = self._exits.is_held(name, found)
        if found is None and not is_held:
            return None
        parked_until = found.parking.parked_until if found else 0.0
        next_start = self.roster.next_starts.get(index, 0.0)
        return put_off(parked_until, is_held=is_held, next_start=next_start, now=self._exits.now)

    def _put_off(self, index: int, mark: int, until: float) -> None:
        db, lane, before = self._exits.db, self._lane.id, self.roster.mark_of(index)
        if before != HEALTHY:
            end_rest(db, lane, self.roster, index)
        rest(db, lane, self.roster, index, QUARANTINED if before == QUARANTINED else mark, until=until)

    def _start(self, index: int, pool: Pool, at: float, token: int) -> tuple[str, int]:
        exits, roster, name = self._exits, self.roster, self._names[index]
        if roster.marks and roster.mark_of(index) != HEALTHY:
            end_rest(exits.db, self._lane.id, roster, index)
        else:
            roster.next_index = index + 1
        if is_out_of_patience(roster.starved_since, pool, now=exits.now):
            roster.starved_since = exits.now
        next_start = at + pool.interval
        roster.start(index, next_start=next_start, now=exits.now)
        if self._later is not None and roster.is_free(index, pool.cap):
            heapq.heappush(self._later, (next_start, index))
        return name, exits.use(name, pool, token)

    def reserve(self, name: str, start: float, *, missed: float) -> float:
        """Take the exit's next slot, not before `start`, or move its latest slot if that was `missed`; gives its time.
        An exit that rests has no slots: gives `start`."""
        index, roster = self._indexes.get(name), self.roster
        if self.pool is None or index is None or roster.mark_of(index) != HEALTHY:
            return start
        next_start, interval = roster.next_starts.get(index, 0.0), self._strict_pool(self.pool).interval
        own = reserved_start(
            next_start=next_start,
            last_start=next_start - interval,
            interval=interval,
            blocked_until=0.0,
            missed=missed,
            now=self._exits.now,
        )
        start = max(start, own)
        roster.next_starts[index] = start + interval
        self.has_changed = True
        return start

    def end(self, name: str, use: ExitUse | None, token: int) -> None:
        """Note that a lease of the lane ended, with the report `use` on its exit."""
        index, roster, exits, pool = self._indexes[name], self.roster, self._exits, self.pool
        roster.end(index)
        self.has_changed = True
        exits.release(name, use, token)
        exits.count_use(self._lane.id, index, pool, use)
        verdict = use.verdict if use else None
        if verdict == "ok":
            self._end_probation(index)
        elif pool and verdict in ("blocked", "failed"):
            self._quarantine(index, pool)
            if verdict == "failed":
                exits.strike(self._lane.name, name, pool, token)
        if roster.mark_of(index) == ON_PROBATION and index not in roster.flights:
            until = max(roster.next_starts.get(index, 0.0), exits.now)
            rest(exits.db, self._lane.id, roster, index, QUARANTINED, until=until)

    def _quarantine(self, index: int, pool: Pool) -> None:
        """Quarantine the exit. It rests as soon as it has nothing in flight; until then it is on probation."""
        exits, lane, roster = self._exits, self._lane.id, self.roster
        until = exits.quarantine(lane, index, pool)
        if until is None:
            return
        mark = roster.mark_of(index)
        is_put_off = mark in (HELD, PARKED)
        at = end_rest(exits.db, lane, roster, index) if is_put_off else roster.next_starts.get(index, 0.0)
        roster.next_starts[index] = max(at, until)
        if mark != REMOVED:
            roster.mark(index, ON_PROBATION)

    def _end_probation(self, index: int) -> None:
        """Mark the exit healthy: a request succeeded."""
        roster = self.roster
        mark = roster.mark_of(index)
        if mark in (ON_PROBATION, REMOVED):
            self._exits.end_quarantine(self._lane.id, index)
        if mark == ON_PROBATION:
            roster.mark(index, HEALTHY)
            roster.starved_since = 0.0

    def save(self) -> None:
        """Write the roster into the lane's row."""
        if self.has_changed:
            self._refresh()
        self._lane.exits = self.roster.encode(now=self._exits.now)

    def _refresh(self) -> None:
        """Compute `exits_next`: when an exit of the lane is free next."""
        pool, roster, lane, now = self.pool, self.roster, self._lane, self._exits.now
        if pool is None:
            return
        size = len(self._names)
        roster.starved_since = starved_since(roster.starved_since, has_healthy=roster.has_healthy(size), now=now)
        if pool.sticky and (kept := self._kept(pool)) is not None:
            at = roster.next_starts.get(kept, 0.0) if roster.flights.get(kept, 0) < pool.cap else math.inf
            if pool.rotate:
                at = min(at, roster.kept_since + pool.rotate)
        else:
            at = roster.next_free(size, pool.cap, now=now)
        lane.exits_next = look_again_at(at, pool, starved_since=roster.starved_since, now=now)
        if self.was_passed_over and lane.exits_next <= now:
            # Behind the lanes that have waited longer: this worker must reach those next.
            lane.exits_next = now
