"""What every frontier promises about the turns that crawls take at a host that they share."""

from __future__ import annotations

import pytest

from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import HEEDED_SECONDS, LOOK_AGAIN_SECONDS, WANTS_SECONDS
from shoal.frontier.rules.hosts import effective_weight
from shoal.model import (
    Done,
)
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import LEASE_SECONDS, FrontierCase
from shoal.testing.contract.frontier.host_case import (
    ONE,
    TWO,
    begin,
    fetch,
    fetched_by_turns,
)


class TurnPromises(FrontierCase):
    """Who starts the next request."""

    @pytest.mark.parametrize("weight", [1.0, 100.0])
    async def test_crawls_take_turns_however_many_tasks_wait(
        self, frontier: Frontier, clock: FakeClock, weight: float
    ) -> None:
        await begin(frontier, ONE, interval=1.0, tasks=100, weight=weight)
        await begin(frontier, TWO, interval=1.0, tasks=10, weight=weight)
        counts = await fetched_by_turns(frontier, clock, seconds=18)
        assert sum(counts.values()) == 18
        assert abs(counts[ONE] - counts[TWO]) <= 2

    async def test_a_crawl_with_more_weight_has_more_turns(self, frontier: Frontier, clock: FakeClock) -> None:
        await begin(frontier, ONE, interval=1.0)
        await begin(frontier, TWO, interval=1.0, weight=3.0)
        counts = await fetched_by_turns(frontier, clock, seconds=40)
        assert sum(counts.values()) == 40
        assert abs(counts[TWO] - 30) <= 3

    async def test_a_priority_that_changes_changes_the_turns(self, frontier: Frontier, clock: FakeClock) -> None:
        await begin(frontier, ONE, interval=1.0)
        await begin(frontier, TWO, interval=1.0)
        counts = await fetched_by_turns(frontier, clock, seconds=10)
        assert abs(counts[ONE] - counts[TWO]) <= 2
        await begin(frontier, ONE, interval=1.0, settings={"priority": 1})
        counts = await fetched_by_turns(frontier, clock, seconds=30)
        assert abs(counts[TWO] - 30 / (1 + effective_weight(1.0, 1))) <= 2

    async def test_a_crawl_without_workers_holds_nobody_up_for_long(self, frontier: Frontier, clock: FakeClock) -> None:
        await begin(frontier, ONE, interval=1.0)
        await begin(frontier, TWO, interval=1.0)
        assert await fetch(frontier, ONE) == 1
        assert await fetch(frontier, TWO) == 0
        clock.advance(1.0)
        assert await fetch(frontier, ONE) == 1
        # Now it is the other one's turn, which was due a second ago.
        clock.advance(WANTS_SECONDS - 0.01)
        assert await fetch(frontier, ONE) == 0
        clock.advance(LOOK_AGAIN_SECONDS)
        assert await fetch(frontier, ONE) == 1

    async def test_a_crawl_that_got_all_it_asked_for_holds_nobody_up(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await begin(frontier, ONE, interval=1.0)
        await begin(frontier, TWO, interval=1.0)
        assert await fetch(frontier, TWO, limit=1) == 1
        for _ in range(5):
            clock.advance(1.0)
            assert await fetch(frontier, ONE) == 1

    async def test_workers_that_leave_leases_to_each_other_still_want_start_slots(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        """Of two crawls, each start slot would be for the one that asks first."""
        await begin(frontier, ONE, interval=1.0, weight=3.0)
        await begin(frontier, TWO, interval=1.0)
        counts = {ONE: 0, TWO: 0}
        for step in range(60):
            for name in sorted(counts, reverse=step % 2 == 0):
                batch = await frontier.lease([name], 1, worker=name, seconds=LEASE_SECONDS, horizon=0.0, room=5)
                await frontier.settle([Done(lease=lease) for lease in batch.leases])
                counts[name] += len(batch.leases)
            clock.advance(1.0)
        assert sum(counts.values()) == 60
        assert abs(counts[TWO] - 15) <= 3

    async def test_a_crawl_that_comes_back_has_saved_no_turns_up(self, frontier: Frontier, clock: FakeClock) -> None:
        await begin(frontier, ONE, interval=1.0)
        await begin(frontier, TWO, interval=1.0)
        await fetch(frontier, TWO)
        for _ in range(20):
            clock.advance(1.0)
            await fetch(frontier, ONE)
        clock.advance(1.0)
        counts = await fetched_by_turns(frontier, clock, seconds=10)
        assert sum(counts.values()) == 10
        assert abs(counts[ONE] - counts[TWO]) <= 2

    async def test_a_crawl_that_has_worked_alone_owes_nothing_to_one_that_came_while_it_was_away(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await begin(frontier, ONE, interval=1.0)
        await begin(frontier, TWO, interval=1.0)
        for _ in range(30):
            clock.advance(1.0)
            await fetch(frontier, ONE)
        clock.advance(2 * HEEDED_SECONDS)
        assert await fetch(frontier, TWO) == 1
        clock.advance(1.0)
        counts = await fetched_by_turns(frontier, clock, seconds=10)
        assert sum(counts.values()) == 10
        assert abs(counts[ONE] - counts[TWO]) <= 2

    async def test_a_crawl_that_comes_has_no_more_turns_than_those_that_wait(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        """Also while the limits of a third one count, which is far behind and wants no more."""
        await begin(frontier, ONE, interval=1.0)
        await begin(frontier, "third", interval=1.0)
        assert await fetch(frontier, "third", limit=1) == 1
        for _ in range(20):
            clock.advance(1.0)
            await fetch(frontier, ONE)
        await begin(frontier, TWO, interval=1.0)
        counts = await fetched_by_turns(frontier, clock, seconds=10)
        assert abs(counts[ONE] - counts[TWO]) <= 2
