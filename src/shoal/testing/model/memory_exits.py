"""Exits in the in-memory model: which one a lane may use next, and what a request changes about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from shoal.frontier.rules.constants import BUSY_SECONDS, MAX_KEPT_SESSIONS, STRIKES
from shoal.frontier.rules.exits import Offers, cost_of, offered_names, renewed, rest_seconds, usable_offers, with_offers
from shoal.frontier.rules.hosts import in_time_of
from shoal.model import VIA, ExitStatus, ExitUse, Pool


@dataclass(eq=False)
class ModelUse:
    """One exit towards one lane.

    `streak` is its failures in a row: while it has any it is quarantined, or on probation. `put_off` is "parked" or
    "held" while the lane leaves a healthy exit alone for that reason. `reports` are those of all ended leases."""

    exit: str
    next_start: float = 0.0
    in_flight: int = 0
    streak: int = 0
    quarantined_until: float = 0.0
    put_off: str = ""
    reports: list[tuple[ExitUse | None, float]] = field(default_factory=list)

    @property
    def rests(self) -> bool:
        """Whether it is out of the ring until its next start."""
        return self.streak > 0 or self.put_off != ""

    @property
    def is_healthy(self) -> bool:
        """Whether it is neither quarantined nor, as far as the lane knows, parked."""
        return not self.streak and self.put_off != "parked"

    def is_free(self, pool: Pool, *, others: int = 0) -> bool:
        """Whether one request more may be in flight, beside those of other crawls; a single one tries an exit on
        probation."""
        return self.in_flight + others < pool.cap and not (self.streak and self.in_flight)

    def status(self, lane: str, parked_until: float, now: float) -> ExitStatus:
        reports = [report for report, _ in self.reports if report is None or report.verdict != "unused"]
        known = [report for report in reports if report is not None]
        verdicts = [report.verdict for report in known]
        return ExitStatus(
            exit=self.exit,
            lane=lane,
            requests=len(reports) + self.in_flight,
            ok=verdicts.count("ok"),
            blocked=verdicts.count("blocked"),
            failed=verdicts.count("failed"),
            in_flight=self.in_flight,
            size=sum(report.size for report in known),
            elapsed=sum((report.elapsed for report in known), 0.0),
            cost=sum((cost for _, cost in self.reports), 0.0),
            streak=self.streak,
            rests_for=max(0.0, self.quarantined_until - now) if self.streak else 0.0,
            parked_for=max(0.0, parked_until - now),
        )


@dataclass(eq=False)
class ModelExit:
    """One exit towards all lanes. `failed_lanes` are the lanes of its failures in a row, none twice in a row.

    `trial` is the token of the lease that tries it after its parking, `holder` that of the lease that uses it alone."""

    failed_lanes: list[str] = field(default_factory=list)
    parked_until: float = 0.0
    parkings: int = 0
    trial: int = 0
    holder: int = 0
    sessions: list[bytes] = field(default_factory=list)

    @property
    def session(self) -> tuple[int, bytes]:
        """The session kept for the exit, and its version; version 0 when it is empty."""
        session = self.sessions[-1] if self.sessions else b""
        return (len(self.sessions) if session else 0), session

    @property
    def has_struck_out(self) -> bool:
        return len(self.failed_lanes) >= STRIKES

    def fail(self, lane: str, pool: Pool, now: float, token: int) -> None:
        """A request towards the lane failed; enough such lanes in a row park the exit."""
        if self.failed_lanes[-1:] != [lane]:
            self.failed_lanes.append(lane)
        if self.has_struck_out and (self.parked_until <= now or self.trial == token):
            self.parkings += 1
            self.parked_until, self.trial = now + rest_seconds(pool, self.parkings), 0

    def succeed(self) -> None:
        self.failed_lanes, self.parked_until, self.parkings, self.trial = [], 0.0, 0, 0


@dataclass(eq=False)
class OtherExits:
    """The exits of another crawl's lane of the same name, in the time of the crawl that looks. `pool` is None unless
    its limits count."""

    pool: Pool | None
    in_flight: dict[str, int]
    next_starts: dict[str, float]


@dataclass(eq=False)
class ModelLaneExits:
    """The exits of one lane. The ring goes on at `next_index`; `kept` is the exit that the host of a sticky pool keeps.

    `next_start` is when an exit is free next, as of the last change."""

    next_index: int
    uses: dict[str, ModelUse] = field(default_factory=dict)
    next_start: float = 0.0
    starved_since: float = 0.0
    kept: str = ""
    kept_since: float = 0.0


@dataclass(eq=False)
class ModelPools:
    """All exits of a crawl. `names` has every exit that a pool ever had, oldest first; `members` those of today.

    `others`: what this call has seen of other crawls, by lane.

    `own` are the crawl's pools without what is offered. `at_hand`: the exits that the worker of this call offers, by
    pool. `passed_over`: the lanes of this call whose exits that were due are those of other workers."""

    own: tuple[Pool, ...] = ()
    offers: Offers = field(default_factory=dict)
    at_hand: dict[str, frozenset[str]] = field(default_factory=dict)
    passed_over: set[str] = field(default_factory=set)
    pools: dict[str, Pool] = field(default_factory=dict)
    members: dict[str, frozenset[str]] = field(default_factory=dict)
    names: dict[str, list[str]] = field(default_factory=dict)
    exits: dict[str, ModelExit] = field(default_factory=dict)
    lanes: dict[str, ModelLaneExits] = field(default_factory=dict)
    changed: set[str] = field(default_factory=set)
    others: dict[str, list[OtherExits]] = field(default_factory=dict)
    is_held_elsewhere: Callable[[str], bool] = bool

    @property
    def cost(self) -> float:
        uses = [use for exits in self.lanes.values() for use in exits.uses.values()]
        return sum((cost for use in uses for _, cost in use.reports), 0.0)

    def offer(self, given: Sequence[Pool], now: float) -> None:
        """The worker of this call offers these exits."""
        self.at_hand = {pool.name: frozenset(pool.exits) for pool in given}
        self.passed_over.clear()
        self.others.clear()
        if given:
            usable = usable_offers(given, {pool.name for pool in self.own})
            self.offers, has_changed = renewed(self.offers, usable, now=now)
            if has_changed:
                self.take_over(self.own, now)

    def take_over(self, own: tuple[Pool, ...], now: float) -> None:
        """Change the pools; exits that stay keep their state, and none may be used earlier than before."""
        self.own, pools = own, with_offers(own, self.offers)
        self.pools = {pool.name: pool for pool in pools}
        self.members = {pool.name: frozenset(pool.exits) for pool in pools}
        for pool in pools:
            known = dict.fromkeys(self.names.get(pool.name, []))
            self.names[pool.name] = list(known | dict.fromkeys(pool.exits))
        for lane, exits in self.lanes.items():
            exits.next_start = 0.0
            members = self.members.get(lane.partition(VIA)[2], frozenset())
            for use in exits.uses.values():
                if use.streak:
                    use.next_start = max(use.quarantined_until, use.next_start if use.next_start > now else 0.0)
                elif use.put_off and use.exit not in members:
                    use.next_start, use.put_off = now, ""
                elif use.in_flight:
                    use.put_off = ""

    def pool_of(self, lane: str) -> Pool | None:
        return self.pools.get(lane.partition(VIA)[2])

    def strict_pool(self, lane: str) -> Pool:
        """The lane's pool with the strictest limits of all crawls."""
        pool = self.pools[lane.partition(VIA)[2]]
        heeded = [other.pool for other in self.others.get(lane, []) if other.pool is not None]
        return msgspec.structs.replace(
            pool,
            interval=max([pool.interval, *(other.interval for other in heeded)]),
            cap=min([pool.cap, *(other.cap for other in heeded)]),
        )

    def seen_by_others(self, lane: str, *, is_heeded: bool, shift: float, own_shift: float) -> OtherExits:
        uses = self.lanes[lane].uses.values() if lane in self.lanes else []
        members = self.members.get(lane.partition(VIA)[2], frozenset())
        return OtherExits(
            pool=self.pool_of(lane) if is_heeded else None,
            in_flight={use.exit: use.in_flight for use in uses if use.in_flight},
            next_starts={
                use.exit: in_time_of(use.next_start, shift=shift, own_shift=own_shift)
                for use in uses
                if not use.rests and use.exit in members
            },
        )

    def heed(self, lane: str, others: list[OtherExits], now: float) -> None:
        """Healthy exits are due no earlier than for the other crawls."""
        self.others[lane] = others
        pool = self.pool_of(lane)
        if pool is None or not any(due > now for other in others for due in other.next_starts.values()):
            return
        for use in self._uses(pool, self.of(lane)):
            due = max((other.next_starts.get(use.exit, 0.0) for other in others), default=0.0)
            if not use.rests and due > max(use.next_start, now):
                use.next_start = due
                self.changed.add(lane)

    def are_used_elsewhere(self, lane: str) -> bool:
        """Whether other crawls have requests in flight through exits towards this host."""
        return any(other.in_flight for other in self.others.get(lane, []))

    def is_holding(self, name: str) -> bool:
        """Whether a lease uses the exit alone."""
        return name in self.exits and self.exits[name].holder != 0

    def _in_flight_elsewhere(self, lane: str, name: str) -> int:
        return sum(other.in_flight.get(name, 0) for other in self.others.get(lane, []))

    def of(self, lane: str) -> ModelLaneExits:
        """The exits of a lane. Each new lane of a pool begins with the next exit."""
        if lane not in self.lanes:
            pool = lane.partition(VIA)[2]
            begun = sum(other.partition(VIA)[2] == pool for other in self.lanes)
            self.lanes[lane] = ModelLaneExits(begun % max(1, len(self.names.get(pool, []))))
        return self.lanes[lane]

    def exit(self, name: str) -> ModelExit:
        return self.exits.setdefault(name, ModelExit())

    def ready_at(self, lane: str) -> float:
        """When the lane's exits allow its next start."""
        return self.lanes[lane].next_start if lane in self.lanes else 0.0

    def are_starved(self, lane: str) -> bool:
        """Whether all exits of the lane rest."""
        return lane in self.lanes and self.pool_of(lane) is not None and self.lanes[lane].starved_since > 0

    def gives_up(self, lane: str, now: float) -> bool:
        """Whether all exits of the lane rested for too long, or it has no pool. An exit whose rest was over before
        that, or that came into the pool later, is tried first."""
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
        """The exit that is used next, not later than `latest`. Exits found parked or held are put off."""
        use = self._pick(lane, now, latest)
        if use is None and self._theirs(self.pools[lane.partition(VIA)[2]]):
            self.passed_over.add(lane)
        return use

    def _theirs(self, pool: Pool) -> frozenset[str]:
        """The exits of a pool that only other workers have."""
        theirs = offered_names(self.own, self.offers).get(pool.name, frozenset())
        return theirs - self.at_hand.get(pool.name, frozenset())

    def _pick(self, lane: str, now: float, latest: float) -> ModelUse | None:
        pool, exits = self.strict_pool(lane), self.of(lane)
        if kept := self._kept(pool, exits, now):
            if kept.exit in self._theirs(pool):
                return None
            if self._is_held(kept.exit):
                kept.next_start = max(kept.next_start, now + BUSY_SECONDS)
                return None
            is_free = kept.is_free(pool, others=self._in_flight_elsewhere(lane, kept.exit))
            return kept if is_free and kept.next_start <= latest else None
        while use := self._first(lane, pool, now, latest):
            found = self.exit(use.exit)
            if found.parked_until > max(now, use.next_start):
                use.next_start, use.put_off = found.parked_until, "parked"
            elif self._is_held(use.exit):
                use.next_start, use.put_off = max(use.next_start, now + BUSY_SECONDS), "held"
            else:
                if pool.sticky:
                    exits.kept, exits.kept_since = use.exit, now
                return use
        return None

    def _is_held(self, name: str) -> bool:
        return self.is_holding(name) or self.is_held_elsewhere(name)

    def start(self, lane: str, use: ModelUse, at: float, now: float, token: int) -> None:
        """A request goes out through the exit."""
        pool, found, exits = self.strict_pool(lane), self.exit(use.exit), self.of(lane)
        if not use.rests:
            exits.next_index = self.names[pool.name].index(use.exit) + 1
        if exits.starved_since and now >= exits.starved_since + pool.patience:
            exits.starved_since = now
        use.next_start, use.put_off = at + pool.interval, ""
        use.in_flight += 1
        if pool.exclusive:
            found.holder = token
        if found.has_struck_out:
            found.parked_until, found.trial = now + pool.quarantine, token

    def reserve(self, lane: str, name: str, start: float, *, missed: float, now: float) -> float:
        """Take the exit's next slot, not before `start`, or move its latest one if that was missed; gives its time. An
        exit that rests has no slots."""
        exits = self.of(lane)
        if self.pool_of(lane) is None or name not in self.members[lane.partition(VIA)[2]]:
            return start
        pool = self.strict_pool(lane)
        use = exits.uses.setdefault(name, ModelUse(name))
        if not use.rests:
            is_latest = missed > 0 and abs(now - missed - (use.next_start - pool.interval)) < pool.interval / 2
            start = max(start, now if is_latest else use.next_start)
            use.next_start = start + pool.interval
            self.changed.add(lane)
        return start

    def keep_session(self, name: str, session: bytes, *, version: int) -> tuple[int, bytes]:
        """Keep a session if its version is still this one; gives what is kept now."""
        found, kept = self.exit(name), sum(1 for one in self.exits.values() if one.sessions)
        if found.session[0] == version and (found.sessions or kept < MAX_KEPT_SESSIONS):
            found.sessions.append(session)
        return found.session

    def end(self, lane: str, name: str, report: ExitUse | None, now: float, token: int) -> None:
        """A lease is over."""
        use, found, pool = self.of(lane).uses[name], self.exit(name), self.pool_of(lane)
        use.in_flight -= 1
        use.reports.append((report, cost_of(pool, report)))
        if found.holder == token:
            found.holder = 0
        if report is not None:
            if report.session is not None:
                found.sessions.append(report.session)
            if report.verdict == "ok":
                self._succeed(lane, use)
            elif pool and report.verdict in ("blocked", "failed"):
                self._quarantine(use, pool, now)
            if pool and report.verdict == "failed":
                found.fail(lane, pool, now, token)
        if use.streak and not use.in_flight:
            use.next_start = max(use.next_start, now)
        self.changed.add(lane)

    def refresh(self, now: float) -> None:
        """Say when the lanes whose exits changed may start next, as far as their exits go. Every verb ends with it."""
        for lane in self.changed:
            if (pool := self.pool_of(lane)) is not None:
                self._refresh(pool, self.of(lane), now)
                if lane in self.passed_over and self.of(lane).next_start <= now:
                    self.of(lane).next_start = now
        self.changed.clear()

    def _refresh(self, pool: Pool, exits: ModelLaneExits, now: float) -> None:
        uses = self._uses(pool, exits)
        if any(use.is_healthy for use in uses):
            exits.starved_since = 0.0
        else:
            exits.starved_since = exits.starved_since or now
        if kept := self._kept(pool, exits, now):
            uses = [kept]
        exits.next_start = min((use.next_start for use in uses if use.is_free(pool)), default=math.inf)
        if kept and pool.rotate:
            exits.next_start = min(exits.next_start, exits.kept_since + pool.rotate)
        if exits.next_start <= now:
            exits.next_start = 0.0
        if exits.starved_since:
            exits.next_start = min(exits.next_start, exits.starved_since + pool.patience)

    def statuses(self, now: float) -> list[ExitStatus]:
        return [
            use.status(lane, self.exit(use.exit).parked_until, now)
            for lane, exits in self.lanes.items()
            for use in exits.uses.values()
            if use.reports or use.in_flight
        ]

    def _kept(self, pool: Pool, exits: ModelLaneExits, now: float) -> ModelUse | None:
        """The exit that a host of a sticky pool keeps, while it is healthy."""
        use = exits.uses.get(exits.kept)
        if not pool.sticky or use is None or use.exit not in self.members[pool.name] or use.rests:
            return None
        is_old = pool.rotate > 0 and now >= exits.kept_since + pool.rotate
        return None if is_old or self.exit(use.exit).parked_until > now else use

    def _uses(self, pool: Pool, exits: ModelLaneExits) -> list[ModelUse]:
        """The pool's exits towards the lane, in the order in which they came into the pool."""
        members = [name for name in self.names[pool.name] if name in self.members[pool.name]]
        for name in members:
            if name not in exits.uses:
                exits.uses[name] = ModelUse(name)
        return [exits.uses[name] for name in members]

    def _first(self, lane: str, pool: Pool, now: float, latest: float) -> ModelUse | None:
        """The exit whose rest ended first; else the next one in the ring that is due; else the healthy exit that is due
        first."""
        theirs, exits = self._theirs(pool), self.of(lane)
        free = [
            use
            for use in self._uses(pool, exits)
            if use.is_free(pool, others=self._in_flight_elsewhere(lane, use.exit)) and use.exit not in theirs
        ]
        rested = [use for use in free if use.next_start <= now and use.rests]
        if rested:
            return min(rested, key=lambda use: use.next_start)
        ring = [use for use in free if not use.rests]
        due = [use for use in ring if use.next_start <= now]
        if due:
            before = set(self.names[pool.name][: exits.next_index])
            return min(due, key=lambda use: use.exit in before)
        return min((use for use in ring if use.next_start <= latest), key=lambda use: use.next_start, default=None)

    def _succeed(self, lane: str, use: ModelUse) -> None:
        pool = self.pool_of(lane)
        if use.streak and pool is not None and use.exit in self.members[pool.name]:
            self.of(lane).starved_since = 0.0
        use.streak = 0
        self.exit(use.exit).succeed()

    def _quarantine(self, use: ModelUse, pool: Pool, now: float) -> None:
        """A failure while the exit is quarantined changes nothing: it was in flight before."""
        if not use.streak or now >= use.quarantined_until:
            use.streak += 1
            use.put_off = ""
            use.quarantined_until = now + rest_seconds(pool, use.streak)
            use.next_start = max(use.next_start, use.quarantined_until)
