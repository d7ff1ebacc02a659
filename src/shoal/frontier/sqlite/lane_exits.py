"""The exits of one lane inside one transaction: which one is used next, and what a request does to it."""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

from shoal.frontier.rules.constants import BUSY_SECONDS, MAX_PUT_OFF, STRIKES
from shoal.frontier.rules.exits import rest_seconds
from shoal.frontier.sqlite.pools import Roll, end_rest, first_rested, rest
from shoal.frontier.sqlite.roster import GONE, ILL, OFF, PARKED, RING, TRIED, Roster
from shoal.model import ExitUse, Pool

if TYPE_CHECKING:
    from shoal.frontier.sqlite.crawl_exits import Exits
    from shoal.frontier.sqlite.ledger import LaneRow


class LaneExits:
    """Changes the lane's roster, which `Exits` writes back."""

    __slots__ = ("_exits", "_lane", "_later", "_roll", "has_changed", "pool", "roster")

    def __init__(self, exits: Exits, lane: LaneRow, roll: Roll, roster: Roster) -> None:
        self.roster = roster
        self.pool = roll.pool
        self.has_changed = False
        self._exits = exits
        self._lane = lane
        self._roll = roll
        self._later: list[tuple[float, int]] | None = None

    @property
    def are_starved(self) -> bool:
        """Whether all exits were turned away or failed."""
        return self.pool is not None and self.roster.starved_since > 0

    @property
    def are_given_up(self) -> bool:
        """Whether all exits rested for too long, or there are none. One whose rest was over before that, or that came
        later, is tried."""
        if self.pool is None:
            return True
        if not self._is_out_of_patience(self.pool) or self.roster.has_healthy(len(self._roll.names)):
            return False
        return self.roster.rests_next >= self.roster.starved_since + self.pool.patience

    def _is_out_of_patience(self, pool: Pool) -> bool:
        since = self.roster.starved_since
        return since > 0 and self._exits.now >= since + pool.patience

    def take(self, start: float, token: int, *, latest: float) -> tuple[float, str, float, int] | None:
        """A request goes out through the exit whose turn it is, not before `start`: gives when, the exit, its interval
        and the version of what is kept for it. None when no exit may be used in time."""
        pool = self.pool
        if pool is None or start > latest:
            return None
        place = self._pick(pool, latest=latest)
        if place is None:
            return None
        start = max(start, self.roster.nexts.get(place, 0.0))
        name, session_version = self._start(place, pool, start, token)
        return start, name, pool.interval, session_version

    def _pick(self, pool: Pool, *, latest: float) -> int | None:
        """One whose rest is over; else the next one in the ring that is due; else the healthy one that is due first."""
        if pool.sticky and (stuck := self._stuck(pool)) is not None:
            return self._kept(stuck, pool, latest=latest)
        while (place := self._first(pool, latest=latest)) is not None:
            wait = self._wait_of(place)
            if wait is None:
                if pool.sticky:
                    self.roster.stuck, self.roster.stuck_since = place, self._exits.now
                return place
            self._put_off(place, *wait)
            self._exits.put_off_so_far += 1
            if self._exits.put_off_so_far >= MAX_PUT_OFF:
                return None
        return None

    def _first(self, pool: Pool, *, latest: float) -> int | None:
        exits, roster = self._exits, self.roster
        if roster.rests_next <= exits.now:
            return first_rested(exits.db, self._lane.id)
        if self._later is None:
            place = roster.due_in_ring(len(self._roll.names), pool.cap, now=exits.now)
            if place is not None:
                return place
            self._later = roster.due_later(pool.cap, now=exits.now)
            heapq.heapify(self._later)
        is_in_time = self._later and self._later[0][0] <= latest
        return heapq.heappop(self._later)[1] if is_in_time else None

    def _stuck(self, pool: Pool) -> int | None:
        """The exit that a host of a sticky pool keeps, while it is healthy."""
        roster, now = self.roster, self._exits.now
        if roster.stuck < 0 or roster.mark_of(roster.stuck) != RING:
            return None
        is_old = pool.rotate > 0 and now >= roster.stuck_since + pool.rotate
        found = self._exits.known_exit(self._roll.names[roster.stuck])
        return None if is_old or (found and found.parked_until > now) else roster.stuck

    def _kept(self, place: int, pool: Pool, *, latest: float) -> int | None:
        """The exit that the host keeps, when it may be used."""
        at = self.roster.nexts.get(place, 0.0)
        found = self._exits.known_exit(self._roll.names[place])
        if found and found.holder:
            self.roster.nexts[place] = max(at, self._exits.now + BUSY_SECONDS)
            return None
        return place if at <= latest and self.roster.flights.get(place, 0) < pool.cap else None

    def _wait_of(self, place: int) -> tuple[int, float] | None:
        """Whether the exit is parked or held for somebody else, and until when; None when it is neither."""
        found = self._exits.known_exit(self._roll.names[place])
        if found is None:
            return None
        at, now = self.roster.nexts.get(place, 0.0), self._exits.now
        if found.parked_until > max(now, at):
            return PARKED, found.parked_until
        return (OFF, max(at, now + BUSY_SECONDS)) if found.holder else None

    def _put_off(self, place: int, mark: int, until: float) -> None:
        db, lane, before = self._exits.db, self._lane.id, self.roster.mark_of(place)
        if before != RING:
            end_rest(db, lane, self.roster, place)
        rest(db, lane, self.roster, place, ILL if before == ILL else mark, until=until)

    def _start(self, place: int, pool: Pool, at: float, token: int) -> tuple[str, int]:
        exits, roster, name = self._exits, self.roster, self._roll.names[place]
        if roster.marks and roster.mark_of(place) != RING:
            end_rest(exits.db, self._lane.id, roster, place)
        else:
            roster.place = place + 1
        if self._is_out_of_patience(pool):
            roster.starved_since = exits.now
        next_start = at + pool.interval
        roster.start(place, next_start=next_start, now=exits.now)
        if self._later is not None and roster.is_free(place, pool.cap):
            heapq.heappush(self._later, (next_start, place))
        found = exits.exit(name) if pool.exclusive else exits.known_exit(name)
        if found is None:
            return name, 0
        if pool.exclusive:
            found.holder = token
            exits.keep_exit(name)
        if found.strikes >= STRIKES:
            found.parked_until, found.trial = exits.now + pool.quarantine, token
            exits.keep_exit(name)
        return name, found.session_version

    def reserve(self, name: str, start: float) -> float:
        """Take the exit's next slot, not before `start`; gives its time. An exit that rests has no slots."""
        place, roster = self._roll.places.get(name), self.roster
        if self.pool is None or place is None or roster.mark_of(place) != RING:
            return start
        start = max(start, roster.nexts.get(place, 0.0))
        roster.nexts[place] = start + self.pool.interval
        self.has_changed = True
        return start

    def end(self, name: str, report: ExitUse | None, token: int) -> None:
        """A lease of the lane is over."""
        place, roster, exits, pool = self._roll.places[name], self.roster, self._exits, self.pool
        roster.end(place)
        self.has_changed = True
        exits.let_go(name, report, token)
        exits.count_use(self._lane.id, place, pool, report)
        verdict = report.verdict if report else None
        if verdict == "ok":
            if roster.mark_of(place) in (TRIED, GONE):
                self._recover(place)
        elif pool and verdict in ("blocked", "failed"):
            self._fall_ill(place, pool)
            if verdict == "failed":
                exits.strike(self._lane.name, name, pool, token)
        if roster.mark_of(place) == TRIED and place not in roster.flights:
            rest(exits.db, self._lane.id, roster, place, ILL, until=max(roster.nexts.get(place, 0.0), exits.now))

    def _fall_ill(self, place: int, pool: Pool) -> None:
        exits, lane, roster = self._exits, self._lane.id, self.roster
        illness = exits.illness(lane, place)
        # Many requests in flight when a host shuts an exit out are one reason to rest, not many.
        if illness.streak and exits.now < illness.rests_until:
            return
        illness.streak += 1
        illness.rests_until = exits.now + rest_seconds(pool, illness.streak)
        mark = roster.mark_of(place)
        at = end_rest(exits.db, lane, roster, place) if mark in (OFF, PARKED) else roster.nexts.get(place, 0.0)
        roster.nexts[place] = max(at, illness.rests_until)
        if mark != GONE:
            roster.mark(place, TRIED)

    def _recover(self, place: int) -> None:
        self._exits.illness(self._lane.id, place).streak = 0
        if self.roster.mark_of(place) == TRIED:
            self.roster.mark(place, RING)
            self.roster.starved_since = 0.0

    def save(self) -> None:
        """Put what is known into the lane's row."""
        if self.has_changed:
            self._refresh()
        self._lane.exits = self.roster.encode(now=self._exits.now)

    def _refresh(self) -> None:
        """Say on the lane when an exit is free next."""
        pool, roster, lane, now = self.pool, self.roster, self._lane, self._exits.now
        if pool is None:
            return
        size = len(self._roll.names)
        if roster.has_healthy(size):
            roster.starved_since = 0.0
        else:
            roster.starved_since = roster.starved_since or now
        if pool.sticky and (stuck := self._stuck(pool)) is not None:
            at = roster.nexts.get(stuck, 0.0) if roster.flights.get(stuck, 0) < pool.cap else math.inf
            if pool.rotate:
                at = min(at, roster.stuck_since + pool.rotate)
            lane.exits_next = at if at > now else 0.0
        else:
            lane.exits_next = roster.next_free(size, pool.cap, now=now)
        if roster.starved_since:
            lane.exits_next = min(lane.exits_next, roster.starved_since + pool.patience)
