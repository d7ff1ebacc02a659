"""What every frontier promises about hosts whose other crawls die, end or are deleted."""

from __future__ import annotations

import pytest

from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import LEARNT_SECONDS
from shoal.model import (
    Crawl,
    LaneUpdate,
)
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import LEASE_SECONDS, FrontierCase
from shoal.testing.contract.frontier.host_case import (
    LANES_OF_SEVERAL_STEPS,
    ONE,
    TWO,
    VIA_POOL,
    ask,
    begin,
    make_pool,
)


class LegacyPromises(FrontierCase):
    """What a crawl leaves to the others, and what not."""

    async def test_requests_of_a_crawl_without_workers_are_reclaimed_by_who_looks(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        """Its own workers have time to come back: as long as a lease lasts."""
        await begin(frontier, ONE, cap=1)
        await begin(frontier, TWO, cap=1)
        await ask(frontier, ONE)
        clock.advance(2 * LEASE_SECONDS - 1.0)
        assert (await ask(frontier, TWO)).leases == []
        assert (await frontier.progress(ONE)).leased == 1
        clock.advance(1.0)
        assert len((await ask(frontier, TWO)).leases) == 1
        progress = await frontier.progress(ONE)
        assert (progress.leased, progress.lost, progress.queued) == (0, 1, 50)

    async def test_an_account_that_a_crawl_without_workers_holds_comes_free(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        self.need_one_shard()
        await begin(frontier, ONE, VIA_POOL, pools=(make_pool("anna", exclusive=True),))
        await begin(frontier, TWO, "b.test via pool", pools=(make_pool("anna", exclusive=True),))
        await ask(frontier, ONE)
        clock.advance(2 * LEASE_SECONDS - 1.0)
        assert (await ask(frontier, TWO)).leases == []
        clock.advance(1.0)
        assert [lease.exit for lease in (await ask(frontier, TWO)).leases] == ["anna"]

    async def test_a_rest_outlives_the_crawl_that_it_was_given_to(self, frontier: Frontier, clock: FakeClock) -> None:
        await begin(frontier, ONE)
        await begin(frontier, TWO)
        await frontier.update_lane(ONE, "a.test", LaneUpdate(rest_seconds=30.0))
        await frontier.delete_crawl(ONE)
        await begin(frontier, "new")
        clock.advance(29.0)
        for name in (TWO, "new"):
            assert (await ask(frontier, name)).leases == []
        clock.advance(1.0)
        for name in (TWO, "new"):
            assert len((await ask(frontier, name, 1)).leases) == 1

    async def test_a_start_outlives_its_crawl_but_what_is_in_flight_does_not(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await begin(frontier, ONE, cap=1)
        await ask(frontier, ONE)
        clock.advance(1.0)
        await frontier.delete_crawl(ONE)
        await begin(frontier, TWO, interval=2.0, cap=1)
        clock.advance(0.9)
        assert (await ask(frontier, TWO)).leases == []
        clock.advance(0.1)
        assert len((await ask(frontier, TWO)).leases) == 1

    async def test_a_crawl_that_is_deleted_in_part_holds_nothing(self, frontier: Frontier, clock: FakeClock) -> None:
        self.need_one_shard()
        lanes = [VIA_POOL, *(f"{number}.test" for number in range(LANES_OF_SEVERAL_STEPS))]
        pools = (make_pool("anna", exclusive=True),)
        for name in (ONE, TWO):
            await begin(frontier, name, *lanes, cap=1, tasks=1, pools=pools)
        assert len((await ask(frontier, ONE, len(lanes))).leases) == len(lanes)
        assert (await ask(frontier, TWO, len(lanes))).leases == []
        await frontier.delete_crawl(ONE, seconds=0.0)
        clock.advance(1.0)
        assert len((await ask(frontier, TWO, len(lanes))).leases) == len(lanes)

    async def test_rules_outlive_the_crawl_that_fetched_them(self, frontier: Frontier, clock: FakeClock) -> None:
        await begin(frontier, ONE, needs_rules=True)
        update = LaneUpdate(rules=b"allow", rules_seconds=100.0, base_interval=3.0, why="asks for it")
        await frontier.update_lane(ONE, "a.test", update)
        await frontier.delete_crawl(ONE)
        clock.advance(90.0)
        await begin(frontier, TWO, needs_rules=True)
        (lease,) = (await ask(frontier, TWO)).leases
        assert (lease.opens_lane, lease.interval, lease.base_interval) == (False, 3.0, 3.0)
        assert (await frontier.rules(TWO, "a.test"))[1] == b"allow"
        clock.advance(10.0)
        assert [lease.opens_lane for lease in (await ask(frontier, TWO)).leases] == [True]

    @pytest.mark.parametrize("is_deleted", [False, True])
    async def test_a_pace_that_was_learnt_is_for_new_lanes_of_crawls_that_search(
        self, frontier: Frontier, clock: FakeClock, is_deleted: bool
    ) -> None:
        await begin(frontier, ONE, interval=1.0, fastest=0.1)
        await frontier.update_lane(ONE, "a.test", LaneUpdate(interval=0.3, learnt=0.25))
        if is_deleted:
            await frontier.delete_crawl(ONE)
        clock.advance(LEARNT_SECONDS - 1.0)
        await begin(frontier, TWO, "a.test", "b.test", interval=1.0, fastest=0.1)
        await begin(frontier, "plain", interval=1.0)
        paces = {lane.lane: (lane.interval, lane.base_interval) for lane in await frontier.lanes(TWO)}
        assert paces == {"a.test": (0.25, 1.0), "b.test": (1.0, 1.0)}
        assert [lane.interval for lane in await frontier.lanes("plain")] == [1.0]
        clock.advance(1.0)
        await begin(frontier, "late", interval=1.0, fastest=0.1)
        assert [lane.interval for lane in await frontier.lanes("late")] == [1.0]

    async def test_no_lane_is_faster_than_searches_of_its_crawl_may_make_it(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        async def pace_of(crawl: str) -> tuple[float, float]:
            (lane,) = await frontier.lanes(crawl)
            return lane.interval, lane.base_interval

        await begin(frontier, ONE, interval=1.0, fastest=0.1)
        await frontier.update_lane(ONE, "a.test", LaneUpdate(interval=0.2, learnt=0.2))
        await begin(frontier, TWO, interval=1.0, fastest=0.5)
        assert await pace_of(TWO) == (0.5, 1.0)
        # The same crawl with another end of its search; one that is as far away as before changes nothing.
        assert len((await ask(frontier, ONE, 1)).leases) == 1
        for fastest, interval in ((0.1, 0.2), (0.25, 0.25), (0.1, 0.25), (2.0, 1.0)):
            await frontier.open_crawl(Crawl(id=ONE, spider="s", interval=1.0, fastest=fastest))
            assert await pace_of(ONE) == (interval, 1.0)
        assert (await ask(frontier, ONE, 1)).ask_again == 1.0
        await frontier.open_crawl(Crawl(id=TWO, spider="s", interval=1.0))
        assert await pace_of(TWO) == (1.0, 1.0)
