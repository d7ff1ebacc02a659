"""Crawls that are removed, and keys that are dropped, in steps: short transactions, so that others can write."""

from __future__ import annotations

import sqlite3
from typing import Final

from shoal.frontier.rules.dropped_keys import not_finished
from shoal.frontier.sqlite.kept_hosts import keep_hosts
from shoal.frontier.sqlite.ledger import Ledger
from shoal.frontier.sqlite.put import ids_of
from shoal.model import CrawlState

DELETING: Final = "deleting"  # the state of a crawl that nobody sees any more
DROPPING, DROPPED = 1, 2  # in the column `keys`
ROWS_PER_STEP: Final = 2_000
LANES_PER_STEP: Final = 200

# The tables of a crawl with the columns that name a row; those of its lanes come before the lanes.
_OF_LANES: Final = {
    "shape": "lane, shape",
    "lane_rules": "lane",
    "lane_learnt": "lane",
    "lane_rest": "lane, place",
    "lane_exit": "lane, place",
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
    """One step of removing a crawl; gives whether it is gone. The first one takes it from everybody's sight."""
    row = db.execute("SELECT id, state FROM crawl WHERE name = ?", (name,)).fetchone()
    if row is None:
        return True
    crawl, state = row
    if state != DELETING:
        db.execute("UPDATE crawl SET state = ? WHERE id = ?", (DELETING, crawl))
        db.execute("DELETE FROM worker WHERE crawl = ?", (name,))
    first, last = ids_of(crawl)
    some = "SELECT id FROM task WHERE id BETWEEN ? AND ? LIMIT ?"
    removed = db.execute(f"DELETE FROM task WHERE id IN ({some})", (first, last, ROWS_PER_STEP)).rowcount  # noqa: S608 -- constants
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
    if not crawl.keys and crawl.state != CrawlState.FINISHED:
        raise not_finished(crawl.name, crawl.state)
    if crawl.keys == DROPPED:
        return True
    is_last = all(_remove_rows(db, table, crawl.id) < ROWS_PER_STEP for table in _KEYS)
    db.execute("UPDATE crawl SET keys = ? WHERE id = ?", (DROPPED if is_last else DROPPING, crawl.id))
    return is_last


def _remove_lanes(db: sqlite3.Connection, crawl: int, *, wall: float) -> bool:
    """Remove some lanes, or some of what they have; gives whether there may be more."""
    lanes = f"SELECT id FROM lane WHERE crawl = ? ORDER BY name LIMIT {LANES_PER_STEP}"  # noqa: S608 -- constants
    keep_hosts(db, crawl, lanes, wall=wall)
    for table, columns in _OF_LANES.items():
        some = f"SELECT {columns} FROM {table} WHERE lane IN ({lanes}) LIMIT ?"  # noqa: S608 -- constants
        statement = f"DELETE FROM {table} WHERE ({columns}) IN ({some})"  # noqa: S608 -- constants
        if db.execute(statement, (crawl, ROWS_PER_STEP)).rowcount == ROWS_PER_STEP:
            return True
    removed = db.execute(f"DELETE FROM lane WHERE id IN ({lanes})", (crawl,)).rowcount  # noqa: S608 -- constants
    return removed == LANES_PER_STEP


def _remove_rows(db: sqlite3.Connection, table: str, crawl: int) -> int:
    columns = _OF_CRAWLS[table]
    some = f"SELECT {columns} FROM {table} WHERE crawl = ? LIMIT ?"  # noqa: S608 -- constants
    statement = f"DELETE FROM {table} WHERE ({columns}) IN ({some})"  # noqa: S608 -- constants
    return db.execute(statement, (crawl, ROWS_PER_STEP)).rowcount
