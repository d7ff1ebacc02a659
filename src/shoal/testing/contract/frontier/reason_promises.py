"""What every frontier promises about the reasons that people read: why a lane rests, is slow, or has its own pace."""

from __future__ import annotations

from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import LONGEST_WHY
from shoal.model import Crawl, LaneStatus, LaneUpdate, Retry
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import CRAWL, FrontierCase, make_task, take_one


async def lane_of(frontier: Frontier, name: str = "a.test") -> LaneStatus:
    """The lane as people see it; it has a waiting task from the first call on."""
    await frontier.put(CRAWL, [make_task(1, name), make_task(2, name)])
    return next(lane for lane in await frontier.lanes(CRAWL) if lane.lane == name)


class ReasonPromises(FrontierCase):
    """Reasons."""

    async def test_a_lane_tells_why_it_rests_until_the_rest_is_over(
        self, frontier: Frontier, second: Frontier, clock: FakeClock
    ) -> None:
        await lane_of(frontier)
        rest = LaneUpdate(rest_seconds=30.0, why="429, asked to wait é")
        await frontier.settle([Retry(lease=await take_one(frontier), reason="429", lane=rest)])
        lane = await lane_of(second)
        assert (lane.why, lane.rests_for) == ("429, asked to wait é", 30.0)
        clock.advance(29.0)
        assert (await lane_of(second)).why == "429, asked to wait é"
        clock.advance(1.0)
        lane = await lane_of(second)
        assert (lane.why, lane.rests_for) == ("", 0.0)

    async def test_the_rest_that_lasts_longer_gives_the_reason(self, frontier: Frontier) -> None:
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(rest_seconds=30.0, why="the long one"))
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(rest_seconds=20.0, why="a shorter one"))
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=2.0, why="a slow-down meanwhile"))
        assert (await lane_of(frontier)).why == "the long one"
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(rest_seconds=40.0))
        assert (await lane_of(frontier)).why == ""

    async def test_a_lane_tells_why_it_is_slow_until_it_is_back_at_its_own_pace(self, frontier: Frontier) -> None:
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=2.0, if_interval=0.0, why="after 3 failures"))
        assert (await lane_of(frontier)).why == "after 3 failures"
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=4.0, if_interval=3.0, why="too late: stale"))
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=1.0, if_interval=2.0, why="faster again"))
        assert (await lane_of(frontier)).why == "after 3 failures"
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=0.0, if_interval=1.0))
        assert (await lane_of(frontier)).why == ""

    async def test_a_lane_that_is_faster_than_its_own_pace_tells_why_until_it_is_back(self, frontier: Frontier) -> None:
        own = LaneUpdate(interval=4.0, base_interval=4.0)
        await frontier.update_lane(CRAWL, "a.test", own)
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=3.0, if_interval=4.0, why="knee near 0.4/s"))
        assert (await lane_of(frontier)).why == "knee near 0.4/s"
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=2.0, if_interval=4.0, why="too late: stale"))
        assert (await lane_of(frontier)).why == "knee near 0.4/s"
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=2.5, if_interval=3.0))
        assert (await lane_of(frontier)).why == ""
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=3.0, if_interval=2.5, why="held below it"))
        assert (await lane_of(frontier)).why == "held below it"
        await frontier.update_lane(CRAWL, "a.test", own)
        assert (await lane_of(frontier)).why == ""

    async def test_a_lane_tells_why_its_own_pace_is_what_it_is(self, frontier: Frontier) -> None:
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=9.0, base_interval=9.0, why="Crawl-delay 9 s"))
        lane = await lane_of(frontier)
        assert (lane.why, lane.pace_why) == ("", "Crawl-delay 9 s")
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(rest_seconds=30.0, why="429"))
        lane = await lane_of(frontier)
        assert (lane.why, lane.pace_why) == ("429", "Crawl-delay 9 s")
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=0.0, base_interval=0.0))
        assert (await lane_of(frontier)).pace_why == ""

    async def test_keeps_the_beginning_of_a_long_reason(self, frontier: Frontier) -> None:
        long = "é" * (LONGEST_WHY + 1)
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(rest_seconds=30.0, base_interval=1.0, why=long))
        lane = await lane_of(frontier)
        assert (lane.why, lane.pace_why) == (long[:-1], long[:-1])

    async def test_each_lane_has_reasons_of_its_own_and_a_new_crawl_has_none(self, frontier: Frontier) -> None:
        for name in ("a.test", "b.test"):
            update = LaneUpdate(rest_seconds=30.0, base_interval=1.0, why=f"because of {name}")
            await frontier.update_lane(CRAWL, name, update)
        assert (await lane_of(frontier)).why == "because of a.test"
        await frontier.delete_crawl(CRAWL)
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s"))
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(rest_seconds=30.0, interval=0.0))
        lane = await lane_of(frontier)
        assert (lane.why, lane.pace_why) == ("", "")
