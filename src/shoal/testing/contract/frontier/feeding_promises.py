"""Frontier promises about feeders: each has its own time, and a crawl is fed while one of them has time left."""

from __future__ import annotations

import pytest

from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import STAYER
from shoal.model import Crawl, CrawlState, Done
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import CRAWL, FrontierCase, make_task, take, take_one

A, B = "a", "b"
OPEN = f"{STAYER}worker"


async def is_finished(frontier: Frontier, crawl: str = CRAWL) -> bool:
    """Whether a worker that asks for leases is told that the crawl is finished."""
    return bool((await frontier.lease([crawl], 1, worker="w", seconds=60.0, horizon=0.0)).finished)


class FeedingPromises(FrontierCase):
    """Feeding, and its end."""

    async def test_a_crawl_that_is_being_fed_is_not_finished(self, frontier: Frontier) -> None:
        await frontier.set_feeding(CRAWL, A, seconds=10.0)
        assert not await is_finished(frontier)
        progress = await frontier.progress(CRAWL)
        assert (progress.feeding, progress.is_finished) == (True, False)
        await frontier.set_feeding(CRAWL, A, seconds=0)
        assert await is_finished(frontier)
        await frontier.set_feeding(CRAWL, A, seconds=10.0)
        assert (await frontier.progress(CRAWL)).state == CrawlState.RUNNING

    async def test_a_crawl_opened_to_be_fed_ends_when_the_feeding_does(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.open_crawl(Crawl(id="fed", spider="s", interval=0.0, feeding=True))
        clock.advance(3600.0)
        assert not await is_finished(frontier, "fed")
        assert (await frontier.progress("fed")).feeding
        await frontier.set_feeding("fed", A, seconds=10.0)
        await frontier.set_feeding("fed", A, seconds=0)
        assert await is_finished(frontier, "fed")
        assert not (await frontier.progress("fed")).feeding

    async def test_the_end_of_one_feeder_is_not_the_end_of_another(self, frontier: Frontier, second: Frontier) -> None:
        await frontier.set_feeding(CRAWL, A, seconds=10.0)
        await second.set_feeding(CRAWL, B, seconds=10.0)
        await frontier.set_feeding(CRAWL, A, seconds=0)
        assert not await is_finished(frontier)
        await second.set_feeding(CRAWL, B, seconds=0)
        assert await is_finished(frontier)
        assert (await frontier.progress(CRAWL)).feeders_lost == 0

    async def test_a_feeder_that_goes_on_keeps_the_crawl_from_ending(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        for _ in range(3):
            await frontier.set_feeding(CRAWL, A, seconds=10.0)
            clock.advance(9.0)
        assert not await is_finished(frontier)

    async def test_a_silent_feeder_lets_the_crawl_end_and_counts_as_lost(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.set_feeding(CRAWL, A, seconds=10.0)
        await frontier.set_feeding(CRAWL, B, seconds=10.0)
        await frontier.set_feeding(CRAWL, B, seconds=0)
        clock.advance(10.0)
        progress = await frontier.progress(CRAWL)
        assert (progress.feeding, progress.feeders_lost) == (False, 1)
        assert await is_finished(frontier)
        assert (await frontier.progress(CRAWL)).feeders_lost == 1

    async def test_a_lost_feeder_that_comes_back_sets_the_crawl_running_again(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.set_feeding(CRAWL, A, seconds=10.0)
        clock.advance(11.0)
        assert await is_finished(frontier)
        await frontier.put(CRAWL, [make_task(1)])
        await frontier.set_feeding(CRAWL, A, seconds=10.0)
        await frontier.settle([Done(lease=await take_one(frontier))])
        assert not await is_finished(frontier)
        await frontier.set_feeding(CRAWL, A, seconds=0)
        assert await is_finished(frontier)
        assert (await frontier.progress(CRAWL)).feeders_lost == 0

    async def test_a_feeder_makes_up_for_those_whose_time_is_soon_over(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.set_feeding(CRAWL, "long gone", seconds=5.0)
        clock.advance(6.0)
        await frontier.set_feeding(CRAWL, "just killed", seconds=10.0)
        await frontier.set_feeding(CRAWL, B, seconds=10.0, makes_up=0.0)
        assert (await frontier.progress(CRAWL)).feeders_lost == 0
        clock.advance(3.0)
        await frontier.set_feeding(CRAWL, B, seconds=0)
        assert not await is_finished(frontier)
        await frontier.set_feeding(CRAWL, B, seconds=0, makes_up=7.0)
        assert await is_finished(frontier)
        assert (await frontier.progress(CRAWL)).feeders_lost == 0

    async def test_a_feeder_does_not_make_up_for_one_that_feeds(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.set_feeding(CRAWL, A, seconds=10.0)
        await frontier.set_feeding(CRAWL, B, seconds=10.0, makes_up=0.0)
        clock.advance(3.0)
        await frontier.set_feeding(CRAWL, A, seconds=10.0)
        await frontier.set_feeding(CRAWL, B, seconds=0, makes_up=7.0)
        assert not await is_finished(frontier)
        clock.advance(11.0)
        assert await is_finished(frontier)
        assert (await frontier.progress(CRAWL)).feeders_lost == 1

    async def test_a_feeder_that_makes_up_for_others_and_is_lost_is_counted_for_all(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.set_feeding(CRAWL, A, seconds=5.0)
        await frontier.set_feeding(CRAWL, B, seconds=5.0, makes_up=5.0)
        clock.advance(6.0)
        assert (await frontier.progress(CRAWL)).feeders_lost == 1

    async def test_one_that_keeps_a_crawl_open_is_not_missed_when_its_time_is_over(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.set_feeding(CRAWL, OPEN, seconds=10.0)
        await frontier.set_feeding(CRAWL, A, seconds=5.0)
        clock.advance(9.0)
        assert not await is_finished(frontier)
        clock.advance(2.0)
        assert (await frontier.progress(CRAWL)).feeders_lost == 1
        assert await is_finished(frontier)
        await frontier.set_feeding(CRAWL, OPEN, seconds=10.0)
        assert (await frontier.progress(CRAWL)).state == CrawlState.RUNNING
        assert (await frontier.progress(CRAWL)).feeders_lost == 1

    async def test_no_feeder_makes_up_for_one_that_keeps_a_crawl_open(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.set_feeding(CRAWL, OPEN, seconds=10.0)
        await frontier.set_feeding(CRAWL, A, seconds=0, makes_up=20.0)
        assert not await is_finished(frontier)
        clock.advance(11.0)
        await frontier.set_feeding(CRAWL, B, seconds=0)
        assert await is_finished(frontier)

    async def test_the_end_of_a_feeder_may_be_said_twice(self, frontier: Frontier) -> None:
        await frontier.set_feeding(CRAWL, A, seconds=10.0)
        await frontier.set_feeding(CRAWL, B, seconds=10.0)
        for _ in range(2):
            await frontier.set_feeding(CRAWL, A, seconds=0)
        assert not await is_finished(frontier)

    async def test_a_cancelled_crawl_stays_cancelled_while_it_is_fed(self, frontier: Frontier) -> None:
        await frontier.set_state(CRAWL, CrawlState.CANCELLED)
        await frontier.set_feeding(CRAWL, A, seconds=10.0)
        assert (await frontier.progress(CRAWL)).state == CrawlState.CANCELLED

    async def test_a_crawl_of_the_same_name_has_no_feeders_of_the_deleted_one(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.set_feeding(CRAWL, A, seconds=10.0)
        await frontier.delete_crawl(CRAWL)
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s"))
        clock.advance(11.0)
        assert (await frontier.progress(CRAWL)).feeders_lost == 0
        assert (await take(frontier)).finished == (CRAWL,)

    async def test_nobody_feeds_a_crawl_that_is_not_there(self, frontier: Frontier) -> None:
        with pytest.raises(UsageError, match="no crawl"):
            await frontier.set_feeding("nope", A, seconds=10.0)
