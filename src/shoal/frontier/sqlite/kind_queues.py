"""The queues of a crawl's other kinds than http inside one transaction: how many tasks wait, and from when on."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from shoal.frontier.rules.constants import MAX_KINDS
from shoal.frontier.sqlite.frontier_rows import LENDING_COLUMNS
from shoal.frontier.sqlite.lease_rows import TaskRow
from shoal.model import HTTP

HTTP_NUMBER = 0  # of http in the column `kind` of tasks; another kind's is its index in the crawl's list, from 1 on

_SAVE = (
    "INSERT INTO lane_kind (lane, kind, crawl, waiting) VALUES (?, ?, ?, ?)"
    " ON CONFLICT DO UPDATE SET waiting = excluded.waiting"
)
_DUE = (
    "(SELECT iif(in_flight < cap AND opener = 0, max(next_start, exits_next), NULL) FROM lane"
    " WHERE lane.id = lane_kind.lane)"
)
REFRESH = f"UPDATE lane_kind SET due = {_DUE} WHERE lane IN (SELECT value FROM json_each(?))"  # noqa: S608 -- constant
REFRESH_ALL = f"UPDATE lane_kind SET due = {_DUE} WHERE crawl = ?"  # noqa: S608 -- constant
_OF_KIND = "FROM lane_kind WHERE crawl = ? AND kind = ? AND waiting > 0 AND due IS NOT NULL"
READY_OF_KIND = (
    f"SELECT {LENDING_COLUMNS} FROM lane WHERE id IN"  # noqa: S608 -- constant
    f" (SELECT lane {_OF_KIND} AND due <= ? ORDER BY due, lane LIMIT ?)"
)
FAR_OF_KIND = (
    f"SELECT {LENDING_COLUMNS} FROM lane WHERE id IN"  # noqa: S608 -- constant
    f" (SELECT lane {_OF_KIND} AND due > ? ORDER BY due DESC LIMIT ?)"
)
NEXT_OF_KIND = f"SELECT due {_OF_KIND} ORDER BY due LIMIT 1"
NEXT_TASKS_OF_KIND = (
    "SELECT ord, kind, lane, id, attempts, losses, free_retries, payload FROM task"
    " WHERE lane = ? AND kind = ? AND state = 0 ORDER BY ord LIMIT ?"
)


class KindQueues:
    """A crawl's other kinds, and the numbers of waiting tasks that this transaction reads or changes."""

    def __init__(self, db: sqlite3.Connection, crawl: int, names: str) -> None:
        self._db = db
        self._crawl = crawl
        self.names = names.split(",") if names else []
        self._waiting: dict[int, dict[int, int]] = {}
        self._changed: set[tuple[int, int]] = set()

    def number(self, kind: str) -> int | None:
        """The number of a kind; None: the crawl has no tasks of it."""
        if kind == HTTP:
            return HTTP_NUMBER
        return self.names.index(kind) + 1 if kind in self.names else None

    def numbers(self, kinds: Iterable[str]) -> list[int]:
        """The numbers of those kinds that the crawl has."""
        return [number for kind in kinds if (number := self.number(kind)) is not None]

    def has_room_for(self, kind: str) -> bool:
        """Whether the crawl has tasks of this kind, or may have them."""
        return kind in self.names or len(self.names) + 1 < MAX_KINDS

    def add(self, kind: str) -> int:
        """The number of a kind, which the crawl has from now on."""
        if kind not in self.names:
            self.names.append(kind)
            self._db.execute("UPDATE crawl SET kinds = ? WHERE id = ?", (",".join(self.names), self._crawl))
        return self.names.index(kind) + 1

    def change(self, lane: int, number: int, amount: int) -> None:
        """So many tasks of this kind more wait in the lane."""
        waiting = self._of(lane)
        waiting[number] = waiting.get(number, 0) + amount
        self._changed.add((lane, number))

    def waiting(self, lane: int, numbers: Collection[int] | None = None) -> int:
        """How many tasks wait in the lane, of these other kinds or of all of them."""
        return sum(count for number, count in self._of(lane).items() if numbers is None or number in numbers)

    def ready(self, numbers: Iterable[int], *, latest: float, limit: int) -> list[tuple[Any, ...]]:
        """The rows of lanes that may lend tasks of these kinds by then."""
        rows = {}
        for number in numbers:
            for row in self._db.execute(READY_OF_KIND, (self._crawl, number, latest, limit)):
                rows[row[0]] = row
        return list(rows.values())

    def far_ahead(self, *, latest: float, limit: int) -> list[tuple[Any, ...]]:
        """The rows of lanes whose tasks of other kinds are due after that time."""
        found = []
        for number in range(1, len(self.names) + 1):
            found += self._db.execute(FAR_OF_KIND, (self._crawl, number, latest, limit)).fetchall()
        return found

    def next_due(self, numbers: Iterable[int]) -> float | None:
        """When the next lane may lend a task of these kinds."""
        rows = [self._db.execute(NEXT_OF_KIND, (self._crawl, number)).fetchone() for number in numbers]
        return min([row[0] for row in rows if row], default=None)

    def next_tasks(self, lane: int, numbers: Iterable[int], limit: int) -> list[tuple[int, TaskRow]]:
        """The next tasks of these kinds, http among them or not, each behind the number of its kind."""
        rows = []
        for number in numbers:
            rows += self._db.execute(NEXT_TASKS_OF_KIND, (lane, number, limit)).fetchall()
        rows.sort(key=lambda row: row[0])
        return [(row[1], row[2:]) for row in rows[:limit]]

    def refresh(self, lanes: Sequence[int] | None = None) -> None:
        """The pace of these lanes changed, or of all: their tasks of other kinds are due when they may start."""
        if lanes is None:
            self._db.execute(REFRESH_ALL, (self._crawl,))
        else:
            self._db.execute(REFRESH, (msgspec.json.encode(lanes).decode(),))

    def flush(self, lanes: Collection[int]) -> None:
        """Write what changed, and when the tasks of these lanes are due, whose rows were written."""
        rows = [(lane, number, self._crawl, self._waiting[lane][number]) for lane, number in sorted(self._changed)]
        self._db.executemany(_SAVE, rows)
        self.refresh(sorted({*lanes, *(lane for lane, _ in self._changed)}))
        self._waiting.clear()
        self._changed.clear()

    def _of(self, lane: int) -> dict[int, int]:
        waiting = self._waiting.get(lane)
        if waiting is None:
            rows = self._db.execute("SELECT kind, waiting FROM lane_kind WHERE lane = ?", (lane,))
            waiting = self._waiting[lane] = dict(rows.fetchall())
        return waiting
