"""Frontier promises about requests that have landed: each frees its place, once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
import pytest

from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import SUSPECT_LOSSES
from shoal.model import Crawl, Dead, Done, ExitUse, LaneUpdate, Lease, Pool, Released, Retry
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import (
    CRAWL,
    LEASE_SECONDS,
    FrontierCase,
    check_counts,
    keys,
    make_task,
    take,
    take_one,
)

End = Callable[[Frontier, FakeClock, list[Lease]], Awaitable[object]]


async def _done(frontier: Frontier, _: FakeClock, leases: list[Lease]) -> object:
    return await frontier.settle([Done(lease=lease) for lease in leases])


async def _retried(frontier: Frontier, _: FakeClock, leases: list[Lease]) -> object:
    return await frontier.settle([Retry(lease=lease, reason="again") for lease in leases])


async def _buried(frontier: Frontier, _: FakeClock, leases: list[Lease]) -> object:
    return await frontier.settle([Dead(lease=lease, reason="gone") for lease in leases])


async def _released(frontier: Frontier, _: FakeClock, leases: list[Lease]) -> object:
    return await frontier.settle([Released(lease=lease) for lease in leases])


async def _evicted(frontier: Frontier, _: FakeClock, leases: list[Lease]) -> object:
    return await frontier.evict("w1")


async def _unknown(frontier: Frontier, _: FakeClock, leases: list[Lease]) -> object:
    return await frontier.evict("w1", known=[])


async def _expired(frontier: Frontier, clock: FakeClock, leases: list[Lease]) -> object:
    for _ in range(int(LEASE_SECONDS) + 1):
        # In small steps: after an outage, leases that could not be renewed would last again.
        clock.advance(1.0)
        await take(frontier, 0)
    return None


ENDS = [_done, _retried, _buried, _released, _evicted, _unknown, _expired]


async def in_flight(frontier: Frontier) -> dict[str, int]:
    """Requests in flight per lane."""
    return {lane.lane: lane.in_flight for lane in await frontier.lanes(CRAWL) if lane.in_flight}


class LandingPromises(FrontierCase):
    """The places of answered requests."""

    async def test_a_request_that_has_landed_frees_its_place_at_once(
        self, frontier: Frontier, second: Frontier
    ) -> None:
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(cap=3))
        await frontier.put(CRAWL, [make_task(number) for number in range(10)])
        first = (await take(frontier)).leases
        assert keys(await take(second, landed=first[:2])) == [3, 4]
        assert await in_flight(frontier) == {"a.test": 3}
        await check_counts(frontier, queued=5, leased=5)

    async def test_a_lease_whose_request_has_landed_stands(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1), make_task(2)])
        leases = (await take(frontier)).leases
        await take(frontier, landed=leases)
        assert await frontier.extend(leases, seconds=LEASE_SECONDS) == []
        assert (await frontier.settle([Done(lease=lease) for lease in leases])).stale == []
        await check_counts(frontier, done=2)

    async def test_a_request_lands_once(self, frontier: Frontier, second: Frontier) -> None:
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(cap=2))
        await frontier.put(CRAWL, [make_task(number) for number in range(10)])
        one, _ = (await take(frontier)).leases
        assert keys(await take(frontier, landed=[one, one])) == [2]
        assert keys(await take(second, landed=[one])) == []
        assert await in_flight(frontier) == {"a.test": 2}

    async def test_a_lost_lease_does_not_land(self, frontier: Frontier) -> None:
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(cap=1))
        await frontier.put(CRAWL, [make_task(1), make_task(2)])
        lost = await take_one(frontier)
        await frontier.evict("w1")
        again = await take_one(frontier)
        assert again.task.key == lost.task.key
        assert keys(await take(frontier, landed=[lost])) == []
        await frontier.settle([Done(lease=again)])
        assert keys(await take(frontier, landed=[lost, again])) == [2]
        assert await in_flight(frontier) == {"a.test": 1}

    async def test_only_leases_of_the_crawls_of_the_call_land(self, frontier: Frontier) -> None:
        await frontier.open_crawl(Crawl(id="other", spider="s", interval=0.0, cap=1))
        await frontier.put("other", [make_task(1, "b.test"), make_task(2, "b.test")])
        ask = partial(frontier.lease, worker="w1", seconds=LEASE_SECONDS, horizon=0.0)
        (lease,) = (await ask(["other"], 10)).leases
        await frontier.put(CRAWL, [make_task(1)])
        mine = await take_one(frontier)
        await take(frontier, landed=[lease, msgspec.structs.replace(mine, crawl="gone")])
        assert await in_flight(frontier) == {"a.test": 1}
        assert (await ask(["other"], 10)).leases == []
        assert len((await ask([CRAWL, "other"], 10, landed=[lease])).leases) == 1

    @pytest.mark.parametrize("end", ENDS, ids=lambda end: end.__name__.strip("_"))
    async def test_what_ends_a_landed_lease_frees_no_second_place(
        self, frontier: Frontier, clock: FakeClock, end: End
    ) -> None:
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(cap=3))
        await frontier.put(CRAWL, [make_task(number, max_attempts=9) for number in range(3)])
        leases = (await take(frontier)).leases
        await take(frontier, 0, landed=leases[:2])
        assert await in_flight(frontier) == {"a.test": 1}
        await end(frontier, clock, leases)
        assert await in_flight(frontier) == {}
        await frontier.put(CRAWL, [make_task(10 + number, priority=1) for number in range(9)])
        assert keys(await take(frontier)) == [10, 11, 12]

    async def test_a_task_that_is_lent_again_takes_a_place_again(self, frontier: Frontier) -> None:
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(cap=1))
        await frontier.put(CRAWL, [make_task(1), make_task(2)])
        lease = await take_one(frontier)
        await take(frontier, 0, landed=[lease])
        await frontier.settle([Released(lease=lease)])
        again = await take_one(frontier)
        assert again.task.key == 1
        assert await in_flight(frontier) == {"a.test": 1}
        assert keys(await take(frontier)) == []
        assert keys(await take(frontier, landed=[again])) == [2]

    async def test_a_lane_stays_closed_until_the_lease_that_opens_it_ends(self, frontier: Frontier) -> None:
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=4, needs_rules=True))
        await frontier.put(CRAWL, [make_task(1), make_task(2)])
        opener = await take_one(frontier)
        assert opener.opens_lane
        assert keys(await take(frontier, landed=[opener])) == []
        rules = LaneUpdate(rules=b"r", rules_seconds=1000.0)
        await frontier.settle([Released(lease=opener, lane=rules)])
        assert keys(await take(frontier)) == [1, 2]
        assert await in_flight(frontier) == {"a.test": 2}

    async def test_a_page_lent_alone_lands_like_any_other(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1, max_attempts=3)])
        for _ in range(SUSPECT_LOSSES):
            await take_one(frontier)
            await frontier.evict("w1")
        lease = await take_one(frontier)
        assert lease.alone
        await take(frontier, landed=[lease])
        assert await in_flight(frontier) == {}
        await frontier.evict("w1", suspects=[lease.token])
        again = await take_one(frontier)
        assert (again.alone, again.attempt) == (True, 2)
        assert await in_flight(frontier) == {"a.test": 1}

    async def test_an_exit_stays_in_use_until_its_lease_is_settled(self, frontier: Frontier) -> None:
        pool = Pool(name="p", exits=("e0", "e1"), interval=0.0, cap=1)
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=2, pools=(pool,)))
        await frontier.put(CRAWL, [make_task(number, "a.test via p") for number in range(4)])
        leases = (await take(frontier)).leases
        assert len(leases) == 2
        assert keys(await take(frontier, landed=leases)) == []
        assert sum(one.in_flight for one in await frontier.exits(CRAWL)) == 2
        await frontier.settle([Done(lease=lease, exit=ExitUse(verdict="ok")) for lease in leases])
        assert keys(await take(frontier)) == [2, 3]
        assert sum(one.in_flight for one in await frontier.exits(CRAWL)) == 2
