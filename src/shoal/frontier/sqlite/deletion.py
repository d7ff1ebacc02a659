"""Deleting crawls and dropping keys, in short transactions so that other processes can write; the size of a crawl.

What other crawls still need of a host (its rests, rules, pace) is kept in `host` when its lanes are deleted.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from shoal.frontier.rules.constants import HEEDED_SECONDS
from shoal.frontier.rules.hosts import APART, DELETING
from shoal.frontier.rules.keys import not_finished
from shoal.frontier.rules.tasks import KNOWN_KEYS
from shoal.frontier.sqlite.ledger import Ledger
from shoal.frontier.sqlite.put import ids_of
from shoal.model import CrawlSize, CrawlState

_KEEP = (
    "INSERT INTO host (name, last_start, blocked_until, rules, rules_until, delay, why, learnt, learnt_until, until)"
    " SELECT * FROM (SELECT lane.name, last_start - :shift, blocked_until - :shift, coalesce(lane_rules.rules, x''),"
    " rules_until - :shift, coalesce(lane_rules.delay, 0), coalesce(lane_rules.why, ''),"
    " coalesce(lane_learnt.interval, 0), coalesce(lane_learnt.until - :shift, 0),"
    " max(last_start - :shift + max(lane.interval, :heeded), blocked_until - :shift, rules_until - :shift,"
    " coalesce(lane_learnt.until - :shift, 0)) AS ends"
    " FROM lane LEFT JOIN lane_rules ON lane_rules.lane = lane.id LEFT JOIN lane_learnt ON lane_learnt.lane = lane.id"
    " WHERE lane.id IN ({lanes}) AND sharing <> :apart) WHERE ends > :wall"
    " ON CONFLICT DO UPDATE SET"
    " last_start = max(last_start, excluded.last_start), blocked_until = max(blocked_until, excluded.blocked_until),"
    " rules = iif(excluded.rules_until > rules_until, excluded.rules, rules),"
    " delay = iif(excluded.rules_until > rules_until, excluded.delay, delay),"
    " why = iif(excluded.rules_until > rules_until, excluded.why, why),"
    " rules_until = max(rules_until, excluded.rules_until),"
    " learnt = iif(excluded.learnt_until > learnt_until, excluded.learnt, learnt),"
    " learnt_until = max(learnt_until, excluded.learnt_until), until = max(until, excluded.until)"
)
_FORGET = "DELETE FROM host WHERE until <= ?"


def keep_hosts(db: sqlite3.Connection, crawl: int, lanes: str, *, wall: float) -> None:
    """Keep the still valid state of the hosts of these lanes, which are about to be deleted; delete expired state.
    `lanes`: a SELECT of their ids, whose only parameter is the crawl's id."""
    db.execute(_FORGET, (wall,))
    (shift,) = db.execute("SELECT clock_shift FROM crawl WHERE id = ?", (crawl,)).fetchone()
    values = {"crawl": crawl, "shift": shift, "wall": wall, "heeded": HEEDED_SECONDS, "apart": APART}
    db.execute(_KEEP.format(lanes=lanes.replace("?", ":crawl")), values)


ROWS_PER_STEP: Final = 2_000
LANES_PER_STEP: Final = 200

# The tables of a crawl with their key columns; tables of lanes are emptied before the lanes.
_OF_LANES: Final = {
    "shape": "lane, shape",
    "lane_rules": "lane",
    "lane_learnt": "lane",
    "lane_rest": "lane, exit_index",
    "lane_exit": "lane, exit_index",
    "lane_why": "lane, kind",
    "lane_kind": "lane, kind",
}
_OF_CRAWLS: Final = {
    "seen": "crawl, key",
    "past": "crawl, generation, key",
    "feeder": "crawl, name",
    "exit": "crawl, name",
    "pool_turn": "crawl, pool",
    "counter": "crawl, kind, name",
    "sample": "crawl, reason, position",
    "point": "crawl, step, slot",
    "crawl_about": "crawl",
}
_KEYS: Final = ("seen", "past")


def half_deleted(db: sqlite3.Connection) -> list[str]:
    return [name for (name,) in db.execute("SELECT name FROM crawl WHERE state = ? ORDER BY id", (DELETING,))]


def delete_some(db: sqlite3.Connection, name: str, *, wall: float) -> bool:
    """One step of deleting a crawl; gives whether it is gone. The first step hides it from all other methods."""
    row = db.execute("SELECT id, state FROM crawl WHERE name = ?", (name,)).fetchone()
    if row is None:
        return True
    crawl, state = row
    if state != DELETING:
        db.execute("UPDATE crawl SET state = ? WHERE id = ?", (DELETING, crawl))
        db.execute("DELETE FROM worker WHERE crawl = ?", (name,))
    first, last = ids_of(crawl)
    some = "SELECT id FROM task WHERE id BETWEEN ? AND ? LIMIT ?"
    removed = db.execute(f"DELETE FROM task WHERE id IN ({some})", (first, last, ROWS_PER_STEP)).rowcount
    if removed == ROWS_PER_STEP or _remove_lanes(db, crawl, wall=wall):
        return False
    for table in _OF_CRAWLS:
        if _remove_rows(db, table, crawl) == ROWS_PER_STEP:
            return False
    db.execute("DELETE FROM crawl WHERE id = ?", (crawl,))
    return True


def drop_some_keys(ledger: Ledger) -> bool:
    """One step of dropping the keys of a finished crawl; gives whether they are gone."""
    crawl, db = ledger.crawl, ledger.db
    if crawl.keys == "known" and crawl.state != CrawlState.FINISHED:
        raise not_finished(crawl.name, crawl.state)
    if crawl.keys == "dropped":
        return True
    is_last = all(_remove_rows(db, table, crawl.id) < ROWS_PER_STEP for table in _KEYS)
    db.execute("UPDATE crawl SET keys = ? WHERE id = ?", ("dropped" if is_last else "dropping", crawl.id))
    return is_last


def _remove_lanes(db: sqlite3.Connection, crawl: int, *, wall: float) -> bool:
    """Delete some lanes, or some of their rows in other tables; gives whether there may be more."""
    lanes = f"SELECT id FROM lane WHERE crawl = ? ORDER BY name LIMIT {LANES_PER_STEP}"
    keep_hosts(db, crawl, lanes, wall=wall)
    for table, columns in _OF_LANES.items():
        some = f"SELECT {columns} FROM {table} WHERE lane IN ({lanes}) LIMIT ?"
        statement = f"DELETE FROM {table} WHERE ({columns}) IN ({some})"
        if db.execute(statement, (crawl, ROWS_PER_STEP)).rowcount == ROWS_PER_STEP:
            return True
    removed = db.execute(f"DELETE FROM lane WHERE id IN ({lanes})", (crawl,)).rowcount
    return removed == LANES_PER_STEP


def _remove_rows(db: sqlite3.Connection, table: str, crawl: int) -> int:
    columns = _OF_CRAWLS[table]
    some = f"SELECT {columns} FROM {table} WHERE crawl = ? LIMIT ?"
    statement = f"DELETE FROM {table} WHERE ({columns}) IN ({some})"
    return db.execute(statement, (crawl, ROWS_PER_STEP)).rowcount


MOST_COUNTED: Final = 50_000
SAMPLED: Final = 100
# Bytes of a row with its index entries, in pages that are two thirds full, without the columns that are measured.
CRAWL_BYTES: Final = 4_096
TASK_BYTES: Final = 66
KEY_BYTES: Final = 17
LANE_BYTES: Final = 130
ROW_BYTES: Final = 60

_TASKS: Final = (
    "SELECT coalesce(avg(length(payload) + length(reason) + length(detail)), 0) FROM"
    " (SELECT payload, reason, detail FROM task WHERE id BETWEEN ? AND ? LIMIT ?)"
)
_LANES: Final = (
    "SELECT coalesce(avg(3 * length(name) + length(exits) + coalesce(length(rules), 0)), 0) FROM (SELECT name, exits,"
    " rules FROM lane LEFT JOIN lane_rules ON lane_rules.lane = lane.id WHERE crawl = ? LIMIT ?)"
)
_POINTS: Final = "SELECT coalesce(avg(length(point)), 0) FROM (SELECT point FROM point WHERE crawl = ? LIMIT ?)"


def size(ledger: Ledger) -> CrawlSize:
    """An estimate in bounded time: rows, counted up to MOST_COUNTED, times their size, measured on SAMPLED rows. Beyond
    the bound the crawl's counters are used."""
    db, crawl = ledger.db, ledger.crawl
    tasks = crawl.left + crawl.dead + crawl.cancelled
    (per_task,) = db.execute(_TASKS, (*ids_of(crawl.id), SAMPLED)).fetchone()
    (per_lane,) = db.execute(_LANES, (crawl.id, SAMPLED)).fetchone()
    (per_point,) = db.execute(_POINTS, (crawl.id, SAMPLED)).fetchone()
    (about,) = db.execute(
        "SELECT length(settings) + length(pools) + length(exit_names) FROM crawl_about WHERE crawl = ?", (crawl.id,)
    ).fetchone()
    measured = (
        tasks * (TASK_BYTES + per_task)
        + _counted(ledger, "lane") * (LANE_BYTES + per_lane)
        + _counted(ledger, "point") * (ROW_BYTES + per_point)
        + _counted(ledger, "exit") * 2 * ROW_BYTES
    )
    return CrawlSize(bytes=round(CRAWL_BYTES + about + measured + KEY_BYTES * _keys(ledger)))


def _keys(ledger: Ledger) -> int:
    crawl = ledger.crawl
    if crawl.keys == "dropped":
        return 0
    counted = _counted(ledger, "seen") + _counted(ledger, "past")
    if counted < MOST_COUNTED:
        return counted
    note = "SELECT value FROM counter WHERE crawl = ? AND kind = 'note' AND name = ?"
    row = ledger.db.execute(note, (crawl.id, KNOWN_KEYS)).fetchone()
    return max(counted, crawl.known + (row[0] if row else 0))


def _counted(ledger: Ledger, table: str) -> int:
    """How many rows the crawl has in this table, at most MOST_COUNTED."""
    counted = f"SELECT count(*) FROM (SELECT 1 FROM {table} WHERE crawl = ? LIMIT ?)"
    return int(ledger.db.execute(counted, (ledger.crawl.id, MOST_COUNTED)).fetchone()[0])
