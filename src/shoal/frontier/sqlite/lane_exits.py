"""The exits of one lane inside one transaction: which one is used next, and what a request changes about it."""

from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from shoal.frontier.rules.constants import (
    BUSY_SECONDS,
    HEALTHY,
    HELD,
    MAX_PUT_OFF,
    ON_PROBATION,
    PARKED,
    QUARANTINED,
    REMOVED,
)
from shoal.frontier.rules.exits import gives_up, is_out_of_patience, keeps_exit, look_again_at, put_off, starved_since
from shoal.frontier.rules.lanes import reserved_start
from shoal.frontier.sqlite.crawl_exits import CrawlExits
from shoal.frontier.sqlite.frontier_rows import LaneRow
from shoal.frontier.sqlite.pool_exits import end_rest, first_rested, rest
from shoal.frontier.sqlite.roster import Roster
from shoal.model import VIA, ExitUse, Pool


def begin_roster(exits: CrawlExits, lane: str) -> Roster:
    """The roster of a lane that never used its pool. It begins with the exit after the one that the lane before it
    began with."""
    pool_exits = exits.pool_exits(lane)
    return Roster(exits.begin_lane(lane) % max(1, len(pool_exits.names)), pool_exits.marks)


class OtherExits(NamedTuple):
    """What other crawls have of the exits towards the host of a lane: pools whose limits count, requests in flight and
    next starts of healthy exits by their names."""

    pools: tuple[Pool, ...]
    in_flight: Mapping[str, int]
    next_starts: Mapping[str, float]

    def strictest(self, pool: Pool) -> Pool:
        """The pool with the strictest limits of all crawls."""
        return msgspec.structs.replace(
            pool,
            interval=max([pool.interval, *(other.interval for other in self.pools)]),
            cap=min([pool.cap, *(other.cap for other in self.pools)]),
        )


NO_OTHERS = OtherExits((), {}, {})


def joined(others: Sequence[OtherExits]) -> OtherExits:
    """The exits of several crawls as if they were of one."""
    in_flight: Counter[str] = Counter()
    next_starts: dict[str, float] = {}
    for other in others:
        in_flight.update(other.in_flight)
        for name, at in other.next_starts.items():
            next_starts[name] = max(at, next_starts.get(name, 0.0))
    return OtherExits(tuple(pool for other in others for pool in other.pools), in_flight, next_starts)


class LaneExits:
    """Changes the lane's roster; `save` writes it into the lane's row."""

    __slots__ = (
        "_away",
        "_exits",
        "_indexes",
        "_lane",
        "_later",
        "_names",
        "_others",
        "has_changed",
        "pool",
        "roster",
        "was_passed_over",
    )

    def __init__(self, exits: CrawlExits, lane: LaneRow, roster: Roster, others: OtherExits = NO_OTHERS) -> None:
        pool_exits = exits.pool_exits(lane.name)
        self.roster = roster
        self.pool = pool_exits.pool
        self.has_changed = False
        self.was_passed_over = False
        self._away = exits.away(lane.name.partition(VIA)[2], pool_exits)
        self._exits = exits
        self._lane = lane
        self._names = pool_exits.names
        self._others = others
        self._indexes = pool_exits.indexes
        self._later: list[tuple[float, int]] | None = None

    @property
    def are_starved(self) -> bool:
        """Whether all exits rest."""
        return self.pool is not None and self.roster.starved_since > 0

    @property
    def are_given_up(self) -> bool:
        """Whether the lane's tasks no longer wait for an exit."""
        roster = self.roster
        return gives_up(
            self.pool,
            starved_since=roster.starved_since,
            has_healthy=roster.has_healthy(len(self._names)),
            first_rest=roster.first_rest,
            now=self._exits.now,
        )

    def take(self, start: float, token: int, *, latest: float) -> tuple[float, str, float, int] | None:
        """A request goes out through the next exit, not before `start`: gives when, the exit, its interval and the
        version of its session. None when no exit may be used in time."""
        if self.pool is None or start > latest:
            return None
        pool = self._strict_pool(self.pool)
        index = self._pick(pool, latest=latest)
        if index is None:
            self.was_passed_over = bool(self._away)
            return None
        start = max(start, self.roster.next_starts.get(index, 0.0))
        name, session_version = self._start(index, pool, start, token)
        return start, name, pool.interval, session_version

    def _pick(self, pool: Pool, *, latest: float) -> int | None:
        """The next exit that is neither parked nor held, as the rules for exits order them."""
        if pool.sticky and (kept := self._kept(pool)) is not None:
            return self._use_kept(kept, pool, latest=latest)
        while (index := self._first(pool, latest=latest)) is not None:
            wait = self._wait_of(index)
            if wait is None:
                if pool.sticky:
                    self.roster.kept_index, self.roster.kept_since = index, self._exits.now
                return index
            self._put_off(index, *wait)
            self._exits.put_off_so_far += 1
            if self._exits.put_off_so_far >= MAX_PUT_OFF:
                return None
        return None

    def _strict_pool(self, pool: Pool) -> Pool:
        return self._others.strictest(pool) if self._others.pools else pool

    @property
    def are_used_elsewhere(self) -> bool:
        """Whether other crawls have requests in flight through exits towards this host."""
        return bool(self._others.in_flight)

    def heed(self, others: OtherExits) -> None:
        """Healthy exits are due no earlier than for the other crawls."""
        self._others = others
        for name, due in others.next_starts.items():
            index, roster = self._indexes.get(name), self.roster
            if index is None or roster.mark_of(index) != HEALTHY:
                continue
            if due > max(roster.next_starts.get(index, 0.0), self._exits.now):
                roster.next_starts[index] = due
                self.has_changed = True

    def _not_to_use(self, cap: int) -> bytes:
        """A mark for each exit that this worker lacks, or that has its cap of requests in flight over all crawls."""
        if not self._others.in_flight:
            return self._away
        marks = bytearray(self._away.ljust(len(self._names), b"\0"))
        for name, theirs in self._others.in_flight.items():
            index = self._indexes.get(name)
            if index is not None and theirs + self.roster.flights.get(index, 0) >= cap:
                marks[index] = REMOVED
        return bytes(marks.rstrip(b"\0"))

    def _first(self, pool: Pool, *, latest: float) -> int | None:
        away = self._not_to_use(pool.cap)
        exits, roster = self._exits, self.roster.without(away)
        if roster.first_rest <= exits.now:
            index = first_rested(exits.db, self._lane.id, now=exits.now, away=away)
            if index is not None:
                return index
        if self._later is None:
            index = roster.due_in_ring(len(self._names), pool.cap, now=exits.now)
            if index is not None:
                return index
            self._later = roster.due_later(pool.cap, now=exits.now)
            heapq.heapify(self._later)
        while self._later and self._later[0][0] <= latest:
            index = heapq.heappop(self._later)[1]
            if index >= len(away) or not away[index]:
                return index
        return None

    def _kept(self, pool: Pool) -> int | None:
        """The exit that a host of a sticky pool keeps, while it is healthy."""
        roster = self.roster
        if roster.kept_index < 0 or roster.mark_of(roster.kept_index) != HEALTHY:
            return None
        found = self._exits.known_exit(self._names[roster.kept_index])
        parked_until = found.parking.parked_until if found else 0.0
        is_kept = keeps_exit(pool, since=roster.kept_since, parked_until=parked_until, now=self._exits.now)
        return roster.kept_index if is_kept else None

    def _use_kept(self, index: int, pool: Pool, *, latest: float) -> int | None:
        """The exit that the host keeps, if it may be used in time, and by this worker."""
        if index < len(self._away) and self._away[index]:
            return None
        at = self.roster.next_starts.get(index, 0.0)
        found = self._exits.known_exit(self._names[index])
        if self._exits.is_held(self._names[index], found):
            self.roster.next_starts[index] = max(at, self._exits.now + BUSY_SECONDS)
            return None
        in_flight = self.roster.flights.get(index, 0) + self._others.in_flight.get(self._names[index], 0)
        return index if at <= latest and in_flight < pool.cap else None

    def _wait_of(self, index: int) -> tuple[int, float] | None:
        """Whether the exit is parked or held, and until when; None when it may be used."""
        name = self._names[index]
        found = self._exits.known_exit(name)
        is_held = self._exits.is_held(name, found)
        if found is None and not is_held:
            return None
        parked_until = found.parking.parked_until if found else 0.0
        next_start = self.roster.next_starts.get(index, 0.0)
        return put_off(parked_until, is_held=is_held, next_start=next_start, now=self._exits.now)

    def _put_off(self, index: int, mark: int, until: float) -> None:
        db, lane, before = self._exits.db, self._lane.id, self.roster.mark_of(index)
        if before != HEALTHY:
            end_rest(db, lane, self.roster, index)
        rest(db, lane, self.roster, index, QUARANTINED if before == QUARANTINED else mark, until=until)

    def _start(self, index: int, pool: Pool, at: float, token: int) -> tuple[str, int]:
        exits, roster, name = self._exits, self.roster, self._names[index]
        if roster.marks and roster.mark_of(index) != HEALTHY:
            end_rest(exits.db, self._lane.id, roster, index)
        else:
            roster.next_index = index + 1
        if is_out_of_patience(roster.starved_since, pool, now=exits.now):
            roster.starved_since = exits.now
        next_start = at + pool.interval
        roster.start(index, next_start=next_start, now=exits.now)
        if self._later is not None and roster.is_free(index, pool.cap):
            heapq.heappush(self._later, (next_start, index))
        return name, exits.use(name, pool, token)

    def reserve(self, name: str, start: float, *, missed: float) -> float:
        """Take the exit's next slot, not before `start`, or move its latest one if that was missed; gives its time. An
        exit that rests has no slots."""
        index, roster = self._indexes.get(name), self.roster
        if self.pool is None or index is None or roster.mark_of(index) != HEALTHY:
            return start
        next_start, interval = roster.next_starts.get(index, 0.0), self._strict_pool(self.pool).interval
        own = reserved_start(
            next_start=next_start,
            last_start=next_start - interval,
            interval=interval,
            blocked_until=0.0,
            missed=missed,
            now=self._exits.now,
        )
        start = max(start, own)
        roster.next_starts[index] = start + interval
        self.has_changed = True
        return start

    def end(self, name: str, use: ExitUse | None, token: int) -> None:
        """A lease of the lane is over."""
        index, roster, exits, pool = self._indexes[name], self.roster, self._exits, self.pool
        roster.end(index)
        self.has_changed = True
        exits.release(name, use, token)
        exits.count_use(self._lane.id, index, pool, use)
        verdict = use.verdict if use else None
        if verdict == "ok":
            self._end_probation(index)
        elif pool and verdict in ("blocked", "failed"):
            self._quarantine(index, pool)
            if verdict == "failed":
                exits.strike(self._lane.name, name, pool, token)
        if roster.mark_of(index) == ON_PROBATION and index not in roster.flights:
            until = max(roster.next_starts.get(index, 0.0), exits.now)
            rest(exits.db, self._lane.id, roster, index, QUARANTINED, until=until)

    def _quarantine(self, index: int, pool: Pool) -> None:
        """The exit rests as soon as nothing is in flight through it; until then it counts as on probation."""
        exits, lane, roster = self._exits, self._lane.id, self.roster
        until = exits.quarantine(lane, index, pool)
        if until is None:
            return
        mark = roster.mark_of(index)
        is_put_off = mark in (HELD, PARKED)
        at = end_rest(exits.db, lane, roster, index) if is_put_off else roster.next_starts.get(index, 0.0)
        roster.next_starts[index] = max(at, until)
        if mark != REMOVED:
            roster.mark(index, ON_PROBATION)

    def _end_probation(self, index: int) -> None:
        """A request went well: the exit is healthy."""
        roster = self.roster
        mark = roster.mark_of(index)
        if mark in (ON_PROBATION, REMOVED):
            self._exits.end_quarantine(self._lane.id, index)
        if mark == ON_PROBATION:
            roster.mark(index, HEALTHY)
            roster.starved_since = 0.0

    def save(self) -> None:
        """Write the roster into the lane's row."""
        if self.has_changed:
            self._refresh()
        self._lane.exits = self.roster.encode(now=self._exits.now)

    def _refresh(self) -> None:
        """Write into the lane when an exit is free next."""
        pool, roster, lane, now = self.pool, self.roster, self._lane, self._exits.now
        if pool is None:
            return
        size = len(self._names)
        roster.starved_since = starved_since(roster.starved_since, has_healthy=roster.has_healthy(size), now=now)
        if pool.sticky and (kept := self._kept(pool)) is not None:
            at = roster.next_starts.get(kept, 0.0) if roster.flights.get(kept, 0) < pool.cap else math.inf
            if pool.rotate:
                at = min(at, roster.kept_since + pool.rotate)
        else:
            at = roster.next_free(size, pool.cap, now=now)
        lane.exits_next = look_again_at(at, pool, starved_since=roster.starved_since, now=now)
        if self.was_passed_over and lane.exits_next <= now:
            # Behind all lanes that wait longer: those are for this worker to see next.
            lane.exits_next = now
