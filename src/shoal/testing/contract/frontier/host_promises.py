"""Frontier promises about hosts that several crawls share: their pace, and the turns of the crawls."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import HEEDED_SECONDS, LOOK_AGAIN_SECONDS, WANTS_SECONDS
from shoal.frontier.rules.hosts import effective_weight
from shoal.model import CrawlState, Done, ExitUse, Handed, LaneUpdate, Released, Retry, stage_lane
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import LEASE_SECONDS, FrontierCase, keys, make_task
from shoal.testing.contract.frontier.host_case import (
    ALLOW,
    ONE,
    TWO,
    VIA_POOL,
    ask,
    begin,
    fetch,
    fetched_by_turns,
    make_pool,
)


class HostPromises(FrontierCase):
    """One host, several crawls."""

    # Pace.

    async def test_starts_of_two_crawls_are_the_longest_interval_apart(
        self, frontier: Frontier, second: Frontier, clock: FakeClock
    ) -> None:
        await begin(frontier, ONE, interval=1.0)
        await begin(frontier, TWO, interval=2.0)
        starts = []
        for call in range(60):
            batch = await ask(second if call % 2 else frontier, ONE if call % 3 else TWO, 3, horizon=1.5)
            starts += [clock() + lease.wait for lease in batch.leases]
            assert {lease.interval for lease in batch.leases} <= {2.0}
            clock.advance(0.7)
        gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
        assert min(gaps) >= 2.0 - 1e-6
        assert len(starts) >= 18

    async def test_two_crawls_together_keep_the_smallest_cap(self, frontier: Frontier, clock: FakeClock) -> None:
        await begin(frontier, ONE, cap=3)
        await begin(frontier, TWO, cap=2)
        first = (await ask(frontier, ONE)).leases
        assert len(first) == 3
        for lease, room in zip(first, (0, 0, 1), strict=True):
            assert len((await ask(frontier, TWO)).leases) == room
            await frontier.settle([Done(lease=lease)])
            clock.advance(LOOK_AGAIN_SECONDS)
        assert len((await ask(frontier, ONE)).leases) == 1
        clock.advance(LOOK_AGAIN_SECONDS)
        assert (await ask(frontier, ONE)).leases == []

    async def test_requests_that_have_landed_leave_their_places_to_other_crawls(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await begin(frontier, ONE, cap=1)
        await begin(frontier, TWO, cap=1)
        (lease,) = (await ask(frontier, ONE)).leases
        assert (await ask(frontier, TWO)).leases == []
        await ask(frontier, ONE, 0, landed=[lease])
        clock.advance(LOOK_AGAIN_SECONDS)
        assert len((await ask(frontier, TWO)).leases) == 1

    async def test_a_rest_holds_for_all_crawls(self, frontier: Frontier, clock: FakeClock) -> None:
        await begin(frontier, ONE)
        await begin(frontier, TWO, "a.test", "b.test")
        (lease,) = (await ask(frontier, ONE, 1)).leases
        await frontier.settle([Released(lease=lease, lane=LaneUpdate(rest_seconds=30.0))])
        assert {lease.task.lane for lease in (await ask(frontier, TWO, 60)).leases} == {"b.test"}
        clock.advance(29.0)
        assert (await ask(frontier, TWO)).leases == []
        clock.advance(1.0)
        assert len((await ask(frontier, TWO, 1)).leases) == 1

    async def test_a_pace_that_one_crawl_has_slowed_down_slows_all(self, frontier: Frontier, clock: FakeClock) -> None:
        await begin(frontier, ONE, interval=1.0)
        await begin(frontier, TWO, interval=1.0)
        (lease,) = (await ask(frontier, ONE)).leases
        await frontier.settle([Done(lease=lease, lane=LaneUpdate(interval=4.0))])
        clock.advance(3.9)
        assert (await ask(frontier, TWO)).leases == []
        clock.advance(0.1)
        (lease,) = (await ask(frontier, TWO)).leases
        assert (lease.interval, lease.base_interval) == (4.0, 1.0)

    async def test_a_pace_that_slows_down_holds_after_the_last_start_of_any_crawl(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await begin(frontier, ONE, interval=1.0)
        await begin(frontier, TWO, interval=1.0)
        (lease,) = (await ask(frontier, TWO)).leases
        clock.advance(1.0)
        assert await fetch(frontier, ONE, limit=1) == 1
        await frontier.settle([Released(lease=lease, lane=LaneUpdate(interval=4.0))])
        clock.advance(3.9)
        assert await fetch(frontier, ONE, limit=1) == 0
        clock.advance(0.1)
        assert await fetch(frontier, ONE, limit=1) == 1

    async def test_limits_count_while_a_crawl_has_requests_in_flight_or_has_asked_lately(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await begin(frontier, ONE, interval=10.0)
        await begin(frontier, TWO, interval=1.0)
        (held,) = (await ask(frontier, ONE)).leases
        intervals = []
        for _ in range(2):
            for _ in range(8):
                clock.advance(10.0)
                await frontier.extend([held], seconds=LEASE_SECONDS)
                intervals += [lease.interval for lease in (await ask(frontier, TWO)).leases]
            await frontier.settle([Done(lease=held)])
        assert intervals == [10.0] * 8 + [1.0] * 8
        await ask(frontier, ONE)
        clock.advance(10.0 + HEEDED_SECONDS - 0.1)
        assert [lease.interval for lease in (await ask(frontier, TWO)).leases] == [10.0]
        clock.advance(10.0)
        assert [lease.interval for lease in (await ask(frontier, TWO)).leases] == [1.0]

    @pytest.mark.parametrize("is_landed", [False, True])
    async def test_limits_count_while_a_crawl_that_goes_on_has_nothing_waiting(
        self, frontier: Frontier, clock: FakeClock, is_landed: bool
    ) -> None:
        """Its last page is in its handler and may yield links to the host."""
        await begin(frontier, ONE, interval=10.0, tasks=1)
        await begin(frontier, TWO, interval=1.0)
        (lease,) = (await ask(frontier, ONE)).leases
        if is_landed:
            await ask(frontier, ONE, 0, landed=[lease])
        else:
            await frontier.settle([Retry(lease=lease, delay=500.0, reason="http: 503")])
        for _ in range(5):
            clock.advance(10.0)
            assert [lease.interval for lease in (await ask(frontier, TWO)).leases] == [10.0]
            clock.advance(1.0)
            assert (await ask(frontier, TWO)).leases == []
        clock.advance(HEEDED_SECONDS)
        assert [lease.interval for lease in (await ask(frontier, TWO)).leases] == [1.0]

    @pytest.mark.parametrize("state", [CrawlState.FINISHED, CrawlState.CANCELLED])
    async def test_a_crawl_that_has_ended_limits_nobody_by_what_it_has_done(
        self, frontier: Frontier, clock: FakeClock, state: CrawlState
    ) -> None:
        await begin(frontier, ONE, interval=10.0, cap=1, tasks=1)
        await begin(frontier, TWO, interval=1.0)
        (lease,) = (await ask(frontier, ONE)).leases
        if state == CrawlState.CANCELLED:
            await frontier.set_state(ONE, state)
            clock.advance(9.9)
            assert (await ask(frontier, TWO)).leases == []
        await frontier.settle([Done(lease=lease)])
        assert (await ask(frontier, ONE)).finished == (ONE,)
        clock.advance(1.0)
        assert [lease.interval for lease in (await ask(frontier, TWO)).leases] == [1.0]

    async def test_a_cap_of_zero_stops_only_the_crawl_that_has_it(self, frontier: Frontier) -> None:
        await begin(frontier, ONE)
        await begin(frontier, TWO)
        await ask(frontier, ONE, 3)
        await frontier.update_lane(ONE, "a.test", LaneUpdate(cap=0))
        assert (await ask(frontier, ONE)).leases == []
        assert len((await ask(frontier, TWO, 5)).leases) == 5

    async def test_a_reserved_start_counts_for_all_crawls(self, frontier: Frontier, clock: FakeClock) -> None:
        await begin(frontier, ONE, interval=2.0)
        await begin(frontier, TWO, interval=1.0)
        await ask(frontier, ONE, 1)
        assert await frontier.reserve(TWO, "a.test") == 2.0
        clock.advance(3.9)
        assert (await ask(frontier, ONE)).leases == []
        clock.advance(0.1)
        assert len((await ask(frontier, ONE)).leases) == 1

    async def test_crawls_on_other_hosts_change_nothing(self, frontier: Frontier) -> None:
        await begin(frontier, ONE, "a.test", interval=10.0)
        await begin(frontier, TWO, "b.test", "a.test.b", interval=1.0)
        await ask(frontier, ONE)
        assert {lease.interval for lease in (await ask(frontier, TWO)).leases} == {1.0}

    async def test_one_call_for_several_crawls_lends_from_one_of_their_lanes(self, frontier: Frontier) -> None:
        await begin(frontier, ONE, cap=5)
        await begin(frontier, TWO, "a.test", "b.test", cap=5)
        lent = []
        for _ in range(2):
            batch = await frontier.lease([ONE, TWO], 50, worker="w", seconds=LEASE_SECONDS, horizon=0.0)
            lent.append(sorted({(lease.crawl, lease.task.lane) for lease in batch.leases}))
        assert lent == [[(ONE, "a.test"), (TWO, "b.test")], []]

    async def test_lanes_that_are_held_back_leave_their_places_to_the_next(self, frontier: Frontier) -> None:
        await begin(frontier, ONE, "a.test", "b.test", interval=9.0)
        await ask(frontier, ONE)
        await begin(frontier, TWO, "a.test", "b.test", "c.test", interval=1.0)
        assert [lease.task.lane for lease in (await ask(frontier, TWO, 1)).leases] == ["c.test"]

    async def test_a_lane_that_is_found_to_be_alone_beside_one_that_is_held_back_takes_its_slot(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await begin(frontier, ONE, "a.test", "b.test", interval=9.0)
        await ask(frontier, ONE, 1)
        await begin(frontier, TWO, "a.test", "b.test", interval=1.0)
        lent = []
        for _ in range(3):
            lent.append([lease.task.lane for lease in (await ask(frontier, TWO)).leases])
            clock.advance(0.5)
        assert lent == [["b.test"], [], ["b.test"]]

    # Rules.

    async def test_rules_are_fetched_once_for_all_crawls(self, frontier: Frontier, clock: FakeClock) -> None:
        await begin(frontier, ONE, interval=1.0, needs_rules=True)
        await begin(frontier, TWO, interval=1.0, needs_rules=True)
        (opener,) = (await ask(frontier, ONE)).leases
        assert opener.opens_lane
        clock.advance(2.0)
        assert (await ask(frontier, TWO)).leases == []
        update = LaneUpdate(rules=b"allow", rules_seconds=500.0, interval=3.0, base_interval=3.0, why="asks for it")
        await frontier.settle([Released(lease=opener, lane=update)])
        clock.advance(2.9)
        assert (await ask(frontier, TWO)).leases == []
        clock.advance(0.1)
        (lease,) = (await ask(frontier, TWO)).leases
        assert (lease.opens_lane, lease.interval, lease.base_interval) == (False, 3.0, 3.0)
        version, rules = await frontier.rules(TWO, "a.test")
        assert (version, rules) == (lease.rules_version, b"allow")
        (lane,) = await frontier.lanes(TWO)
        assert (lane.has_rules, lane.interval, lane.base_interval, lane.pace_why) == (True, 3.0, 3.0, "asks for it")

    async def test_an_opening_that_is_lost_is_for_the_next_crawl(self, frontier: Frontier, clock: FakeClock) -> None:
        await begin(frontier, ONE, needs_rules=True)
        await begin(frontier, TWO, needs_rules=True)
        await ask(frontier, ONE)
        assert (await ask(frontier, TWO)).leases == []
        await frontier.evict(f"worker of {ONE}")
        clock.advance(LOOK_AGAIN_SECONDS)
        assert [lease.opens_lane for lease in (await ask(frontier, TWO)).leases] == [True]

    async def test_a_crawl_that_needs_no_rules_does_not_wait_for_them(self, frontier: Frontier) -> None:
        await begin(frontier, ONE, needs_rules=True)
        await begin(frontier, TWO)
        await ask(frontier, ONE)
        assert len((await ask(frontier, TWO, 5)).leases) == 5

    # Exits.

    async def test_an_exit_keeps_its_interval_over_all_crawls(self, frontier: Frontier, clock: FakeClock) -> None:
        await begin(frontier, ONE, VIA_POOL, pools=(make_pool("x", interval=2.0),))
        await begin(frontier, TWO, VIA_POOL, pools=(make_pool("x", interval=5.0),))
        starts = []
        for call in range(40):
            batch = await ask(frontier, ONE if call % 2 else TWO, horizon=1.0)
            starts += [clock() + lease.wait for lease in batch.leases]
            assert {lease.exit_interval for lease in batch.leases} <= {5.0}
            clock.advance(1.1)
        gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
        assert min(gaps) >= 5.0 - 1e-6
        assert len(starts) >= 7

    async def test_an_exit_keeps_its_cap_over_all_crawls(self, frontier: Frontier, clock: FakeClock) -> None:
        for name in (ONE, TWO):
            await begin(frontier, name, VIA_POOL, pools=(make_pool("x", "y", cap=1),))
        (first,) = (await ask(frontier, ONE, 1)).leases
        (other,) = (await ask(frontier, TWO)).leases
        assert sorted([first.exit, other.exit]) == ["x", "y"]
        clock.advance(1.0)
        assert (await ask(frontier, TWO)).leases == []
        await frontier.settle([Done(lease=first, exit=ExitUse())])
        clock.advance(LOOK_AGAIN_SECONDS)
        assert [lease.exit for lease in (await ask(frontier, TWO)).leases] == [first.exit]

    async def test_an_account_is_held_by_one_lease_of_all_crawls(self, frontier: Frontier, clock: FakeClock) -> None:
        self.need_one_shard()
        await begin(frontier, ONE, VIA_POOL, pools=(make_pool("anna", exclusive=True),))
        await begin(frontier, TWO, "b.test via pool", pools=(make_pool("anna", exclusive=True),))
        (lease,) = (await ask(frontier, ONE)).leases
        assert (await ask(frontier, TWO)).leases == []
        clock.advance(1.0)
        assert (await ask(frontier, TWO)).leases == []
        await frontier.settle([Done(lease=lease, exit=ExitUse())])
        clock.advance(1.0)
        assert [lease.exit for lease in (await ask(frontier, TWO)).leases] == ["anna"]

    async def test_an_exit_is_quarantined_for_the_crawl_that_it_failed_for(self, frontier: Frontier) -> None:
        for name in (ONE, TWO):
            await begin(frontier, name, VIA_POOL, pools=(make_pool("x"),))
        (lease,) = (await ask(frontier, ONE, 1)).leases
        await frontier.settle([Released(lease=lease, exit=ExitUse(verdict="blocked"))])
        assert (await ask(frontier, ONE)).leases == []
        assert [lease.exit for lease in (await ask(frontier, TWO, 1)).leases] == ["x"]

    # A crawl that shares nothing.

    async def test_a_crawl_whose_pace_is_its_own_neither_looks_nor_is_looked_at(self, frontier: Frontier) -> None:
        await begin(frontier, ONE, interval=9.0, cap=1)
        await begin(frontier, TWO, interval=8.0, cap=2, pace_scope="crawl", needs_rules=True)
        await frontier.update_lane(ONE, "a.test", ALLOW)
        assert len((await ask(frontier, ONE)).leases) == 1
        (lease,) = (await ask(frontier, TWO)).leases
        assert (lease.interval, lease.wait, lease.opens_lane) == (8.0, 0.0, True)
        await frontier.update_lane(TWO, "a.test", LaneUpdate(rest_seconds=99.0))
        await begin(frontier, "third", interval=7.0)
        assert await frontier.reserve("third", "a.test") == 9.0

    async def test_pages_that_wait_for_a_handler_share_nothing(self, frontier: Frontier) -> None:
        stage = stage_lane("a.test", "parser")
        for name in (ONE, TWO):
            await begin(frontier, name, tasks=1)
            (lease,) = (await ask(frontier, name, 1)).leases
            await frontier.settle([Handed(lease=lease, task=make_task(0, stage, kind="parser"))])
        await frontier.update_lane(ONE, stage, LaneUpdate(rest_seconds=9.0))
        batch = await frontier.lease([TWO], 9, worker="w", seconds=9.0, horizon=0.0, kinds=("parser",))
        assert keys(batch) == [0]

    # The crawls themselves.

    async def test_the_scope_of_a_crawl_stays_and_its_weight_can_change(self, frontier: Frontier) -> None:
        await begin(frontier, ONE, pace_scope="crawl", weight=2.0)
        await begin(frontier, ONE, weight=3.0, fastest=0.1)
        crawl = next(crawl for crawl in await frontier.crawls() if crawl.id == ONE)
        assert (crawl.pace_scope, crawl.weight, crawl.fastest) == ("crawl", 3.0, 0.1)

    async def test_a_step_of_the_clock_that_both_have_noticed_changes_nothing(
        self, tmp_path: Path, frontier: Frontier, clock: FakeClock
    ) -> None:
        steady = await self.open(tmp_path, clock, clock.steady)
        for name in (ONE, TWO):
            await begin(steady, name, interval=4.0)
            await ask(steady, name, 0)
        await ask(steady, TWO, 1)
        clock.step(3600.0)
        for name in (TWO, ONE):
            await ask(steady, name, 0)
        clock.advance(3.9)
        assert (await ask(steady, ONE)).leases == []
        clock.advance(0.2)
        assert len((await ask(steady, ONE)).leases) == 1
        await steady.close()


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
        # The other crawl's turn was due a second ago.
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
        """Each start slot would be for the crawl that asks first."""
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
        """Also while the limits of a third crawl count that is far behind and wants no more."""
        await begin(frontier, ONE, interval=1.0)
        await begin(frontier, "third", interval=1.0)
        assert await fetch(frontier, "third", limit=1) == 1
        for _ in range(20):
            clock.advance(1.0)
            await fetch(frontier, ONE)
        await begin(frontier, TWO, interval=1.0)
        counts = await fetched_by_turns(frontier, clock, seconds=10)
        assert abs(counts[ONE] - counts[TWO]) <= 2
