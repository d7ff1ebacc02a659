"""Lending tasks: reclaim expired leases, wake delayed tasks that are due, choose lanes fairly."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any

import msgspec

from shoal.frontier.rules.constants import (
    FAR_SECONDS,
    MAX_ASK_AGAIN,
    MAX_BROUGHT_BACK,
    MAX_GIVEN_UP,
    MAX_RECLAIMED,
    MAX_WOKEN,
)
from shoal.frontier.rules.exits import no_exit_reason
from shoal.frontier.rules.fairness import share_out
from shoal.frontier.rules.lanes import ask_again_in, needs_opening, starts_within
from shoal.frontier.rules.tasks import (
    WORKER_LOST,
    has_spent,
    is_suspect,
    lost_detail,
    lost_reason,
    next_token,
    tries_after_loss,
)
from shoal.frontier.sqlite.expiry import expire_keys
from shoal.frontier.sqlite.frontier_rows import DEAD, DELAYED, LANE_COLUMNS, LEASED, QUEUED, LaneRow
from shoal.frontier.sqlite.lane_exits import LaneExits
from shoal.frontier.sqlite.lease_rows import NEXT_TASKS, LentRow, TaskRow, land, next_tasks, write_lanes, write_leases
from shoal.frontier.sqlite.ledger import Ledger
from shoal.frontier.sqlite.moment import Moment
from shoal.model import DIRECT, NO_EXIT, VIA, CrawlState, ExitUse, Lease, LeaseBatch, Task

DECODER = msgspec.msgpack.Decoder(Task)

_LOST = "SELECT id, lane, token, attempts, losses, max_attempts, worker, exit FROM task WHERE crawl = ? AND state = 2"
EXPIRED = f"{_LOST} AND at <= ? ORDER BY at, id LIMIT ?"
HELD_BY = f"{_LOST} AND worker = ? ORDER BY at, id"
DUE = "SELECT id, lane FROM task WHERE crawl = ? AND state = 1 AND at <= ? ORDER BY at, id LIMIT ?"
READY = (
    f"SELECT {LANE_COLUMNS} FROM lane WHERE crawl = ? AND waiting > 0 AND in_flight < cap AND opener = 0"  # noqa: S608 -- constant
    " AND max(next_start, exits_next) <= ? ORDER BY max(next_start, exits_next), id LIMIT ?"
)
FAR_AHEAD = (
    f"SELECT {LANE_COLUMNS} FROM lane WHERE crawl = ? AND waiting > 0 AND in_flight < cap AND opener = 0"  # noqa: S608 -- constant
    " AND max(next_start, exits_next) > ? ORDER BY max(next_start, exits_next) DESC, id LIMIT ?"
)
NEXT_LANE = (
    "SELECT max(next_start, exits_next) FROM lane WHERE crawl = ? AND waiting > 0 AND in_flight < cap AND opener = 0"
    " ORDER BY max(next_start, exits_next) LIMIT 1"
)
NEXT_DUE = "SELECT at FROM task WHERE crawl = ? AND state = 1 ORDER BY at LIMIT 1"
NEXT_EXPIRY = "SELECT at FROM task WHERE crawl = ? AND state = 2 ORDER BY at LIMIT 1"
NEXT_TIMES = f"SELECT ({NEXT_LANE}), ({NEXT_DUE}), ({NEXT_EXPIRY})"
_WAKE = "UPDATE task SET state = 0, at = 0 WHERE id IN (SELECT value FROM json_each(?))"
_GIVE_UP = (
    "UPDATE task SET state = 3, at = ?, reason = ?, detail = '', worker = '', losses = 0"
    " WHERE id IN (SELECT value FROM json_each(?))"
)
_LOSE = "UPDATE task SET state = ?, at = ?, attempts = ?, losses = ?, reason = ?, detail = ?, worker = '' WHERE id = ?"


class Stuck(ValueError):  # noqa: N818 -- reads as what happened
    """A crawl whose queued tasks no lane can lend."""


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms on which a worker asks for leases."""

    limit: int
    worker: str
    seconds: float
    horizon: float
    landed: Sequence[Lease] = ()


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the end of a worker: the tokens of the pages whose handlers ran, and the cause."""

    suspects: Sequence[int] = ()
    cause: str = ""


def lease(db: sqlite3.Connection, crawls: Sequence[str], terms: Terms, *, at: Moment) -> LeaseBatch:
    """One lease call. A crawl that was deleted has nothing left to do."""
    asked, answered = at.times.now(), time.monotonic()
    found = {name: Ledger.load(db, name, at=at) for name in crawls}
    ledgers = [ledger for ledger in found.values() if ledger]
    for ledger in ledgers:
        expire_keys(ledger)
        # First: only a lane that has a place is brought back.
        _land(ledger, terms.landed)
        if ledger.note_presence(seconds=terms.seconds):
            _bring_back(ledger)
        if _reclaim_expired(ledger) + _wake(ledger):
            ledger.flush()
        _pause_if_spent(ledger)
    leases = _lend_from(_choose(ledgers, terms), terms, db=db)
    leases.sort(key=lambda lease: lease.wait)
    finished = [name for name, ledger in found.items() if ledger is None or _finish(ledger)]
    for ledger in ledgers:
        ledger.flush()
        if not at.mended:
            _check_not_stuck(ledger)
        at.times.note(ledger.crawl.name, ledger.now, asked=asked)
    return LeaseBatch(
        leases=leases,
        ask_again=min(map(_ask_again, ledgers), default=MAX_ASK_AGAIN),
        at=answered,
        epoch=sum(ledger.crawl.epoch for ledger in ledgers),
        finished=tuple(finished),
    )


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
        for row_id, lane_id, token, attempts, losses, _, _, exit_name in ledger.db.execute(
            HELD_BY, (ledger.crawl.id, worker)
        ).fetchall():
            if abs(token) not in known:
                lane = end_lease(ledger, lane_id, token, exit_name)
                changes.append((*ledger.wait(lane), attempts - 1, losses, "", "", row_id))
        db.executemany(_LOSE, changes)
        ledger.flush()
        taken += len(changes)
    return taken


def _lenders(db: sqlite3.Connection, *, at: Moment) -> Iterator[Ledger]:
    """The crawls that have leases. A step of the clock is noticed in all crawls: loading one does that."""
    for (name,) in db.execute("SELECT name FROM crawl").fetchall():
        ledger = Ledger.load(db, name, at=at)
        if ledger and ledger.crawl.leased > 0:
            yield ledger


def _land(ledger: Ledger, leases: Sequence[Lease]) -> None:
    given = [lease for lease in leases if lease.crawl == ledger.crawl.name]
    if given:
        land(ledger.db, ledger.crawl.id, given)


def _reclaim_expired(ledger: Ledger) -> int:
    """End expired leases. Any worker's lease call does it: no other process has to be alive."""
    if not ledger.crawl.leased:
        return 0
    rows = ledger.db.execute(EXPIRED, (ledger.crawl.id, ledger.now, MAX_RECLAIMED)).fetchall()
    return _lose(ledger, rows) if rows else 0


def _lose(ledger: Ledger, rows: Sequence[tuple[Any, ...]], death: Death | None = None) -> int:
    """These leases are lost: their tasks are queued again, or dead when that was the last attempt. No death: they
    expired."""
    suspects = set(death.suspects) if death else set()
    reason = lost_reason(death.cause if death else "")
    changes: list[tuple[Any, ...]] = []
    ledger.read_lanes({row[1] for row in rows})
    for row_id, lane_id, token, attempts, losses, max_attempts, worker, exit_name in rows:
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
            changes.append((*ledger.wait(lane), *tries, reason, "", row_id))
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


def _bring_back(ledger: Ledger) -> None:
    """Lanes whose next start lies further ahead than their pace and rests allow get a possible one. The clock was
    wrong when it was written: before a step was noticed, or by an older shoal."""
    latest = ledger.now + FAR_SECONDS
    for row in ledger.db.execute(FAR_AHEAD, (ledger.crawl.id, latest, MAX_BROUGHT_BACK)).fetchall():
        lane = ledger.adopt(row)
        if not lane.has_pool:
            lane.bring_back(now=ledger.now)
    ledger.flush()


def _pause_if_spent(ledger: Ledger) -> None:
    crawl = ledger.crawl
    if crawl.state == CrawlState.RUNNING and crawl.left and has_spent(crawl.cost, crawl.max_cost):
        crawl.state = CrawlState.PAUSED


def _wake(ledger: Ledger) -> int:
    """Queue delayed tasks that are due in their lanes."""
    if not ledger.crawl.delayed:
        return 0
    rows = ledger.db.execute(DUE, (ledger.crawl.id, ledger.now, MAX_WOKEN)).fetchall()
    if not rows:
        return 0
    ledger.read_lanes({lane_id for _, lane_id in rows})
    for _, lane_id in rows:
        ledger.count(DELAYED, -1)
        ledger.wait(ledger.lane_by_id(lane_id))
    ledger.db.execute(_WAKE, (msgspec.json.encode([row_id for row_id, _ in rows]).decode(),))
    return len(rows)


def _choose(ledgers: Iterable[Ledger], terms: Terms) -> list[tuple[Ledger, LaneRow, int]]:
    """The lanes that may start, longest-waiting first, and how many tasks each one lends."""
    ready = []
    for ledger in ledgers:
        if ledger.crawl.state == CrawlState.RUNNING and ledger.crawl.queued:
            rows = ledger.db.execute(READY, (ledger.crawl.id, ledger.now + terms.horizon, terms.limit)).fetchall()
            ready += [(ledger, row) for row in rows]
    # A row is as in LANE_COLUMNS: the next start is its third value, exits_next its last.
    # Each crawl has a time of its own.
    ready.sort(key=lambda entry: (max(entry[1][2], entry[1][-1]) - entry[0].crawl.clock_shift, entry[1][0]))
    # The ledger writes lanes that go via a pool, with their exits; the others are written here, all together.
    lanes = [(ledger, ledger.adopt(row) if VIA in row[1] else LaneRow(*row)) for ledger, row in ready[: terms.limit]]
    rooms = [_room(ledger, lane, terms) for ledger, lane in lanes]
    counts = share_out(rooms, terms.limit)
    return [(ledger, lane, count) for (ledger, lane), count in zip(lanes, counts, strict=True)]


def _lend_from(chosen: Sequence[tuple[Ledger, LaneRow, int]], terms: Terms, *, db: sqlite3.Connection) -> list[Lease]:
    """So many tasks of each of these lanes as leases, written."""
    waiting = next_tasks(db, [(lane.id, count) for _, lane, count in chosen if count])
    leases: list[Lease] = []
    rows: list[LentRow] = []
    started: list[LaneRow] = []
    for index, (ledger, lane, count) in enumerate(chosen):
        if not count:
            continue
        end = ledger.now + terms.seconds
        tasks = waiting.get(lane.id, ())
        lent = _lend(ledger, lane, tasks, latest=ledger.now + terms.horizon, is_first=index == 0)
        # The first of its tasks, maybe not all of them.
        rows += [(task[1], end, lease.token, lease.exit) for task, lease in zip(tasks, lent, strict=False)]
        leases += lent
        if lent and not lane.has_pool:
            started.append(lane)
        if leases and leases[0].alone:
            break
    write_leases(db, terms.worker, rows)
    write_lanes(db, started)
    return leases


def _room(ledger: Ledger, lane: LaneRow, terms: Terms) -> int:
    """How many tasks the lane may start within the horizon."""
    if _needs_opening(ledger, lane):
        return 1
    room = min(lane.waiting, lane.cap - lane.in_flight, terms.limit)
    return starts_within(
        room, interval=lane.interval, next_start=lane.next_start, horizon=terms.horizon, now=ledger.now
    )


def _needs_opening(ledger: Ledger, lane: LaneRow) -> bool:
    return needs_opening(needs_rules=bool(ledger.crawl.needs_rules), rules_until=lane.rules_until, now=ledger.now)


def _lend(ledger: Ledger, lane: LaneRow, tasks: Sequence[TaskRow], *, latest: float, is_first: bool) -> list[Lease]:
    """The lane's next tasks as leases. A suspect at its head is lent alone if this is the first lane of the call; the
    lane stops before any other."""
    exits = ledger.exits_of(lane) if lane.has_pool else None
    if exits is not None:
        exits.has_changed = True
        if exits.are_given_up:
            _give_up(ledger, lane, exits)
            return []
    opens_lane = _needs_opening(ledger, lane)
    lent: list[Lease] = []
    for row in tasks:
        alone = is_suspect(row[3])
        if alone and (lent or not is_first):
            break
        lease = _lease(ledger, lane, row, opens_lane=opens_lane, exits=exits, latest=latest)
        if lease is None:
            break
        lent.append(lease)
        if alone:
            break
    ledger.crawl.queued -= len(lent)
    ledger.crawl.leased += len(lent)
    lane.waiting -= len(lent)
    lane.in_flight += len(lent)
    if opens_lane and lent:
        lane.opener = ledger.crawl.last_token
    return lent


def _lease(
    ledger: Ledger, lane: LaneRow, row: TaskRow, *, opens_lane: bool, exits: LaneExits | None, latest: float
) -> Lease | None:
    """Lend one task in the next slot of the lane and of an exit; None when no exit has a slot in time."""
    now, crawl = ledger.now, ledger.crawl
    _, _, attempts, losses, free_retries, payload = row
    token = next_token(crawl.last_token, now=now)
    start, exit_name, exit_interval, session_version = max(now, lane.next_start), DIRECT, 0.0, 0
    if exits is not None:
        taken = exits.take(start, token, latest=latest)
        if taken is None:
            return None
        start, exit_name, exit_interval, session_version = taken
    crawl.last_token = token
    lease = Lease(
        crawl=crawl.name,
        task=DECODER.decode(payload),
        token=token,
        attempt=attempts + 1,
        free_retries=free_retries,
        exit=exit_name,
        wait=start - now,
        interval=lane.interval,
        base_interval=lane.base_interval,
        exit_interval=exit_interval,
        opens_lane=opens_lane,
        rules_version=lane.rules_version if lane.rules_until > now else 0,
        session_version=session_version,
        alone=is_suspect(losses),
    )
    lane.start(start, now=now)
    return lease


def _give_up(ledger: Ledger, lane: LaneRow, exits: LaneExits) -> None:
    """Give up the lane's tasks, a bounded number at a time. When none is left, its patience starts again."""
    rows = ledger.db.execute(NEXT_TASKS, (lane.id, MAX_GIVEN_UP)).fetchall()
    reason = no_exit_reason(lane.name, is_known=exits.pool is not None)
    ledger.db.execute(_GIVE_UP, (ledger.wall, reason, msgspec.json.encode([row[1] for row in rows]).decode()))
    ledger.count(QUEUED, -len(rows))
    ledger.count(DEAD, len(rows))
    ledger.tally("outcome", NO_EXIT, len(rows))
    lane.waiting -= len(rows)
    if exits.pool is not None and not lane.waiting:
        exits.roster.starved_since = ledger.now


def _finish(ledger: Ledger) -> bool:
    """Whether the crawl has nothing left to do; a running one is finished from now on."""
    crawl = ledger.crawl
    if crawl.left or crawl.state == CrawlState.PAUSED or ledger.is_fed:
        return False
    if crawl.state == CrawlState.RUNNING:
        crawl.state = CrawlState.FINISHED
        crawl.finished = ledger.wall
    return True


def _check_not_stuck(ledger: Ledger) -> None:
    """Raise Stuck if tasks are queued and no lane could ever lend them: a lane's row is damaged, or a counter."""
    crawl = ledger.crawl
    waits = crawl.state == CrawlState.RUNNING and crawl.queued and not crawl.leased
    if waits and ledger.db.execute(NEXT_LANE, (crawl.id,)).fetchone() is None:
        raise Stuck(crawl.name)


def _ask_again(ledger: Ledger) -> float:
    """Seconds until a task can be lent that is in this crawl already."""
    crawl = ledger.crawl
    if crawl.state != CrawlState.RUNNING:
        return MAX_ASK_AGAIN
    times = ledger.db.execute(NEXT_TIMES, [crawl.id] * 3).fetchone()
    return ask_again_in([at for at in times if at is not None], now=ledger.now)
