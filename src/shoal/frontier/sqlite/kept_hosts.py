"""What outlives the crawls that share a host: kept when their lanes are deleted."""

from __future__ import annotations

import sqlite3

from shoal.frontier.rules.constants import HEEDED_SECONDS

_KEEP = (
    "INSERT INTO host (name, last_start, blocked_until, rules, rules_until, delay, why, learnt, learnt_until, until)"
    " SELECT * FROM (SELECT lane.name, last_start - :shift, blocked_until - :shift, coalesce(lane_rules.rules, x''),"
    " rules_until - :shift, coalesce(lane_rules.delay, 0), coalesce(lane_rules.why, ''),"
    " coalesce(lane_learnt.interval, 0), coalesce(lane_learnt.until - :shift, 0),"
    " max(last_start - :shift + max(lane.interval, :heeded), blocked_until - :shift, rules_until - :shift,"
    " coalesce(lane_learnt.until - :shift, 0)) AS ends"
    " FROM lane LEFT JOIN lane_rules ON lane_rules.lane = lane.id LEFT JOIN lane_learnt ON lane_learnt.lane = lane.id"
    " WHERE lane.id IN ({lanes}) AND sharing >= 0) WHERE ends > :wall"
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
    """Keep what still matters of these lanes of a crawl, which are about to be deleted; forget what is over. `lanes`:
    a statement that gives their ids, with the crawl's id as its only value."""
    db.execute(_FORGET, (wall,))
    (shift,) = db.execute("SELECT clock_shift FROM crawl WHERE id = ?", (crawl,)).fetchone()
    values = {"crawl": crawl, "shift": shift, "wall": wall, "heeded": HEEDED_SECONDS}
    db.execute(_KEEP.format(lanes=lanes.replace("?", ":crawl")), values)
