"""Ending leases: by results (settle), by expiry, and by the exit of their worker (evict).

A settle applies fence, state, found tasks, counters and the lane's update in one step."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any

import msgspec

from shoal.frontier.rules.constants import MAX_RECLAIMED
from shoal.frontier.rules.tasks import (
    TOO_MANY_KINDS,
    WORKER_LOST,
    attempts_after_retry,
    lost_detail,
    lost_reason,
    outcome_of,
    tries_after_loss,
)
from shoal.frontier.sqlite.ledger import Ledger
from shoal.frontier.sqlite.put import expire_keys, put_found, retire
from shoal.frontier.sqlite.rows import DEAD, HTTP_NUMBER, LEASED, LaneRow, Moment
from shoal.model import DIRECT, Dead, Done, ExitUse, Handed, Lease, Released, Result, Retry, SettleReport, Task

_LOST = (
    "SELECT id, lane, token, attempts, losses, max_attempts, worker, exit, kind FROM task"
    f" WHERE crawl = ? AND state = {LEASED}"
)
EXPIRED = f"{_LOST} AND at <= ? ORDER BY at, id LIMIT ?"
LEASED_BY = f"{_LOST} AND worker = ? ORDER BY at, id"
_LOSE = "UPDATE task SET state = ?, at = ?, attempts = ?, losses = ?, reason = ?, detail = ?, worker = '' WHERE id = ?"


def evict(db: sqlite3.Connection, worker: str, *, suspects: Sequence[int], cause: str, at: Moment) -> int:
    """End all leases of this worker, in every crawl; gives how many."""
    taken = 0
    for ledger in _lenders(db, at=at):
        rows = db.execute(LEASED_BY, (ledger.crawl.id, worker)).fetchall()
        taken += _lose(ledger, rows, suspects=frozenset(suspects), cause=cause)
        ledger.flush()
    return taken


def reclaim_unknown(db: sqlite3.Connection, worker: str, known: Set[int], *, at: Moment) -> int:
    """End as released the leases of this worker that are not in `known`, in every crawl; gives how many."""
    taken = 0
    for ledger in _lenders(db, at=at):
        changes: list[tuple[Any, ...]] = []
        for row_id, lane_id, token, attempts, losses, _, _, exit_name, kind in ledger.db.execute(
            LEASED_BY, (ledger.crawl.id, worker)
        ).fetchall():
            if abs(token) not in known:
                lane = end_lease(ledger, lane_id, token, exit_name)
                changes.append((*ledger.wait(lane, kind=kind), attempts - 1, losses, "", "", row_id))
        db.executemany(_LOSE, changes)
        ledger.flush()
        taken += len(changes)
    return taken


def _lenders(db: sqlite3.Connection, *, at: Moment) -> Iterator[Ledger]:
    """The crawls that have leases. All are loaded: loading a crawl notices a step of the clock."""
    for (name,) in db.execute("SELECT name FROM crawl WHERE state <> 'deleting'").fetchall():
        ledger = Ledger.load(db, name, at=at)
        if ledger and ledger.crawl.leased > 0:
            yield ledger


def reclaim_expired(ledger: Ledger, *, over: float = 0.0) -> int:
    """End leases that expired at least `over` seconds ago; gives how many. Any lease call does it: no other process has
    to be alive."""
    if not ledger.crawl.leased:
        return 0
    rows = ledger.db.execute(EXPIRED, (ledger.crawl.id, ledger.now - over, MAX_RECLAIMED)).fetchall()
    return _lose(ledger, rows) if rows else 0


def _lose(
    ledger: Ledger, rows: Sequence[tuple[Any, ...]], *, suspects: Set[int] = frozenset(), cause: str | None = None
) -> int:
    """End these leases as lost: their tasks are queued again, or dead after their last attempt. `cause`: of the
    worker's death, "" if unknown; None: the leases expired."""
    reason = lost_reason(cause or "")
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
            detail = lost_detail(worker, has_exited=cause is not None)
            changes.append((DEAD, ledger.wall, attempts, 0, reason, detail, row_id))
        else:
            changes.append((*ledger.wait(lane, kind=kind), *tries, reason, "", row_id))
    ledger.db.executemany(_LOSE, changes)
    return len(changes)


def end_lease(ledger: Ledger, lane_id: int, token: int, exit_name: str, use: ExitUse | None = None) -> LaneRow:
    """End a lease, with any result or none; gives its lane. `token`: as in the task's row, negative when landed."""
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


# One row of JSON instead of a row per task: each row fetched releases the interpreter lock.
LEASED_KEYS = (
    "SELECT json_group_array(json_array(task.key, task.id, task.lane, task.token, task.attempts, task.free_retries,"
    " task.max_attempts, task.exit))"
    f" FROM json_each(?) CROSS JOIN task ON task.crawl = ? AND task.key = value AND task.state = {LEASED}"
)
# For crawls with several kinds of tasks.
LEASED_WITH_KIND = LEASED_KEYS.replace("task.exit))", "task.exit, task.kind))")
_PUT_BACK = (
    "UPDATE task SET state = ?, at = ?, attempts = ?, free_retries = ?, reason = ?, losses = iif(?, losses, 0),"
    " worker = '' WHERE id = ?"
)
_GO_ON = (
    "UPDATE task SET state = ?, at = ?, lane = ?, kind = ?, max_attempts = ?, payload = ?, attempts = 0,"
    " free_retries = 0, reason = '', losses = 0, worker = '' WHERE id = ?"
)
_EXTEND = "UPDATE task SET at = ? WHERE id IN (SELECT value FROM json_each(?))"
_DELETE = "DELETE FROM task WHERE id IN (SELECT value FROM json_each(?))"
_BURY = f"UPDATE task SET state = {DEAD}, at = ?, reason = ?, detail = ?, losses = 0, worker = '' WHERE id = ?"


class LeasedTask(msgspec.Struct, array_like=True):
    """A leased task, as LEASED_KEYS reads it. Its token is negative when its request has landed."""

    key: int
    id: int
    lane: int
    token: int
    attempts: int
    free_retries: int
    max_attempts: int
    exit: str
    kind: int = HTTP_NUMBER


_DECODER = msgspec.json.Decoder(list[LeasedTask])
_ENCODER = msgspec.msgpack.Encoder()


def leased_tasks(ledger: Ledger, keys: Iterable[int]) -> dict[int, LeasedTask]:
    """The tasks with these keys that are leased now."""
    listed = msgspec.json.encode(list(keys)).decode()
    select = LEASED_KEYS if ledger.kinds is None else LEASED_WITH_KIND
    (found,) = ledger.db.execute(select, (listed, ledger.crawl.id)).fetchone()
    return {task.key: task for task in _DECODER.decode(found)}


def settle(db: sqlite3.Connection, results: Sequence[Result], *, at: Moment) -> SettleReport:
    """Apply all results or raise."""
    by_crawl: dict[str, list[Result]] = {}
    for result in results:
        by_crawl.setdefault(result.lease.crawl, []).append(result)
    stale: list[Lease] = []
    refused: dict[int, str] = {}
    duplicates: list[tuple[int, int]] = []
    epoch = 0
    for name, group in by_crawl.items():
        ledger = Ledger.load(db, name, at=at)
        if ledger is None:
            stale += [result.lease for result in group]
            continue
        expire_keys(ledger)
        settlement = _Settlement(ledger)
        stale += settlement.apply(group)
        refused |= settlement.flush()
        duplicates += settlement.duplicates
        epoch += ledger.crawl.epoch
    return SettleReport(stale=stale, refused=refused, epoch=epoch, duplicates=duplicates)


def extend(db: sqlite3.Connection, leases: Sequence[Lease], *, seconds: float, at: Moment) -> list[Lease]:
    """Renew these leases; gives those that were lost."""
    lost: list[Lease] = []
    for name in dict.fromkeys(lease.crawl for lease in leases):
        group = [lease for lease in leases if lease.crawl == name]
        ledger = Ledger.load(db, name, at=at)
        if ledger is None:
            lost += group
            continue
        if ledger.note_presence(seconds=seconds):
            ledger.flush()
        held = leased_tasks(ledger, (lease.task.key for lease in group))
        kept = []
        for lease in group:
            task = held.get(lease.task.key)
            if task is None or abs(task.token) != lease.token:
                lost.append(lease)
            else:
                kept.append(task.id)
        db.execute(_EXTEND, (ledger.now + seconds, msgspec.json.encode(kept).decode()))
    return lost


class _Settlement:
    """The results of one crawl: collected, then written with few statements."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._done: list[int] = []
        self._ended: list[int] = []
        self._put_back: list[tuple[int, float, int, int, str, bool, int]] = []
        self._buried: list[tuple[float, str, str, int]] = []
        self._going_on: list[tuple[Any, ...]] = []
        self._found: list[Task] = []
        # For each lease that found tasks: the length of `_found` after it, and its token.
        self._found_by: list[tuple[int, int]] = []
        self.duplicates: list[tuple[int, int]] = []

    def apply(self, results: Sequence[Result]) -> list[Lease]:
        """Apply the results; gives the leases that were lost."""
        held = leased_tasks(self._ledger, (result.lease.task.key for result in results))
        self._ledger.read_lanes({task.lane for task in held.values()})
        stale = []
        for result in results:
            task = held.get(result.lease.task.key)
            if task is None or abs(task.token) != result.lease.token:
                stale.append(result.lease)
                continue
            del held[task.key]
            self._end(task, result)
        self._ledger.crawl.stale += len(stale)
        return stale

    def flush(self) -> dict[int, str]:
        """Write everything; gives the found keys that a budget refused."""
        ledger = self._ledger
        if self._done:
            ledger.db.execute(_DELETE, (msgspec.json.encode(self._done).decode(),))
        retire(ledger, self._ended)
        if self._put_back:
            ledger.db.executemany(_PUT_BACK, self._put_back)
        if self._buried:
            ledger.db.executemany(_BURY, self._buried)
        if self._going_on:
            ledger.db.executemany(_GO_ON, self._going_on)
        report, known = put_found(ledger, self._found)
        self.duplicates = self._with_tokens(known)
        ledger.flush()
        return report.refused

    def _with_tokens(self, known: Sequence[int]) -> list[tuple[int, int]]:
        """The keys of these found tasks, each with the token of the lease that found it: (token, key)."""
        finders = iter(self._found_by)
        duplicates, (until, token) = [], next(finders, (0, 0))
        for index in known:
            while index >= until:
                until, token = next(finders)
            duplicates.append((token, self._found[index].key))
        return duplicates

    def _end(self, task: LeasedTask, result: Result) -> None:
        ledger = self._ledger
        lane = ledger.lane_by_id(task.lane)
        if result.lane is not None:
            ledger.update_lane(lane, result.lane)
        end_lease(ledger, task.lane, task.token, task.exit, result.exit)
        if not isinstance(result, Released) and result.notes:
            ledger.note(result.notes)
        match result:
            case Done():
                self._finish(task, result)
            case Retry():
                self._retry(task, lane, result)
            case Dead():
                self._bury(task, result.reason, result.detail)
            case Released():
                state, at = ledger.wait(lane, kind=task.kind)
                self._put_back.append((state, at, task.attempts - 1, task.free_retries, "", True, task.id))
            case Handed():
                self._go_on(task, result.task)
            case _:
                raise TypeError(f"{type(result).__name__} is not a result")

    def _finish(self, task: LeasedTask, result: Done) -> None:
        ledger = self._ledger
        if result.again is not None:
            self._go_on(task, result.again, delay=result.again_in)
        else:
            ledger.crawl.done += 1
            self._done.append(task.id)
            self._ended.append(task.key)
        ledger.tally("outcome", result.outcome)
        ledger.reject(result.rejected, result.samples)
        if result.found:
            self._found += result.found
            self._found_by.append((len(self._found), result.lease.token))

    def _retry(self, task: LeasedTask, lane: LaneRow, result: Retry) -> None:
        ledger = self._ledger
        tries = attempts_after_retry(task.attempts, task.free_retries, task.max_attempts, free=result.free)
        if tries is None:
            self._bury(task, result.reason, "")
            return
        ledger.crawl.retried += 1
        state, at = ledger.wait(lane, kind=task.kind, delay=result.delay)
        self._put_back.append((state, at, *tries, result.reason, False, task.id))

    def _go_on(self, held: LeasedTask, task: Task, *, delay: float = 0.0) -> None:
        """Replace the task by `task`, which waits with all its attempts."""
        ledger = self._ledger
        if not ledger.has_room_for(task.kind):
            raise ValueError(TOO_MANY_KINDS)
        lane, kind = ledger.lane(task.lane), ledger.add_kind(task.kind)
        state, at = ledger.wait(lane, kind=kind, delay=delay)
        self._going_on.append((state, at, lane.id, kind, task.max_attempts, _ENCODER.encode(task), held.id))

    def _bury(self, task: LeasedTask, reason: str, detail: str) -> None:
        ledger = self._ledger
        ledger.count(DEAD, 1)
        ledger.tally("outcome", outcome_of(reason))
        self._buried.append((ledger.wall, reason, detail, task.id))
