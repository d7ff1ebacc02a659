"""Frontier promises about leasing tasks: one worker each, fairly, at the pace of the lane, and after their delay."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import MAX_WOKEN, SUSPECT_LOSSES
from shoal.frontier.rules.tasks import lent_at
from shoal.model import Crawl, CrawlState, Done, LaneUpdate, Released, Retry, TaskState
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


class LeasePromises(FrontierCase):
    """Exclusive leases, fairness, pace, expiry."""

    async def test_two_workers_asking_at_once_never_get_the_same_task(
        self, frontier: Frontier, second: Frontier
    ) -> None:
        await frontier.put(CRAWL, [make_task(number, lane=f"{number % 7}.test") for number in range(200)])
        asks = [take(view, 10, worker=f"w{number}") for number in range(10) for view in (frontier, second)]
        lent = [key for batch in await asyncio.gather(*asks) for key in keys(batch)]
        assert sorted(lent) == list(range(200))

    async def test_says_from_which_moment_of_this_process_the_waits_count(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1)])
        for _ in range(2):
            asked = time.monotonic()
            batch = await take(frontier)
            assert asked <= batch.at <= time.monotonic()

    async def test_serves_the_longest_waiting_lane_first(self, frontier: Frontier, clock: FakeClock) -> None:
        for number, lane in enumerate(("c.test", "a.test", "b.test")):
            await frontier.put(CRAWL, [make_task(number, lane), make_task(number + 10, lane)])
            clock.advance(1.0)
        order = []
        for _ in range(6):
            order += keys(await take(frontier, 1))
            clock.advance(1.0)
        assert order == [0, 1, 2, 10, 11, 12]

    async def test_a_lane_that_fills_again_queues_up_behind_the_lanes_that_waited(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.put(CRAWL, [make_task(1, "a.test")])
        await take_one(frontier)
        clock.advance(1.0)
        await frontier.put(CRAWL, [make_task(2, "b.test")])
        clock.advance(1.0)
        await frontier.put(CRAWL, [make_task(3, "a.test")])
        assert (await take_one(frontier)).task.key == 2

    async def test_a_huge_lane_does_not_starve_the_others(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(number, "huge.test") for number in range(300)])
        await frontier.put(CRAWL, [make_task(1000 + number, f"{number}.test") for number in range(4)])
        batch = await take(frontier, 10)
        assert {1000, 1001, 1002, 1003} <= set(keys(batch))
        assert len(batch.leases) == 10

    async def test_more_lanes_than_asked_for_take_turns(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.put(CRAWL, [make_task(number, f"{number % 10}.test") for number in range(100)])
        lanes = []
        for _ in range(20):
            clock.advance(0.001)
            lanes += [lease.task.lane for lease in (await take(frontier, 4)).leases]
        assert len(set(lanes[:12])) == 10
        assert all(lanes.count(f"{number}.test") >= 6 for number in range(10))

    async def test_lends_by_priority_then_by_age(self, frontier: Frontier) -> None:
        priorities = {1: 0, 2: 5, 3: -1, 4: 5, 5: 10**12, 6: 0}
        await frontier.put(CRAWL, [make_task(key, priority=priority) for key, priority in priorities.items()])
        assert keys(await take(frontier)) == [5, 2, 4, 1, 6, 3]

    async def test_starts_of_a_lane_are_an_interval_apart_over_all_workers(
        self, frontier: Frontier, second: Frontier, clock: FakeClock
    ) -> None:
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=2.0))
        await frontier.put(CRAWL, [make_task(number) for number in range(20)])
        starts = []
        for call in range(20):
            batch = await take(second if call % 3 else frontier, 5, horizon=1.5)
            starts += [clock() + lease.wait for lease in batch.leases]
            clock.advance(0.7)
        gaps = [later - earlier for earlier, later in itertools.pairwise(starts)]
        assert len(starts) >= 6
        assert min(gaps) >= 2.0 - 1e-6

    async def test_lends_no_more_than_a_lanes_cap(self, frontier: Frontier, second: Frontier) -> None:
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(cap=3))
        await frontier.put(CRAWL, [make_task(number) for number in range(10)])
        first = await take(frontier, 2)
        assert keys(await take(second, 10)) == [2]
        assert keys(await take(second, 10)) == []
        await frontier.settle([Done(lease=first.leases[0])])
        assert keys(await take(second, 10)) == [3]

    async def test_a_lane_that_emptied_and_filled_again_still_waits(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=10.0))
        await frontier.put(CRAWL, [make_task(1)])
        await frontier.settle([Done(lease=await take_one(frontier))])
        await frontier.put(CRAWL, [make_task(2)])
        clock.advance(9.0)
        assert (await take(frontier)).leases == []
        clock.advance(1.0)
        assert keys(await take(frontier)) == [2]

    async def test_a_resting_lane_lends_nothing_before_its_time(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.put(CRAWL, [make_task(1), make_task(2, "b.test")])
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(rest_seconds=30.0))
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(rest_seconds=5.0, interval=0.0))
        await frontier.put(CRAWL, [make_task(3, priority=9)])
        assert keys(await take(frontier)) == [2]
        clock.advance(29.0)
        assert (await take(frontier)).leases == []
        clock.advance(1.0)
        assert keys(await take(frontier)) == [3, 1]

    async def test_lends_ahead_within_the_horizon_and_never_beyond(self, frontier: Frontier) -> None:
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=0.25))
        await frontier.put(CRAWL, [make_task(number) for number in range(20)])
        batch = await take(frontier, horizon=1.0)
        assert [lease.wait for lease in batch.leases] == pytest.approx([0.0, 0.25, 0.5, 0.75, 1.0])
        assert {lease.interval for lease in batch.leases} == {0.25}
        assert (await take(frontier, horizon=1.0)).leases == []

    async def test_says_when_to_ask_again(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=0.5))
        await frontier.put(CRAWL, [make_task(1), make_task(2), make_task(3, "b.test", delay=0.25)])
        batch = await take(frontier)
        assert batch.ask_again == pytest.approx(0.25)
        clock.advance(0.25)
        batch = await take(frontier)
        assert keys(batch) == [3]
        assert batch.ask_again == pytest.approx(0.25)
        clock.advance(0.25)
        batch = await take(frontier)
        assert 0 < batch.ask_again <= 5.0

    async def test_lends_an_expired_lease_again_with_a_new_token(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.put(CRAWL, [make_task(1)])
        old = await take_one(frontier)
        clock.advance(LEASE_SECONDS - 1)
        assert (await take(frontier)).leases == []
        clock.advance(1.0)
        new = await take_one(frontier)
        assert new.token > old.token
        assert (old.attempt, new.attempt) == (1, 1)
        assert (await frontier.progress(CRAWL)).lost == 1

    async def test_tokens_grow_even_when_the_clock_goes_back(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.put(CRAWL, [make_task(1), make_task(2)])
        first = await take_one(frontier)
        clock.advance(-3600.0)
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=0.0))
        batch = await take(frontier, horizon=7200.0)
        assert batch.leases[0].token > first.token

    async def test_a_task_that_kills_its_workers_ends_as_a_dead_letter(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.put(CRAWL, [make_task(1, max_attempts=2)])
        attempts = []
        for _ in range(SUSPECT_LOSSES + 2):
            attempts.append((await take_one(frontier)).attempt)
            clock.advance(LEASE_SECONDS)
        assert attempts == [1, 1, 1, 2]
        batch = await take(frontier)
        assert (batch.leases, batch.finished) == ([], (CRAWL,))
        assert (await frontier.look_up(CRAWL, 1)).reason == "worker lost"
        await check_counts(frontier, dead=1)

    async def test_an_evicted_workers_tasks_are_lent_again_at_once(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1), make_task(2, max_attempts=1), make_task(3)])
        gone = await take(frontier, 2, worker="gone")
        await take(frontier, 1, worker="alive")
        assert await frontier.evict("gone") == 2
        assert await frontier.evict("gone") == 0
        assert keys(await take(frontier)) == [1, 2]
        assert (await frontier.settle([Done(lease=gone.leases[0])])).stale == [gone.leases[0]]
        await check_counts(frontier, leased=3)

    async def test_an_extended_lease_lasts_longer(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.put(CRAWL, [make_task(1)])
        lease = await take_one(frontier)
        clock.advance(LEASE_SECONDS - 1)
        assert await frontier.extend([lease], seconds=LEASE_SECONDS) == []
        clock.advance(LEASE_SECONDS - 1)
        assert (await take(frontier)).leases == []
        clock.advance(1.0)
        assert keys(await take(frontier)) == [1]

    async def test_a_change_of_pace_holds_from_the_next_lease_on(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=40.0))
        await frontier.put(CRAWL, [make_task(number) for number in range(9)])
        await take_one(frontier)
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=1.0))
        clock.advance(1.0)
        assert (await take_one(frontier)).interval == 1.0
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=5.0, base_interval=2.0))
        clock.advance(4.0)
        assert (await take(frontier)).leases == []
        clock.advance(1.0)
        assert (await take_one(frontier)).base_interval == 2.0

    async def test_many_reports_of_one_slow_down_slow_the_lane_once(self, frontier: Frontier) -> None:
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=1.0, cap=100))
        for _ in range(3):
            await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=2.0, if_interval=1.0))
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=9.0, if_interval=1.0))
        await frontier.put(CRAWL, [make_task(1)])
        assert [lane.interval for lane in await frontier.lanes(CRAWL)] == [2.0]

    async def test_a_wave_of_refusals_slows_and_rests_the_lane_once(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=1.0, base_interval=1.0))
        await frontier.put(CRAWL, [make_task(1)])
        began = clock()
        clock.advance(10.0)
        # The second request was leased at another interval, the third during the rest.
        for interval, started in ((1.0, began), (1.1, began + 1.0), (1.5, began + 11.0)):
            refused = LaneUpdate(interval=1.5 * interval, if_interval=interval, rest_seconds=2.0, started=started)
            await frontier.update_lane(CRAWL, "a.test", refused)
            clock.advance(0.5)
        assert [(lane.interval, lane.starts_in) for lane in await frontier.lanes(CRAWL)] == [(1.5, 0.5)]
        clock.advance(0.5)
        refused = LaneUpdate(interval=2.25, if_interval=1.5, rest_seconds=2.0, started=clock())
        await frontier.update_lane(CRAWL, "a.test", refused)
        assert [(lane.interval, lane.starts_in) for lane in await frontier.lanes(CRAWL)] == [(2.25, 2.0)]

    async def test_a_long_rest_is_kept_also_when_a_later_answer_of_the_wave_asks_for_it(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.put(CRAWL, [make_task(1)])
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(rest_seconds=1.0, started=clock()))
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(rest_seconds=120.0, started=clock()))
        assert [lane.starts_in for lane in await frontier.lanes(CRAWL)] == [120.0]

    async def test_a_slow_down_counts_although_the_lane_was_sped_up_since_the_request_was_lent(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=4.0))
        await frontier.put(CRAWL, [make_task(1)])
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=3.0, if_interval=4.0))
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=6.0, if_interval=4.0, started=clock()))
        assert [lane.interval for lane in await frontier.lanes(CRAWL)] == [6.0]

    async def test_no_two_leases_of_a_crawl_have_the_same_token(self, frontier: Frontier) -> None:
        """Not even on different hosts in the same moment: an eviction names leases only by their tokens."""
        await frontier.put(CRAWL, [make_task(number, f"{number % 12}.test") for number in range(36)])
        lent = [lease.token for limit in (18, 18) for lease in (await take(frontier, limit)).leases]
        assert len(set(lent)) == len(lent) == 36

    async def test_the_token_of_a_lease_tells_when_it_was_lent(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.put(CRAWL, [make_task(1)])
        clock.advance(1000.25)
        assert abs(lent_at((await take_one(frontier)).token) - clock()) < 0.1

    async def test_a_reserved_start_counts_in_the_pace(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=2.0))
        assert await frontier.reserve(CRAWL, "a.test") == 0.0
        assert await frontier.reserve(CRAWL, "a.test") == 2.0
        await frontier.put(CRAWL, [make_task(1)])
        clock.advance(3.9)
        assert (await take(frontier)).leases == []
        clock.advance(0.1)
        assert keys(await take(frontier)) == [1]
        assert await frontier.reserve(CRAWL, "new.test") == 0.0

    async def test_a_missed_slot_is_moved_unless_a_later_one_was_lent(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=2.0))
        assert await frontier.reserve(CRAWL, "a.test") == 0.0
        clock.advance(0.5)
        assert await frontier.reserve(CRAWL, "a.test", missed=0.5) == 0.0
        assert await frontier.reserve(CRAWL, "a.test") == pytest.approx(2.0)
        clock.advance(0.5)
        assert await frontier.reserve(CRAWL, "a.test", missed=0.5) == pytest.approx(3.5)

    async def test_a_lane_without_rules_lends_one_lease_that_opens_it(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.open_crawl(Crawl(id="ruled", spider="s", interval=1.0, cap=8, needs_rules=True))
        await frontier.put("ruled", [make_task(1), make_task(2)])
        batch = await frontier.lease(["ruled"], 8, worker="w", seconds=60.0, horizon=5.0)
        assert [lease.opens_lane for lease in batch.leases] == [True]
        clock.advance(30.0)
        assert (await frontier.lease(["ruled"], 8, worker="w", seconds=60.0, horizon=5.0)).leases == []
        assert await frontier.rules("ruled", "a.test") == (0, b"")
        update = LaneUpdate(rules=b"allow", rules_seconds=100.0, interval=3.0)
        await frontier.settle([Released(lease=batch.leases[0], lane=update)])
        assert await frontier.rules("ruled", "a.test") == (1, b"allow")
        batch = await frontier.lease(["ruled"], 8, worker="w", seconds=60.0, horizon=6.0)
        assert keys(batch) == [1, 2]
        assert [(lease.opens_lane, lease.rules_version, lease.wait) for lease in batch.leases] == [
            (False, 1, 3.0),
            (False, 1, 6.0),
        ]

    async def test_rules_that_ran_out_are_asked_for_again(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.open_crawl(Crawl(id="ruled", spider="s", interval=0.0, needs_rules=True))
        await frontier.update_lane("ruled", "a.test", LaneUpdate(rules=b"old", rules_seconds=10.0))
        await frontier.put("ruled", [make_task(1), make_task(2)])
        batch = await frontier.lease(["ruled"], 1, worker="w", seconds=60.0, horizon=0.0)
        assert not batch.leases[0].opens_lane
        clock.advance(10.0)
        batch = await frontier.lease(["ruled"], 1, worker="w", seconds=60.0, horizon=0.0)
        assert (batch.leases[0].opens_lane, batch.leases[0].rules_version) == (True, 0)

    async def test_a_lane_that_could_not_be_opened_rests(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.open_crawl(Crawl(id="ruled", spider="s", interval=1.0, needs_rules=True))
        await frontier.put("ruled", [make_task(1)])
        opener = await frontier.lease(["ruled"], 1, worker="w", seconds=60.0, horizon=0.0)
        await frontier.settle([Released(lease=opener.leases[0], lane=LaneUpdate(rest_seconds=300.0))])
        clock.advance(299.0)
        assert (await frontier.lease(["ruled"], 1, worker="w", seconds=60.0, horizon=0.0)).leases == []
        clock.advance(1.0)
        again = await frontier.lease(["ruled"], 1, worker="w", seconds=60.0, horizon=0.0)
        assert again.leases[0].opens_lane

    async def test_a_lost_opening_is_lent_to_the_next_worker(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.open_crawl(Crawl(id="ruled", spider="s", interval=0.0, needs_rules=True))
        await frontier.put("ruled", [make_task(1), make_task(2)])
        opener = (await frontier.lease(["ruled"], 8, worker="w", seconds=60.0, horizon=0.0)).leases[0]
        clock.advance(50.0)
        await frontier.extend([opener], seconds=60.0)
        clock.advance(59.0)
        assert (await frontier.lease(["ruled"], 8, worker="w", seconds=60.0, horizon=0.0)).leases == []
        clock.advance(1.0)
        again = await frontier.lease(["ruled"], 8, worker="w", seconds=60.0, horizon=0.0)
        assert [lease.opens_lane for lease in again.leases] == [True]

    async def test_a_retry_keeps_its_order_and_comes_after_its_delay(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.put(CRAWL, [make_task(number) for number in (1, 2, 3)])
        lease = await take_one(frontier)
        await frontier.settle([Retry(lease=lease, reason="timeout", delay=10.0)])
        assert keys(await take(frontier, 1)) == [2]
        clock.advance(9.0)
        await check_counts(frontier, queued=1, delayed=1, leased=1)
        clock.advance(1.0)
        batch = await take(frontier)
        assert keys(batch) == [1, 3]
        assert batch.leases[0].attempt == 2


class DelayPromises(FrontierCase):
    """Delayed from the put on, due at their time, once."""

    async def test_a_crawl_with_nothing_but_a_delayed_task_is_not_finished_before_that_is_done(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.put(CRAWL, [make_task(1, delay=3600.0)])
        for _ in range(3):
            batch = await take(frontier)
            assert (batch.leases, batch.finished) == ([], ())
            assert not (await frontier.progress(CRAWL)).is_finished
            clock.advance(1000.0)
        clock.advance(599.0)
        assert keys(await take(frontier)) == []
        clock.advance(1.0)
        batch = await take(frontier)
        assert (keys(batch), batch.leases[0].attempt) == ([1], 1)
        await frontier.settle([Done(lease=batch.leases[0])])
        assert (await take(frontier)).finished == (CRAWL,)

    async def test_links_that_a_page_found_may_be_delayed_as_well(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.put(CRAWL, [make_task(1)])
        found = [make_task(2, delay=40.0), make_task(3), make_task(4, lane="b.test", delay=20.0)]
        await frontier.settle([Done(lease=await take_one(frontier), found=found)])
        # Some tasks may be on their way to another shard.
        clock.advance(1.0)
        await take(frontier, 0)
        await check_counts(frontier, done=1, queued=1, delayed=2)
        assert keys(await take(frontier)) == [3]
        clock.advance(20.0)
        assert keys(await take(frontier)) == [4]
        clock.advance(20.0)
        assert keys(await take(frontier)) == [2]

    async def test_another_process_sees_when_a_delayed_task_is_due(
        self, frontier: Frontier, second: Frontier, clock: FakeClock
    ) -> None:
        await frontier.put(CRAWL, [make_task(1, delay=60.0)])
        status = await second.look_up(CRAWL, 1)
        assert (status.state, status.due_in) == (TaskState.DELAYED, 60.0)
        clock.advance(59.0)
        assert keys(await take(second)) == []
        clock.advance(1.0)
        assert keys(await take(second)) == [1]

    async def test_a_key_that_is_put_again_keeps_the_time_that_it_has(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.put(CRAWL, [make_task(1, delay=60.0), make_task(2)])
        report = await frontier.put(CRAWL, [make_task(1), make_task(1, delay=5.0), make_task(2, delay=60.0)])
        assert (report.new, report.duplicates) == (0, 3)
        await frontier.settle([Done(lease=await take_one(frontier))])
        clock.advance(6.0)
        assert keys(await take(frontier)) == []
        clock.advance(54.0)
        assert keys(await take(frontier)) == [1]

    async def test_a_lost_lease_of_a_task_that_was_delayed_does_not_delay_it_again(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.put(CRAWL, [make_task(1, delay=600.0)])
        clock.advance(600.0)
        await take_one(frontier)
        assert await frontier.evict("w1") == 1
        assert keys(await take(frontier)) == [1]

    async def test_a_delayed_task_that_is_cancelled_is_lent_when_it_is_resumed_and_due(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.put(CRAWL, [make_task(1, delay=60.0), make_task(2)])
        await frontier.set_state(CRAWL, CrawlState.CANCELLED)
        await check_counts(frontier, cancelled=2)
        clock.advance(100.0)
        assert keys(await take(frontier)) == []
        await frontier.set_state(CRAWL, CrawlState.RUNNING)
        assert sorted(keys(await take(frontier))) == [1, 2]

    async def test_many_that_are_due_at_once_wake_in_bounded_steps_in_the_order_of_their_puts(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        number = MAX_WOKEN + 10
        # The first tasks are due last.
        for key in range(0, number, 100):
            tasks = [make_task(one, delay=float(number - one)) for one in range(key, min(key + 100, number))]
            await frontier.put(CRAWL, tasks)
        clock.advance(number + 1.0)
        await take(frontier, 0)
        progress = await frontier.progress(CRAWL)
        assert progress.delayed >= 10
        assert progress.queued + progress.delayed == number
        for _ in range(3):
            await take(frontier, 0)
        assert keys(await take(frontier, 5)) == [0, 1, 2, 3, 4]
