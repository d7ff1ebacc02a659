"""The rows that tell of exits: one exit towards one lane, one whatever the lane, and what a lane remembers of all."""

from __future__ import annotations

import msgspec

from shoal.model import Pool

USE_COLUMNS = (
    "lane, exit, rank, next_start, rests_until, in_flight, streak, requests, ok, blocked, failed, size, elapsed, cost"
)
EXIT_COLUMNS = "strikes, struck_lane, parked_until, parkings, trial, holder, session, sessions"
ADD_USE = f"INSERT INTO lane_exit ({USE_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"  # noqa: S608 -- constants
SAVE_USE = (
    "UPDATE lane_exit SET rests_until = ?, in_flight = ?, streak = ?, requests = ?, ok = ?, blocked = ?, failed = ?,"
    " size = ?, elapsed = ?, cost = ? WHERE lane = ? AND exit = ?"
)
# Only where it changed: the index follows the next start.
MOVE_USE = SAVE_USE.replace("SET", "SET next_start = ?,")


class Use(msgspec.Struct):
    """A row of `lane_exit`."""

    lane: int
    exit: str
    rank: int
    next_start: float = 0.0
    rests_until: float = 0.0
    in_flight: int = 0
    streak: int = 0
    requests: int = 0
    ok: int = 0
    blocked: int = 0
    failed: int = 0
    size: int = 0
    elapsed: float = 0.0
    cost: float = 0.0
    is_new: bool = False
    has_changed: bool = False
    has_moved: bool = False

    def is_free(self, pool: Pool) -> bool:
        """Whether one request more may be in flight; an exit that was ill is tried with a single one."""
        return self.in_flight < (1 if self.streak else pool.cap)

    def move(self, next_start: float) -> None:
        """Another time from which it may be used next."""
        self.has_moved = self.has_moved or next_start != self.next_start
        self.next_start = next_start

    def saved(self) -> tuple[object, ...]:
        """What `SAVE_USE` writes."""
        return (
            self.rests_until, self.in_flight, self.streak, self.requests, self.ok, self.blocked, self.failed, self.size,
            self.elapsed, self.cost, self.lane, self.exit,
        )  # fmt: skip


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


class LanePool(msgspec.Struct):
    """A row of `lane_pool`."""

    lane: int
    turn: int
    introduced: int = 0
    starved_since: float = 0.0
    stuck: str = ""
    stuck_since: float = 0.0
    met: int = 0
