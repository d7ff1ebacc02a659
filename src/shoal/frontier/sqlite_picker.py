"""Choosing the exits for the tasks that one lane lends in one call."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from shoal.frontier.exit_rules import BUSY_SECONDS
from shoal.frontier.sqlite_exits import Exits
from shoal.frontier.sqlite_pools import first_rested
from shoal.frontier.sqlite_roster import RING
from shoal.model import Pool

if TYPE_CHECKING:
    from shoal.frontier.sqlite_ledger import LaneRow


class Picker:
    """Gives the place of the exit that is used next, not later than `latest`."""

    def __init__(self, exits: Exits, lane: LaneRow, pool: Pool, *, latest: float) -> None:
        self._exits = exits
        self._lane = lane
        self._pool = pool
        self._latest = latest
        self._roster = exits.roster(lane)
        self._later: list[tuple[float, int]] | None = None

    def pick(self) -> int | None:
        """One whose rest is over; else the next one in the ring that is due; else the healthy one that is due first."""
        exits, roster = self._exits, self._roster
        if self._pool.sticky and (stuck := exits.stuck(self._pool, self._lane)) is not None:
            return self._kept(stuck)
        while (place := self._first()) is not None:
            until = exits.put_off_until(self._lane, place)
            if until is None:
                if self._pool.sticky:
                    roster.stuck, roster.stuck_since = place, exits.now
                return place
            exits.put_off(self._lane, place, until=until)
        return None

    def give_back(self, place: int) -> None:
        """The exit may be used again in this call, when it is free and in time."""
        if self._later is None:
            return
        at = self._roster.nexts.get(place, 0.0)
        if at <= self._latest and self._roster.flights[place] < self._pool.cap and self._roster.marks[place] == RING:
            heapq.heappush(self._later, (at, place))

    def _first(self) -> int | None:
        exits, roster = self._exits, self._roster
        if roster.rests_next <= exits.now:
            return first_rested(exits.db, self._lane.id)
        if self._later is None:
            place = roster.due_in_ring(self._pool.cap, now=exits.now)
            if place is not None:
                return place
            self._later = [entry for entry in roster.due_later(self._pool.cap) if entry[0] <= self._latest]
            heapq.heapify(self._later)
        return heapq.heappop(self._later)[1] if self._later else None

    def _kept(self, place: int) -> int | None:
        """The exit that the host keeps, when it may be used."""
        exits, roster = self._exits, self._roster
        at = roster.nexts.get(place, 0.0)
        if exits.is_held(self._lane, place):
            roster.nexts[place] = max(at, exits.now + BUSY_SECONDS)
            return None
        return place if at <= self._latest and roster.flights.get(place, 0) < self._pool.cap else None
