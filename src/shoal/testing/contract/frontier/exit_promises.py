"""Frontier promises about exits (proxies and accounts): chosen and quarantined for the whole fleet."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from shoal.frontier.base import Frontier
from shoal.model import DIRECT, Budgets, Crawl, CrawlState, DeadFilter, Done, ExitStatus, ExitUse, Lease, Pool, Retry
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import CRAWL, FrontierCase, check_counts, keys, make_task, take, take_one

LANE = "a.test via pool"


def make_pool(*exits: str, **limits: Any) -> Pool:
    """A pool whose exits have no pace unless a test sets one."""
    return Pool(**{"name": "pool", "exits": exits or ("x", "y", "z"), "interval": 0.0, "cap": 100, **limits})


async def open_pools(frontier: Frontier, *pools: Pool, cost: float = 0.0) -> None:
    budgets = Budgets(cost=cost)
    await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=100, pools=pools, budgets=budgets))


async def fill(frontier: Frontier, count: int, *lanes: str, first: int = 0) -> None:
    numbers = itertools.count(first)
    for lane in lanes or (LANE,):
        await frontier.put(CRAWL, [make_task(next(numbers), lane, pool="pool") for _ in range(count)])


async def end(frontier: Frontier, lease: Lease, verdict: Any, **use: Any) -> None:
    """End the request of a lease with this verdict; its task is queued again as a free retry."""
    report = ExitUse(verdict=verdict, **use)
    await frontier.settle([Retry(lease=lease, reason=verdict, free=True, exit=report)])


async def status_of(frontier: Frontier, name: str, lane: str = LANE) -> ExitStatus:
    return next(one for one in await frontier.exits(CRAWL) if (one.exit, one.lane) == (name, lane))


def exits_of(batch: Any) -> list[str]:
    return [lease.exit for lease in batch.leases]


class ExitPromises(FrontierCase):
    async def test_a_lane_without_a_pool_goes_out_directly(self, frontier: Frontier) -> None:
        await open_pools(frontier, make_pool())
        await frontier.put(CRAWL, [make_task(1)])
        assert (await take_one(frontier)).exit == DIRECT
        assert await frontier.exits(CRAWL) == []

    async def test_a_page_is_stored_once_for_all_pools(self, frontier: Frontier) -> None:
        await open_pools(frontier, make_pool())
        for number in range(9):
            report = await frontier.put(CRAWL, [make_task(number, f"{number}.test")])
            assert (report.new, report.duplicates) == (1, 0)
            report = await frontier.put(CRAWL, [make_task(number, f"{number}.test via pool")])
            assert (report.new, report.duplicates) == (0, 1)

    async def test_uses_the_exit_that_is_due_first(self, frontier: Frontier, clock: FakeClock) -> None:
        await open_pools(frontier, make_pool(interval=10.0))
        await fill(frontier, 9)
        used = []
        for _ in range(6):
            used += exits_of(await take(frontier, 1))
            clock.advance(4.0)
        assert used == ["x", "y", "z", "x", "y", "z"]

    async def test_every_lane_begins_with_another_exit(self, frontier: Frontier) -> None:
        self.need_one_shard()
        await open_pools(frontier, make_pool())
        await fill(frontier, 1, *(f"{number}.test via pool" for number in range(6)))
        assert sorted(exits_of(await take(frontier))) == ["x", "x", "y", "y", "z", "z"]

    async def test_starts_through_one_exit_to_one_host_are_its_interval_apart(
        self, frontier: Frontier, second: Frontier, clock: FakeClock
    ) -> None:
        await open_pools(frontier, make_pool(interval=1.0))
        await fill(frontier, 60)
        starts: dict[str, list[float]] = {}
        for call in range(30):
            batch = await take(second if call % 2 else frontier, 7, horizon=0.5)
            for lease in batch.leases:
                starts.setdefault(lease.exit, []).append(clock() + lease.wait)
            await frontier.settle([Done(lease=lease, exit=ExitUse()) for lease in batch.leases])
            clock.advance(0.4)
        gaps = [later - earlier for times in starts.values() for earlier, later in itertools.pairwise(times)]
        assert min(gaps) >= 1.0 - 1e-6
        assert sum(map(len, starts.values())) >= 33  # three exits, one start a second each, for twelve seconds

    async def test_the_pace_of_a_host_holds_over_all_its_exits(self, frontier: Frontier, clock: FakeClock) -> None:
        await open_pools(frontier, make_pool(interval=1.0, host_interval=0.5))
        await fill(frontier, 20)
        starts = []
        for _ in range(12):
            starts += [clock() + lease.wait for lease in (await take(frontier, 5, horizon=1.0)).leases]
            clock.advance(0.3)
        assert min(later - earlier for earlier, later in itertools.pairwise(starts)) >= 0.5 - 1e-6
        assert len(starts) >= 7

    async def test_no_more_requests_in_flight_than_an_exit_may_have(self, frontier: Frontier) -> None:
        await open_pools(frontier, make_pool("x", "y", cap=2))
        await fill(frontier, 9)
        first = await take(frontier)
        assert sorted(exits_of(first)) == ["x", "x", "y", "y"]
        assert (await take(frontier)).leases == []
        await frontier.settle([Done(lease=first.leases[0], exit=ExitUse())])
        assert exits_of(await take(frontier)) == [first.leases[0].exit]

    async def test_a_host_may_have_fewer_requests_in_flight_than_its_exits(self, frontier: Frontier) -> None:
        await open_pools(frontier, make_pool(host_cap=2))
        await fill(frontier, 9)
        assert len((await take(frontier)).leases) == 2

    async def test_exits_of_different_hosts_do_not_wait_for_each_other(self, frontier: Frontier) -> None:
        await open_pools(frontier, make_pool("x", interval=100.0, cap=1))
        await fill(frontier, 2, "a.test via pool", "b.test via pool")
        assert len((await take(frontier)).leases) == 2

    @pytest.mark.parametrize("verdict", ["blocked", "failed"])
    async def test_a_blocked_exit_is_quarantined_and_then_tried_once(
        self, frontier: Frontier, clock: FakeClock, verdict: str
    ) -> None:
        await open_pools(frontier, make_pool("x", quarantine=60.0, cap=5))
        await fill(frontier, 9)
        await end(frontier, await take_one(frontier), verdict)
        assert (await status_of(frontier, "x")).rests_for == pytest.approx(60.0)
        clock.advance(59.0)
        assert (await take(frontier)).leases == []
        clock.advance(1.0)
        trial = await take(frontier)
        assert exits_of(trial) == ["x"]
        await end(frontier, trial.leases[0], "ok")
        assert len((await take(frontier)).leases) == 5

    async def test_an_exit_on_probation_is_used_before_the_healthy_ones(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await open_pools(frontier, make_pool("u", "v", "w", "x", "y", "z", quarantine=60.0))
        await fill(frontier, 30)
        for lease in (await take(frontier, 4)).leases:
            await end(frontier, lease, "ok" if lease.exit == "u" else "blocked")
            clock.advance(1.0)
        assert exits_of(await take(frontier, 5)) == ["y", "z", "u", "y", "z"]
        clock.advance(57.5)
        assert exits_of(await take(frontier, 4)) == ["v", "u", "y", "z"]
        clock.advance(2.0)
        assert exits_of(await take(frontier, 5)) == ["w", "x", "u", "y", "z"]

    async def test_each_failure_in_a_row_doubles_the_rest_up_to_a_limit(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await open_pools(frontier, make_pool("x", quarantine=10.0, max_quarantine=35.0))
        await fill(frontier, 1)
        rests = []
        for _ in range(4):
            await end(frontier, await take_one(frontier), "blocked")
            rests.append((await status_of(frontier, "x")).rests_for)
            clock.advance(rests[-1])
        assert rests == pytest.approx([10.0, 20.0, 35.0, 35.0])

    async def test_many_requests_that_fail_together_are_one_reason_to_rest(self, frontier: Frontier) -> None:
        await open_pools(frontier, make_pool("x", quarantine=10.0))
        await fill(frontier, 5)
        for lease in (await take(frontier)).leases:
            await end(frontier, lease, "blocked")
        status = await status_of(frontier, "x")
        assert (status.streak, status.blocked) == (1, 5)
        assert status.rests_for == pytest.approx(10.0)

    async def test_while_one_exit_rests_the_others_go_on(self, frontier: Frontier) -> None:
        await open_pools(frontier, make_pool())
        await fill(frontier, 9)
        await end(frontier, await take_one(frontier), "blocked")
        assert set(exits_of(await take(frontier))) == {"y", "z"}

    async def test_an_exit_rests_for_one_host_and_serves_the_others(self, frontier: Frontier) -> None:
        await open_pools(frontier, make_pool("x"))
        await fill(frontier, 2)
        await end(frontier, await take_one(frontier), "blocked")
        await fill(frontier, 1, "b.test via pool", first=50)
        assert keys(await take(frontier)) == [50]

    async def test_an_exit_that_fails_for_every_host_is_parked_and_tried_once(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        self.need_one_shard()
        await open_pools(frontier, make_pool("x", quarantine=10.0))
        lanes = [f"{number}.test via pool" for number in range(5)]
        await fill(frontier, 2, *lanes)
        failing = (await take(frontier, 3)).leases
        for lease in failing:
            await end(frontier, lease, "failed")
        assert len({lease.task.lane for lease in failing}) == 3
        assert (await take(frontier)).leases == []
        assert (await status_of(frontier, "x", failing[0].task.lane)).parked_for == pytest.approx(10.0)
        clock.advance(10.0)
        trial = await take(frontier)
        assert len(trial.leases) == 1
        await end(frontier, trial.leases[0], "failed")
        assert (await status_of(frontier, "x", trial.leases[0].task.lane)).parked_for == pytest.approx(20.0)

    async def test_one_success_ends_the_parking_of_an_exit(self, frontier: Frontier, clock: FakeClock) -> None:
        self.need_one_shard()
        await open_pools(frontier, make_pool("x", quarantine=10.0))
        await fill(frontier, 2, *(f"{number}.test via pool" for number in range(4)))
        for lease in (await take(frontier, 3)).leases:
            await end(frontier, lease, "failed")
        clock.advance(10.0)
        (trial,) = (await take(frontier)).leases
        await end(frontier, trial, "ok")
        clock.advance(10.0)
        assert len({lease.task.lane for lease in (await take(frontier)).leases}) == 4

    async def test_with_every_exit_resting_the_lane_waits_and_says_until_when(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await open_pools(frontier, make_pool("x", "y", quarantine=30.0))
        await fill(frontier, 5)
        for lease in (await take(frontier, 2)).leases:
            await end(frontier, lease, "blocked")
        assert (await take(frontier)).leases == []
        (lane,) = await frontier.lanes(CRAWL)
        assert lane.starts_in == pytest.approx(30.0)
        assert (await frontier.progress(CRAWL)).state == CrawlState.RUNNING

    async def test_tasks_are_given_up_when_all_exits_rested_too_long(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await open_pools(frontier, make_pool("x", quarantine=30.0, patience=100.0))
        await fill(frontier, 3)
        for _ in range(9):
            for lease in (await take(frontier)).leases:
                await end(frontier, lease, "blocked")
            clock.advance(15.0)
        letters = await frontier.dead(CRAWL, DeadFilter())
        assert {letter.reason for letter in letters} == {"no_exit: every exit of pool pool rests"}
        await check_counts(frontier, dead=3)
        assert (await take(frontier)).finished == (CRAWL,)

    async def test_a_success_restarts_the_patience(self, frontier: Frontier, clock: FakeClock) -> None:
        await open_pools(frontier, make_pool("x", quarantine=30.0, patience=100.0))
        await fill(frontier, 3)
        await end(frontier, await take_one(frontier), "blocked")
        clock.advance(90.0)
        await end(frontier, await take_one(frontier), "ok")
        await end(frontier, await take_one(frontier), "blocked")
        clock.advance(60.0)
        assert len((await take(frontier)).leases) == 1
        await check_counts(frontier, queued=2, leased=1)

    async def test_a_host_whose_exits_all_rested_and_that_keeps_one_again_has_new_patience(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await open_pools(frontier, make_pool("x", sticky=True, quarantine=30.0, patience=100.0))
        await fill(frontier, 3)
        await end(frontier, await take_one(frontier), "blocked")
        clock.advance(30.0)
        await end(frontier, await take_one(frontier), "ok")
        clock.advance(90.0)
        assert exits_of(await take(frontier, 1)) == ["x"]
        await check_counts(frontier, queued=2, leased=1)

    async def test_a_success_among_the_failures_of_one_settle_restarts_the_patience(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await open_pools(frontier, make_pool("x", quarantine=10.0, patience=50.0))
        await fill(frontier, 3)
        first, second, third = (await take(frontier)).leases
        await end(frontier, first, "blocked")
        clock.advance(45.0)
        reports = [(second, ExitUse()), (third, ExitUse(verdict="blocked"))]
        await frontier.settle([Retry(lease=lease, reason="x", free=True, exit=report) for lease, report in reports])
        clock.advance(10.0)
        assert exits_of(await take(frontier)) == ["x"]

    async def test_tasks_of_a_pool_that_does_not_exist_are_given_up(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1, "a.test via nowhere")])
        assert (await take(frontier)).leases == []
        (letter,) = await frontier.dead(CRAWL, DeadFilter())
        assert letter.reason == "no_exit: there is no pool nowhere"

    async def test_a_lost_lease_frees_its_exit(self, frontier: Frontier, clock: FakeClock) -> None:
        await open_pools(frontier, make_pool("x", cap=1))
        await fill(frontier, 2)
        await take_one(frontier)
        assert (await take(frontier)).leases == []
        clock.advance(61.0)
        assert exits_of(await take(frontier)) == ["x"]

    async def test_a_late_result_does_nothing_to_its_exit(self, frontier: Frontier, clock: FakeClock) -> None:
        await open_pools(frontier, make_pool("x", cap=1))
        await fill(frontier, 1)
        late = await take_one(frontier)
        clock.advance(61.0)
        await take_one(frontier)
        report = await frontier.settle([Done(lease=late, exit=ExitUse(verdict="blocked"))])
        assert report.stale == [late]
        status = await status_of(frontier, "x")
        assert (status.streak, status.in_flight) == (0, 1)

    async def test_a_sticky_host_keeps_its_exit_while_that_is_healthy(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await open_pools(frontier, make_pool(sticky=True, rotate=100.0, quarantine=1000.0))
        await fill(frontier, 9)
        used = []
        for _ in range(4):
            lease = await take_one(frontier)
            used.append(lease.exit)
            await end(frontier, lease, "ok")
            clock.advance(10.0)
        assert used == ["x", "x", "x", "x"]
        clock.advance(70.0)
        rotated = await take_one(frontier)
        assert rotated.exit == "y"
        await end(frontier, rotated, "blocked")
        assert (await take_one(frontier)).exit == "z"

    async def test_a_host_goes_back_to_the_exit_it_keeps_when_that_is_healthy_again(self, frontier: Frontier) -> None:
        await open_pools(frontier, make_pool(sticky=True, cap=2))
        await fill(frontier, 9)
        first, second = (await take(frontier, 2)).leases
        assert first.exit == second.exit == "x"
        await end(frontier, first, "blocked")
        await end(frontier, second, "ok")
        assert [lane.starts_in for lane in await frontier.lanes(CRAWL)] == [pytest.approx(60.0)]
        assert (await take(frontier)).leases == []

    async def test_another_start_slot_of_lane_and_exit_can_be_reserved(self, frontier: Frontier) -> None:
        await open_pools(frontier, make_pool("x", interval=10.0))
        await fill(frontier, 2)
        lease = await take_one(frontier)
        assert await frontier.reserve(CRAWL, LANE, exit=lease.exit) == pytest.approx(10.0)
        assert await frontier.reserve(CRAWL, LANE, exit=lease.exit) == pytest.approx(20.0)

    async def test_a_missed_slot_of_an_exit_is_moved_unless_a_later_one_was_lent(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await open_pools(frontier, make_pool("x", interval=10.0))
        await fill(frontier, 2)
        lease = await take_one(frontier)
        clock.advance(2.0)
        assert await frontier.reserve(CRAWL, LANE, exit=lease.exit, missed=2.0) == pytest.approx(0.0)
        assert await frontier.reserve(CRAWL, LANE, exit=lease.exit) == pytest.approx(10.0)
        assert await frontier.reserve(CRAWL, LANE, exit=lease.exit, missed=2.0) == pytest.approx(20.0)

    async def test_leases_for_later_do_not_delay_an_exit_that_becomes_free(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await open_pools(frontier, make_pool("x", "y", interval=1.0, cap=1))
        await fill(frontier, 9)
        first = await take_one(frontier)
        clock.advance(0.4)
        second = await take_one(frontier)
        clock.advance(0.2)
        await frontier.settle([Done(lease=second, exit=ExitUse())])
        (ahead,) = (await take(frontier, horizon=1.0)).leases
        assert ahead.exit == second.exit
        assert ahead.wait == pytest.approx(0.8)
        clock.advance(0.1)
        await frontier.settle([Done(lease=first, exit=ExitUse())])
        (next_one,) = (await take(frontier, horizon=1.0)).leases
        assert next_one.exit == first.exit
        assert next_one.wait == pytest.approx(0.3)

    async def test_says_that_the_exits_of_a_lane_rest_and_not_its_host(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await open_pools(frontier, make_pool("x", interval=50.0, quarantine=30.0))
        await fill(frontier, 3)
        lease = await take_one(frontier)
        (paced,) = await frontier.lanes(CRAWL)
        assert paced.starts_in == pytest.approx(50.0)
        assert (paced.exits_rest, paced.waits_for_exit) == (False, True)
        await end(frontier, lease, "blocked")
        assert [lane.exits_rest for lane in await frontier.lanes(CRAWL)] == [True]
        clock.advance(50.0)
        await end(frontier, await take_one(frontier), "ok")
        assert [lane.exits_rest for lane in await frontier.lanes(CRAWL)] == [False]
