"""The exits of one crawl inside one transaction: which one a lane uses next, and what a request does to it."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import msgspec

from shoal.frontier.exit_rules import STRIKES, cost_of, rest_of
from shoal.frontier.sqlite_exit_rows import (
    ADD_USE,
    EXIT_COLUMNS,
    MOVE_USE,
    SAVE_USE,
    USE_COLUMNS,
    ExitRow,
    LanePool,
    Use,
)
from shoal.frontier.sqlite_pools import POOLS
from shoal.model import VIA, ExitUse, Pool

if TYPE_CHECKING:
    from shoal.frontier.sqlite_ledger import LaneRow

_FREE = "in_flight < CASE WHEN streak > 0 THEN 1 ELSE :cap END"
_CANDIDATES = (
    f"SELECT {USE_COLUMNS} FROM lane_exit WHERE lane = :lane AND next_start <= :latest AND {_FREE}"  # noqa: S608 -- constants
    " ORDER BY next_start, rank LIMIT :limit"
)
_SOME = (
    f"SELECT {USE_COLUMNS} FROM json_each(?) CROSS JOIN lane_exit"  # noqa: S608 -- constants
    " ON lane_exit.lane = json_extract(value, '$[0]') AND lane_exit.exit = json_extract(value, '$[1]')"
)
_EARLIEST = f"SELECT next_start, streak FROM lane_exit WHERE lane = :lane AND {_FREE} ORDER BY next_start LIMIT 1"  # noqa: S608
_HEALTHY = "SELECT 1 FROM lane_exit WHERE lane = ? AND streak = 0 AND next_start < ? LIMIT 1"
_STATES = (
    "SELECT lane, turn, introduced, starved_since, stuck, stuck_since, met FROM lane_pool"
    " WHERE lane IN (SELECT value FROM json_each(?))"
)
_SAVE_STATE = (
    "UPDATE lane_pool SET introduced = ?, starved_since = ?, stuck = ?, stuck_since = ?, met = ? WHERE lane = ?"
)


class Exits:
    """Reads and writes only what the lanes that go via a pool need."""

    def __init__(self, db: sqlite3.Connection, crawl: int, *, now: float) -> None:
        self.db = db
        self._crawl = crawl
        self.now = now
        self._pools: dict[str, Pool] | None = None
        self._pool_of_lane: dict[str, Pool | None] = {}
        self._states: dict[int, LanePool] = {}
        self._changed_states: dict[int, LanePool] = {}
        self._uses: dict[tuple[int, str], Use] = {}
        self._changed_uses: list[Use] = []
        self._must_look: set[int] = set()
        self._has_rows: bool | None = None
        self._exits: dict[str, ExitRow] = {}
        self._changed_exits: set[str] = set()
        self.spent = 0.0

    def pool_of(self, lane: str) -> Pool | None:
        """The pool that a lane goes via, if the crawl has it."""
        if lane not in self._pool_of_lane:
            if self._pools is None:
                (blob,) = self.db.execute("SELECT pools FROM crawl_about WHERE crawl = ?", (self._crawl,)).fetchone()
                self._pools = {pool.name: pool for pool in POOLS.decode(blob)}
            self._pool_of_lane[lane] = self._pools.get(lane.partition(VIA)[2])
        return self._pool_of_lane[lane]

    def read_states(self, lanes: Sequence[LaneRow]) -> None:
        """What these lanes remember, at once."""
        listed = msgspec.json.encode([lane.id for lane in lanes if lane.id not in self._states]).decode()
        for row in self.db.execute(_STATES, (listed,)):
            self._states[row[0]] = LanePool(*row)

    def state(self, lane: LaneRow) -> LanePool:
        """What the lane remembers of its exits."""
        found = self._states.get(lane.id)
        if found is None:
            self.read_states([lane])
            found = self._states.get(lane.id) or self._begin(lane)
        return found

    def _begin(self, lane: LaneRow) -> LanePool:
        (begun,) = self.db.execute(
            "INSERT INTO pool_turn (crawl, pool, begun) VALUES (?, ?, 1)"
            " ON CONFLICT DO UPDATE SET begun = begun + 1 RETURNING begun",
            (self._crawl, lane.name.partition(VIA)[2]),
        ).fetchall()[0]
        self.db.execute("INSERT INTO lane_pool VALUES (?, ?, 0, 0, '', 0, 0)", (lane.id, begun - 1))
        found = self._states[lane.id] = LanePool(lane.id, begun - 1)
        return found

    def exit(self, name: str) -> ExitRow:
        """What holds for the exit whatever the lane. Most crawls have no exit of which there is anything to say."""
        found = self._exits.get(name)
        if found is None:
            if self._has_rows is None:
                select = "SELECT 1 FROM exit WHERE crawl = ? LIMIT 1"
                self._has_rows = self.db.execute(select, (self._crawl,)).fetchone() is not None
            select = f"SELECT {EXIT_COLUMNS} FROM exit WHERE crawl = ? AND name = ?"  # noqa: S608 -- constant
            row = self.db.execute(select, (self._crawl, name)).fetchone() if self._has_rows else None
            found = self._exits[name] = ExitRow(*row) if row else ExitRow()
        return found

    def known_exit(self, name: str) -> ExitRow | None:
        """The same, or None where there is nothing to say."""
        return self.exit(name) if self._has_rows is not False or name in self._exits else None

    def read_uses(self, pairs: Sequence[tuple[int, str]]) -> None:
        """What is known of these exits towards these lanes, at once."""
        for row in self.db.execute(_SOME, (msgspec.json.encode(pairs).decode(),)):
            self._uses.setdefault(row[:2], Use(*row))

    def use(self, lane: int, name: str) -> Use | None:
        if (lane, name) not in self._uses:
            self.read_uses([(lane, name)])
        return self._uses.get((lane, name))

    def candidates(self, lane: int, pool: Pool, *, latest: float, limit: int) -> list[Use]:
        """The exits that may be used next, the earliest first, as they were written last."""
        arguments = {"lane": lane, "latest": latest, "cap": pool.cap, "limit": limit}
        rows = self.db.execute(_CANDIDATES, arguments)
        return [self._uses.get(row[:2]) or self._uses.setdefault(row[:2], Use(*row)) for row in rows]

    def meet(self, state: LanePool, name: str) -> Use:
        """The lane considers an exit for the first time."""
        use = self._uses[state.lane, name] = Use(state.lane, name, state.met, is_new=True)
        state.introduced += 1
        state.met += 1
        self._changed_states[state.lane] = state
        self.keep(use)
        return use

    def keep(self, use: Use) -> None:
        """Written back with the next flush."""
        if not use.has_changed:
            use.has_changed = True
            self._changed_uses.append(use)

    def start(self, pool: Pool, use: Use, at: float, token: int) -> int:
        """A request goes out through the exit; gives the version of what is kept for it."""
        use.move(at + pool.interval)
        use.in_flight += 1
        use.requests += 1
        self.keep(use)
        found = self.exit(use.exit) if pool.exclusive else self.known_exit(use.exit)
        if found is None:
            return 0
        if pool.exclusive:
            found.holder = token
            self._changed_exits.add(use.exit)
        if found.strikes >= STRIKES:
            found.parked_until, found.trial = self.now + pool.quarantine, token
            self._changed_exits.add(use.exit)
        return found.session_version

    def reserve(self, lane: LaneRow, name: str, start: float) -> float:
        """Take the exit's next slot, not before `start`; gives its time."""
        pool, use = self.pool_of(lane.name), self.use(lane.id, name)
        self.state(lane)
        if pool is None or use is None:
            return start
        start = max(start, use.next_start)
        use.move(start + pool.interval)
        self.keep(use)
        self.refresh([lane])
        return start

    def end(self, lane: LaneRow, name: str, report: ExitUse | None, token: int) -> None:
        """A lease of the lane is over."""
        use, pool = self.use(lane.id, name), self.pool_of(lane.name)
        if use is None:
            return
        was_free, was_ill, was_next = pool is None or use.is_free(pool), use.streak, use.next_start
        use.in_flight -= 1
        self.keep(use)
        self._let_go(name, report, token)
        if report is not None and report.verdict == "unused":
            use.requests -= 1
        else:
            if pool is not None:
                cost = cost_of(pool, report)
                use.cost += cost
                self.spent += cost
            if report is not None:
                self._judge(lane.name, use, pool, report, token)
        # While there is an exit that the lane never considered (0), the others do not matter.
        is_news = not was_free or was_ill != use.streak or was_next != use.next_start
        if lane.exits_next < 0 or (pool and pool.sticky) or (lane.exits_next > 0 and is_news):
            self._must_look.add(lane.id)

    def _let_go(self, name: str, report: ExitUse | None, token: int) -> None:
        """Nobody holds the exit any more; keep what is to be kept for it."""
        has_session = report is not None and report.session is not None
        found = self.exit(name) if has_session else self.known_exit(name)
        if found is None:
            return
        if found.holder == token:
            found.holder = 0
            self._changed_exits.add(name)
        if report is not None and report.session is not None:
            found.session = report.session
            found.sessions += 1
            self._changed_exits.add(name)

    def _judge(self, lane: str, use: Use, pool: Pool | None, report: ExitUse, token: int) -> None:
        use.size += report.size
        use.elapsed += report.elapsed
        if report.verdict == "ok":
            use.ok += 1
            use.streak = 0
            self._forgive(use.exit)
            return
        use.blocked += report.verdict == "blocked"
        use.failed += report.verdict == "failed"
        if pool is None:
            return
        # Many requests in flight when a host shuts an exit out are one reason to rest, not many.
        if not use.streak or self.now >= use.rests_until:
            use.streak += 1
            use.rests_until = self.now + rest_of(pool, use.streak)
            use.move(max(use.next_start, use.rests_until))
        if report.verdict == "failed":
            self._strike(lane, use.exit, pool, token)

    def _forgive(self, name: str) -> None:
        """The exit works: what it failed before counts no more."""
        found = self.known_exit(name)
        if found is not None and (found.strikes or found.parked_until):
            found.strikes = found.parkings = found.trial = 0
            found.struck_lane, found.parked_until = "", 0.0
            self._changed_exits.add(name)

    def _strike(self, lane: str, name: str, pool: Pool, token: int) -> None:
        found = self.exit(name)
        if found.struck_lane != lane:
            found.strikes, found.struck_lane = found.strikes + 1, lane
        if found.strikes >= STRIKES and (found.parked_until <= self.now or found.trial == token):
            found.parkings += 1
            found.parked_until, found.trial = self.now + rest_of(pool, found.parkings), 0
        self._changed_exits.add(name)

    def flush(self) -> None:
        """Write back what changed."""
        if self._changed_uses:
            self._flush_uses()
        if self._changed_states:
            states = self._changed_states.values()
            self.db.executemany(
                _SAVE_STATE,
                [(one.introduced, one.starved_since, one.stuck, one.stuck_since, one.met, one.lane) for one in states],
            )
            self._changed_states.clear()
        if self._changed_exits:
            self.db.executemany(
                f"INSERT OR REPLACE INTO exit (crawl, name, {EXIT_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",  # noqa: S608
                [
                    (self._crawl, name, *msgspec.structs.astuple(self._exits[name]))
                    for name in sorted(self._changed_exits)
                ],
            )
            self._changed_exits.clear()

    def _flush_uses(self) -> None:
        added, moved, saved = [], [], []
        for use in self._changed_uses:
            if use.is_new:
                added.append(msgspec.structs.astuple(use)[:-3])
            elif use.has_moved:
                moved.append((use.next_start, *use.saved()))
            else:
                saved.append(use.saved())
            use.is_new = use.has_changed = use.has_moved = False
        self._changed_uses.clear()
        for statement, rows in ((ADD_USE, added), (MOVE_USE, moved), (SAVE_USE, saved)):
            if rows:
                self.db.executemany(statement, rows)

    def refresh_ended(self, lanes: Iterable[LaneRow]) -> None:
        """The same for lanes whose leases ended, where that may have changed something."""
        self.refresh(lane for lane in lanes if lane.id in self._must_look)
        self._must_look.clear()

    def refresh(self, lanes: Iterable[LaneRow]) -> None:
        """Flush, and say on these lanes when an exit is free next."""
        self.flush()
        for lane in lanes:
            pool = self.pool_of(lane.name)
            if pool is not None:
                self._refresh(lane, pool)
        self.flush()

    def _refresh(self, lane: LaneRow, pool: Pool) -> None:
        state = self.state(lane)
        stuck = self.stuck(pool, state)
        if stuck is not None:
            lane.exits_next = stuck.next_start if stuck.is_free(pool) else math.inf
            return
        if self.next_fresh(state, pool) is not None:
            lane.exits_next, starved = 0.0, 0.0
        else:
            row = self.db.execute(_EARLIEST, {"lane": lane.id, "cap": pool.cap}).fetchone()
            lane.exits_next = row[0] if row else math.inf
            starved = 0.0 if self._has_healthy(lane, row) else state.starved_since or self.now
            if starved:
                lane.exits_next = min(lane.exits_next, starved + pool.patience)
        if starved != state.starved_since:
            self.starve(lane, since=starved)

    def _has_healthy(self, lane: LaneRow, earliest: tuple[float, int] | None) -> bool:
        if earliest is not None and not earliest[1] and earliest[0] < math.inf:
            return True
        return self.db.execute(_HEALTHY, (lane.id, math.inf)).fetchone() is not None

    def do_rest(self, lane: LaneRow) -> bool:
        """Whether all exits of the lane were turned away or failed."""
        row = self.db.execute("SELECT starved_since FROM lane_pool WHERE lane = ?", (lane.id,)).fetchone()
        return row is not None and row[0] > 0 and self.pool_of(lane.name) is not None

    def starve(self, lane: LaneRow, *, since: float) -> None:
        """A new time of waiting begins for the lane."""
        state = self.state(lane)
        state.starved_since = since
        self._changed_states[lane.id] = state

    def next_fresh(self, state: LanePool, pool: Pool) -> str | None:
        """The exit that the lane considers next, when it has not met all of its pool."""
        while state.introduced < len(pool.exits):
            name = pool.exits[(state.turn + state.introduced) % len(pool.exits)]
            # As many as it has met: then not this one. Otherwise its pool has changed.
            if state.met == state.introduced or self.use(state.lane, name) is None:
                return name
            state.introduced += 1
            self._changed_states[state.lane] = state
        return None

    def stick(self, state: LanePool, use: Use) -> None:
        """From now on the lane keeps this exit."""
        state.stuck, state.stuck_since = use.exit, self.now
        self._changed_states[state.lane] = state

    def stuck(self, pool: Pool, state: LanePool) -> Use | None:
        """The exit that a host of a sticky pool keeps, while it is healthy."""
        use = self.use(state.lane, state.stuck) if pool.sticky and state.stuck in pool.exits else None
        if use is None or use.streak:
            return None
        is_old = pool.rotate > 0 and self.now >= state.stuck_since + pool.rotate
        return None if is_old or self.exit(use.exit).parked_until > self.now else use
