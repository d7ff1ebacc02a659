"""What a frontier promises about exits that only some workers have: each lease call of theirs offers them."""

from __future__ import annotations

from typing import Any

import pytest

from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import BUSY_SECONDS, OFFER_SECONDS
from shoal.model import REGION, Crawl, Done, ExitUse, LeaseBatch, Pool, Released
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import CRAWL, LEASE_SECONDS, FrontierCase, check_counts, make_task
from shoal.testing.contract.frontier.exit_promises import end, exits_of, fill, make_pool, open_pools, status_of

DE = f"{REGION}de"
LANE = f"a.test via {DE}"


def offer(*exits: str, name: str = DE, **limits: Any) -> Pool:
    """What a worker offers to a region; exits have no pace unless a test gives them one."""
    return Pool(**{"name": name, "exits": exits, "interval": 0.0, "cap": 100, **limits})


async def ask(
    frontier: Frontier, *offers: Pool, limit: int = 100, horizon: float = 0.0, worker: str = "w1"
) -> LeaseBatch:
    """A lease call of a worker that offers exits."""
    return await frontier.lease(
        [CRAWL], limit, worker=worker, seconds=LEASE_SECONDS, horizon=horizon, kinds=["http"], offers=offers
    )


class OfferPromises(FrontierCase):
    async def test_the_exits_of_a_region_are_used_by_the_worker_that_offers_them(self, frontier: Frontier) -> None:
        await fill(frontier, 4, LANE)
        assert sorted(exits_of(await ask(frontier, offer("a1", "a2")))) == ["a1", "a1", "a2", "a2"]

    async def test_a_worker_gets_leases_through_its_own_exits_alone(self, frontier: Frontier, second: Frontier) -> None:
        await fill(frontier, 40, LANE)
        assert set(exits_of(await ask(frontier, offer("a1", "a2"), limit=4))) == {"a1", "a2"}
        assert set(exits_of(await ask(second, offer("b1"), limit=4, worker="w2"))) == {"b1"}
        assert set(exits_of(await ask(frontier, offer("a1", "a2"), limit=4))) == {"a1", "a2"}
        assert exits_of(await ask(second, limit=4, worker="w3")) == []
        await check_counts(frontier, queued=28, leased=12)

    async def test_an_exit_that_two_workers_offer_has_one_interval_and_one_cap(
        self, frontier: Frontier, second: Frontier, clock: FakeClock
    ) -> None:
        shared = offer("x", interval=10.0, cap=1)
        await fill(frontier, 9, LANE)
        (lease,) = (await ask(frontier, shared)).leases
        assert (await ask(second, shared, worker="w2")).leases == []
        await end(frontier, lease, "ok")
        clock.advance(9.0)
        assert (await ask(second, shared, worker="w2")).leases == []
        clock.advance(1.0)
        assert exits_of(await ask(second, shared, worker="w2")) == ["x"]

    async def test_uses_the_own_exit_that_is_due_first(self, frontier: Frontier, clock: FakeClock) -> None:
        await fill(frontier, 9, LANE)
        mine, theirs = offer("x", "y", "z", interval=10.0), offer("b", interval=10.0)
        used = []
        for _ in range(6):
            used += exits_of(await ask(frontier, mine, limit=1))
            await ask(frontier, theirs, limit=1, worker="w2")
            clock.advance(4.0)
        assert used == ["x", "y", "z", "x", "y", "z"]

    async def test_a_pool_of_the_crawl_may_have_common_exits_and_offered_ones(
        self, frontier: Frontier, second: Frontier
    ) -> None:
        await open_pools(frontier, make_pool("c1", "c2"))
        lane = "a.test via pool"
        await fill(frontier, 40, lane)
        offered = offer("a1", name="pool", cap=1)
        assert set(exits_of(await ask(frontier, offered, limit=6))) == {"a1", "c1", "c2"}
        assert set(exits_of(await ask(second, limit=6, worker="w2"))) == {"c1", "c2"}
        await open_pools(frontier, make_pool("c1"))
        assert set(exits_of(await ask(frontier, offered, limit=6))) == {"a1", "c1"}

    async def test_the_limits_of_the_crawls_own_pool_hold_for_offered_exits(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await open_pools(frontier, make_pool("c1", interval=5.0))
        await fill(frontier, 9, "a.test via pool")
        assert sorted(exits_of(await ask(frontier, offer("a1", name="pool")))) == ["a1", "c1"]
        clock.advance(4.0)
        assert exits_of(await ask(frontier, offer("a1", name="pool"))) == []

    async def test_offers_to_a_pool_that_the_crawl_does_not_have_are_ignored(self, frontier: Frontier) -> None:
        await open_pools(frontier, make_pool("c1"))
        await fill(frontier, 1, "a.test via pool")
        assert exits_of(await ask(frontier, offer("a1", name="other"))) == ["c1"]

    async def test_a_lane_whose_due_exits_are_those_of_others_is_not_asked_for_at_once(
        self, frontier: Frontier, second: Frontier
    ) -> None:
        await fill(frontier, 9, LANE)
        mine = offer("a1", cap=1)
        assert exits_of(await ask(frontier, mine)) == ["a1"]
        assert exits_of(await ask(second, offer("b1", cap=1), limit=0, worker="w2")) == []
        batch = await ask(frontier, mine)
        assert (batch.leases, batch.ask_again >= BUSY_SECONDS) == ([], True)
        assert exits_of(await ask(second, offer("b1", cap=1), worker="w2")) == ["b1"]

    async def test_a_crawl_that_waits_for_the_exits_of_others_does_not_delay_the_crawls_of_the_same_call(
        self, frontier: Frontier, second: Frontier, clock: FakeClock
    ) -> None:
        await fill(frontier, 9, LANE)
        mine = offer("a1", cap=1)
        assert exits_of(await ask(frontier, mine)) == ["a1"]
        assert exits_of(await ask(second, offer("b1", cap=1), limit=0, worker="w2")) == []
        await frontier.open_crawl(Crawl(id="other", spider="s", interval=0.1, cap=9, pace_scope="crawl"))
        await frontier.put("other", [make_task(number, "b.test") for number in (1, 2)])
        terms: dict[str, Any] = {"worker": "w1", "seconds": LEASE_SECONDS, "horizon": 0.0, "offers": [mine]}
        assert len((await frontier.lease(["other"], 9, **terms)).leases) == 1
        batch = await frontier.lease([CRAWL, "other"], 9, **terms)
        assert batch.leases == []
        assert batch.ask_again == pytest.approx(0.1)
        clock.advance(0.1)
        assert [lease.crawl for lease in (await frontier.lease([CRAWL, "other"], 9, **terms)).leases] == ["other"]

    async def test_lanes_that_wait_for_the_exits_of_others_do_not_hold_back_the_rest(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        theirs, mine = offer("b1", cap=1), offer("a1", cap=1)
        lanes = [f"{number}.test via {DE}" for number in range(12)]
        await fill(frontier, 3, *lanes)
        await ask(frontier, theirs, limit=0, worker="w2")
        first = await ask(frontier, mine)
        assert len(first.leases) == 12
        clock.advance(0.1)
        await fill(frontier, 1, f"late.test via {DE}", first=900)
        await frontier.put(CRAWL, [make_task(999, "direct.test")])
        got = set()
        for _ in range(8):
            clock.advance(BUSY_SECONDS)
            got |= {lease.task.lane for lease in (await ask(frontier, mine, limit=4)).leases}
        assert got == {f"late.test via {DE}", "direct.test"}
        assert len((await ask(frontier, theirs, worker="w2")).leases) >= 12

    async def test_exits_that_nobody_offers_any_more_leave_their_pool_and_come_back_as_they_were(
        self, frontier: Frontier, second: Frontier, clock: FakeClock
    ) -> None:
        mine, theirs = offer("a1", quarantine=500.0), offer("b1", quarantine=500.0)
        await fill(frontier, 9, LANE)
        (lease,) = (await ask(frontier, mine, limit=1)).leases
        await end(frontier, lease, "blocked")
        clock.advance(OFFER_SECONDS)
        assert exits_of(await ask(second, theirs, limit=1, worker="w2")) == ["b1"]
        assert (await status_of(frontier, "a1", LANE)).rests_for == pytest.approx(500.0 - OFFER_SECONDS)
        assert exits_of(await ask(frontier, mine, limit=1)) == []
        clock.advance(500.0 - OFFER_SECONDS)
        assert exits_of(await ask(frontier, mine, limit=1)) == ["a1"]

    async def test_a_worker_that_offers_the_only_exits_left_is_not_called_for_those_that_are_gone(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await fill(frontier, 9, LANE)
        await ask(frontier, offer("b1", interval=9.0), limit=1, worker="w2")
        clock.advance(OFFER_SECONDS)
        mine = offer("a1", interval=9.0)
        assert exits_of(await ask(frontier, mine)) == ["a1"]
        for _ in range(2):
            clock.advance(1.0)
            assert (await ask(frontier, mine)).leases == []
        clock.advance(7.0)
        assert exits_of(await ask(frontier, mine)) == ["a1"]

    async def test_a_quarantined_exit_of_a_region_is_not_used_before_its_time_and_then_tried_once(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        mine = offer("a1", quarantine=30.0)
        await fill(frontier, 9, LANE)
        (lease,) = (await ask(frontier, mine, limit=1)).leases
        await end(frontier, lease, "failed")
        for _ in range(3):
            assert (await ask(frontier, mine)).leases == []
            clock.advance(10.0)
        assert exits_of(await ask(frontier, mine)) == ["a1"]
        assert (await ask(frontier, mine)).leases == []

    async def test_the_rested_exit_of_another_worker_hides_no_own_one(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await fill(frontier, 9, LANE)
        theirs, mine = offer("b1", quarantine=10.0), offer("a1")
        (lease,) = (await ask(frontier, theirs, limit=1, worker="w2")).leases
        await end(frontier, lease, "blocked")
        clock.advance(20.0)
        assert exits_of(await ask(frontier, mine, limit=2)) == ["a1", "a1"]
        assert exits_of(await ask(frontier, theirs, worker="w2")) == ["b1"]

    async def test_a_host_of_a_sticky_pool_keeps_the_exit_of_its_worker(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        theirs, mine = offer("b1", sticky=True), offer("a1", sticky=True)
        await fill(frontier, 20, LANE)
        assert exits_of(await ask(frontier, theirs, limit=1, worker="w2")) == ["b1"]
        assert exits_of(await ask(frontier, mine, limit=1)) == []
        assert exits_of(await ask(frontier, theirs, limit=1, worker="w2")) == ["b1"]
        clock.advance(OFFER_SECONDS)
        assert exits_of(await ask(frontier, mine, limit=1)) == ["a1"]

    async def test_tasks_are_given_up_when_every_exit_that_is_offered_rests_too_long(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        mine = offer("a1", quarantine=1000.0, patience=50.0)
        await fill(frontier, 3, LANE)
        (lease,) = (await ask(frontier, mine, limit=1)).leases
        await end(frontier, lease, "failed")
        clock.advance(49.0)
        assert (await ask(frontier, mine)).leases == []
        await check_counts(frontier, queued=3)
        clock.advance(1.0)
        await ask(frontier, mine)
        await check_counts(frontier, dead=3)

    async def test_a_region_goes_at_the_pace_of_the_crawl(self, frontier: Frontier) -> None:
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=3.0, cap=7))
        await fill(frontier, 1, LANE)
        await ask(frontier, offer("a1", host_interval=99.0, host_cap=1), limit=0)
        await fill(frontier, 1, f"b.test via {DE}", first=50)
        paces = {lane.lane: (lane.interval, lane.cap) for lane in await frontier.lanes(CRAWL)}
        assert paces == {LANE: (3.0, 7), f"b.test via {DE}": (3.0, 7)}
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=2.0, cap=5))
        paces = {lane.lane: (lane.interval, lane.cap) for lane in await frontier.lanes(CRAWL)}
        assert paces == {LANE: (2.0, 5), f"b.test via {DE}": (2.0, 5)}

    async def test_a_region_keeps_its_limits_while_exits_with_other_limits_join(
        self, frontier: Frontier, second: Frontier, clock: FakeClock
    ) -> None:
        await fill(frontier, 20, LANE)
        assert exits_of(await ask(frontier, offer("a1", cap=1))) == ["a1"]
        theirs = offer("b1", cap=3)
        assert exits_of(await ask(second, theirs, worker="w2")) == ["b1"]
        assert exits_of(await ask(second, theirs, worker="w2")) == []
        clock.advance(OFFER_SECONDS)
        await ask(second, theirs, limit=0, worker="w2")
        used = exits_of(await ask(second, theirs, worker="w2"))
        assert (set(used), len(used) > 1) == ({"b1"}, True)

    async def test_a_region_has_the_strictest_limits_of_all_that_offer_it(
        self, frontier: Frontier, second: Frontier, clock: FakeClock
    ) -> None:
        await fill(frontier, 20, LANE)
        mine, theirs = offer("a1", cap=3), offer("b1", interval=5.0, cap=1)
        assert exits_of(await ask(frontier, mine, limit=2)) == ["a1", "a1"]
        (lease,) = (await ask(second, theirs, worker="w2")).leases
        assert exits_of(await ask(frontier, mine)) == []
        await end(second, lease, "ok")
        clock.advance(4.0)
        assert exits_of(await ask(second, theirs, worker="w2")) == []
        clock.advance(1.0)
        assert exits_of(await ask(second, theirs, worker="w2")) == ["b1"]

    async def test_a_worker_that_alone_offers_a_region_changes_its_limits(self, frontier: Frontier) -> None:
        await fill(frontier, 9, LANE)
        assert exits_of(await ask(frontier, offer("a1", "a2", cap=1))) == ["a1", "a2"]
        assert exits_of(await ask(frontier, offer("a1", "a2", cap=2))) == ["a1", "a2"]
        assert exits_of(await ask(frontier, offer("a1", "a2", "a3", cap=2))) == ["a3", "a3"]

    async def test_opening_a_crawl_again_keeps_what_is_offered(self, frontier: Frontier) -> None:
        await fill(frontier, 9, LANE)
        mine = offer("a1", interval=9.0)
        assert exits_of(await ask(frontier, mine)) == ["a1"]
        await open_pools(frontier, make_pool())
        assert exits_of(await ask(frontier, mine)) == []
        assert exits_of(await ask(frontier, offer("a2", interval=9.0), worker="w2")) == ["a2"]

    async def test_a_lease_through_an_exit_that_is_gone_ends_like_any_other(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await fill(frontier, 2, LANE)
        (lease,) = (await ask(frontier, offer("a1"), limit=1)).leases
        await frontier.extend([lease], seconds=500.0)
        clock.advance(OFFER_SECONDS)
        await ask(frontier, offer("b1"), limit=0, worker="w2")
        await frontier.settle([Released(lease=lease, exit=ExitUse())])
        one = await status_of(frontier, "a1", LANE)
        assert (one.ok, one.in_flight) == (1, 0)

    async def test_a_worker_may_offer_hundreds_of_addresses(self, frontier: Frontier) -> None:
        names = [f"bind:192.0.2.{number}" for number in range(254)]
        await fill(frontier, 300, LANE)
        used: list[str] = []
        for _ in range(3):
            leases = (await ask(frontier, offer(*names, cap=1))).leases
            used += [lease.exit for lease in leases]
            await frontier.settle([Done(lease=lease, exit=ExitUse()) for lease in leases])
        assert sorted(set(used)) == sorted(names)

    async def test_refuses_offers_that_cannot_be_told_apart(self, frontier: Frontier) -> None:
        with pytest.raises(UsageError, match=r"pool region:de: .* cannot be the name of an exit"):
            await ask(frontier, offer("a1", "a1"))
