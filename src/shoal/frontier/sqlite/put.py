"""Letting tasks in: dedup and budgets. Shared by put and by settle."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.frontier.rules.tasks import MAX_PAGES, MAX_PER_HOST, MAX_PER_SHAPE, MERGED, bounded_priority
from shoal.frontier.sqlite.expiry import known_ended
from shoal.frontier.sqlite.ledger import Ledger
from shoal.frontier.sqlite.rows import LaneRow
from shoal.model import PutReport, Task

SEQUENCES = 2**40  # task ids per crawl, and the distance of two priorities in a lane's order

_ENCODER = msgspec.msgpack.Encoder()
KNOWN = "SELECT value FROM json_each(?) CROSS JOIN seen ON seen.crawl = ? AND seen.key = value"


def put(ledger: Ledger, tasks: list[Task]) -> PutReport:
    """Let in each task whose key is new and that fits the budgets."""
    if not tasks:
        return PutReport()
    keys = msgspec.json.encode([task.key for task in tasks]).decode()
    known = {key for (key,) in ledger.db.execute(KNOWN, (keys, ledger.crawl.id))}
    if ledger.crawl.dedup_ttl:
        known |= known_ended(ledger, (task.key for task in tasks))
    intake = _Intake(ledger)
    for task in tasks:
        if task.key in known:
            intake.merge(task)
        elif intake.accept(task):
            known.add(task.key)
    return intake.flush()


class _Intake:
    """The new rows of one call: collected, then written with few statements."""

    def __init__(self, ledger: Ledger) -> None:
        crawl = ledger.crawl
        self._ledger = ledger
        self._seen_rows: list[tuple[int, int, int]] = []
        self._task_rows: list[tuple[Any, ...]] = []
        self._shapes: dict[tuple[int, int], int] = {}
        self._duplicates = 0
        self._refused: dict[int, str] = {}
        self._room = crawl.max_pages - crawl.known if crawl.max_pages else None

    def merge(self, task: Task) -> None:
        """The key is known: only count it."""
        self._duplicates += 1
        if task.merged:
            self._ledger.tally("rejected", MERGED)
            self._ledger.sample(MERGED, task.url)

    def accept(self, task: Task) -> bool:
        """Make the rows of a task, unless a budget refuses it."""
        if self._room is not None and len(self._task_rows) >= self._room:
            return self._refuse(task, MAX_PAGES)
        crawl, lane = self._ledger.crawl, self._ledger.lane(task.lane)
        if crawl.max_per_lane and lane.known >= crawl.max_per_lane:
            return self._refuse(task, MAX_PER_HOST)
        if task.shape and crawl.max_per_shape:
            known = self._shape_known(lane, task.shape)
            if known >= crawl.max_per_shape:
                return self._refuse(task, MAX_PER_SHAPE)
            self._shapes[lane.id, task.shape] = known + 1
        lane.known += 1
        self._append(task, lane)
        return True

    def flush(self) -> PutReport:
        """Write the rows."""
        ledger = self._ledger
        ledger.crawl.duplicates += self._duplicates
        if self._task_rows:
            ledger.revive()
            ledger.db.executemany("INSERT INTO seen (crawl, key, task) VALUES (?, ?, ?)", self._seen_rows)
            ledger.db.executemany(
                "INSERT INTO task (id, crawl, key, lane, ord, state, at, max_attempts, payload)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                self._task_rows,
            )
        if self._shapes:
            ledger.db.executemany(
                "INSERT INTO shape (lane, shape, known) VALUES (?, ?, ?)"
                " ON CONFLICT DO UPDATE SET known = excluded.known",
                [(*lane_and_shape, known) for lane_and_shape, known in self._shapes.items()],
            )
        return PutReport(new=len(self._task_rows), duplicates=self._duplicates, refused=self._refused)

    def _refuse(self, task: Task, reason: str) -> bool:
        self._refused[task.key] = reason
        self._ledger.tally("rejected", reason)
        self._ledger.sample(reason, task.url)
        return False

    def _shape_known(self, lane: LaneRow, shape: int) -> int:
        known = self._shapes.get((lane.id, shape))
        if known is None:
            select = "SELECT known FROM shape WHERE lane = ? AND shape = ?"
            row = self._ledger.db.execute(select, (lane.id, shape)).fetchone()
            known = self._shapes[lane.id, shape] = row[0] if row else 0
        return known

    def _append(self, task: Task, lane: LaneRow) -> None:
        ledger = self._ledger
        crawl = ledger.crawl
        crawl.last_seq += 1
        row_id = crawl.id * SEQUENCES + crawl.last_seq
        order = crawl.last_seq - bounded_priority(task.priority) * SEQUENCES if task.priority else crawl.last_seq
        state, at = ledger.wait(lane, delay=task.delay)
        self._seen_rows.append((crawl.id, task.key, row_id))
        self._task_rows.append(
            (row_id, crawl.id, task.key, lane.id, order, state, at, task.max_attempts, _ENCODER.encode(task))
        )
