"""The exits of one crawl inside one transaction: which one a lane uses next, and what a request does to it."""

from __future__ import annotations

import heapq
import math
import sqlite3
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from shoal.frontier.exit_rules import BUSY_SECONDS, STRIKES, cost_of, rest_of
from shoal.model import VIA, ExitStatus, ExitUse, Pool

if TYPE_CHECKING:
    from shoal.frontier.sqlite_ledger import LaneRow

SPARE_CANDIDATES = 16  # exits looked at beyond those asked for, in case some rest for every host

_USE_COLUMNS = (
    "lane, exit, rank, next_start, rests_until, in_flight, streak, requests, ok, blocked, failed, size, elapsed, cost"
)
_EXIT_COLUMNS = "strikes, struck_lane, parked_until, parkings, trial, holder, session, sessions"
_FREE = "in_flight < CASE WHEN streak > 0 THEN 1 ELSE :cap END"
_CANDIDATES = (
    f"SELECT {_USE_COLUMNS} FROM lane_exit WHERE lane = :lane AND next_start <= :latest AND {_FREE}"  # noqa: S608 -- constants
    " ORDER BY next_start, rank LIMIT :limit"
)
_EARLIEST = f"SELECT next_start FROM lane_exit WHERE lane = :lane AND {_FREE} ORDER BY next_start LIMIT 1"  # noqa: S608
_HEALTHY = "SELECT 1 FROM lane_exit WHERE lane = ? AND streak = 0 AND next_start < ? LIMIT 1"
_POOLS = msgspec.json.Decoder(tuple[Pool, ...])


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

    def is_free(self, pool: Pool) -> bool:
        """Whether one request more may be in flight; an exit that was ill is tried with a single one."""
        return self.in_flight < (1 if self.streak else pool.cap)


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


class Exits:
    """Reads and writes only what the lanes that go via a pool need."""

    def __init__(self, db: sqlite3.Connection, crawl: int, *, now: float) -> None:
        self.db = db
        self._crawl = crawl
        self.now = now
        self._pools: dict[str, Pool] | None = None
        self._uses: dict[tuple[int, str], Use] = {}
        self._exits: dict[str, ExitRow] = {}
        self._changed_exits: set[str] = set()
        self.spent = 0.0

    def pool_of(self, lane: str) -> Pool | None:
        """The pool that a lane goes via, if the crawl has it."""
        if self._pools is None:
            (blob,) = self.db.execute("SELECT pools FROM crawl_about WHERE crawl = ?", (self._crawl,)).fetchone()
            self._pools = {pool.name: pool for pool in _POOLS.decode(blob)}
        return self._pools.get(lane.partition(VIA)[2])

    def lane_pool(self, lane: LaneRow) -> LanePool:
        row = self.db.execute(
            "SELECT lane, turn, introduced, starved_since, stuck, stuck_since FROM lane_pool WHERE lane = ?", (lane.id,)
        ).fetchone()
        if row:
            return LanePool(*row)
        (begun,) = self.db.execute(
            "INSERT INTO pool_turn (crawl, pool, begun) VALUES (?, ?, 1)"
            " ON CONFLICT DO UPDATE SET begun = begun + 1 RETURNING begun",
            (self._crawl, lane.name.partition(VIA)[2]),
        ).fetchall()[0]
        self.db.execute("INSERT INTO lane_pool VALUES (?, ?, 0, 0, '', 0)", (lane.id, begun - 1))
        return LanePool(lane.id, begun - 1)

    def exit(self, name: str) -> ExitRow:
        found = self._exits.get(name)
        if found is None:
            select = f"SELECT {_EXIT_COLUMNS} FROM exit WHERE crawl = ? AND name = ?"  # noqa: S608 -- constant
            row = self.db.execute(select, (self._crawl, name)).fetchone()
            found = self._exits[name] = ExitRow(*row) if row else ExitRow()
        return found

    def use(self, lane: int, name: str) -> Use | None:
        found = self._uses.get((lane, name))
        if found is None:
            select = f"SELECT {_USE_COLUMNS} FROM lane_exit WHERE lane = ? AND exit = ?"  # noqa: S608 -- constant
            row = self.db.execute(select, (lane, name)).fetchone()
            if row is None:
                return None
            found = self._uses[lane, name] = Use(*row)
        return found

    def count(self, lane: int) -> int:
        """How many exits the lane has considered."""
        return int(self.db.execute("SELECT count(*) FROM lane_exit WHERE lane = ?", (lane,)).fetchone()[0])

    def keep(self, use: Use) -> None:
        """Written back with the next flush."""
        self._uses[use.lane, use.exit] = use

    def start(self, pool: Pool, use: Use, at: float, token: int) -> ExitRow:
        """A request goes out through the exit."""
        use.next_start = at + pool.interval
        use.in_flight += 1
        use.requests += 1
        self.keep(use)
        found = self.exit(use.exit)
        if pool.exclusive:
            found.holder = token
            self._changed_exits.add(use.exit)
        if found.strikes >= STRIKES:
            found.parked_until, found.trial = self.now + pool.quarantine, token
            self._changed_exits.add(use.exit)
        return found

    def reserve(self, lane: LaneRow, name: str, start: float) -> float:
        """Take the exit's next slot, not before `start`; gives its time."""
        pool, use = self.pool_of(lane.name), self.use(lane.id, name)
        self.lane_pool(lane)
        if pool is None or use is None:
            return start
        start = max(start, use.next_start)
        use.next_start = start + pool.interval
        self.refresh([lane])
        return start

    def end(self, lane: LaneRow, name: str, report: ExitUse | None, token: int) -> None:
        """A lease of the lane is over."""
        use, found = self.use(lane.id, name), self.exit(name)
        if use is None:
            return
        use.in_flight -= 1
        if found.holder == token:
            found.holder = 0
            self._changed_exits.add(name)
        if report is not None and report.session is not None:
            found.session = report.session
            found.sessions += 1
            self._changed_exits.add(name)
        if report is not None and report.verdict == "unused":
            use.requests -= 1
            return
        pool = self.pool_of(lane.name)
        if pool is not None:
            cost = cost_of(pool, report)
            use.cost += cost
            self.spent += cost
        if report is not None:
            self._judge(lane.name, use, found, report, token)

    def _judge(self, lane: str, use: Use, found: ExitRow, report: ExitUse, token: int) -> None:
        pool = self.pool_of(lane)
        use.size += report.size
        use.elapsed += report.elapsed
        if report.verdict == "ok":
            use.ok += 1
            use.streak = 0
            if found.strikes or found.parked_until:
                found.strikes = found.parkings = found.trial = 0
                found.struck_lane, found.parked_until = "", 0.0
                self._changed_exits.add(use.exit)
            return
        use.blocked += report.verdict == "blocked"
        use.failed += report.verdict == "failed"
        if pool is None:
            return
        # Many requests in flight when a host shuts an exit out are one reason to rest, not many.
        if not use.streak or self.now >= use.rests_until:
            use.streak += 1
            use.rests_until = self.now + rest_of(pool, use.streak)
            use.next_start = max(use.next_start, use.rests_until)
        if report.verdict == "failed":
            self._strike(lane, use.exit, found, pool, token)

    def _strike(self, lane: str, name: str, found: ExitRow, pool: Pool, token: int) -> None:
        if found.struck_lane != lane:
            found.strikes, found.struck_lane = found.strikes + 1, lane
        if found.strikes >= STRIKES and (found.parked_until <= self.now or found.trial == token):
            found.parkings += 1
            found.parked_until, found.trial = self.now + rest_of(pool, found.parkings), 0
        self._changed_exits.add(name)

    def flush(self) -> None:
        """Write back what changed."""
        if self._uses:
            marks = ", ".join("?" * len(Use.__struct_fields__))
            self.db.executemany(
                f"INSERT OR REPLACE INTO lane_exit ({_USE_COLUMNS}) VALUES ({marks})",  # noqa: S608 -- constants
                [msgspec.structs.astuple(use) for use in self._uses.values()],
            )
            self._uses.clear()
        if self._changed_exits:
            self.db.executemany(
                f"INSERT OR REPLACE INTO exit (crawl, name, {_EXIT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
                [
                    (self._crawl, name, *msgspec.structs.astuple(self._exits[name]))
                    for name in sorted(self._changed_exits)
                ],
            )
            self._changed_exits.clear()

    def refresh(self, lanes: Iterable[LaneRow]) -> None:
        """Flush, and say on these lanes when an exit is free next."""
        self.flush()
        for lane in lanes:
            pool = self.pool_of(lane.name)
            if pool is not None:
                self._refresh(lane, pool)

    def _refresh(self, lane: LaneRow, pool: Pool) -> None:
        state = self.lane_pool(lane)
        stuck = self.stuck(pool, state)
        if stuck is not None:
            lane.exits_next = stuck.next_start if stuck.is_free(pool) else math.inf
            return
        has_fresh = self.has_fresh(state, pool)
        row = None if has_fresh else self.db.execute(_EARLIEST, {"lane": lane.id, "cap": pool.cap}).fetchone()
        lane.exits_next = 0.0 if has_fresh else (row[0] if row else math.inf)
        starved = 0.0
        if not has_fresh and not self.db.execute(_HEALTHY, (lane.id, math.inf)).fetchone():
            starved = state.starved_since or self.now
            lane.exits_next = min(lane.exits_next, starved + pool.patience)
        if starved != state.starved_since:
            self.starve(lane, since=starved)

    def starve(self, lane: LaneRow, *, since: float) -> None:
        """A new time of waiting begins for the lane."""
        self.db.execute("UPDATE lane_pool SET starved_since = ? WHERE lane = ?", (since, lane.id))

    def has_fresh(self, state: LanePool, pool: Pool) -> bool:
        """Whether the pool has an exit that the lane never considered; moves on to it."""
        while state.introduced < len(pool.exits) and self._has_met(state.lane, fresh_name(state, pool)):
            state.introduced += 1
        return state.introduced < len(pool.exits)

    def _has_met(self, lane: int, name: str) -> bool:
        select = "SELECT 1 FROM lane_exit WHERE lane = ? AND exit = ?"
        return (lane, name) in self._uses or self.db.execute(select, (lane, name)).fetchone() is not None

    def stuck(self, pool: Pool, state: LanePool) -> Use | None:
        """The exit that a host of a sticky pool keeps, while it is healthy."""
        use = self.use(state.lane, state.stuck) if pool.sticky and state.stuck in pool.exits else None
        if use is None or use.streak:
            return None
        is_old = pool.rotate > 0 and self.now >= state.stuck_since + pool.rotate
        return None if is_old or self.exit(use.exit).parked_until > self.now else use


class Picker:
    """Chooses exits for the tasks that one lane lends in one call: the one due first, and not later than `latest`."""

    def __init__(self, exits: Exits, lane: LaneRow, pool: Pool, *, limit: int, latest: float) -> None:
        self._exits = exits
        self._lane = lane
        self._pool = pool
        self._latest = latest
        self._now = exits.now
        self._state = exits.lane_pool(lane)
        self._stuck = exits.stuck(pool, self._state)
        self._rank = exits.count(lane.id) if self._state.introduced < len(pool.exits) else 0
        self._heap: list[tuple[float, int, Use]] = []
        if self._stuck is None:
            arguments = {"lane": lane.id, "latest": latest, "cap": pool.cap, "limit": limit + SPARE_CANDIDATES}
            rows = exits.db.execute(_CANDIDATES, arguments)
            self._heap = [(row[3], row[2], Use(*row)) for row in rows]

    def pick(self) -> Use | None:
        """The next exit; None when there is none in time."""
        if self._stuck is not None:
            is_due = self._stuck.is_free(self._pool) and self._stuck.next_start <= self._latest
            return self._stuck if is_due else None
        while use := self._fresh() or self._due():
            found = self._exits.exit(use.exit)
            if found.parked_until > max(self._now, use.next_start):
                use.next_start = found.parked_until
                self.give_back(use)
            elif found.holder:
                use.next_start = max(use.next_start, self._now + BUSY_SECONDS)
                self._exits.keep(use)
            else:
                if self._pool.sticky:
                    self._stick(use)
                return use
        return None

    def give_back(self, use: Use) -> None:
        """The exit may be used again in this call, when it is free and in time."""
        self._exits.keep(use)
        if use.is_free(self._pool) and use.next_start <= self._latest:
            heapq.heappush(self._heap, (use.next_start, use.rank, use))

    def _fresh(self) -> Use | None:
        """The next exit that this lane never considered."""
        state = self._state
        if not self._exits.has_fresh(state, self._pool):
            return None
        use = Use(state.lane, fresh_name(state, self._pool), self._rank)
        state.introduced += 1
        self._rank += 1
        self._exits.keep(use)
        return use

    def _due(self) -> Use | None:
        return heapq.heappop(self._heap)[2] if self._heap else None

    def _stick(self, use: Use) -> None:
        self._state.stuck, self._state.stuck_since = use.exit, self._now
        self._stuck = use

    def save(self) -> None:
        """Write back what the lane remembers."""
        state = self._state
        self._exits.db.execute(
            "UPDATE lane_pool SET introduced = ?, stuck = ?, stuck_since = ? WHERE lane = ?",
            (state.introduced, state.stuck, state.stuck_since, state.lane),
        )


def fresh_name(state: LanePool, pool: Pool) -> str:
    """The exit that the lane considers next."""
    return pool.exits[(state.turn + state.introduced) % len(pool.exits)]


def take_over(db: sqlite3.Connection, crawl: int, pools: tuple[Pool, ...], *, now: float) -> None:
    """Pools changed: exits that stay keep what is known of them, and every lane looks at its exits anew."""
    db.execute("UPDATE crawl_about SET pools = ? WHERE crawl = ?", (msgspec.json.encode(pools), crawl))
    lanes = db.execute(f"SELECT id, name FROM lane WHERE crawl = ? AND name LIKE '%{VIA}%'", (crawl,)).fetchall()  # noqa: S608
    exits = {pool.name: pool.exits for pool in pools}
    for lane, name in lanes:
        names = msgspec.json.encode(exits.get(name.partition(VIA)[2], ())).decode()
        db.execute("UPDATE lane SET exits_next = 0 WHERE id = ?", (lane,))
        db.execute("UPDATE lane_pool SET introduced = 0 WHERE lane = ?", (lane,))
        db.execute(
            "UPDATE lane_exit SET next_start = CASE WHEN exit IN (SELECT value FROM json_each(:names))"
            " THEN CASE WHEN next_start = :never THEN :now ELSE next_start END ELSE :never END WHERE lane = :lane",
            {"names": names, "never": math.inf, "now": now, "lane": lane},
        )


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
