"""What a crawl takes in the file: rows counted up to a bound, times what a row takes, measured on some of them."""

from __future__ import annotations

from typing import Final

from shoal.frontier.rules.tasks import KNOWN_KEYS
from shoal.frontier.sqlite.deletion import DROPPED
from shoal.frontier.sqlite.ledger import Ledger
from shoal.frontier.sqlite.put import ids_of
from shoal.model import CrawlSize

MOST_COUNTED: Final = 50_000
SAMPLED: Final = 100
# Bytes of a row with its places in the indexes and the free room of pages that are two thirds full, beside what is
# measured. `tests/unit/test_sqlite_sizes.py` compares the sum with what the file grew by.
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
    """An estimate in bounded time. Of what is counted no further, the crawl's own counters tell how much there is."""
    db, crawl = ledger.db, ledger.crawl
    tasks = crawl.left + crawl.dead + crawl.cancelled
    (per_task,) = db.execute(_TASKS, (*ids_of(crawl.id), SAMPLED)).fetchone()
    (per_lane,) = db.execute(_LANES, (crawl.id, SAMPLED)).fetchone()
    (per_point,) = db.execute(_POINTS, (crawl.id, SAMPLED)).fetchone()
    (about,) = db.execute(
        "SELECT length(settings) + length(pools) + length(rolls) FROM crawl_about WHERE crawl = ?", (crawl.id,)
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
    if crawl.keys == DROPPED:
        return 0
    counted = _counted(ledger, "seen") + _counted(ledger, "past")
    if counted < MOST_COUNTED:
        return counted
    note = "SELECT value FROM counter WHERE crawl = ? AND kind = 'note' AND name = ?"
    row = ledger.db.execute(note, (crawl.id, KNOWN_KEYS)).fetchone()
    return max(counted, crawl.known + (row[0] if row else 0))


def _counted(ledger: Ledger, table: str) -> int:
    """How many rows, or the most that are counted."""
    counted = f"SELECT count(*) FROM (SELECT 1 FROM {table} WHERE crawl = ? LIMIT ?)"  # noqa: S608 -- constants
    return int(ledger.db.execute(counted, (ledger.crawl.id, MOST_COUNTED)).fetchone()[0])
