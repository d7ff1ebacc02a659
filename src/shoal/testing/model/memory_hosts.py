"""Hosts that crawls of the in-memory model share: what other crawls leave to a lane, and what outlives the crawls."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from shoal.frontier.rules.constants import HEEDED_SECONDS, LOOK_AGAIN_SECONDS, MAX_RECLAIMED
from shoal.frontier.rules.hosts import (
    Limits,
    OtherLane,
    held_by,
    in_time_of,
    is_heeded,
    lane_in_state,
    limits_of,
    turn_at_return,
)
from shoal.frontier.rules.lanes import Pace, needs_opening
from shoal.model import STAGE, Held, LaneUpdate, TaskState
from shoal.testing.model.memory_crawl import ModelCrawl, ModelLane


@dataclass(eq=False)
class ModelRules:
    """Rules that another crawl has of a host, or that were kept, in the time of the crawl that looks."""

    rules: bytes
    until: float
    delay: float
    why: str


@dataclass(eq=False)
class ModelHost:
    """What is kept of a host whose crawls were deleted, until a time, by the clock of the frontier."""

    last_start: float = 0.0
    blocked_until: float = 0.0
    rules: ModelRules = field(default_factory=lambda: ModelRules(b"", 0.0, 0.0, ""))
    learnt: float = 0.0
    learnt_until: float = 0.0
    until: float = 0.0

    def keep(self, lane: ModelLane, *, shift: float) -> None:
        """The lane is deleted; what still matters of it stays."""
        self.last_start = max(self.last_start, lane.last_start - shift)
        self.blocked_until = max(self.blocked_until, lane.blocked_until - shift)
        if lane.rules_until - shift > self.rules.until:
            self.rules = ModelRules(lane.rules, lane.rules_until - shift, lane.rules_delay, lane.rules_why)
        if lane.learnt_until - shift > self.learnt_until:
            self.learnt, self.learnt_until = lane.learnt, lane.learnt_until - shift
        recent = lane.last_start - shift + max(lane.interval, HEEDED_SECONDS)
        self.until = max(self.until, recent, self.blocked_until, self.rules.until, self.learnt_until)


@dataclass(eq=False)
class ModelHosts:
    """The lanes of all crawls by host, and what is kept of hosts."""

    crawls: dict[str, ModelCrawl] = field(default_factory=dict)
    kept: dict[str, ModelHost] = field(default_factory=dict)

    def others(self, one: ModelCrawl, name: str) -> list[tuple[ModelCrawl, ModelLane]]:
        """The lanes that other crawls have under this name and share with this one, oldest first."""
        if one.crawl.pace_scope == "crawl" or STAGE in name:
            return []
        found = [
            (other, other.lanes[name]) for other in self.crawls.values() if other is not one and name in other.lanes
        ]
        return sorted(
            [(other, lane) for other, lane in found if not other.is_apart(lane)], key=lambda entry: entry[1].age
        )

    def limits(self, one: ModelCrawl, lane: ModelLane, *, has_missed: bool = False) -> Limits:
        """What other crawls leave to the lane now. A request that has missed its slot may have it."""
        seen = [_seen(one, other, theirs) for other, theirs in self.others(one, lane.name)]
        if not one.is_apart(lane) and (host := self._host(one, lane.name)) is not None:
            start = in_time_of(host.last_start, shift=0.0, own_shift=one.clock_shift)
            rest = in_time_of(host.blocked_until, shift=0.0, own_shift=one.clock_shift)
            seen.append(OtherLane(start, rest, 0.0, 0.0, 0, 0, 0, 0.0, 0.0, 0.0))
        own_start = 0.0 if has_missed or one.is_apart(lane) else lane.last_start
        return limits_of(lane.interval, lane.base_interval, lane.cap, seen, now=one.now, own_start=own_start)

    def look(self, one: ModelCrawl, lane: ModelLane) -> Limits:
        """A lane that asks for start slots looks at those of other crawls: their pace, rules, exits and turns."""
        limits = self.limits(one, lane)
        self._take_rules(one, lane)
        # Rules that were taken may have slowed the lane down.
        limits = self.limits(one, lane)
        self.heed_exits(one, lane)
        lane.turn = turn_at_return(lane.turn, wants_until=lane.wants_until, first_turn=limits.first_turn, now=one.now)
        return limits

    def heed_exits(self, one: ModelCrawl, lane: ModelLane) -> None:
        """What other crawls leave of the exits towards this host."""
        if lane.has_pool:
            others = [
                other.pools.seen_by_others(
                    lane.name,
                    is_heeded=is_heeded(_seen(one, other, theirs), now=one.now),
                    shift=other.clock_shift,
                    own_shift=one.clock_shift,
                )
                for other, theirs in self.others(one, lane.name)
            ]
            one.pools.heed(lane.name, others, one.now)

    def with_requests(self, one: ModelCrawl, lane: ModelLane) -> list[str]:
        """Other crawls with requests in flight that may hold the lane back, or with an account that it could use."""
        names = [
            other.crawl.id for other, theirs in self.others(one, lane.name) if other.in_flight(theirs) or theirs.opener
        ]
        pool = one.pools.pool_of(lane.name) if lane.has_pool else None
        if pool is not None and pool.exclusive and one.crawl.pace_scope == "host":
            names += [
                other.crawl.id
                for other in self._sharing(one)
                if any(other.pools.is_holding(name) for name in pool.exits)
            ]
        return list(dict.fromkeys(names))

    def is_held(self, one: ModelCrawl, name: str) -> bool:
        """Whether another crawl uses this exit alone."""
        return one.crawl.pace_scope == "host" and any(other.pools.is_holding(name) for other in self._sharing(one))

    def held(self, one: ModelCrawl, lane: ModelLane) -> Held | None:
        """What other crawls do to the lane, for people to see."""
        pace = Pace(lane.next_start, lane.last_start, lane.blocked_until, lane.interval, lane.base_interval, lane.cap)
        return held_by(
            pace,
            {other.crawl.id: _seen(one, other, theirs) for other, theirs in self.others(one, lane.name)},
            in_flight=one.in_flight(lane),
            lacks_rules=needs_opening(needs_rules=one.crawl.needs_rules, rules_until=lane.rules_until, now=one.now),
            now=one.now,
        )

    def keep(self, one: ModelCrawl) -> None:
        """The crawl is deleted."""
        for lane in one.lanes.values():
            if not one.is_apart(lane):
                host = self.kept.get(lane.name)
                if host is None or host.until <= one.wall:
                    host = self.kept[lane.name] = ModelHost()
                host.keep(lane, shift=one.clock_shift)

    def learnt(self, one: ModelCrawl, name: str) -> float | None:
        """The interval that a search has learnt of this host most lately, if it still counts."""
        found = [
            (in_time_of(lane.learnt_until, shift=other.clock_shift, own_shift=one.clock_shift), lane.learnt)
            for other, lane in self.others(one, name)
        ]
        if (host := self._host(one, name)) is not None:
            found.append((in_time_of(host.learnt_until, shift=0.0, own_shift=one.clock_shift), host.learnt))
        until, interval = max(found, default=(0.0, 0.0), key=lambda entry: entry[0])
        return interval if until > one.now else None

    def _take_rules(self, one: ModelCrawl, lane: ModelLane) -> None:
        """A lane without valid rules takes those of another crawl that are valid longest, with their pace."""
        if not needs_opening(needs_rules=one.crawl.needs_rules, rules_until=lane.rules_until, now=one.now):
            return
        found = [
            ModelRules(
                theirs.rules,
                in_time_of(theirs.rules_until, shift=other.clock_shift, own_shift=one.clock_shift),
                theirs.rules_delay,
                theirs.rules_why,
            )
            for other, theirs in self.others(one, lane.name)
        ]
        if (host := self._host(one, lane.name)) is not None:
            until = in_time_of(host.rules.until, shift=0.0, own_shift=one.clock_shift)
            found.append(ModelRules(host.rules.rules, until, host.rules.delay, host.rules.why))
        best = max(found, default=None, key=lambda rules: rules.until)
        if best is not None and best.until > one.now:
            take_rules(lane, best, now=one.now)

    def _host(self, one: ModelCrawl, name: str) -> ModelHost | None:
        """What is kept of a host, if it still counts."""
        is_apart = one.crawl.pace_scope == "crawl" or STAGE in name
        host = None if is_apart else self.kept.get(name)
        return host if host is not None and host.until > one.wall else None

    def _sharing(self, one: ModelCrawl) -> list[ModelCrawl]:
        return [other for other in self.crawls.values() if other is not one and other.crawl.pace_scope == "host"]


def take_rules(lane: ModelLane, best: ModelRules, *, now: float) -> None:
    """The lane has these rules from now on, and is as slow as they ask for."""
    if best.delay > lane.base_interval:
        interval = max(lane.interval, best.delay)
        lane.update(LaneUpdate(interval=interval, base_interval=best.delay, why=best.why), now)
    lane.rules, lane.rules_until, lane.rules_delay, lane.rules_why = best.rules, best.until, best.delay, best.why
    lane.rules_version += 1


def is_held_back(one: ModelCrawl, lane: ModelLane, limits: Limits, *, turns: int, latest: float) -> bool:
    """Whether other crawls let the lane start nothing in time. It then waits anew: until it may start, or to look
    again."""
    is_opening = limits.is_opening and needs_opening(
        needs_rules=one.crawl.needs_rules, rules_until=lane.rules_until, now=one.now
    )
    is_full = one.in_flight(lane) + limits.in_flight >= limits.cap
    if is_opening or is_full or not turns:
        lane.next_start = max(lane.next_start, limits.not_before, one.now + LOOK_AGAIN_SECONDS)
        return True
    if limits.not_before > latest:
        lane.next_start = max(lane.next_start, limits.not_before)
        return True
    return False


def reclaim_from(other: ModelCrawl, *, seconds: float) -> None:
    """End the leases of another crawl that have been over for as long as a lease lasts."""
    over = [task for task in other.in_state(TaskState.LEASED) if task.at + seconds <= other.now]
    for task in over[:MAX_RECLAIMED]:
        other.lose(task)
    other.pools.refresh(other.now)


def only_one_per_host(
    chosen: Collection[tuple[ModelCrawl, ModelLane]],
) -> list[tuple[ModelCrawl, ModelLane]]:
    """Of lanes that share a host, the first one: the others are for the next call."""
    first: dict[str, ModelLane] = {}
    for one, lane in chosen:
        if not one.is_apart(lane):
            first.setdefault(lane.name, lane)
    return [(one, lane) for one, lane in chosen if one.is_apart(lane) or first[lane.name] is lane]


def _seen(one: ModelCrawl, other: ModelCrawl, lane: ModelLane) -> OtherLane:
    """A lane of another crawl in the time of the crawl that looks."""

    def own(at: float) -> float:
        return in_time_of(at, shift=other.clock_shift, own_shift=one.clock_shift)

    seen = OtherLane(
        last_start=own(lane.last_start),
        blocked_until=own(lane.blocked_until),
        interval=lane.interval,
        base_interval=lane.base_interval,
        cap=lane.cap,
        in_flight=other.in_flight(lane),
        opener=lane.opener,
        turn=lane.turn,
        wants_until=own(lane.wants_until),
        heeded_until=own(lane.heeded_until),
    )
    return lane_in_state(seen, other.state)
