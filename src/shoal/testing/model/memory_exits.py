"""Exits in the in-memory model: which one a lane may use next, and what a request through it does to it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from shoal.frontier.rules.constants import BUSY_SECONDS, STRIKES
from shoal.frontier.rules.exits import cost_of, rest_seconds
from shoal.model import VIA, ExitStatus, ExitUse, Pool


@dataclass(eq=False)
class ModelUse:
    """One exit towards one lane."""

    exit: str
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
    is_put_off: bool = False
    is_parked: bool = False
    was_used: bool = False

    @property
    def rests(self) -> bool:
        """Whether it is out of the ring until its time comes."""
        return self.streak > 0 or self.is_put_off

    @property
    def is_healthy(self) -> bool:
        """Whether it rests neither for the lane nor, as far as the lane knows, for every host."""
        return not self.streak and not (self.is_put_off and self.is_parked)

    def is_free(self, pool: Pool) -> bool:
        """Whether one request more may be in flight; an exit that was ill is tried with a single one."""
        return self.in_flight < (1 if self.streak else pool.cap)


@dataclass(eq=False)
class ModelExit:
    """One exit, whatever the lane."""

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


@dataclass(eq=False)
class ModelLaneExits:
    """The exits of one lane. `place` is that of the exit whose turn it is."""

    place: int
    uses: dict[str, ModelUse] = field(default_factory=dict)
    next_start: float = 0.0
    starved_since: float = 0.0
    stuck: str = ""
    stuck_since: float = 0.0


@dataclass(eq=False)
class ModelPools:
    """All exits of a crawl. A roll has every exit that a pool ever had, in the order in which they came."""

    pools: dict[str, Pool] = field(default_factory=dict)
    members: dict[str, frozenset[str]] = field(default_factory=dict)
    rolls: dict[str, list[str]] = field(default_factory=dict)
    exits: dict[str, ModelExit] = field(default_factory=dict)
    lanes: dict[str, ModelLaneExits] = field(default_factory=dict)
    begun: dict[str, int] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    cost: float = 0.0

    def take_over(self, pools: tuple[Pool, ...], now: float) -> None:
        """Pools may change; exits that stay keep what is known of them."""
        self.pools = {pool.name: pool for pool in pools}
        self.members = {pool.name: frozenset(pool.exits) for pool in pools}
        for pool in pools:
            known = dict.fromkeys(self.rolls.get(pool.name, []))
            self.rolls[pool.name] = list(known | dict.fromkeys(pool.exits))
        for name, lane in self.lanes.items():
            lane.next_start = 0.0
            members = self.members.get(name.partition(VIA)[2], frozenset())
            for use in lane.uses.values():
                if use.streak:
                    use.next_start = max(use.rests_until, use.next_start if use.next_start > now else 0.0)
                elif use.is_put_off and use.exit not in members:
                    use.next_start, use.is_put_off = now, False
                elif use.in_flight:
                    use.is_put_off = False

    def pool_of(self, lane: str) -> Pool | None:
        return self.pools.get(lane.partition(VIA)[2])

    def of(self, lane: str) -> ModelLaneExits:
        if lane not in self.lanes:
            pool = lane.partition(VIA)[2]
            self.begun[pool] = self.begun.get(pool, 0) + 1
            self.lanes[lane] = ModelLaneExits((self.begun[pool] - 1) % max(1, len(self.rolls.get(pool, []))))
        return self.lanes[lane]

    def exit(self, name: str) -> ModelExit:
        return self.exits.setdefault(name, ModelExit())

    def ready_at(self, lane: str) -> float:
        """When the lane's exits allow its next start."""
        return self.lanes[lane].next_start if lane in self.lanes else 0.0

    def do_rest(self, lane: str) -> bool:
        """Whether all exits of the lane were turned away or failed."""
        return lane in self.lanes and self.pool_of(lane) is not None and self.lanes[lane].starved_since > 0

    def has_lost_patience(self, lane: str, now: float) -> bool:
        """Whether all exits rested for too long. One whose rest was over before that, or that came later, is tried."""
        pool, exits = self.pool_of(lane), self.of(lane)
        if pool is None:
            return True
        end = exits.starved_since + pool.patience
        could_be_tried = any(
            use.is_healthy or (use.next_start < end and not (use.streak and use.in_flight))
            for use in self._uses(pool, exits)
        )
        return exits.starved_since > 0 and now >= end and not could_be_tried

    def pick(self, lane: str, now: float, latest: float) -> ModelUse | None:
        """The exit that is used next, not later than that."""
        pool, exits = self.pools[lane.partition(VIA)[2]], self.of(lane)
        if stuck := self._stuck(pool, exits, now):
            return self._kept(pool, stuck, now, latest)
        while use := self._first(pool, exits, now, latest):
            exit_ = self.exit(use.exit)
            if exit_.parked_until > max(now, use.next_start):
                use.next_start, use.is_put_off, use.is_parked = exit_.parked_until, True, True
            elif exit_.holder:
                use.next_start, use.is_put_off = max(use.next_start, now + BUSY_SECONDS), True
                use.is_parked = False
            else:
                if pool.sticky:
                    exits.stuck, exits.stuck_since = use.exit, now
                return use
        return None

    def _kept(self, pool: Pool, use: ModelUse, now: float, latest: float) -> ModelUse | None:
        """The exit that a host keeps, when it may be used."""
        if self.exit(use.exit).holder:
            use.next_start = max(use.next_start, now + BUSY_SECONDS)
            return None
        return use if use.is_free(pool) and use.next_start <= latest else None

    def start(self, lane: str, use: ModelUse, at: float, now: float, token: int) -> None:
        """A request goes out through the exit."""
        pool, exit_ = self.pools[lane.partition(VIA)[2]], self.exit(use.exit)
        exits = self.of(lane)
        if not use.rests:
            exits.place = self.rolls[pool.name].index(use.exit) + 1
        if exits.starved_since and now >= exits.starved_since + pool.patience:
            exits.starved_since = now
        use.next_start, use.is_put_off, use.was_used = at + pool.interval, False, True
        use.in_flight += 1
        use.requests += 1
        if pool.exclusive:
            exit_.holder = token
        if exit_.strikes >= STRIKES:
            exit_.parked_until, exit_.trial = now + pool.quarantine, token

    def reserve(self, lane: str, name: str, start: float) -> float:
        """Take the exit's next slot, not before `start`; gives its time. An exit that rests has no slots."""
        pool, exits = self.pool_of(lane), self.of(lane)
        if pool is None or name not in self.members[pool.name]:
            return start
        use = exits.uses.setdefault(name, ModelUse(name))
        if not use.rests:
            start = max(start, use.next_start)
            use.next_start = start + pool.interval
            self.changed.add(lane)
        return start

    def end(self, lane: str, name: str, report: ExitUse | None, now: float, token: int) -> None:
        """A lease is over."""
        use, exit_, pool = self.of(lane).uses[name], self.exit(name), self.pool_of(lane)
        use.in_flight -= 1
        if exit_.holder == token:
            exit_.holder = 0
        if report is not None and report.session is not None:
            exit_.session = report.session
            exit_.sessions += 1
        if report is not None and report.verdict == "unused":
            use.requests -= 1
        else:
            self._spend(use, report, pool)
            self._judge(lane, use, report, now, token)
        if use.streak and not use.in_flight:
            use.next_start = max(use.next_start, now)
        self.changed.add(lane)

    def refresh(self, now: float) -> None:
        """When the lanes whose exits changed may start next, as far as their exits go. Every verb ends with this."""
        for lane in self.changed:
            if (pool := self.pool_of(lane)) is not None:
                self._refresh(pool, self.of(lane), now)
        self.changed.clear()

    def _refresh(self, pool: Pool, exits: ModelLaneExits, now: float) -> None:
        uses = self._uses(pool, exits)
        if any(use.is_healthy for use in uses):
            exits.starved_since = 0.0
        else:
            exits.starved_since = exits.starved_since or now
        if stuck := self._stuck(pool, exits, now):
            uses = [stuck]
        exits.next_start = min((use.next_start for use in uses if use.is_free(pool)), default=math.inf)
        if stuck and pool.rotate:
            exits.next_start = min(exits.next_start, exits.stuck_since + pool.rotate)
        if exits.next_start <= now:
            exits.next_start = 0.0
        if exits.starved_since:
            exits.next_start = min(exits.next_start, exits.starved_since + pool.patience)

    def statuses(self, now: float) -> list[ExitStatus]:
        return [
            ExitStatus(
                exit=use.exit,
                lane=lane,
                requests=use.requests,
                ok=use.ok,
                blocked=use.blocked,
                failed=use.failed,
                in_flight=use.in_flight,
                size=use.size,
                elapsed=use.elapsed,
                cost=use.cost,
                streak=use.streak,
                rests_for=max(0.0, use.rests_until - now) if use.streak else 0.0,
                parked_for=max(0.0, self.exit(use.exit).parked_until - now),
            )
            for lane, exits in self.lanes.items()
            for use in exits.uses.values()
            if use.was_used
        ]

    def _stuck(self, pool: Pool, exits: ModelLaneExits, now: float) -> ModelUse | None:
        """The exit that a host of a sticky pool keeps, while it is healthy."""
        use = exits.uses.get(exits.stuck)
        if not pool.sticky or use is None or use.exit not in self.members[pool.name] or use.rests:
            return None
        is_old = pool.rotate > 0 and now >= exits.stuck_since + pool.rotate
        return None if is_old or self.exit(use.exit).parked_until > now else use

    def _uses(self, pool: Pool, exits: ModelLaneExits) -> list[ModelUse]:
        """What the lane knows of its pool's exits, in the order of their places."""
        members = self.members[pool.name]
        for name in self.rolls[pool.name]:
            if name in members and name not in exits.uses:
                exits.uses[name] = ModelUse(name)
        return [exits.uses[name] for name in self.rolls[pool.name] if name in members]

    def _first(self, pool: Pool, exits: ModelLaneExits, now: float, latest: float) -> ModelUse | None:
        """One whose rest is over; else the next one in the ring that is due; else the healthy one that is due first."""
        free = [use for use in self._uses(pool, exits) if use.is_free(pool)]
        rested = [use for use in free if use.rests and use.next_start <= now]
        ring = [use for use in free if not use.rests]
        due = [use for use in ring if use.next_start <= now]
        if rested:
            return min(rested, key=lambda use: use.next_start)
        if due:
            places = {name: place for place, name in enumerate(self.rolls[pool.name])}
            return min(due, key=lambda use: (places[use.exit] < exits.place, places[use.exit]))
        return min((use for use in ring if use.next_start <= latest), key=lambda use: use.next_start, default=None)

    def _spend(self, use: ModelUse, report: ExitUse | None, pool: Pool | None) -> None:
        if pool is not None:
            cost = cost_of(pool, report)
            use.cost += cost
            self.cost += cost

    def _judge(self, lane: str, use: ModelUse, report: ExitUse | None, now: float, token: int) -> None:
        if report is None:
            return
        exit_, pool = self.exit(use.exit), self.pool_of(lane)
        use.size += report.size
        use.elapsed += report.elapsed
        if report.verdict == "ok":
            if use.streak and pool is not None and use.exit in self.members[pool.name]:
                self.of(lane).starved_since = 0.0
            use.ok += 1
            use.streak = 0
            exit_.strikes = exit_.parkings = exit_.trial = 0
            exit_.struck_lane, exit_.parked_until = "", 0.0
            return
        use.blocked += report.verdict == "blocked"
        use.failed += report.verdict == "failed"
        if pool is None or report.verdict == "used":
            return
        if not use.streak or now >= use.rests_until:
            use.streak += 1
            use.is_put_off = False
            use.rests_until = now + rest_seconds(pool, use.streak)
            use.next_start = max(use.next_start, use.rests_until)
        if report.verdict == "failed":
            self._strike(lane, exit_, pool, now, token)

    def _strike(self, lane: str, exit_: ModelExit, pool: Pool, now: float, token: int) -> None:
        if exit_.struck_lane != lane:
            exit_.strikes, exit_.struck_lane = exit_.strikes + 1, lane
        if exit_.strikes >= STRIKES and (exit_.parked_until <= now or exit_.trial == token):
            exit_.parkings += 1
            exit_.parked_until, exit_.trial = now + rest_seconds(pool, exit_.parkings), 0
