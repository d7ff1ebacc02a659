"""The keys that an earlier crawl has done, page by page."""

from __future__ import annotations

from typing import Final

import msgspec

from shoal.frontier.rules.dropped_keys import DROPPED, no_keys_to_know
from shoal.frontier.rules.keys import oldest_known
from shoal.frontier.sqlite.ledger import Ledger
from shoal.frontier.sqlite.put import ids_of

KEYS_PER_STEP: Final = 5_000
TASKS_PER_STEP: Final = 20_000
_BEGIN = "CREATE TEMP TABLE IF NOT EXISTS undone (key INTEGER PRIMARY KEY)"
_UNDONE = (
    "INSERT OR IGNORE INTO temp.undone SELECT key FROM task WHERE id IN"
    " (SELECT id FROM task WHERE id > ? AND id <= ? ORDER BY id LIMIT ?)"
)
_NEXT_TASK = "SELECT max(id) FROM (SELECT id FROM task WHERE id > ? AND id <= ? ORDER BY id LIMIT ?)"
_UNDONE_AMONG = "SELECT key FROM temp.undone WHERE key IN (SELECT value FROM json_each(?))"
_SEEN = "SELECT 0, key FROM seen WHERE crawl = ? AND key > ? ORDER BY key LIMIT ?"
_PAST = (
    "SELECT generation, key FROM past WHERE crawl = ? AND (generation, key) > (?, ?) ORDER BY generation, key LIMIT ?"
)

Position = tuple[int, float]
START: Final[Position] = (-1, -1e30)  # before every key, also the lowest one


def check_earlier(ledger: Ledger) -> None:
    """Refuse a crawl whose keys are not there any more."""
    if ledger.crawl.keys:
        raise no_keys_to_know(ledger.crawl.name, DROPPED)


def note_undone(ledger: Ledger, after: int | None) -> int | None:
    """Note in this connection the keys of some tasks that are not done, those behind a row; gives the last row, None:
    there are no more. None to begin. Only reads the file."""
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
    """Some keys of done tasks behind a position, and the next position; None: there are no more."""
    db, crawl = ledger.db, ledger.crawl
    if crawl.dedup_ttl:
        # Those of tasks that ended are here, by generation; what is in `seen` is not done.
        first = max(after, (oldest_known(crawl.generation), START[1]))
        rows = db.execute(_PAST, (crawl.id, *first, KEYS_PER_STEP)).fetchall()
    else:
        rows = db.execute(_SEEN, (crawl.id, after[1], KEYS_PER_STEP)).fetchall()
    if not rows:
        return [], None
    keys = [key for _, key in rows]
    listed = msgspec.json.encode(keys).decode()
    undone = {key for (key,) in db.execute(_UNDONE_AMONG, (listed,))}
    return [key for key in keys if key not in undone], rows[-1]
