"""Lending tasks: reclaim expired leases, wake delayed tasks that are due, choose lanes fairly."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection, Sequence
from operator import attrgetter

import msgspec

from shoal.frontier.rules.constants import (
    BUSY_SECONDS,
    FAR_SECONDS,
    LOOK_AGAIN_SECONDS,
    MAX_ASK_AGAIN,
    MAX_BROUGHT_BACK,
    MAX_GIVEN_UP,
    MAX_WOKEN,
)
from shoal.frontier.rules.exits import no_exit_reason
from shoal.frontier.rules.lanes import ask_again_in
from shoal.frontier.rules.tasks import (
    decoded,
    has_spent,
    is_suspect,
    next_token,
    reached,
)
from shoal.frontier.sqlite.exits import LaneExits
from shoal.frontier.sqlite.lanes import Grant, Reclaims, Terms, choose, lane_needs_opening
from shoal.frontier.sqlite.ledger import Ledger
from shoal.frontier.sqlite.put import expire_keys
from shoal.frontier.sqlite.rows import (
    DEAD,
    DELAYED,
    HTTP_NUMBER,
    LENDING_COLUMNS,
    NEXT_TASKS,
    QUEUED,
    LaneRow,
    LentRow,
    Moment,
    TaskRow,
    land,
    next_tasks,
    write_lanes,
    write_leases,
    write_wishes,
)
from shoal.frontier.sqlite.settle import reclaim_expired
from shoal.model import DIRECT, HTTP, NO_EXIT, CrawlState, Lease, LeaseBatch, Task

DECODER = msgspec.msgpack.Decoder(Task)

DUE = "SELECT id, lane, kind FROM task WHERE crawl = ? AND state = 1 AND at <= ? ORDER BY at, id LIMIT ?"
FAR_AHEAD = (
    f"SELECT {LENDING_COLUMNS} FROM lane WHERE crawl = ? AND waiting > 0 AND in_flight < cap AND opener = 0"  # noqa: S608 -- constant
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


class Stuck(ValueError):  # noqa: N818 -- reads as what happened
    """A crawl whose queued tasks no lane can lend."""


def lease(db: sqlite3.Connection, crawls: Sequence[str], terms: Terms, *, at: Moment) -> LeaseBatch:
    """One lease call. A crawl that was deleted has nothing left to do."""
    asked, answered = at.times.now(), time.monotonic()
    found = {name: Ledger.load(db, name, at=at) for name in crawls}
    ledgers = [ledger for ledger in found.values() if ledger]
    for ledger in ledgers:
        expire_keys(ledger)
        # First: only a lane that has a place is brought back.
        _land(ledger, terms.landed)
        if terms.offers and ledger.exits.offer(terms.offers) and ledger.kinds is not None:
            ledger.kinds.refresh()
        if ledger.note_presence(seconds=terms.seconds):
            _bring_back(ledger)
        if reclaim_expired(ledger) + _wake(ledger):
            ledger.flush()
        _stop_if_reached(ledger)
        _pause_if_spent(ledger)
    if len(ledgers) > 1:
        for ledger in ledgers:
            ledger.exits.holders = ledgers[0].exits.holders
    leases = _lend_from(*choose(ledgers, terms, Reclaims(db, at=at, seconds=terms.seconds, names=found)), terms, db=db)
    leases.sort(key=attrgetter("wait"))
    finished = [name for name, ledger in found.items() if ledger is None or _finish(ledger)]
    passed_over = {ledger.crawl.name for ledger in ledgers if ledger.was_passed_over}
    if passed_over:
        passed_over -= {lease.crawl for lease in leases}
    for ledger in ledgers:
        ledger.flush()
        if not at.mended:
            _check_not_stuck(ledger)
        at.times.note(ledger.crawl.name, ledger.now, shift=ledger.crawl.clock_shift, asked=asked)
    return LeaseBatch(
        leases=leases,
        ask_again=min([_ask_again(ledger, terms.kinds, passed_over) for ledger in ledgers], default=MAX_ASK_AGAIN),
        at=answered,
        epoch=sum(ledger.crawl.epoch for ledger in ledgers),
        finished=tuple(finished),
    )


def _land(ledger: Ledger, leases: Sequence[Lease]) -> None:
    given = [lease for lease in leases if lease.crawl == ledger.crawl.name]
    if given:
        lanes = land(ledger.db, ledger.crawl.id, given)
        if ledger.kinds is not None:
            ledger.kinds.refresh(lanes)


def _bring_back(ledger: Ledger) -> None:
    """Lanes whose next start lies further ahead than their pace and rests allow get a possible one. The clock was
    wrong when it was written, before its step was noticed."""
    latest = ledger.now + FAR_SECONDS
    rows = ledger.db.execute(FAR_AHEAD, (ledger.crawl.id, latest, MAX_BROUGHT_BACK)).fetchall()
    if ledger.kinds is not None:
        rows += ledger.kinds.far_ahead(latest=latest, limit=MAX_BROUGHT_BACK)
    for row in rows:
        lane = ledger.adopt(row)
        if not lane.has_pool:
            lane.bring_back(now=ledger.now)
    ledger.flush()


def _pause_if_spent(ledger: Ledger) -> None:
    crawl = ledger.crawl
    if crawl.state == CrawlState.RUNNING and crawl.left and has_spent(crawl.cost, crawl.max_cost):
        crawl.state = CrawlState.PAUSED


def _stop_if_reached(ledger: Ledger) -> None:
    crawl = ledger.crawl
    if not crawl.limits or crawl.state != CrawlState.RUNNING or not (crawl.left or ledger.is_kept_open):
        return
    limit = reached(decoded(crawl.limits), note=ledger.noted, ran=crawl.ran, wall=ledger.wall)
    if limit is not None:
        crawl.state, crawl.finished = CrawlState.STOPPED, ledger.wall
        ledger.db.execute("UPDATE crawl_about SET reason = ? WHERE crawl = ?", (limit.why, crawl.id))


def _wake(ledger: Ledger) -> int:
    """Queue delayed tasks that are due in their lanes."""
    if not ledger.crawl.delayed:
        return 0
    rows = ledger.db.execute(DUE, (ledger.crawl.id, ledger.now, MAX_WOKEN)).fetchall()
    if not rows:
        return 0
    ledger.read_lanes({lane_id for _, lane_id, _ in rows})
    for _, lane_id, kind in rows:
        ledger.count(DELAYED, -1)
        ledger.forget_waiting(kind)
        ledger.wait(ledger.lane_by_id(lane_id), kind=kind)
    ledger.db.execute(_WAKE, (msgspec.json.encode([row_id for row_id, _, _ in rows]).decode(),))
    return len(rows)


def _lend_from(
    chosen: Sequence[tuple[Grant, int]], held: Sequence[Grant], terms: Terms, *, db: sqlite3.Connection
) -> list[Lease]:
    """So many tasks of each of these lanes as leases, written. Those that are held back lend nothing."""
    counts = [(lane.id, count) for (ledger, lane, _, _), count in chosen if count and ledger.kinds is None]
    waiting = next_tasks(db, counts)
    leases: list[Lease] = []
    rows: list[LentRow] = []
    for index, (grant, count) in enumerate(chosen):
        if not count:
            continue
        ledger, lane, _, _ = grant
        end = ledger.now + terms.seconds
        tasks = waiting.get(lane.id, [])
        if ledger.kinds is not None:
            numbers = ledger.kinds.numbers(terms.kinds)
            tasks = [row for _, row in ledger.kinds.next_tasks(lane.id, numbers, count)]
        lent = _lend(grant, tasks, terms, is_first=index == 0)
        # The first of its tasks, maybe not all of them.
        rows += [(task[1], end, lease.token, lease.exit) for task, lease in zip(tasks, lent, strict=False)]
        leases += lent
        if leases and leases[0].alone:
            break
    write_leases(db, terms.worker, rows)
    _note_wishes([*(grant for grant, _ in chosen), *held], is_served=len(leases) >= max(terms.limit, terms.room), db=db)
    return leases


def _note_wishes(looked_at: Sequence[Grant], *, is_served: bool, db: sqlite3.Connection) -> None:
    """When the lanes that the call looked at want to start next, written with all else that it changed in those that
    the ledger does not write. `is_served`: the call lent all that the worker asked for."""
    own, others = list[LaneRow](), list[LaneRow]()
    for ledger, lane, _, _ in looked_at:
        now, due = ledger.now, lane.next_start
        due = due if due > now else now
        has_waiting = lane.waiting or (ledger.kinds is not None and ledger.kinds.waiting(lane.id))
        lane.wish = due if has_waiting and not is_served else -due
        (others if ledger.has(lane.id) else own).append(lane)
    write_lanes(db, own)
    write_wishes(db, others)


def _lend(grant: Grant, tasks: Sequence[TaskRow], terms: Terms, *, is_first: bool) -> list[Lease]:
    """The lane's next tasks as leases. A suspect at its head is lent alone if this is the first lane of the call; the
    lane stops before any other."""
    ledger, lane, limits, _ = grant
    if limits is not None:
        lane.next_start = max(lane.next_start, limits.not_before)
    exits = ledger.exits_of(lane) if lane.has_pool else None
    if exits is not None:
        exits.has_changed = True
        if exits.are_given_up:
            _give_up(ledger, lane, exits, terms)
            return []
    opens_lane, latest = lane_needs_opening(ledger, lane), ledger.now + terms.horizon
    lent: list[Lease] = []
    for row in tasks:
        alone = is_suspect(row[3])
        if alone and (lent or not is_first):
            break
        lease = _lease(grant, row, opens_lane=opens_lane, alone=alone, exits=exits, latest=latest)
        if lease is None:
            _wait_for_exits(ledger, lane, lent)
            break
        lent.append(lease)
        if alone:
            break
    _count_lent(ledger, lane, lent)
    if opens_lane and lent:
        lane.opener = ledger.crawl.last_token
    return lent


def _wait_for_exits(ledger: Ledger, lane: LaneRow, lent: Sequence[Lease]) -> None:
    """No exit has a slot in time. If other crawls use some and nothing was lent, it looks again soon."""
    if not lent and ledger.exits_of(lane).are_used_elsewhere:
        lane.next_start = max(lane.next_start, ledger.now + LOOK_AGAIN_SECONDS)


def _count_lent(ledger: Ledger, lane: LaneRow, lent: Sequence[Lease]) -> None:
    ledger.crawl.queued -= len(lent)
    ledger.crawl.leased += len(lent)
    if ledger.kinds is None:
        lane.waiting -= len(lent)
    else:
        for number in ledger.kinds.numbers(lease.task.kind for lease in lent):
            ledger.stop_waiting(lane, number)
    lane.in_flight += len(lent)


def _lease(
    grant: Grant, row: TaskRow, *, opens_lane: bool, alone: bool, exits: LaneExits | None, latest: float
) -> Lease | None:
    """Lend one task in the next slot of the lane and of an exit; None when no exit has a slot in time. A lease that
    opens its lane has the lane's own pace, by which it judges the one that the rules ask for."""
    ledger, lane, limits, _ = grant
    interval, base_interval = lane.interval, lane.base_interval
    if limits is not None and not opens_lane:
        interval, base_interval = limits.interval, limits.base_interval
    now, crawl = ledger.now, ledger.crawl
    _, _, attempts, _, free_retries, payload = row
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
        interval=interval,
        base_interval=base_interval,
        exit_interval=exit_interval,
        opens_lane=opens_lane,
        rules_version=lane.rules_version if lane.rules_until > now else 0,
        session_version=session_version,
        alone=alone,
    )
    lane.start(start, now=now, interval=interval if limits is None else limits.interval)
    lane.turn += ledger.turn
    return lease


def _give_up(ledger: Ledger, lane: LaneRow, exits: LaneExits, terms: Terms) -> None:
    """Give up the lane's tasks of these kinds, a bounded number at a time. When none is left, its patience starts
    again."""
    if ledger.kinds is None:
        rows = [(HTTP_NUMBER, row) for row in ledger.db.execute(NEXT_TASKS, (lane.id, MAX_GIVEN_UP)).fetchall()]
    else:
        rows = ledger.kinds.next_tasks(lane.id, ledger.kinds.numbers(terms.kinds), MAX_GIVEN_UP)
    reason = no_exit_reason(lane.name, is_known=exits.pool is not None)
    ledger.db.execute(_GIVE_UP, (ledger.wall, reason, msgspec.json.encode([row[1] for _, row in rows]).decode()))
    ledger.count(QUEUED, -len(rows))
    ledger.count(DEAD, len(rows))
    ledger.tally("outcome", NO_EXIT, len(rows))
    for number, _ in rows:
        ledger.stop_waiting(lane, number)
    has_more = lane.waiting or (ledger.kinds is not None and ledger.kinds.waiting(lane.id))
    if exits.pool is not None and not has_more:
        exits.roster.starved_since = ledger.now


def _finish(ledger: Ledger) -> bool:
    """Whether the crawl has nothing left to do; a running one is finished from now on."""
    crawl = ledger.crawl
    if crawl.state == CrawlState.STOPPED:
        return not crawl.leased
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
        if ledger.kinds is not None and ledger.kinds.next_due(ledger.kinds.numbers(ledger.kinds.names)) is not None:
            return
        raise Stuck(crawl.name)


def _ask_again(ledger: Ledger, kinds: Sequence[str], passed_over: Collection[str]) -> float:
    """Seconds until a task of these kinds can be lent that is in this crawl already. `passed_over`: the crawls that
    lent none because their lanes wait for the exits of other workers; each delays only itself."""
    crawl = ledger.crawl
    if crawl.state != CrawlState.RUNNING:
        return MAX_ASK_AGAIN
    next_lane, *times = ledger.db.execute(NEXT_TIMES, [crawl.id] * 3).fetchone()
    if HTTP in kinds:
        times.append(next_lane)
    if ledger.kinds is not None:
        times.append(ledger.kinds.next_due(ledger.kinds.numbers(kinds)))
    seconds = ask_again_in([at for at in times if at is not None], now=ledger.now)
    return max(seconds, BUSY_SECONDS) if crawl.name in passed_over else seconds
