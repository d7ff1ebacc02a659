"""The pools of a crawl in SQLite: taken over when they change, and what is known of their exits."""

from __future__ import annotations

import math
import sqlite3

import msgspec

from shoal.model import VIA, ExitStatus, Pool

POOLS = msgspec.json.Decoder(tuple[Pool, ...])


def take_over(db: sqlite3.Connection, crawl: int, pools: tuple[Pool, ...], *, now: float) -> tuple[Pool, ...]:
    """Pools changed: exits that stay keep what is known of them, and every lane looks at its exits anew. Gives the
    pools as they were."""
    (before,) = db.execute("SELECT pools FROM crawl_about WHERE crawl = ?", (crawl,)).fetchone()
    db.execute("UPDATE crawl_about SET pools = ? WHERE crawl = ?", (msgspec.json.encode(pools), crawl))
    lanes = db.execute(f"SELECT id, name FROM lane WHERE crawl = ? AND name LIKE '%{VIA}%'", (crawl,)).fetchall()  # noqa: S608
    exits = {pool.name: pool.exits for pool in pools}
    for lane, name in lanes:
        names = msgspec.json.encode(exits.get(name.partition(VIA)[2], ())).decode()
        db.execute("UPDATE lane SET exits_next = -1 WHERE id = ?", (lane,))
        db.execute("UPDATE lane_pool SET introduced = 0 WHERE lane = ?", (lane,))
        db.execute(
            "UPDATE lane_exit SET next_start = CASE WHEN exit IN (SELECT value FROM json_each(:names))"
            " THEN CASE WHEN next_start = :never THEN :now ELSE next_start END ELSE :never END WHERE lane = :lane",
            {"names": names, "never": math.inf, "now": now, "lane": lane},
        )
    return POOLS.decode(before)


def statuses(db: sqlite3.Connection, crawl: int, *, limit: int, now: float) -> list[ExitStatus]:
    """Every exit towards every host it was used for."""
    rows = db.execute(
        "SELECT lane_exit.exit, lane.name, requests, ok, blocked, failed, lane_exit.in_flight, size, elapsed,"
        " lane_exit.cost, streak, rests_until, parked_until"
        " FROM lane_exit JOIN lane ON lane.id = lane_exit.lane"
        " LEFT JOIN exit ON exit.crawl = lane.crawl AND exit.name = lane_exit.exit"
        " WHERE lane.crawl = ? ORDER BY lane_exit.exit, lane.name LIMIT ?",
        (crawl, limit),
    )
    return [
        ExitStatus(
            exit=name,
            lane=lane,
            requests=requests,
            ok=ok,
            blocked=blocked,
            failed=failed,
            in_flight=in_flight,
            size=size,
            elapsed=elapsed,
            cost=cost,
            streak=streak,
            rests_for=max(0.0, rests_until - now) if streak else 0.0,
            parked_for=max(0.0, (parked_until or 0.0) - now),
        )
        for name, lane, requests, ok, blocked, failed, in_flight, size, elapsed, cost, streak, rests_until, parked_until
        in rows
    ]  # fmt: skip
