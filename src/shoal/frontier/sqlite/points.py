"""The history of crawls, and the duties of the whole frontier."""

from __future__ import annotations

import sqlite3

from shoal.frontier.rules.constants import (
    LONG_POINT_SECONDS,
    LONG_POINTS_KEPT_SECONDS,
    POINT_SECONDS,
    POINTS_KEPT_SECONDS,
)
from shoal.frontier.rules.duties import DutyCall, HeldDuty, Step, step_of
from shoal.frontier.rules.thinning import encode_point, readable_points, thinned
from shoal.frontier.sqlite.ledger import Ledger
from shoal.model import Duty, Point

_STEPS = ((POINT_SECONDS, POINTS_KEPT_SECONDS), (LONG_POINT_SECONDS, LONG_POINTS_KEPT_SECONDS))
# The points of long steps only from before those of short steps begin: the rest would be there twice.
_SELECT = (
    "SELECT at, point FROM point WHERE crawl = :crawl AND typeof(at) = 'real' AND at >= :since AND (step = :short"
    " OR at < (SELECT min(at) FROM point WHERE crawl = :crawl AND step = :short)) ORDER BY at"
)


def keep_point(ledger: Ledger, point: Point) -> bool:
    db, crawl, now = ledger.db, ledger.crawl.id, ledger.wall
    data = encode_point(point)
    known = "SELECT 1 FROM point WHERE crawl = ? AND step = ? AND slot = ?"
    is_first = db.execute(known, (crawl, POINT_SECONDS, now // POINT_SECONDS)).fetchone() is None
    for step, kept_seconds in _STEPS:
        db.execute(
            "INSERT OR REPLACE INTO point (crawl, step, slot, at, point) VALUES (?, ?, ?, ?, ?)",
            (crawl, step, int(now // step), now, data),
        )
        oldest = int((now - kept_seconds) // step)
        db.execute("DELETE FROM point WHERE crawl = ? AND step = ? AND slot < ?", (crawl, step, oldest))
    return is_first


def points(ledger: Ledger, *, seconds: float, most: int) -> list[Point]:
    given = {"crawl": ledger.crawl.id, "since": ledger.wall - seconds, "short": POINT_SECONDS}
    rows = ledger.db.execute(_SELECT, given).fetchall()
    return readable_points(rows[index] for index in thinned([at for at, _ in rows], most))


def hold_duty(db: sqlite3.Connection, duty: str, call: DutyCall, *, now: float) -> Duty:
    query = "SELECT notes, holder, since, until, term FROM duty WHERE name = ?"
    noted, *held = db.execute(query, (duty,)).fetchone() or (b"",)
    step, term = step_of(HeldDuty(*held), call, now=now)
    if step is not Step.HELD:
        return Duty(step is Step.LOOKED, noted, term)
    kept = noted if call.notes is None else call.notes
    db.execute(
        "INSERT OR REPLACE INTO duty (name, holder, since, until, notes, term) VALUES (?, ?, ?, ?, ?, ?)",
        (duty, call.holder, now, now + call.seconds, kept, term),
    )
    return Duty(True, kept, term)
