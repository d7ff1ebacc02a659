"""The pools of a crawl in SQLite: their exits by place, what happens when they change, what is known of each exit."""

from __future__ import annotations

import functools
import heapq
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from shoal.frontier.rules.exits import Ended, status_of
from shoal.frontier.sqlite.roster import GONE, ILL, OFF, PARKED, RING, TRIED, Roster, decode
from shoal.model import VIA, ExitStatus, Pool

_POOLS = msgspec.json.Decoder(tuple[Pool, ...])
_ROLLS = msgspec.json.Decoder(dict[str, tuple[str, ...]])
_REST = "INSERT INTO lane_rest (lane, place, due) VALUES (?, ?, ?)"


class Roll(msgspec.Struct, frozen=True):
    """Every exit that a pool ever had: a name keeps its place for ever. `pool` is None when the crawl has none."""

    names: tuple[str, ...] = ()
    places: Mapping[str, int] = msgspec.field(default_factory=dict)
    marks: bytes = b""
    pool: Pool | None = None


NO_ROLL = Roll()


@functools.lru_cache(maxsize=8)
def rolls_of(pools: bytes, rolls: bytes) -> Mapping[str, Roll]:
    """The rolls by pool, as they are written."""
    now = {pool.name: pool for pool in _POOLS.decode(pools)}
    return {name: _roll(names, now.get(name)) for name, names in _ROLLS.decode(rolls).items()}


def _roll(names: tuple[str, ...], pool: Pool | None) -> Roll:
    here = frozenset(pool.exits if pool else ())
    marks = bytes(RING if name in here else GONE for name in names).rstrip(b"\0")
    return Roll(names, {name: place for place, name in enumerate(names)}, marks, pool)


def read_rolls(db: sqlite3.Connection, crawl: int) -> Mapping[str, Roll]:
    return rolls_of(*db.execute("SELECT pools, rolls FROM crawl_about WHERE crawl = ?", (crawl,)).fetchone())


def roll_up(pools: Iterable[Pool], before: Mapping[str, Roll]) -> bytes:
    """The rolls with the exits of these pools, to be written."""
    rolls = {name: dict.fromkeys(roll.names) for name, roll in before.items()}
    for pool in pools:
        rolls[pool.name] = rolls.get(pool.name, {}) | dict.fromkeys(pool.exits)
    return msgspec.json.encode({name: tuple(names) for name, names in rolls.items()})


def take_over(db: sqlite3.Connection, crawl: int, pools: tuple[Pool, ...], *, now: float) -> tuple[Pool, ...]:
    """Pools changed: exits that stay keep what is known of them, and every lane looks at its exits anew. Gives the
    pools as they were."""
    before = read_rolls(db, crawl)
    db.execute(
        "UPDATE crawl_about SET pools = ?, rolls = ? WHERE crawl = ?",
        (msgspec.json.encode(pools), roll_up(pools, before), crawl),
    )
    rolls = read_rolls(db, crawl)
    lanes = db.execute("SELECT id, name, exits FROM lane WHERE crawl = ? AND exits <> x''", (crawl,)).fetchall()
    for lane, name, row in lanes:
        roll = rolls.get(name.partition(VIA)[2], NO_ROLL)
        roster = decode(row)
        _review(db, lane, roll, roster, now=now)
        db.execute("UPDATE lane SET exits_next = 0, exits = ? WHERE id = ?", (roster.encode(now=now), lane))
    return tuple(roll.pool for roll in before.values() if roll.pool)


def _review(db: sqlite3.Connection, lane: int, roll: Roll, roster: Roster, *, now: float) -> None:
    """Mark the lane's exits anew: who is in the pool, who is ill. None of them may be used earlier than before."""
    rested = dict(db.execute("DELETE FROM lane_rest WHERE lane = ? RETURNING place, due", (lane,)).fetchall())
    times, flights, nexts = roster.nexts | rested, roster.flights, roster.nexts
    marks, rests = bytearray(roll.marks.ljust(len(roll.names), b"\0")), {}
    for place, due in rested.items():
        mark = roster.mark_of(place)
        if mark not in (OFF, PARKED) or marks[place] == GONE:
            continue
        if place in flights:
            nexts[place] = due
        else:
            marks[place], rests[place] = mark, due
    rows = db.execute("SELECT place, rests_until FROM lane_exit WHERE lane = ? AND streak > 0", (lane,)).fetchall()
    for place, rests_until in rows:
        until = max(rests_until, times[place] if times.get(place, 0.0) > now else 0.0)
        if place in flights or (marks[place] == GONE and until > rests_until):
            nexts[place] = until
        elif marks[place] != GONE:
            rests[place] = until
            nexts.pop(place, None)
        if marks[place] != GONE:
            marks[place] = TRIED if place in flights else ILL
    roster.marks, roster.rests_next = bytes(marks.rstrip(b"\0")), min(rests.values(), default=math.inf)
    db.executemany(_REST, [(lane, place, until) for place, until in rests.items()])


def rest(db: sqlite3.Connection, lane: int, roster: Roster, place: int, mark: int, *, until: float) -> None:
    """The exit is out of the ring until its time comes."""
    roster.mark(place, mark)
    roster.nexts.pop(place, None)
    roster.rests_next = min(roster.rests_next, until)
    db.execute(_REST, (lane, place, until))


def end_rest(db: sqlite3.Connection, lane: int, roster: Roster, place: int) -> float:
    """The exit, ill or put off, rests no more; gives the time until which it did."""
    roster.mark(place, TRIED if roster.mark_of(place) == ILL else RING)
    delete = "DELETE FROM lane_rest WHERE lane = ? AND place = ? RETURNING due"
    ((until,),) = db.execute(delete, (lane, place)).fetchall()
    (first,) = db.execute("SELECT min(due) FROM lane_rest WHERE lane = ?", (lane,)).fetchone()
    roster.rests_next = math.inf if first is None else first
    return float(until)


def first_rested(db: sqlite3.Connection, lane: int) -> int:
    """The exit whose rest ends first."""
    (place,) = db.execute("SELECT place FROM lane_rest WHERE lane = ? ORDER BY due, place LIMIT 1", (lane,)).fetchone()
    return int(place)


def statuses(db: sqlite3.Connection, crawl: int, *, limit: int, now: float) -> list[ExitStatus]:
    """Every exit towards every host it was used for."""
    return heapq.nsmallest(limit, _statuses(db, crawl, now=now), key=lambda status: (status.exit, status.lane))


def _statuses(db: sqlite3.Connection, crawl: int, *, now: float) -> Iterator[ExitStatus]:
    rolls = read_rolls(db, crawl)
    parked = dict(db.execute("SELECT name, parked_until FROM exit WHERE crawl = ?", (crawl,)))
    for lane, name, row in db.execute("SELECT id, name, exits FROM lane WHERE crawl = ? AND exits <> x''", (crawl,)):
        roll = rolls.get(name.partition(VIA)[2], NO_ROLL)
        in_flight = decode(row).flights
        select = f"SELECT place, {', '.join(Ended._fields)} FROM lane_exit WHERE lane = ?"  # noqa: S608 -- constant
        ended = {place: Ended(*values) for place, *values in db.execute(select, (lane,))}
        for place in ended.keys() | in_flight.keys():
            yield status_of(
                roll.names[place],
                name,
                ended.get(place, Ended()),
                in_flight=in_flight.get(place, 0),
                parked_until=parked.get(roll.names[place], 0.0),
                now=now,
            )
