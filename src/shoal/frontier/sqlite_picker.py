"""Choosing the exits for the tasks that one lane lends in one call."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from shoal.frontier.exit_rules import BUSY_SECONDS
from shoal.frontier.sqlite_exit_rows import Use
from shoal.frontier.sqlite_exits import Exits
from shoal.model import Pool

if TYPE_CHECKING:
    from shoal.frontier.sqlite_ledger import LaneRow

MAX_BUSY = 32  # exits held by others that one call looks at
MAX_CANDIDATES = 256


class Picker:
    """Gives the exit that is due first, and not later than `latest`."""

    def __init__(self, exits: Exits, lane: LaneRow, pool: Pool, *, limit: int, latest: float) -> None:
        self._exits = exits
        self._lane = lane
        self._pool = pool
        self._latest = latest
        self._limit = limit
        self._state = exits.state(lane)
        self._stuck = exits.stuck(pool, self._state)
        self._busy: set[str] = set()
        self._heap: list[tuple[float, int, Use]] | None = None
        self._unread = 0
        self._are_all = False
        self._was_used = False

    def pick(self) -> Use | None:
        """The next exit; None when there is none in time."""
        if self._stuck is not None:
            is_due = self._stuck.is_free(self._pool) and self._stuck.next_start <= self._latest
            return self._stuck if is_due else None
        now = self._exits.now
        while len(self._busy) < MAX_BUSY and (use := self._fresh() or self._due()):
            found = self._exits.known_exit(use.exit)
            if found and found.parked_until > max(now, use.next_start):
                use.move(found.parked_until)
                self.give_back(use)
            elif found and found.holder:
                use.move(max(use.next_start, now + BUSY_SECONDS))
                self._exits.keep(use)
                self._busy.add(use.exit)
            else:
                if self._pool.sticky:
                    self._exits.stick(self._state, use)
                    self._stuck = use
                return use
        return None

    def give_back(self, use: Use) -> None:
        """The exit may be used again in this call, when it is free and in time."""
        self._exits.keep(use)
        if self._heap is not None and use.is_free(self._pool) and use.next_start <= self._latest:
            heapq.heappush(self._heap, (use.next_start, use.rank, use))

    def _fresh(self) -> Use | None:
        """The next exit that this lane never considered."""
        name = self._exits.next_fresh(self._state, self._pool)
        if name is None:
            return None
        self._was_used = True
        return self._exits.meet(self._state, name)

    def _due(self) -> Use | None:
        # What was given back may come after those that were not read.
        if self._heap is None or (not self._unread and not self._are_all):
            self._heap = self._read()
        self._unread -= 1
        return heapq.heappop(self._heap)[2] if self._heap else None

    def _read(self) -> list[tuple[float, int, Use]]:
        if self._was_used:
            self._exits.flush()
        self._was_used = True
        limit = self._limit + len(self._busy)
        uses = self._exits.candidates(self._lane.id, self._pool, latest=self._latest, limit=limit)
        self._are_all = len(uses) < limit
        self._unread, self._limit = self._limit, min(2 * self._limit, MAX_CANDIDATES)
        return [(use.next_start, use.rank, use) for use in uses if use.exit not in self._busy]
