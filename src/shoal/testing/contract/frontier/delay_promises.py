"""What every frontier promises about tasks that are put to be fetched later."""

from __future__ import annotations

from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import MAX_WOKEN
from shoal.model import CrawlState, Done, TaskState
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import CRAWL, FrontierCase, check_counts, keys, make_task, take, take_one


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
        # Some of them may be on their way to another shard.
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
        # Those that were put first are due last.
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
