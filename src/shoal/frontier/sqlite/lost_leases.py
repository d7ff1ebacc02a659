"""Leases that end without a result: they expired, or their worker exited or never learnt of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence, Set
from typing import Any

import msgspec

from shoal.frontier.rules.constants import MAX_RECLAIMED
from shoal.frontier.rules.tasks import WORKER_LOST, lost_detail, lost_reason, tries_after_loss
from shoal.frontier.sqlite.frontier_rows import DEAD, LEASED, LaneRow
from shoal.frontier.sqlite.ledger import Ledger
from shoal.frontier.sqlite.moment import Moment
from shoal.model import DIRECT, ExitUse

_LOST = (
    "SELECT id, lane, token, attempts, losses, max_attempts, worker, exit, kind FROM task WHERE crawl = ? AND state = 2"
)
EXPIRED = f"{_LOST} AND at <= ? ORDER BY at, id LIMIT ?"
HELD_BY = f"{_LOST} AND worker = ? ORDER BY at, id"
_LOSE = "UPDATE task SET state = ?, at = ?, attempts = ?, losses = ?, reason = ?, detail = ?, worker = '' WHERE id = ?"


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the end of a worker: the tokens of the pages whose handlers ran, and the cause."""

    suspects: Sequence[int] = ()
    cause: str = ""


def evict(db: sqlite3.Connection, worker: str, death: Death, *, at: Moment) -> int:
    """End all leases of this worker, in every crawl; gives how many."""
    taken = 0
    for ledger in _lenders(db, at=at):
        taken += _lose(ledger, db.execute(HELD_BY, (ledger.crawl.id, worker)).fetchall(), death)
        ledger.flush()
    return taken


def reclaim_unknown(db: sqlite3.Connection, worker: str, known: Set[int], *, at: Moment) -> int:
    """End the leases of this worker that it does not know of, in every crawl, as released; gives how many."""
    taken = 0
    for ledger in _lenders(db, at=at):
        changes: list[tuple[Any, ...]] = []
        for row_id, lane_id, token, attempts, losses, _, _, exit_name, kind in ledger.db.execute(
            HELD_BY, (ledger.crawl.id, worker)
        ).fetchall():
            if abs(token) not in known:
                lane = end_lease(ledger, lane_id, token, exit_name)
                changes.append((*ledger.wait(lane, kind=kind), attempts - 1, losses, "", "", row_id))
        db.executemany(_LOSE, changes)
        ledger.flush()
        taken += len(changes)
    return taken


def _lenders(db: sqlite3.Connection, *, at: Moment) -> Iterator[Ledger]:
    """The crawls that have leases. A step of the clock is noticed in all crawls: loading one does that."""
    for (name,) in db.execute("SELECT name FROM crawl WHERE state <> 'deleting'").fetchall():
        ledger = Ledger.load(db, name, at=at)
        if ledger and ledger.crawl.leased > 0:
            yield ledger


def reclaim_expired(ledger: Ledger, *, over: float = 0.0) -> int:
    """End leases that have been over for so many seconds. Any worker's lease call does it: no other process has to be
    alive."""
    if not ledger.crawl.leased:
        return 0
    rows = ledger.db.execute(EXPIRED, (ledger.crawl.id, ledger.now - over, MAX_RECLAIMED)).fetchall()
    return _lose(ledger, rows) if rows else 0


def _lose(ledger: Ledger, rows: Sequence[tuple[Any, ...]], death: Death | None = None) -> int:
    """These leases are lost: their tasks are queued again, or dead when that was the last attempt. No death: they
    expired."""
    suspects = set(death.suspects) if death else set()
    reason = lost_reason(death.cause if death else "")
    changes: list[tuple[Any, ...]] = []
    ledger.read_lanes({row[1] for row in rows})
    for row_id, lane_id, token, attempts, losses, max_attempts, worker, exit_name, kind in rows:
        lane = end_lease(ledger, lane_id, token, exit_name)
        ledger.crawl.lost += 1
        blamed = abs(token) in suspects if suspects else None
        tries = tries_after_loss(attempts, losses, max_attempts, blamed=blamed)
        if tries is None:
            ledger.count(DEAD, 1)
            ledger.tally("outcome", WORKER_LOST)
            detail = lost_detail(worker, has_exited=death is not None)
            changes.append((DEAD, ledger.wall, attempts, 0, reason, detail, row_id))
        else:
            changes.append((*ledger.wait(lane, kind=kind), *tries, reason, "", row_id))
    ledger.db.executemany(_LOSE, changes)
    return len(changes)


def end_lease(ledger: Ledger, lane_id: int, token: int, exit_name: str, use: ExitUse | None = None) -> LaneRow:
    """A lease is over, with any result or none; gives its lane. The token is as the task's row has it."""
    ledger.count(LEASED, -1)
    lane = ledger.lane_by_id(lane_id)
    if token > 0:
        lane.in_flight -= 1
    token = abs(token)
    if exit_name != DIRECT:
        ledger.exits_of(lane).end(exit_name, use, token)
    if lane.opener == token:
        lane.close_opening(now=ledger.now)
    return lane
