"""Reads for people: progress, lanes, dead letters, one task, workers."""

from __future__ import annotations

import contextlib
import math
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from shoal.frontier.rules.constants import WORKERS_KEPT, WORKERS_KEPT_SECONDS
from shoal.frontier.rules.lanes import shows_why
from shoal.frontier.sqlite.control import dead_rows
from shoal.frontier.sqlite.lanes import held
from shoal.frontier.sqlite.lease import DECODER
from shoal.frontier.sqlite.ledger import PACE, REST, WAITING, Ledger
from shoal.frontier.sqlite.put import ids_of, known_ended
from shoal.frontier.sqlite.rows import DELAYED, LEASED, LENDING_COLUMNS, STATE_NAMES, LaneRow
from shoal.model import (
    HTTP,
    CrawlState,
    DeadFilter,
    DeadLetter,
    Heartbeat,
    LaneStatus,
    Progress,
    TaskState,
    TaskStatus,
)

_OTHERS = "(SELECT coalesce(sum(waiting), 0) FROM lane_kind WHERE lane_kind.lane = lane.id)"
_STATUS = "state, payload, attempts, reason, detail, worker, at, losses"


def progress(ledger: Ledger) -> Progress:
    crawl = ledger.crawl
    named: dict[str, dict[str, int]] = {"outcome": {}, "rejected": {}, "note": {}, WAITING: {}}
    select = "SELECT kind, name, value FROM counter WHERE crawl = ? AND value <> 0 ORDER BY name"
    for kind, name, value in ledger.db.execute(select, (crawl.id,)):
        named[kind][name] = int(value)
    return Progress(
        state=CrawlState(crawl.state),
        feeding=ledger.is_fed,
        queued=crawl.queued,
        delayed=crawl.delayed,
        leased=crawl.leased,
        done=crawl.done,
        dead=crawl.dead,
        cancelled=crawl.cancelled,
        duplicates=crawl.duplicates,
        stale=crawl.stale,
        retried=crawl.retried,
        lost=crawl.lost,
        outcomes=named["outcome"],
        rejected=named["rejected"],
        epoch=crawl.epoch,
        cost=crawl.cost,
        notes=named["note"],
        reason=_reason(ledger),
        feeders_lost=ledger.feeders_lost,
        kinds=_kinds(ledger, named[WAITING]),
        due_in=_due_in(ledger),
        ran=crawl.ran,
    )


def _due_in(ledger: Ledger) -> float:
    """Seconds until the first delayed task is due."""
    if not ledger.crawl.delayed:
        return 0.0
    select = f"SELECT min(at) FROM task WHERE crawl = ? AND state = {DELAYED}"
    (at,) = ledger.db.execute(select, (ledger.crawl.id,)).fetchone()
    return 0.0 if at is None else max(0.0, at - ledger.now)


def _kinds(ledger: Ledger, waiting: Mapping[str, int]) -> dict[str, int]:
    """How many tasks of each kind wait. `waiting`: the counters of other kinds than http, which include cancelled."""
    crawl = ledger.crawl
    if ledger.kinds is None:
        return {}
    is_cancelled = crawl.state == CrawlState.CANCELLED
    others = {kind: 0 if is_cancelled else waiting.get(kind, 0) for kind in ledger.kinds.names}
    return {HTTP: crawl.queued + crawl.delayed - sum(others.values()), **others}


def _reason(ledger: Ledger) -> str:
    """Why the crawl was paused, cancelled or stopped."""
    if ledger.crawl.state in (CrawlState.RUNNING, CrawlState.FINISHED):
        return ""
    row = ledger.db.execute("SELECT reason FROM crawl_about WHERE crawl = ?", (ledger.crawl.id,)).fetchone()
    return str(row[0])


def lanes(ledger: Ledger, *, limit: int, skip: int = 0, search: str = "") -> list[LaneStatus]:
    # In a crawl with several kinds, tasks of all kinds count.
    waiting = "waiting" if ledger.kinds is None else f"waiting + {_OTHERS}"
    rows = ledger.db.execute(
        f"SELECT {LENDING_COLUMNS}, {waiting} AS total FROM lane WHERE crawl = ? AND (total > 0 OR in_flight > 0)"
        " AND instr(name, ?) > 0 ORDER BY total DESC, in_flight DESC, id LIMIT ? OFFSET ?",
        (ledger.crawl.id, search, limit, skip),
    )
    waits = {row[0]: row for row in rows}
    found = [LaneRow(*row[:-1]) for row in waits.values()]
    whys = _whys(ledger, found)
    return [
        LaneStatus(
            lane=lane.name,
            waiting=waits[lane.id][-1],
            in_flight=lane.in_flight,
            interval=lane.interval,
            cap=lane.cap,
            starts_in=max(0.0, (lane.next_start if math.isinf(lane.exits_next) else lane.ready_at) - ledger.now),
            known=lane.known,
            has_rules=lane.rules_until > ledger.now,
            exits_rest=bool(lane.exits) and ledger.exits_of(lane).are_starved,
            base_interval=lane.base_interval,
            waits_for_exit=max(lane.next_start, ledger.now) < lane.exits_next < math.inf,
            rests_for=max(0.0, lane.blocked_until - ledger.now),
            why=whys.get((lane.id, REST), "") if shows_why(lane.pace, now=ledger.now) else "",
            pace_why=whys.get((lane.id, PACE), ""),
            held=held(ledger, lane) if waits[lane.id][-1] else None,
        )
        for lane in found
    ]


def _whys(ledger: Ledger, lanes: Iterable[LaneRow]) -> dict[tuple[int, str], str]:
    """By lane and REST or PACE: why it rests or is slow, and why it has a pace of its own."""
    ids = msgspec.json.encode([lane.id for lane in lanes]).decode()
    select = "SELECT lane, kind, why FROM lane_why WHERE lane IN (SELECT value FROM json_each(?))"
    return {(lane, kind): why for lane, kind, why in ledger.db.execute(select, (ids,))}


def rules(ledger: Ledger, lane: str) -> tuple[int, bytes]:
    row = ledger.db.execute(
        "SELECT rules_version, rules FROM lane JOIN lane_rules ON lane_rules.lane = lane.id"
        " WHERE crawl = ? AND name = ? AND rules_until > ?",
        (ledger.crawl.id, lane, ledger.now),
    ).fetchone()
    return (row[0], row[1]) if row else (0, b"")


def dead(ledger: Ledger, which: DeadFilter, *, limit: int) -> list[DeadLetter]:
    columns = "task.payload, task.reason, task.detail, task.attempts, task.at"
    return [
        DeadLetter(task=DECODER.decode(payload), reason=reason, detail=detail, attempts=attempts, at=at)
        for payload, reason, detail, attempts, at in dead_rows(ledger, columns, which, limit=limit)
    ]


def look_up(ledger: Ledger, key: int) -> TaskStatus:
    """For people, not for crawls: if the key is known, reads all tasks of the crawl."""
    crawl, is_dropped = ledger.crawl.id, ledger.crawl.keys != "known"
    select = "SELECT 1 FROM seen WHERE crawl = ? AND key = ?"
    if not is_dropped and ledger.db.execute(select, (crawl, key)).fetchone() is None:
        return TaskStatus(state=TaskState.DONE if known_ended(ledger, [key]) else TaskState.UNKNOWN)
    select = f"SELECT {_STATUS} FROM task WHERE id BETWEEN ? AND ? AND key = ?"
    row = ledger.db.execute(select, (*ids_of(crawl), key)).fetchone()
    if row is None:
        return TaskStatus(state=TaskState.UNKNOWN if is_dropped else TaskState.DONE)
    return _status(ledger, row)


def tasks_of(ledger: Ledger, url: str, *, lanes: Sequence[str]) -> list[TaskStatus]:
    """Searches the URL in the packed tasks, and unpacks only those that contain it."""
    named = msgspec.json.encode(list(lanes)).decode()
    rows = ledger.db.execute(
        f"SELECT {_STATUS} FROM task WHERE id BETWEEN ? AND ?"
        " AND lane IN (SELECT id FROM lane WHERE crawl = ? AND name IN (SELECT value FROM json_each(?)))"
        " AND instr(payload, ?) > 0",
        (*ids_of(ledger.crawl.id), ledger.crawl.id, named, url.encode("utf-8", "surrogatepass")),
    )
    found = [_status(ledger, row) for row in rows]
    return [status for status in found if status.task is not None and status.task.url == url]


def _status(ledger: Ledger, row: tuple[Any, ...]) -> TaskStatus:
    state, payload, attempts, reason, detail, worker, at, losses = row
    return TaskStatus(
        state=TaskState(STATE_NAMES[state]),
        task=DECODER.decode(payload),
        attempts=attempts,
        reason=reason,
        detail=detail,
        worker=worker,
        due_in=max(0.0, at - ledger.now) if state in (DELAYED, LEASED) else 0.0,
        losses=losses,
    )


def beat(db: sqlite3.Connection, sign: Heartbeat, *, now: float) -> None:
    sign = msgspec.structs.replace(sign, seen=now)
    row = {"name": sign.worker, "crawl": sign.crawl, "seen": now, "beat": msgspec.json.encode(sign)}
    if db.execute("UPDATE worker SET crawl = :crawl, seen = :seen, beat = :beat WHERE name = :name", row).rowcount:
        return
    db.execute("INSERT INTO worker (name, crawl, seen, beat) VALUES (:name, :crawl, :seen, :beat)", row)
    # Only when a worker is new: heartbeats come every second.
    db.execute("DELETE FROM worker WHERE seen < ?", (now - WORKERS_KEPT_SECONDS,))
    db.execute(
        "DELETE FROM worker WHERE name IN"
        " (SELECT name FROM worker WHERE crawl = ? ORDER BY seen DESC LIMIT -1 OFFSET ?)",
        (sign.crawl, WORKERS_KEPT),
    )


def workers(db: sqlite3.Connection, *, since: float) -> list[Heartbeat]:
    rows = db.execute("SELECT beat FROM worker WHERE seen >= ? ORDER BY name", (since,))
    return [sign for sign in _readable(rows) if not sign.left]


def workers_of(db: sqlite3.Connection, crawl: str) -> list[Heartbeat]:
    rows = db.execute("SELECT beat FROM worker WHERE crawl = ? ORDER BY seen DESC, name", (crawl,))
    return list(_readable(rows))


def _readable(rows: Iterable[tuple[bytes]]) -> Iterator[Heartbeat]:
    """The heartbeats that can be read. A damaged one is replaced by its worker's next one, or deleted after a day."""
    for (row,) in rows:
        with contextlib.suppress(msgspec.DecodeError, TypeError):
            yield msgspec.json.decode(row, type=Heartbeat)
