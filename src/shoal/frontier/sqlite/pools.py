"""The pools of a crawl, and the roster in which a lane stores the state of its pool's exits.

An exit is known by its index in the list of all exits that the pool ever had. Healthy exits form a ring and are used in
turn. Quarantined, held and parked exits rest: they leave the ring until a time stored in `lane_rest`.
"""

from __future__ import annotations

import functools
import heapq
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec

from shoal.frontier.rules.constants import HEALTHY, HELD, ON_PROBATION, PARKED, QUARANTINED, REMOVED
from shoal.frontier.rules.exits import (
    Ended,
    Offer,
    Offers,
    offered_names,
    renewed,
    status_of,
    usable_offers,
    with_offers,
)
from shoal.model import VIA, ExitStatus, Pool


class Roster(msgspec.Struct, array_like=True):
    """The exits of one lane.

    `next_index`: where the ring continues. `marks`: one byte per exit, up to the last one that is not healthy.
    `flights`: requests in flight, of exits that have any. `next_starts`: of exits that are not due. `first_rest`: when
    the first rest ends. `kept_index`: the exit that the lane keeps if its pool is sticky."""

    next_index: int = 0
    marks: bytes = b""
    flights: dict[int, int] = msgspec.field(default_factory=dict)
    next_starts: dict[int, float] = msgspec.field(default_factory=dict)
    first_rest: float = math.inf
    starved_since: float = 0.0
    kept_index: int = -1
    kept_since: float = 0.0

    def mark_of(self, index: int) -> int:
        return self.marks[index] if index < len(self.marks) else HEALTHY

    def mark(self, index: int, mark: int) -> None:
        marks = bytearray(self.marks.ljust(index + 1, b"\0"))
        marks[index] = mark
        self.marks = bytes(marks.rstrip(b"\0"))

    def without(self, away: bytes) -> Roster:
        """A copy for choosing only, in which the exits with a mark in `away` have that mark."""
        if not away:
            return self
        size = max(len(away), len(self.marks))
        marks = bytes(map(max, away.ljust(size, b"\0"), self.marks.ljust(size, b"\0")))
        return msgspec.structs.replace(self, marks=marks.rstrip(b"\0"))

    def is_free(self, index: int, cap: int) -> bool:
        """Whether the exit is healthy and may have one request more in flight."""
        return self.flights.get(index, 0) < cap and self.mark_of(index) == HEALTHY

    def has_healthy(self, size: int) -> bool:
        """Whether any exit is healthy, also one that another lane holds. `size`: the length of the pool's list."""
        return len(self.marks) < size or HEALTHY in self.marks or HELD in self.marks

    def due_in_ring(self, size: int, cap: int, *, now: float) -> int | None:
        """The next exit in the ring that may be used now."""
        first = self.next_index
        if not self.marks and not self.next_starts and first < size and self.flights.get(first, 0) < cap:
            return first  # nearly always
        index = self._due(first, size, cap, now=now)
        return self._due(0, min(first, size), cap, now=now) if index is None else index

    def _due(self, first: int, end: int, cap: int, *, now: float) -> int | None:
        flights, next_starts, index = self.flights, self.next_starts, self._in_ring(first, end)
        while index is not None and (flights.get(index, 0) >= cap or next_starts.get(index, 0.0) > now):
            index = self._in_ring(index + 1, end)
        return index

    def _in_ring(self, first: int, end: int) -> int | None:
        """The first healthy exit from this index on."""
        marked = len(self.marks)
        if first < marked:
            index = self.marks.find(HEALTHY, first, end)
            if index >= 0:
                return index
            first = marked
        return first if first < end else None

    def due_later(self, cap: int, *, now: float) -> list[tuple[float, int]]:
        """The healthy exits below their cap that are not due yet, as (next start, index)."""
        return [(at, index) for index, at in self.next_starts.items() if at > now and self.is_free(index, cap)]

    def next_free(self, size: int, cap: int, *, now: float) -> float:
        """When an exit may be used next; 0: now."""
        ring = size - len(self.marks) + self.marks.count(HEALTHY)
        if self.first_rest <= now or ring > len(self.flights) + len(self.next_starts):
            return 0.0
        full = sum(self.mark_of(index) == HEALTHY for index, flights in self.flights.items() if flights >= cap)
        later = self.due_later(cap, now=now)
        if ring > full + len(later):
            return 0.0
        return min([self.first_rest, *(at for at, _ in later)])

    def start(self, index: int, *, next_start: float, now: float) -> None:
        """Count a request that starts through the exit."""
        self.flights[index] = self.flights.get(index, 0) + 1
        if next_start > now:
            self.next_starts[index] = next_start
        elif self.next_starts:
            self.next_starts.pop(index, None)

    def end(self, index: int) -> None:
        """Count a request through the exit that has ended."""
        left = self.flights[index] - 1
        if left:
            self.flights[index] = left
        else:
            del self.flights[index]

    def encode(self, *, now: float) -> bytes:
        """For the lane's row."""
        if self.next_starts:
            self.next_starts = {index: at for index, at in self.next_starts.items() if at > now}
        return _ENCODER.encode(self)


_ENCODER = msgspec.msgpack.Encoder()
decode = msgspec.msgpack.Decoder(Roster).decode


_POOLS = msgspec.json.Decoder(tuple[Pool, ...])
_NAMES = msgspec.json.Decoder(dict[str, tuple[str, ...]])
_OFFERS = msgspec.json.Decoder(dict[str, Offer])
_READ = "SELECT pools, exit_names, offers FROM crawl_about WHERE crawl = ?"
_REST = "INSERT INTO lane_rest (lane, exit_index, due) VALUES (?, ?, ?)"


class PoolExits(msgspec.Struct, frozen=True):
    """Every exit that a pool ever had, also removed ones: a name keeps its index for ever.

    `marks`: for a lane that begins to use the pool. `pool`: None if the crawl has no such pool now. `offered`: the
    exits that only the workers that offer them may use."""

    names: tuple[str, ...] = ()
    indexes: Mapping[str, int] = msgspec.field(default_factory=dict)
    marks: bytes = b""
    pool: Pool | None = None
    offered: frozenset[str] = frozenset()


NO_POOL = PoolExits()


def read_pools(db: sqlite3.Connection, crawl: int) -> Mapping[str, PoolExits]:
    """The exits of every pool that the crawl ever had, by the pool's name."""
    return _decode_pools(*db.execute(_READ, (crawl,)).fetchone())


@functools.lru_cache(maxsize=64)
def _decode_pools(pools: bytes, names: bytes, offers: bytes) -> Mapping[str, PoolExits]:
    own = _POOLS.decode(pools)
    known = _OFFERS.decode(offers) if offers else {}
    present = {pool.name: pool for pool in with_offers(own, known)}
    offered = offered_names(own, known)
    return {
        name: _pool_exits(exits, present.get(name), offered.get(name, frozenset()))
        for name, exits in _NAMES.decode(names).items()
    }


def _pool_exits(names: tuple[str, ...], pool: Pool | None, offered: frozenset[str]) -> PoolExits:
    present = frozenset(pool.exits if pool else ())
    marks = bytes(HEALTHY if name in present else REMOVED for name in names).rstrip(b"\0")
    return PoolExits(names, {name: index for index, name in enumerate(names)}, marks, pool, offered)


def encode_names(pools: Iterable[Pool], before: Mapping[str, PoolExits]) -> bytes:
    """The names of all exits that each pool ever had, now that the crawl has these pools."""
    names = {name: dict.fromkeys(exits.names) for name, exits in before.items()}
    for pool in pools:
        names[pool.name] = names.get(pool.name, {}) | dict.fromkeys(pool.exits)
    return msgspec.json.encode({name: tuple(exits) for name, exits in names.items()})


def take_over(db: sqlite3.Connection, crawl: int, pools: tuple[Pool, ...], *, now: float) -> tuple[Pool, ...]:
    """Change the crawl's pools; gives the pools before. Exits that stay keep their state, offered ones stay, and every
    lane marks its exits again."""
    before = read_pools(db, crawl)
    offers = db.execute(_READ, (crawl,)).fetchone()[2]
    _change(db, crawl, pools, _OFFERS.decode(offers) if offers else {}, before, now=now)
    return tuple(exits.pool for exits in before.values() if exits.pool)


def offer(db: sqlite3.Connection, crawl: int, given: Sequence[Pool], *, now: float) -> bool:
    """A worker offers these exits. Gives whether pools changed."""
    own, _, written = db.execute(_READ, (crawl,)).fetchone()
    pools, offers = _POOLS.decode(own), _OFFERS.decode(written) if written else {}
    after, has_changed = renewed(offers, usable_offers(given, {pool.name for pool in pools}), now=now)
    if has_changed:
        _change(db, crawl, pools, after, read_pools(db, crawl), now=now)
    elif after != offers:
        db.execute("UPDATE crawl_about SET offers = ? WHERE crawl = ?", (msgspec.json.encode(after), crawl))
    return has_changed


def _change(
    db: sqlite3.Connection,
    crawl: int,
    pools: tuple[Pool, ...],
    offers: Offers,
    before: Mapping[str, PoolExits],
    *,
    now: float,
) -> None:
    db.execute(
        "UPDATE crawl_about SET pools = ?, exit_names = ?, offers = ? WHERE crawl = ?",
        (
            msgspec.json.encode(pools), encode_names(with_offers(pools, offers), before),
            msgspec.json.encode(offers) if offers else b"", crawl,
        ),
    )  # fmt: skip
    after = read_pools(db, crawl)
    lanes = db.execute("SELECT id, name, exits FROM lane WHERE crawl = ? AND exits <> x''", (crawl,)).fetchall()
    for lane, name, row in lanes:
        roster = decode(row)
        _mark_again(db, lane, after.get(name.partition(VIA)[2], NO_POOL), roster, now=now)
        db.execute("UPDATE lane SET exits_next = 0, exits = ? WHERE id = ?", (roster.encode(now=now), lane))


def _mark_again(db: sqlite3.Connection, lane: int, exits: PoolExits, roster: Roster, *, now: float) -> None:
    """Mark the lane's exits for the pool as it is now. None of them may be used earlier than before."""
    rested = dict(db.execute("DELETE FROM lane_rest WHERE lane = ? RETURNING exit_index, due", (lane,)).fetchall())
    times, flights, next_starts = roster.next_starts | rested, roster.flights, roster.next_starts
    marks, rests = bytearray(exits.marks.ljust(len(exits.names), b"\0")), {}
    for index, due in rested.items():
        mark = roster.mark_of(index)
        if mark not in (HELD, PARKED) or marks[index] == REMOVED:
            continue
        if index in flights:
            next_starts[index] = due
        else:
            marks[index], rests[index] = mark, due
    rows = db.execute("SELECT exit_index, rests_until FROM lane_exit WHERE lane = ? AND streak > 0", (lane,)).fetchall()
    for index, rests_until in rows:
        until = max(rests_until, times[index] if times.get(index, 0.0) > now else 0.0)
        if index in flights or (marks[index] == REMOVED and until > rests_until):
            next_starts[index] = until
        elif marks[index] != REMOVED:
            rests[index] = until
            next_starts.pop(index, None)
        if marks[index] != REMOVED:
            marks[index] = ON_PROBATION if index in flights else QUARANTINED
    roster.marks, roster.first_rest = bytes(marks.rstrip(b"\0")), min(rests.values(), default=math.inf)
    db.executemany(_REST, [(lane, index, until) for index, until in rests.items()])


def rest(db: sqlite3.Connection, lane: int, roster: Roster, index: int, mark: int, *, until: float) -> None:
    """Mark the exit; it rests until that time."""
    roster.mark(index, mark)
    roster.next_starts.pop(index, None)
    roster.first_rest = min(roster.first_rest, until)
    db.execute(_REST, (lane, index, until))


def end_rest(db: sqlite3.Connection, lane: int, roster: Roster, index: int) -> float:
    """End the exit's rest: a quarantined exit is then on probation, a held or parked one healthy. Gives the time until
    which it should have rested."""
    roster.mark(index, ON_PROBATION if roster.mark_of(index) == QUARANTINED else HEALTHY)
    delete = "DELETE FROM lane_rest WHERE lane = ? AND exit_index = ? RETURNING due"
    ((until,),) = db.execute(delete, (lane, index)).fetchall()
    (first,) = db.execute("SELECT min(due) FROM lane_rest WHERE lane = ?", (lane,)).fetchone()
    roster.first_rest = math.inf if first is None else first
    return float(until)


def first_rested(db: sqlite3.Connection, lane: int, *, now: float, away: bytes) -> int | None:
    """The exit whose rest ended first, without the exits marked in `away`; None: no rest has ended."""
    for (index,) in db.execute(
        "SELECT exit_index FROM lane_rest WHERE lane = ? AND due <= ? ORDER BY due, exit_index", (lane, now)
    ):
        if index >= len(away) or not away[index]:
            return int(index)
    return None


def statuses(db: sqlite3.Connection, crawl: int, *, limit: int, now: float) -> list[ExitStatus]:
    """Every exit towards every host it was used for."""
    return heapq.nsmallest(limit, _statuses(db, crawl, now=now), key=lambda status: (status.exit, status.lane))


def _statuses(db: sqlite3.Connection, crawl: int, *, now: float) -> Iterator[ExitStatus]:
    pools = read_pools(db, crawl)
    parked = dict(db.execute("SELECT name, parked_until FROM exit WHERE crawl = ?", (crawl,)))
    for lane, name, row in db.execute("SELECT id, name, exits FROM lane WHERE crawl = ? AND exits <> x''", (crawl,)):
        names = pools.get(name.partition(VIA)[2], NO_POOL).names
        in_flight = decode(row).flights
        select = f"SELECT exit_index, {', '.join(Ended._fields)} FROM lane_exit WHERE lane = ?"
        ended = {index: Ended(*values) for index, *values in db.execute(select, (lane,))}
        for index in ended.keys() | in_flight.keys():
            yield status_of(
                names[index],
                name,
                ended.get(index, Ended()),
                in_flight=in_flight.get(index, 0),
                parked_until=parked.get(names[index], 0.0),
                now=now,
            )
