"""Which lanes a lease call takes, and how many tasks of each: the longest-waiting first, in fair shares, within what
other crawls leave to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from shoal.frontier.rules.constants import (
    MAX_LOOKS,
)
from shoal.frontier.rules.fairness import share_out
from shoal.frontier.rules.hosts import ALONE, APART, SHARED, turn_owed, turns_left
from shoal.frontier.rules.lanes import starts_within
from shoal.frontier.sqlite.frontier_rows import LENDING_COLUMNS, READY_AT, SHARING, LaneRow
from shoal.frontier.sqlite.host_looks import (
    Grant,
    Reclaims,
    is_held_back,
    lane_needs_opening,
    look,
    one_per_host,
)
from shoal.frontier.sqlite.lease_rows import (
    write_wishes,
)
from shoal.frontier.sqlite.ledger import Ledger
from shoal.model import HTTP, VIA, CrawlState, Lease, Pool

READY = (
    f"SELECT {LENDING_COLUMNS} FROM lane WHERE crawl = ? AND waiting > 0 AND in_flight < cap AND opener = 0"  # noqa: S608 -- constant
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
