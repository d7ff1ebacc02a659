"""Hosts that several crawls share: what the lanes of other crawls leave to a lane, and what outlives the crawls.

Most lanes look at nothing: see `sharing` in schema.sql, and decision 16.

Which lanes a lease call takes, and how many tasks of each: the longest-waiting first, in fair shares, within what
other crawls leave to them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec

from shoal.frontier.rules.constants import (
    HEALTHY,
    HEEDED_SECONDS,
    LOOK_AGAIN_SECONDS,
    MAX_LOOKS,
    WANTS_SECONDS,
)
from shoal.frontier.rules.hosts import (
    ALONE,
    APART,
    DELETING,
    SHARED,
    Limits,
    OtherLane,
    held_by,
    in_time_of,
    is_heeded,
    lane_in_state,
    limits_of,
    matters,
    turn_at_return,
    turn_owed,
    turns_left,
)
from shoal.frontier.rules.lanes import share_out, starts_within
from shoal.frontier.sqlite.exits import OtherExits, joined
from shoal.frontier.sqlite.ledger import NOT_ALONE, Ledger
from shoal.frontier.sqlite.pools import NO_POOL, decode, read_pools
from shoal.frontier.sqlite.rows import LENDING_COLUMNS, READY_AT, SHARING, LaneRow, Moment, write_wishes
from shoal.frontier.sqlite.settle import reclaim_expired
from shoal.model import HTTP, VIA, CrawlState, Held, LaneUpdate, Lease, Pool

OTHERS = (
    "SELECT lane.id, crawl.id, crawl.name, crawl.clock_shift, crawl.state, last_start, blocked_until,"
    " lane.interval, base_interval, lane.cap, in_flight, opener, turn, wish, sharing, rules_until,"
    " exits FROM lane JOIN crawl ON crawl.id = lane.crawl WHERE lane.name = ? AND sharing >= 0 AND lane.crawl <> ?"
    " ORDER BY lane.id"
)
KEPT = "SELECT last_start, blocked_until, rules_until FROM host WHERE name = ? AND until > ?"
_RULES = "SELECT rules, delay, why FROM lane_rules WHERE lane = ?"
_KEPT_RULES = "SELECT rules, delay, why FROM host WHERE name = ?"


class Seen(NamedTuple):
    """The lane of another crawl as a look finds it, with its times in the time of the crawl that looks."""

    id: int
    crawl: int
    crawl_name: str
    shift: float
    lane: OtherLane
    sharing: int
    rules_until: float
    exits: bytes


# A lane that may lend, with what other crawls leave to it, None if it looked at none, and how many turns it has.
Grant = tuple[Ledger, LaneRow, Limits | None, int]


class Reclaims:
    """Leases of other crawls that one lease call ends. `names`: its own crawls, which have done that already."""

    def __init__(self, db: sqlite3.Connection, *, at: Moment, seconds: float, names: Iterable[str]) -> None:
        self._db = db
        self._at = at
        self._seconds = seconds
        self._looked_at = set(names)

    def reclaim(self, ledger: Ledger, lane: LaneRow) -> None:
        """End leases that have been over for as long as a lease lasts, of crawls that may hold the lane back."""
        names = []
        if lane.sharing == SHARED:
            seen = _others(ledger, lane)
            names = [other.crawl_name for other in seen if other.lane.in_flight or other.lane.opener]
        pool = ledger.exits.pool_exits(lane.name).pool if lane.has_pool else None
        if pool is not None and pool.exclusive:
            names += ledger.exits.crawls_that_hold(pool.exits)
        for name in dict.fromkeys(names):
            if name not in self._looked_at:
                self._looked_at.add(name)
                other = Ledger.load(self._db, name, at=self._at)
                if other is not None and reclaim_expired(other, over=self._seconds):
                    other.flush()
                    ledger.exits.holders.read_again()


def one_per_host(lanes: Sequence[tuple[Ledger, LaneRow]]) -> list[tuple[Ledger, LaneRow]]:
    """Of lanes that share a host, the first one."""
    first: dict[str, int] = {}
    for _, lane in lanes:
        if lane.sharing != APART:
            first.setdefault(lane.name, lane.id)
    return [
        (ledger, lane) for ledger, lane in lanes if first.get(lane.name, lane.id) == lane.id or lane.sharing == APART
    ]


def look(ledger: Ledger, lane: LaneRow) -> Limits:
    """A lane that asks for start slots looks at those of other crawls: their pace, rules, exits and turns."""
    (lane.wish,) = ledger.db.execute("SELECT wish FROM lane WHERE id = ?", (lane.id,)).fetchone()
    seen = _others(ledger, lane)
    _take_rules(ledger, lane, seen)
    limits = _limits(ledger, lane, seen, own_start=lane.last_start)
    _heed_exits(ledger, lane, seen)
    lane.turn = turn_at_return(lane.turn, wants_until=lane.wants_until, first_turn=limits.first_turn, now=ledger.now)
    return limits


def lane_needs_opening(ledger: Ledger, lane: LaneRow) -> bool:
    return lane.rules_until <= ledger.rules_due and not lane.is_stage


def is_held_back(grant: Grant, *, latest: float) -> bool:
    """Whether other crawls let the lane start nothing in time. It then waits anew: until it may start, or to look
    again."""
    ledger, lane, limits, turns = grant
    if limits is None:
        return False
    is_opening = limits.is_opening and lane_needs_opening(ledger, lane)
    is_full = lane.in_flight + limits.in_flight >= limits.cap
    if is_opening or is_full or not turns:
        lane.next_start = max(lane.next_start, limits.not_before, ledger.now + LOOK_AGAIN_SECONDS)
        return True
    if limits.not_before > latest:
        lane.next_start = max(lane.next_start, limits.not_before)
        return True
    return False


def reserve(ledger: Ledger, lane: LaneRow, exit_name: str, *, missed: float) -> float:
    """Take the next start slot of the lane, and of the exit, for a request that is not a lease's first; gives its
    time."""
    start = lane.reserved_start(missed, now=ledger.now)
    limits = None
    ledger.read_sharing(lane)
    if lane.sharing == SHARED:
        seen = _others(ledger, lane)
        # One that was missed is free for this request.
        limits = _limits(ledger, lane, seen, own_start=0.0 if missed else lane.last_start)
        _heed_exits(ledger, lane, seen)
        start = max(start, limits.not_before)
    if lane.has_pool:
        start = ledger.exits_of(lane).reserve(exit_name, start, missed=missed)
    lane.start(start, now=ledger.now, interval=limits.interval if limits else None)
    if not missed:
        lane.turn += ledger.turn
        write_wishes(ledger.db, [lane])
    return start


def _others(ledger: Ledger, lane: LaneRow) -> list[Seen]:
    rows = ledger.db.execute(OTHERS, (lane.name, ledger.crawl.id)).fetchall()
    return [_seen(row, own_shift=ledger.crawl.clock_shift) for row in rows]


def _limits(ledger: Ledger, lane: LaneRow, seen: Sequence[Seen], *, own_start: float) -> Limits:
    """What the others leave. When none of them matters, the lane is alone from now on; they are not."""
    if any(other.sharing == ALONE for other in seen):
        ledger.db.execute(NOT_ALONE, (lane.name, lane.id))
    others = [other.lane for other in seen]
    kept = ledger.db.execute(KEPT, (lane.name, ledger.wall)).fetchone()
    if kept is not None:
        start, rest, _ = (_own(at, ledger) for at in kept)
        others.append(OtherLane(start, rest, 0.0, 0.0, 0, 0, 0, 0.0, 0.0, 0.0))
    if lane.sharing == SHARED and not any(matters(other, lane.interval, now=ledger.now) for other in others):
        ledger.change_sharing(lane, ALONE)
    return limits_of(lane.interval, lane.base_interval, lane.cap, others, now=ledger.now, own_start=own_start)


def _take_rules(ledger: Ledger, lane: LaneRow, seen: Sequence[Seen]) -> None:
    """A lane without valid rules takes those of another crawl that are valid longest, with their pace."""
    if not lane_needs_opening(ledger, lane):
        return
    best = max(seen, default=None, key=lambda other: other.rules_until)
    until, select, which = (best.rules_until, _RULES, str(best.id)) if best else (0.0, _RULES, "")
    kept = ledger.db.execute(KEPT, (lane.name, ledger.wall)).fetchone()
    if kept is not None and _own(kept[2], ledger) > until:
        until, select, which = _own(kept[2], ledger), _KEPT_RULES, lane.name
    if until <= ledger.now:
        return
    rules, delay, why = ledger.db.execute(select, (which,)).fetchone()
    if delay > lane.base_interval:
        slower = LaneUpdate(interval=max(lane.interval, delay), base_interval=delay, why=why)
        ledger.update_lane(lane, slower)
    ledger.keep_rules(lane, rules, delay, why)
    lane.rules_until = until
    lane.rules_version += 1


def _heed_exits(ledger: Ledger, lane: LaneRow, seen: Sequence[Seen]) -> None:
    """Healthy exits are due no earlier than for the other crawls, and their requests in flight count."""
    if not lane.has_pool:
        return
    others = joined([_exits_of(ledger, lane.name, other) for other in seen if other.exits])
    ledger.other_exits[lane.id] = others
    if any(due > ledger.now for due in others.next_starts.values()):
        ledger.exits_of(lane).heed(others)


def _exits_of(ledger: Ledger, name: str, other: Seen) -> OtherExits:
    found = read_pools(ledger.db, other.crawl).get(name.partition(VIA)[2], NO_POOL)
    roster, own_shift = decode(other.exits), ledger.crawl.clock_shift
    return OtherExits(
        pools=(found.pool,) if found.pool and is_heeded(other.lane, now=ledger.now) else (),
        in_flight={found.names[index]: count for index, count in roster.flights.items()},
        next_starts={
            found.names[index]: in_time_of(at, shift=other.shift, own_shift=own_shift)
            for index, at in roster.next_starts.items()
            if roster.mark_of(index) == HEALTHY
        },
    )


def _own(at: float, ledger: Ledger) -> float:
    """A time of the frontier's clock in the time of the crawl."""
    return in_time_of(at, shift=0.0, own_shift=ledger.crawl.clock_shift)


def _seen(row: tuple[Any, ...], *, own_shift: float) -> Seen:
    lane, crawl, crawl_name, shift, state, last_start, blocked_until, *pace = row
    interval, base_interval, cap, in_flight, opener, turn, wish, sharing, rules_until, exits = pace

    def own(at: float) -> float:
        return in_time_of(at, shift=shift, own_shift=own_shift)

    other = OtherLane(
        last_start=own(last_start),
        blocked_until=own(blocked_until),
        interval=interval,
        base_interval=base_interval,
        cap=cap,
        in_flight=in_flight,
        opener=opener,
        turn=turn,
        wants_until=own(wish + WANTS_SECONDS) if wish > 0 else 0.0,
        heeded_until=own(abs(wish) + HEEDED_SECONDS) if wish else 0.0,
    )
    seen = lane_in_state(other, state)
    return Seen(lane, crawl, crawl_name, shift, seen, sharing, own(rules_until), b"" if state == DELETING else exits)


def held(ledger: Ledger, lane: LaneRow) -> Held | None:
    """What other crawls do to the lane, for people to see."""
    if lane.sharing != SHARED:
        return None
    others = {other.crawl_name: other.lane for other in _others(ledger, lane)}
    lacks_rules = lane_needs_opening(ledger, lane)
    return held_by(lane.pace, others, in_flight=lane.in_flight, lacks_rules=lacks_rules, now=ledger.now)


READY = (
    f"SELECT {LENDING_COLUMNS} FROM lane WHERE crawl = ? AND waiting > 0 AND in_flight < cap AND opener = 0"
    " AND max(next_start, exits_next) <= ? ORDER BY max(next_start, exits_next), id LIMIT ?"
)


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms on which a worker asks for leases."""

    limit: int
    worker: str
    seconds: float
    horizon: float
    landed: Sequence[Lease] = ()
    kinds: Sequence[str] = (HTTP,)
    offers: Sequence[Pool] = ()
    room: int = 0


def choose(ledgers: Sequence[Ledger], terms: Terms, reclaims: Reclaims) -> tuple[list[tuple[Grant, int]], list[Grant]]:
    """The lanes that may start, longest-waiting first, and how many tasks each one lends; then those that other crawls
    hold back. While there are some, the next ones are looked at in their place, a few times."""
    held: list[Grant] = []
    for _ in range(MAX_LOOKS):
        lanes = _waiting_longest(ledgers, terms, held)
        # Nearly all lanes look at no other one.
        grants: list[Grant] = [
            _grant(ledger, lane, terms, reclaims)
            if lane.sharing == SHARED or lane.rules_until <= ledger.rules_due or VIA in lane.name
            else (ledger, lane, None, terms.limit)
            for ledger, lane in lanes
        ]
        looked = [grant for grant in grants if grant[2] is not None]
        back = [grant for grant in looked if is_held_back(grant, latest=grant[0].now + terms.horizon)]
        if len(ledgers) > 1:
            # Lanes of the other crawls of this call look at these next.
            for ledger, lane, _, _ in looked:
                ledger.write_lanes([lane])
                write_wishes(ledger.db, [lane])
        if not back:
            break
        held += back
        away = {lane.id for _, lane, _, _ in back}
        grants = [grant for grant in grants if grant[1].id not in away]
    rooms = [_room(grant, terms) for grant in grants]
    return list(zip(grants, share_out(rooms, terms.limit), strict=True)), held


def _grant(ledger: Ledger, lane: LaneRow, terms: Terms, reclaims: Reclaims) -> Grant:
    """What the lane may do, after a look at the lanes of other crawls: if it is shared, for rules, and for accounts
    that one of them uses."""
    if lane.sharing != APART:
        reclaims.reclaim(ledger, lane)
    if lane.sharing == APART or (lane.sharing == ALONE and not lane_needs_opening(ledger, lane)):
        return ledger, lane, None, terms.limit
    limits = look(ledger, lane)
    lane.turn = turn_owed(lane.turn, weight=ledger.crawl.share, limits=limits, horizon=terms.horizon)
    most = turns_left(lane.turn, weight=ledger.crawl.share, limits=limits, horizon=terms.horizon, most=terms.limit)
    return ledger, lane, limits, most


def _waiting_longest(ledgers: Sequence[Ledger], terms: Terms, held: Sequence[Grant]) -> list[tuple[Ledger, LaneRow]]:
    """The lanes that may start, longest-waiting first, without those that are held back. Of several crawls' lanes for
    one host the first one: the others are for the next call."""
    ready, without = [], {lane.id for _, lane, _, _ in held}
    for ledger in ledgers:
        if ledger.crawl.state == CrawlState.RUNNING and ledger.crawl.queued:
            rows = _ready_rows(ledger, terms, limit=terms.limit + len(held))
            ready += [(ledger, row) for row in rows if row[0] not in without]
    if len(ledgers) > 1 or any(ledger.kinds is not None for ledger in ledgers):
        # Each crawl has a time of its own, and each kind a list.
        start, exits = READY_AT
        ready.sort(key=lambda entry: (max(entry[1][start], entry[1][exits]) - entry[0].crawl.clock_shift, entry[1][0]))
    # The ledger writes lanes that look at those of other crawls, lanes that go via a pool, with their exits, and those
    # of a crawl with several kinds; the others are written here, all together. One that was found to be alone when this
    # call looked at it stays the ledger's: there must not be two of it.
    lanes = [
        (
            ledger,
            ledger.adopt(row)
            if row[SHARING] == SHARED or VIA in row[1] or ledger.kinds is not None or (held and ledger.has(row[0]))
            else LaneRow(*row),
        )
        for ledger, row in ready[: terms.limit]
    ]
    return one_per_host(lanes) if len(ledgers) > 1 else lanes


def _ready_rows(ledger: Ledger, terms: Terms, *, limit: int) -> list[tuple[Any, ...]]:
    """The rows of lanes that may lend tasks of these kinds."""
    latest, rows = ledger.now + terms.horizon, []
    if HTTP in terms.kinds:
        rows = ledger.db.execute(READY, (ledger.crawl.id, latest, limit)).fetchall()
    if ledger.kinds is not None:
        known = {row[0] for row in rows}
        others = ledger.kinds.ready(ledger.kinds.numbers(terms.kinds), latest=latest, limit=limit)
        rows += [row for row in others if row[0] not in known]
    return rows


def _room(grant: Grant, terms: Terms) -> int:
    """How many tasks the lane may start within the horizon."""
    ledger, lane, limits, turns = grant
    if lane_needs_opening(ledger, lane):
        return 1
    waiting = lane.waiting
    if ledger.kinds is not None:
        numbers = ledger.kinds.numbers(terms.kinds)
        waiting = (waiting if HTTP in terms.kinds else 0) + ledger.kinds.waiting(lane.id, numbers)
    if limits is None:
        room, interval, next_start = min(waiting, lane.cap - lane.in_flight, turns), lane.interval, lane.next_start
    else:
        room = min(waiting, limits.cap - lane.in_flight - limits.in_flight, turns)
        interval, next_start = limits.interval, max(lane.next_start, limits.not_before)
    return starts_within(room, interval=interval, next_start=next_start, horizon=terms.horizon, now=ledger.now)
