"""What every frontier tells of a lane that other crawls hold back."""

from __future__ import annotations

from shoal.frontier.base import Frontier
from shoal.model import Held, LaneUpdate
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import FrontierCase
from shoal.testing.contract.frontier.host_case import ONE, TWO, ask, begin


async def held(frontier: Frontier, crawl: str) -> Held | None:
    """What holds back the only lane of the crawl."""
    (lane,) = await frontier.lanes(crawl)
    return lane.held


class HeldPromises(FrontierCase):
    """One host, several crawls, and what people see of it."""

    async def test_a_lane_that_no_other_crawl_holds_back_says_so(self, frontier: Frontier) -> None:
        await begin(frontier, ONE, interval=9.0)
        assert await held(frontier, ONE) is None
        await begin(frontier, TWO, interval=1.0)
        # The other crawl has asked for nothing.
        assert await held(frontier, TWO) is None
        await ask(frontier, ONE)
        assert await held(frontier, TWO) is not None
        await frontier.delete_crawl(ONE)
        assert await held(frontier, TWO) is None

    async def test_a_lane_tells_which_crawl_takes_turns_with_it(self, frontier: Frontier) -> None:
        for name in (ONE, TWO):
            await begin(frontier, name, interval=1.0)
        await ask(frontier, ONE)
        assert await held(frontier, TWO) == Held(crawl=ONE, by="turn", interval=1.0, turns=1)

    async def test_a_lane_tells_which_crawl_is_slower(self, frontier: Frontier) -> None:
        await begin(frontier, ONE, interval=4.0)
        await begin(frontier, TWO, interval=1.0)
        await ask(frontier, ONE)
        assert await held(frontier, TWO) == Held(crawl=ONE, by="pace", interval=4.0, turns=1)
        found = await held(frontier, ONE)
        assert found is None or found.by == "turn"

    async def test_a_lane_tells_which_crawls_requests_leave_no_room(self, frontier: Frontier) -> None:
        await begin(frontier, ONE, cap=2)
        await begin(frontier, TWO, cap=9)
        await ask(frontier, ONE)
        found = await held(frontier, TWO)
        assert found is not None
        assert (found.crawl, found.by) == (ONE, "cap")

    async def test_a_lane_tells_which_crawl_was_asked_to_wait(self, frontier: Frontier, clock: FakeClock) -> None:
        await begin(frontier, ONE)
        await begin(frontier, TWO)
        await frontier.update_lane(ONE, "a.test", LaneUpdate(rest_seconds=30.0))
        clock.advance(10.0)
        assert await held(frontier, TWO) == Held(crawl=ONE, by="rest", seconds=20.0)
        assert await held(frontier, ONE) is None

    async def test_a_lane_tells_which_crawl_fetches_its_rules(self, frontier: Frontier) -> None:
        await begin(frontier, ONE, needs_rules=True)
        await begin(frontier, TWO, needs_rules=True)
        await ask(frontier, ONE)
        found = await held(frontier, TWO)
        assert found is not None
        assert (found.crawl, found.by) == (ONE, "rules")

    async def test_a_crawl_whose_pace_is_its_own_holds_nobody_back(self, frontier: Frontier) -> None:
        await begin(frontier, ONE, interval=9.0)
        await begin(frontier, TWO, interval=9.0, pace_scope="crawl")
        for name in (ONE, TWO):
            await ask(frontier, name)
            assert await held(frontier, name) is None
