"""Storing new tasks (put, bury and the found tasks of a settle): known keys, budgets, and keys that expire.

Budgets are counted in the step that stores the task, not at the fetch: workers that decide alone would exceed them, and
a crawler trap would fill the frontier with tasks that nobody will do.

Keys of tasks that have not ended are in `seen` and never expire; in a crawl with a `dedup_ttl`, keys of ended tasks are
in `past`, by generation (see `rules/keys.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from shoal.frontier.rules.constants import KEPT_GENERATIONS
from shoal.frontier.rules.keys import DROPPED, generation_begin, generations_due, no_keys_to_know, oldest_known
from shoal.frontier.rules.tasks import (
    KNOWN_KEYS,
    MAX_PAGES,
    MAX_PER_HOST,
    MAX_PER_SHAPE,
    MERGED,
    TOO_MANY_KINDS,
    bounded_priority,
    outcome_of,
)
from shoal.frontier.sqlite.ledger import Ledger
from shoal.frontier.sqlite.rows import DEAD, DELAYED, HTTP_NUMBER, LaneRow
from shoal.model import HTTP, PutReport, Task
from shoal.sqlite_file import insert_rows

MAX_REMOVED = 500  # expired keys that one call removes, so that it stays short; the next call continues

KNOWN_PAST = (
    "SELECT value FROM json_each(?) CROSS JOIN past"
    f" ON past.crawl = ? AND past.generation IN ({', '.join('?' * KEPT_GENERATIONS)}) AND past.key = value"
)
EXPIRED_PAST = "SELECT crawl, generation, key FROM past WHERE crawl = ? AND generation < ? LIMIT ?"


def expire_keys(ledger: Ledger) -> None:
    """Begin the generations that are due, and remove some of the keys that have expired."""
    crawl = ledger.crawl
    if not crawl.dedup_ttl:
        return
    due = _generations_due(ledger)
    if due:
        _begin_generations(ledger, due, at=generation_begin(crawl.generation_began, crawl.dedup_ttl, due))
    _remove_expired(ledger)


def change_ttl(ledger: Ledger, seconds: float) -> None:
    """Change the `dedup_ttl` of a crawl that has one. A generation older than half the new value ends here, so that
    none of its keys expires too early."""
    crawl = ledger.crawl
    if crawl.dedup_ttl and seconds and seconds != crawl.dedup_ttl:
        expire_keys(ledger)
        crawl.dedup_ttl = seconds
        ledger.db.execute("UPDATE crawl SET dedup_ttl = ? WHERE id = ?", (seconds, crawl.id))
        if _generations_due(ledger):
            _begin_generations(ledger, 1, at=ledger.now)
        ledger.flush()


def retire(ledger: Ledger, keys: Iterable[int]) -> None:
    """Move the keys of ended tasks to the current generation. Call `expire_keys` first."""
    crawl = ledger.crawl
    if not crawl.dedup_ttl:
        return
    rows = [(crawl.id, key) for key in keys]
    ledger.db.executemany("DELETE FROM seen WHERE crawl = ? AND key = ?", rows)
    ledger.db.executemany(
        "INSERT INTO past (crawl, generation, key) VALUES (?, ?, ?)",
        [(crawl_id, crawl.generation, key) for crawl_id, key in rows],
    )


def known_ended(ledger: Ledger, keys: Iterable[int]) -> set[int]:
    """The keys among these whose tasks have ended and that have not expired."""
    crawl = ledger.crawl
    if not crawl.dedup_ttl:
        return set()
    newest = crawl.generation + _generations_due(ledger)
    listed = msgspec.json.encode(list(keys)).decode()
    rows = ledger.db.execute(KNOWN_PAST, (listed, crawl.id, *range(oldest_known(newest), newest + 1)))
    return {key for (key,) in rows}


def forget_ended(ledger: Ledger, keys: Iterable[int]) -> None:
    """Delete these keys from all generations: they may be put again."""
    crawl = ledger.crawl
    if crawl.dedup_ttl:
        known = range(oldest_known(crawl.generation), crawl.generation + 1)
        ledger.db.executemany(
            "DELETE FROM past WHERE crawl = ? AND generation = ? AND key = ?",
            [(crawl.id, generation, key) for key in keys for generation in known],
        )


def _generations_due(ledger: Ledger) -> int:
    crawl = ledger.crawl
    return generations_due(crawl.generation_began, crawl.dedup_ttl, now=ledger.now)


def _begin_generations(ledger: Ledger, count: int, *, at: float) -> None:
    """The new epoch makes workers forget the expired keys as well."""
    crawl = ledger.crawl
    crawl.generation += count
    crawl.generation_began = at
    crawl.epoch += 1
    ledger.db.execute(
        "UPDATE crawl SET generation = ?, generation_began = ? WHERE id = ?", (crawl.generation, at, crawl.id)
    )


def _remove_expired(ledger: Ledger) -> None:
    crawl = ledger.crawl
    rows = ledger.db.execute(EXPIRED_PAST, (crawl.id, oldest_known(crawl.generation), MAX_REMOVED)).fetchall()
    if rows:
        ledger.db.executemany("DELETE FROM past WHERE crawl = ? AND generation = ? AND key = ?", rows)


SEQUENCES = 2**40  # task ids per crawl, and the distance between two priorities in a lane's order
SORTED_FROM = 500_000  # known keys from which on sorted lookups save more time than sorting takes

_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.json.Decoder(list[int])
_ADD_SEEN = "INSERT INTO seen (crawl, key)"
_TASK = "INSERT INTO task (id, crawl, key, lane, ord, state, at, max_attempts, payload)"
_TASK_OF_KIND = "INSERT INTO task (id, crawl, key, lane, ord, state, at, max_attempts, payload, kind)"
_SHAPE = "INSERT INTO shape (lane, shape, known)"
# Created by the first put that needs it: most crawls visit no page again, and should not pay for the index.
_BY_KEY = f"CREATE INDEX IF NOT EXISTS task_visit ON task (crawl, key) WHERE state = {DELAYED} AND token <> 0"
# A delayed task that was leased before and has all its attempts waits for a visit; a task to retry has used some.
_HASTEN = (
    "UPDATE task INDEXED BY task_visit SET at = ? WHERE crawl = ? AND key IN (SELECT value FROM json_each(?))"
    f" AND state = {DELAYED} AND token <> 0 AND attempts = 0 AND free_retries = 0 AND at > ?"
)
KNOWN = "SELECT json_group_array(value) FROM json_each(?) CROSS JOIN seen ON seen.crawl = ? AND seen.key = value"


def ids_of(crawl: int) -> tuple[int, int]:
    """The range of a crawl's task ids."""
    return crawl * SEQUENCES, (crawl + 1) * SEQUENCES - 1


def put(ledger: Ledger, tasks: list[Task]) -> PutReport:
    """Store each task whose key is new and that fits the budgets."""
    ledger.check_keys()
    return put_found(ledger, tasks)[0]


def put_found(ledger: Ledger, tasks: list[Task]) -> tuple[PutReport, list[int]]:
    """Like a put; also gives the indexes of the tasks whose keys were known."""
    intake = _Intake(ledger)
    return (_let_in(tasks, intake), intake.known) if tasks else (PutReport(), [])


def bury(ledger: Ledger, letters: Sequence[tuple[Task, str]]) -> PutReport:
    """Store tasks as a put does, but as dead letters. Of letters with the same key, the first one counts."""
    ledger.check_keys()
    reasons = {task.key: reason for task, reason in reversed(letters)}
    return _let_in([task for task, _ in letters], _Intake(ledger, reasons)) if letters else PutReport()


def know(ledger: Ledger, keys: Sequence[int]) -> int:
    """Mark keys as known without a task. Call `expire_keys` first."""
    ledger.check_keys()
    known = _known_among(ledger, list(keys))
    new = [key for key in dict.fromkeys(keys) if key not in known]
    if ledger.crawl.dedup_ttl:
        retire(ledger, new)
    elif new:
        insert_rows(ledger.db, _ADD_SEEN, [(ledger.crawl.id, key) for key in new])
    ledger.tally("note", KNOWN_KEYS, len(new))
    return len(new)


def _known_among(ledger: Ledger, asked: list[int]) -> set[int]:
    if ledger.crawl.known >= SORTED_FROM:
        # In key order, lookups find the upper pages of the tree in the processor's cache.
        asked.sort()
    (found,) = ledger.db.execute(KNOWN, (msgspec.json.encode(asked).decode(), ledger.crawl.id)).fetchone()
    known = set(_DECODER.decode(found))
    return known | known_ended(ledger, asked) if ledger.crawl.dedup_ttl else known


def _let_in(tasks: list[Task], intake: _Intake) -> PutReport:
    known = _known_among(intake.ledger, [task.key for task in tasks])
    for index, task in enumerate(tasks):
        if task.key in known:
            intake.merge(task, index)
        elif intake.accept(task):
            known.add(task.key)
    return intake.flush()


class _Intake:
    """The new rows of one call: collected, then written with few statements. With `reasons`: dead letters."""

    def __init__(self, ledger: Ledger, reasons: Mapping[int, str] | None = None) -> None:
        crawl = ledger.crawl
        self.ledger = ledger
        self._reasons = reasons
        self._seen_rows: list[tuple[int, int]] = []
        self._task_rows: list[tuple[Any, ...]] = []
        self._rows_of_kinds: list[tuple[Any, ...]] = []
        self._shapes: dict[tuple[int, int], int] = {}
        self.known: list[int] = []
        self._hastened: list[int] = []
        self._refused: dict[int, str] = {}
        self._room = crawl.max_pages - crawl.known if crawl.max_pages else None

    def merge(self, task: Task, index: int) -> None:
        """Count a known key, and hasten its next visit if the task asks for it."""
        self.known.append(index)
        if task.hastens:
            self._hastened.append(task.key)
        if task.merged:
            self.ledger.tally("rejected", MERGED)
            self.ledger.sample(MERGED, task.url)

    def accept(self, task: Task) -> bool:
        """Collect the rows of a task, unless a budget refuses it."""
        if task.kind != HTTP and not self.ledger.has_room_for(task.kind):
            return self._refuse(task, TOO_MANY_KINDS)
        if self._room is not None and len(self._seen_rows) >= self._room:
            return self._refuse(task, MAX_PAGES)
        crawl, lane = self.ledger.crawl, self.ledger.lane(task.lane)
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
        ledger = self.ledger
        ledger.crawl.duplicates += len(self.known)
        if self._seen_rows:
            if self._reasons is None:
                ledger.revive()
            insert_rows(ledger.db, _ADD_SEEN, self._seen_rows)
            insert_rows(ledger.db, _TASK, self._task_rows)
            insert_rows(ledger.db, _TASK_OF_KIND, self._rows_of_kinds)
            if self._reasons is not None:
                rows = [*self._task_rows, *self._rows_of_kinds]
                reasons = [(self._reasons[row[2]], row[0]) for row in rows]
                ledger.db.executemany("UPDATE task SET reason = ? WHERE id = ?", reasons)
        if self._hastened:
            ledger.db.execute(_BY_KEY)
            keys = msgspec.json.encode(self._hastened).decode()
            ledger.db.execute(_HASTEN, (ledger.now, ledger.crawl.id, keys, ledger.now))
        if self._shapes:
            rows = [(*lane_and_shape, known) for lane_and_shape, known in self._shapes.items()]
            insert_rows(ledger.db, _SHAPE, rows, " ON CONFLICT DO UPDATE SET known = excluded.known")
        return PutReport(new=len(self._seen_rows), duplicates=len(self.known), refused=self._refused)

    def _refuse(self, task: Task, reason: str) -> bool:
        self._refused[task.key] = reason
        self.ledger.tally("rejected", reason)
        self.ledger.sample(reason, task.url)
        return False

    def _shape_known(self, lane: LaneRow, shape: int) -> int:
        known = self._shapes.get((lane.id, shape))
        if known is None:
            select = "SELECT known FROM shape WHERE lane = ? AND shape = ?"
            row = self.ledger.db.execute(select, (lane.id, shape)).fetchone()
            known = self._shapes[lane.id, shape] = row[0] if row else 0
        return known

    def _append(self, task: Task, lane: LaneRow) -> None:
        ledger = self.ledger
        crawl = ledger.crawl
        crawl.last_seq += 1
        row_id = crawl.id * SEQUENCES + crawl.last_seq
        order = crawl.last_seq - bounded_priority(task.priority) * SEQUENCES if task.priority else crawl.last_seq
        kind = HTTP_NUMBER if task.kind == HTTP else ledger.add_kind(task.kind)
        if self._reasons is None:
            state, at = ledger.wait(lane, kind=kind, delay=task.delay)
        else:
            state, at = self._bury(self._reasons[task.key])
        self._seen_rows.append((crawl.id, task.key))
        row = (row_id, crawl.id, task.key, lane.id, order, state, at, task.max_attempts, _ENCODER.encode(task))
        if kind == HTTP_NUMBER:
            self._task_rows.append(row)
        else:
            self._rows_of_kinds.append((*row, kind))

    def _bury(self, reason: str) -> tuple[int, float]:
        self.ledger.count(DEAD, 1)
        self.ledger.tally("outcome", outcome_of(reason))
        return DEAD, self.ledger.wall


KEYS_PER_STEP: Final = 5_000
TASKS_PER_STEP: Final = 20_000
_BEGIN = "CREATE TEMP TABLE IF NOT EXISTS undone (key INTEGER PRIMARY KEY)"
_UNDONE = (
    "INSERT OR IGNORE INTO temp.undone SELECT key FROM task WHERE id IN"
    " (SELECT id FROM task WHERE id > ? AND id <= ? ORDER BY id LIMIT ?)"
)
_NEXT_TASK = "SELECT max(id) FROM (SELECT id FROM task WHERE id > ? AND id <= ? ORDER BY id LIMIT ?)"
_UNDONE_AMONG = "SELECT key FROM temp.undone WHERE key IN (SELECT value FROM json_each(?))"
_SEEN_AFTER = "SELECT 0, key FROM seen WHERE crawl = ? AND key > ? ORDER BY key LIMIT ?"
_PAST = (
    "SELECT generation, key FROM past WHERE crawl = ? AND (generation, key) > (?, ?) ORDER BY generation, key LIMIT ?"
)

Position = tuple[int, float]
START: Final[Position] = (-1, -1e30)  # before the lowest key


def check_earlier(ledger: Ledger) -> None:
    """Refuse a crawl whose keys were dropped."""
    if ledger.crawl.keys != "known":
        raise no_keys_to_know(ledger.crawl.name, DROPPED)


def note_undone(ledger: Ledger, after: int | None) -> int | None:
    """Collect the keys of tasks that are not done in a temporary table of this connection: up to TASKS_PER_STEP rows
    after the row `after`, or from the first. Gives the last row; None: there are no more."""
    first, last = ids_of(ledger.crawl.id)
    if after is None:
        ledger.db.execute(_BEGIN)
        ledger.db.execute("DELETE FROM temp.undone")
        after = first - 1
    (found,) = ledger.db.execute(_NEXT_TASK, (after, last, TASKS_PER_STEP)).fetchone()
    if found is not None:
        ledger.db.execute(_UNDONE, (after, last, TASKS_PER_STEP))
    return None if found is None else int(found)


def done_keys(ledger: Ledger, after: Position) -> tuple[list[int], Position | None]:
    """Up to KEYS_PER_STEP keys of done tasks after a position, and the next position; None: there are no more."""
    db, crawl = ledger.db, ledger.crawl
    if crawl.dedup_ttl:
        # Keys of ended tasks are in `past`; tasks whose keys are in `seen` are not done.
        first = max(after, (oldest_known(crawl.generation), START[1]))
        rows = db.execute(_PAST, (crawl.id, *first, KEYS_PER_STEP)).fetchall()
    else:
        rows = db.execute(_SEEN_AFTER, (crawl.id, after[1], KEYS_PER_STEP)).fetchall()
    if not rows:
        return [], None
    keys = [key for _, key in rows]
    listed = msgspec.json.encode(keys).decode()
    undone = {key for (key,) in db.execute(_UNDONE_AMONG, (listed,))}
    return [key for key in keys if key not in undone], rows[-1]
