"""The rows of a lease call, read and written with one statement for many of them.

Each step of a statement releases the interpreter lock, and beside a busy event loop waits up to 5 ms to get it back."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain

import msgspec

from shoal.frontier.sqlite.frontier_rows import LaneRow
from shoal.model import Lease
from shoal.sqlite_file import STATEMENT_ROWS, filled_size, update_rows

TaskRow = tuple[int, int, int, int, int, bytes]
LentRow = tuple[int, float, int, str]

ON_THEIR_WAY = (
    "SELECT json_group_array(json_array(task.id, task.lane)) FROM json_each(?)"
    " CROSS JOIN task ON task.crawl = ? AND task.key = json_extract(json_each.value, '$[0]') AND task.state = 2"
    " WHERE task.token = json_extract(json_each.value, '$[1]') AND typeof(task.lane) = 'integer'"
)
NEXT_TASKS = (
    "SELECT lane, id, attempts, losses, free_retries, payload FROM task WHERE lane = ? AND kind = 0 AND state = 0"
    " ORDER BY ord LIMIT ?"
)
_LAND = "UPDATE task SET token = -token WHERE id IN (SELECT value FROM json_each(?))"
FREE = (
    "UPDATE lane SET in_flight = in_flight - landed.column2 FROM (VALUES {rows}) AS landed"
    " WHERE lane.id = landed.column1 AND typeof(lane.in_flight) = 'integer'"
)
LEND = (
    "UPDATE task SET state = 2, at = lent.column2, token = lent.column3, attempts = attempts + 1, worker = ?,"
    " exit = lent.column4 FROM (VALUES {rows}) AS lent WHERE task.id = lent.column1"
)
START = (
    "UPDATE lane SET next_start = new.column2, last_start = new.column3, in_flight = new.column4,"
    " waiting = new.column5, opener = new.column6, turn = new.column7, wish = new.column8"
    " FROM (VALUES {rows}) AS new WHERE lane.id = new.column1"
)

WISH = "UPDATE lane SET turn = new.column2, wish = new.column3 FROM (VALUES {rows}) AS new WHERE lane.id = new.column1"


def land(db: sqlite3.Connection, crawl: int, leases: Iterable[Lease]) -> list[int]:
    """The requests of these leases were answered: their lanes have a request less in flight. Leases that are over, and
    those that were named before, change nothing. Gives the lanes."""
    listed = msgspec.json.encode([(lease.task.key, lease.token) for lease in leases]).decode()
    (found,) = db.execute(ON_THEIR_WAY, (listed, crawl)).fetchone()
    landed = dict(msgspec.json.decode(found, type=list[tuple[int, int]]))
    if not landed:
        return []
    db.execute(_LAND, (msgspec.json.encode(list(landed)).decode(),))
    lanes = Counter(landed.values())
    if update_rows(db, FREE, list(lanes.items())) != len(lanes):
        raise ValueError("a lane with requests on their way is missing or damaged")
    return list(lanes)


def next_tasks(db: sqlite3.Connection, wanted: Sequence[tuple[int, int]]) -> dict[int, list[TaskRow]]:
    """By lane, its next tasks, for lanes and how many of each."""
    found: dict[int, list[TaskRow]] = {}
    for start in range(0, len(wanted), STATEMENT_ROWS):
        part = wanted[start : start + STATEMENT_ROWS]
        # Filled up with lanes of no tasks: so a few prepared statements serve every size.
        size = filled_size(len(part))
        values = (*chain.from_iterable(part), *(None, 0) * (size - len(part)))
        for row in db.execute(tasks_select(size), values).fetchall():
            found.setdefault(row[0], []).append(row)
    return found


def write_leases(db: sqlite3.Connection, worker: str, lent: Sequence[LentRow]) -> None:
    """These tasks are leased by this worker: rows of a task's id, the end of the lease, its token and exit."""
    update_rows(db, LEND, lent, worker)


def write_lanes(db: sqlite3.Connection, lanes: Iterable[LaneRow]) -> None:
    """Write what lending changes in a lane that goes out directly."""
    rows = [
        (
            lane.id, lane.next_start, lane.last_start, lane.in_flight, lane.waiting, lane.opener, lane.turn,
            lane.wish,
        )
        for lane in lanes
    ]  # fmt: skip
    update_rows(db, START, rows)


def write_wishes(db: sqlite3.Connection, lanes: Iterable[LaneRow]) -> None:
    """Write the turns and wishes of lanes that the ledger writes otherwise."""
    update_rows(db, WISH, [(lane.id, lane.turn, lane.wish) for lane in lanes])


@cache
def tasks_select(lanes: int) -> str:
    """NEXT_TASKS for so many lanes."""
    return " UNION ALL ".join([f"SELECT * FROM ({NEXT_TASKS})"] * lanes)  # noqa: S608 -- constant
