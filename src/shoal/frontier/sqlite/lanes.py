"""Which lanes a lease call takes and how many tasks of each, within the limits of other crawls on shared hosts.

The lane that has waited longest comes first; lanes get fair shares. Most lanes read nothing of other crawls: see
`sharing` in schema.sql.
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
from shoal.frontier.sqlite.rows import (
    IS_READY,
    LENDING_COLUMNS,
    READY_AT,
    SHARING,
    STARTS_AT,
    LaneRow,
    Moment,
    write_wishes,
)
from shoal.frontier.sqlite.settle import reclaim_expired
from shoal.model import HTTP, VIA, CrawlState, Held, LaneUpdate, Lease, Pool

OTHERS = (
    "SELECT lane.id, crawl.id, crawl.name, crawl.clock_shift, crawl.state, last_start, blocked_until,"
    " lane.interval, base_interval, lane.cap, in_flight, opener, turn, wish, sharing, rules_until,"
    f" exits FROM lane JOIN crawl ON crawl.id = lane.crawl WHERE lane.name = ? AND sharing <> {APART}"
    " AND lane.crawl <> ? ORDER BY lane.id"
)
KEPT = "SELECT last_start, blocked_until, rules_until FROM host WHERE name = ? AND until > ?"
_RULES = "SELECT rules, delay, why FROM lane_rules WHERE lane = ?"
_KEPT_RULES = "SELECT rules, delay, why FROM host WHERE name = ?"


class ForeignLane(NamedTuple):
    """The lane of another crawl for the same host; its times are converted to the time of the reading crawl."""

    id: int
    crawl: int
    crawl_name: str
    shift: float
    lane: OtherLane
    sharing: int
    rules_until: float
    exits: bytes


# A lane that may start; its limits by other crawls, None if none were read; and how many starts its turn allows.
Grant = tuple[Ledger, LaneRow, Limits | None, int]


class Reclaims:
    """Reclaims expired leases of other crawls during one lease call. `names`: the call's own crawls, done already."""

    def __init__(self, db: sqlite3.Connection, *, at: Moment, seconds: float, names: Iterable[str]) -> None:
        self._db = db
        self._at = at
        self._seconds = seconds
        self._looked_at = set(names)

    def reclaim(self, ledger: Ledger, lane: LaneRow) -> None:
        """Reclaim leases that expired a whole lease length ago, of the crawls that may hold the lane back."""
        names = []
        if lane.sharing == SHARED:
            foreign = _others(ledger, lane)
            names = [other.crawl_name for other in foreign if other.lane.in_flight or other.lane.opener]
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
    """The first of the lanes that share a host."""
    first: dict[str, int] = {}
    for _, lane in lanes:
        if lane.sharing != APART:
            first.setdefault(lane.name, lane.id)
    return [
        (ledger, lane) for ledger, lane in lanes if first.get(lane.name, lane.id) == lane.id or lane.sharing == APART
    ]


def look(ledger: Ledger, lane: LaneRow) -> Limits:
    """The limits that other crawls put on a lane that wants start slots; it takes over their rules, exits and turns."""
    (lane.wish,) = ledger.db.execute("SELECT wish FROM lane WHERE id = ?", (lane.id,)).fetchone()
    foreign = _others(ledger, lane)
    _take_rules(ledger, lane, foreign)
    limits = _limits(ledger, lane, foreign, own_start=lane.last_start)
    _heed_exits(ledger, lane, foreign)
    lane.turn = turn_at_return(lane.turn, wants_until=lane.wants_until, first_turn=limits.first_turn, now=ledger.now)
    return limits


def lane_needs_opening(ledger: Ledger, lane: LaneRow) -> bool:
    return lane.rules_until <= ledger.rules_due and not lane.is_stage


def is_held_back(grant: Grant, *, latest: float) -> bool:
    """Whether other crawls keep the lane from starting in time. Its next start is then when it may start, or soon, to
    check again."""
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
        foreign = _others(ledger, lane)
        # A missed slot is free for this request.
        limits = _limits(ledger, lane, foreign, own_start=0.0 if missed else lane.last_start)
        _heed_exits(ledger, lane, foreign)
        start = max(start, limits.not_before)
    if lane.has_pool:
        start = ledger.exits_of(lane).reserve(exit_name, start, missed=missed)
    lane.start(start, now=ledger.now, interval=limits.interval if limits else None)
    if not missed:
        lane.turn += ledger.turn
        write_wishes(ledger.db, [lane])
    return start


def _others(ledger: Ledger, lane: LaneRow) -> list[ForeignLane]:
    rows = ledger.db.execute(OTHERS, (lane.name, ledger.crawl.id)).fetchall()
    return [_foreign_lane(row, own_shift=ledger.crawl.clock_shift) for row in rows]


def _limits(ledger: Ledger, lane: LaneRow, foreign: Sequence[ForeignLane], *, own_start: float) -> Limits:
    """The limits by other crawls. If none of their lanes matters, this lane becomes ALONE and theirs SHARED."""
    if any(other.sharing == ALONE for other in foreign):
        ledger.db.execute(NOT_ALONE, (lane.name, lane.id))
    others = [other.lane for other in foreign]
    kept = ledger.db.execute(KEPT, (lane.name, ledger.wall)).fetchone()
    if kept is not None:
        start, rest, _ = (_own(at, ledger) for at in kept)
        others.append(OtherLane(start, rest, 0.0, 0.0, 0, 0, 0, 0.0, 0.0, 0.0))
    if lane.sharing == SHARED and not any(matters(other, lane.interval, now=ledger.now) for other in others):
        ledger.change_sharing(lane, ALONE)
    return limits_of(lane.interval, lane.base_interval, lane.cap, others, now=ledger.now, own_start=own_start)


def _take_rules(ledger: Ledger, lane: LaneRow, foreign: Sequence[ForeignLane]) -> None:
    """Give a lane without valid rules the rules of the other crawl whose rules are valid longest, with their pace."""
    if not lane_needs_opening(ledger, lane):
        return
    best = max(foreign, default=None, key=lambda other: other.rules_until)
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


def _heed_exits(ledger: Ledger, lane: LaneRow, foreign: Sequence[ForeignLane]) -> None:
    """Limit the lane's healthy exits by the next starts and the requests in flight of other crawls."""
    if not lane.has_pool:
        return
    others = joined([_exits_of(ledger, lane.name, other) for other in foreign if other.exits])
    ledger.other_exits[lane.id] = others
    if any(due > ledger.now for due in others.next_starts.values()):
        ledger.exits_of(lane).heed(others)


def _exits_of(ledger: Ledger, name: str, other: ForeignLane) -> OtherExits:
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


def _foreign_lane(row: tuple[Any, ...], *, own_shift: float) -> ForeignLane:
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
    standing = lane_in_state(other, state)
    return ForeignLane(
        lane, crawl, crawl_name, shift, standing, sharing, own(rules_until), b"" if state == DELETING else exits
    )


def held(ledger: Ledger, lane: LaneRow) -> Held | None:
    """How other crawls hold the lane back, for people."""
    if lane.sharing != SHARED:
        return None
    others = {other.crawl_name: other.lane for other in _others(ledger, lane)}
    lacks_rules = lane_needs_opening(ledger, lane)
    return held_by(lane.pace, others, in_flight=lane.in_flight, lacks_rules=lacks_rules, now=ledger.now)


READY = (
    f"SELECT {LENDING_COLUMNS} FROM lane WHERE crawl = ? AND {IS_READY} AND {STARTS_AT} <= ?"
    f" ORDER BY {STARTS_AT}, id LIMIT ?"
)


class LeaseRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's call for leases: see `Frontier.lease`."""

    limit: int
    worker: str
    seconds: float
    horizon: float
    landed: Sequence[Lease] = ()
    kinds: Sequence[str] = (HTTP,)
    offers: Sequence[Pool] = ()
    room: int = 0


def choose(
    ledgers: Sequence[Ledger], request: LeaseRequest, reclaims: Reclaims
) -> tuple[list[tuple[Grant, int]], list[Grant]]:
    """The lanes that may start, longest-waiting first, with how many tasks to lease of each; and the lanes that other
    crawls hold back. Lanes held back are replaced by the next ones, at most MAX_LOOKS times."""
    held: list[Grant] = []
    for _ in range(MAX_LOOKS):
        lanes = _waiting_longest(ledgers, request, held)
        # Nearly all lanes read no other one.
        grants: list[Grant] = [
            _grant(ledger, lane, request, reclaims)
            if lane.sharing == SHARED or lane.rules_until <= ledger.rules_due or VIA in lane.name
            else (ledger, lane, None, request.limit)
            for ledger, lane in lanes
        ]
        looked = [grant for grant in grants if grant[2] is not None]
        back = [grant for grant in looked if is_held_back(grant, latest=grant[0].now + request.horizon)]
        if len(ledgers) > 1:
            # Lanes of the other crawls of this call read these rows next.
            for ledger, lane, _, _ in looked:
                ledger.write_lanes([lane])
                write_wishes(ledger.db, [lane])
        if not back:
            break
        held += back
        away = {lane.id for _, lane, _, _ in back}
        grants = [grant for grant in grants if grant[1].id not in away]
    rooms = [_room(grant, request) for grant in grants]
    return list(zip(grants, share_out(rooms, request.limit), strict=True)), held


def _grant(ledger: Ledger, lane: LaneRow, request: LeaseRequest, reclaims: Reclaims) -> Grant:
    """The lane with its limits. Lanes of other crawls are read if the lane is shared, needs rules, or goes via a pool
    whose accounts other crawls may use."""
    if lane.sharing != APART:
        reclaims.reclaim(ledger, lane)
    if lane.sharing == APART or (lane.sharing == ALONE and not lane_needs_opening(ledger, lane)):
        return ledger, lane, None, request.limit
    limits = look(ledger, lane)
    lane.turn = turn_owed(lane.turn, weight=ledger.crawl.share, limits=limits, horizon=request.horizon)
    most = turns_left(lane.turn, weight=ledger.crawl.share, limits=limits, horizon=request.horizon, most=request.limit)
    return ledger, lane, limits, most


def _waiting_longest(
    ledgers: Sequence[Ledger], request: LeaseRequest, held: Sequence[Grant]
) -> list[tuple[Ledger, LaneRow]]:
    """The lanes that may start, longest-waiting first, without the lanes held back. Of several lanes for one host only
    the first: the others are for the next call."""
    ready, without = [], {lane.id for _, lane, _, _ in held}
    for ledger in ledgers:
        if ledger.crawl.state == CrawlState.RUNNING and ledger.crawl.queued:
            rows = _ready_rows(ledger, request, limit=request.limit + len(held))
            ready += [(ledger, row) for row in rows if row[0] not in without]
    if len(ledgers) > 1 or any(ledger.kinds is not None for ledger in ledgers):
        # Rows are sorted per crawl and kind; crawls have times of their own.
        start, exits = READY_AT
        ready.sort(key=lambda entry: (max(entry[1][start], entry[1][exits]) - entry[0].crawl.clock_shift, entry[1][0]))
    # The ledger writes lanes that read other crawls, that go via a pool, or that belong to a crawl with several kinds;
    # all other lanes are written by `write_lanes`, together. A lane that this call found to be alone stays with the
    # ledger: two objects for one row would overwrite each other.
    lanes = [
        (
            ledger,
            ledger.adopt(row)
            if row[SHARING] == SHARED or VIA in row[1] or ledger.kinds is not None or (held and ledger.has(row[0]))
            else LaneRow(*row),
        )
        for ledger, row in ready[: request.limit]
    ]
    return one_per_host(lanes) if len(ledgers) > 1 else lanes


def _ready_rows(ledger: Ledger, request: LeaseRequest, *, limit: int) -> list[tuple[Any, ...]]:
    """The rows of lanes that may start tasks of the requested kinds."""
    latest, rows = ledger.now + request.horizon, []
    if HTTP in request.kinds:
        rows = ledger.db.execute(READY, (ledger.crawl.id, latest, limit)).fetchall()
    if ledger.kinds is not None:
        known = {row[0] for row in rows}
        others = ledger.kinds.ready(ledger.kinds.numbers(request.kinds), latest=latest, limit=limit)
        rows += [row for row in others if row[0] not in known]
    return rows


def _room(grant: Grant, request: LeaseRequest) -> int:
    """How many tasks the lane may start within the horizon."""
    ledger, lane, limits, turns = grant
    if lane_needs_opening(ledger, lane):
        return 1
    waiting = lane.waiting
    if ledger.kinds is not None:
        numbers = ledger.kinds.numbers(request.kinds)
        waiting = (waiting if HTTP in request.kinds else 0) + ledger.kinds.waiting(lane.id, numbers)
    if limits is None:
        room, interval, next_start = min(waiting, lane.cap - lane.in_flight, turns), lane.interval, lane.next_start
    else:
        room = min(waiting, limits.cap - lane.in_flight - limits.in_flight, turns)
        interval, next_start = limits.interval, max(lane.next_start, limits.not_before)
    return starts_within(room, interval=interval, next_start=next_start, horizon=request.horizon, now=ledger.now)
