"""The rows that tell of exits: what holds for one whatever the lane, and what went through it towards a lane."""

from __future__ import annotations

import msgspec

EXIT_COLUMNS = "strikes, struck_lane, parked_until, parkings, trial, holder, session, sessions"
SAVE_EXIT = f"INSERT OR REPLACE INTO exit (crawl, name, {EXIT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608
COUNT_USE = (
    "INSERT INTO lane_exit (lane, place, requests, ok, blocked, failed, size, elapsed, cost)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET requests = requests + excluded.requests,"
    " ok = ok + excluded.ok, blocked = blocked + excluded.blocked, failed = failed + excluded.failed,"
    " size = size + excluded.size, elapsed = elapsed + excluded.elapsed, cost = cost + excluded.cost"
)
READ_ILLNESS = "SELECT streak, rests_until FROM lane_exit WHERE lane = ? AND place = ?"
SAVE_ILLNESS = "UPDATE lane_exit SET streak = ?, rests_until = ? WHERE lane = ? AND place = ?"


class ExitRow(msgspec.Struct):
    """A row of `exit`."""

    strikes: int = 0
    struck_lane: str = ""
    parked_until: float = 0.0
    parkings: int = 0
    trial: int = 0
    holder: int = 0
    session: bytes = b""
    sessions: int = 0

    @property
    def session_version(self) -> int:
        return self.sessions if self.session else 0


class Illness(msgspec.Struct):
    """How often in a row an exit was turned away or failed, towards one lane."""

    streak: int = 0
    rests_until: float = 0.0
