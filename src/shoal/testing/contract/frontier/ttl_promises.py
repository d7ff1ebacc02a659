"""Frontier promises about crawls whose keys expire."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shoal.frontier.base import Frontier
from shoal.model import Budgets, Crawl, CrawlState, Dead, DeadFilter, Done, LaneUpdate, Retry, TaskState
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import CRAWL, FrontierCase, listed, make_task

TTL = 100.0
LATEST = 1.5 * TTL
WEEKLY = Crawl(id="weekly", spider="s", interval=0.0, cap=1000, dedup_ttl=TTL)


async def put(frontier: Frontier, *numbers: int) -> int:
    """How many of these keys were new."""
    return (await frontier.put(WEEKLY.id, [make_task(number) for number in numbers])).new


async def finish(frontier: Frontier, *numbers: int) -> None:
    """Put these keys and settle them as done."""
    assert await put(frontier, *numbers) == len(numbers)
    await settle_all(frontier)


async def settle_all(frontier: Frontier) -> None:
    batch = await frontier.lease([WEEKLY.id], 1000, worker="w", seconds=10.0, horizon=0.0)
    await frontier.settle([Done(lease=lease) for lease in batch.leases])


async def states(frontier: Frontier, numbers: Sequence[int]) -> list[TaskState]:
    return [(await frontier.look_up(WEEKLY.id, number)).state for number in numbers]


class TtlPromises(FrontierCase):
    """A key is known while its task exists, and for a time after."""

    async def test_a_done_key_is_known_for_its_ttl_and_can_be_put_again_soon_after(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        clock.advance(0.123)
        await frontier.open_crawl(WEEKLY)
        for ended in range(4):
            began = clock()
            clock.advance(17.0 * ended)
            await finish(frontier, ended)
            clock.advance(TTL - 0.001)
            assert await put(frontier, ended) == 0
            assert await states(frontier, [ended]) == [TaskState.DONE]
            clock.advance(LATEST - TTL + 0.002)
            assert await states(frontier, [ended]) == [TaskState.UNKNOWN]
            assert await put(frontier, ended) == 1
            await settle_all(frontier)
            assert clock() - began < 4 * TTL

    async def test_keys_expire_while_others_come_and_go(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.open_crawl(WEEKLY)
        ended: dict[int, float] = {}
        for step in range(60):
            clock.advance(7.0)
            await finish(frontier, *range(100 * step, 100 * step + 5))
            ended |= dict.fromkeys(range(100 * step, 100 * step + 5), clock())
            # Of the keys that must be known, the nearest to their end: a key that expired too early does not come back.
            young = [key for key, at in ended.items() if clock() - at < TTL][:10]
            old = [key for key, at in ended.items() if clock() - at >= LATEST]
            assert set(await states(frontier, young)) == {TaskState.DONE}
            assert set(await states(frontier, old)) <= {TaskState.UNKNOWN}
            for key in old:
                del ended[key]
        assert len(ended) < 200
        assert (await frontier.progress(WEEKLY.id)).done == 300

    async def test_the_time_counts_from_the_end_and_duplicates_do_not_refresh_it(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.open_crawl(WEEKLY)
        await put(frontier, 1)
        clock.advance(10 * TTL)
        assert await put(frontier, 1) == 0
        await settle_all(frontier)
        for _ in range(9):
            clock.advance(TTL / 10)
            assert await put(frontier, 1) == 0
        clock.advance(LATEST - 0.9 * TTL + 0.001)
        assert await put(frontier, 1) == 1

    async def test_a_task_that_is_not_done_stays_known_however_old_it_is(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.open_crawl(WEEKLY)
        await put(frontier, 1, 2, 3)
        await frontier.put(WEEKLY.id, [make_task(4, delay=9999.0), make_task(5, "b.test")])
        await frontier.update_lane(WEEKLY.id, "b.test", LaneUpdate(rest_seconds=99 * TTL))
        leases = (await frontier.lease([WEEKLY.id], 9, worker="w", seconds=9999.0, horizon=0.0)).leases
        await frontier.settle(
            [Dead(lease=leases[0], reason="gone"), Retry(lease=leases[1], reason="slow", delay=9999.0)]
        )
        expected = [TaskState.DEAD, TaskState.DELAYED, TaskState.LEASED, TaskState.DELAYED, TaskState.QUEUED]
        for _ in range(8):
            clock.advance(TTL)
            assert await put(frontier, 1, 2, 3, 4) == 0
            assert (await frontier.put(WEEKLY.id, [make_task(5, "b.test")])).new == 0
            assert await states(frontier, range(1, 6)) == expected
        await frontier.set_state(WEEKLY.id, CrawlState.CANCELLED)
        clock.advance(9 * TTL)
        assert await put(frontier, 1, 2, 3, 4) == 0
        progress = await frontier.progress(WEEKLY.id)
        assert (progress.known, progress.cancelled) == (5, 3)

    async def test_a_dropped_dead_letter_expires_and_a_requeued_one_does_not(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.open_crawl(WEEKLY)
        await put(frontier, 1, 2)
        batch = await frontier.lease([WEEKLY.id], 9, worker="w", seconds=10.0, horizon=0.0)
        await frontier.settle([Dead(lease=lease, reason="gone") for lease in batch.leases])
        clock.advance(5 * TTL)
        assert await frontier.drop_dead(WEEKLY.id, DeadFilter(key=1)) == 1
        assert await frontier.requeue_dead(WEEKLY.id, DeadFilter(key=2)) == 1
        clock.advance(TTL - 0.001)
        assert await put(frontier, 1, 2) == 0
        clock.advance(LATEST - TTL + 0.002)
        assert await put(frontier, 1, 2) == 1
        assert await states(frontier, [1, 2]) == [TaskState.QUEUED, TaskState.QUEUED]

    async def test_the_epoch_rises_when_keys_expire_and_no_more_often_than_every_half_ttl(
        self, frontier: Frontier, second: Frontier, clock: FakeClock
    ) -> None:
        await frontier.open_crawl(WEEKLY)
        await finish(frontier, 1)
        epochs = [(await frontier.progress(WEEKLY.id)).epoch]
        known = [TaskState.DONE]
        for _ in range(30):
            clock.advance(TTL / 10)
            batch = await second.lease([WEEKLY.id], 1, worker="w", seconds=10.0, horizon=0.0)
            epochs.append(batch.epoch)
            known += await states(frontier, [1])
        forgotten = known.index(TaskState.UNKNOWN)
        assert epochs[forgotten] > epochs[forgotten - 1]
        assert len(set(epochs)) <= 3 * 2 + 1
        assert (await frontier.progress(WEEKLY.id)).epoch == epochs[-1]

    async def test_settle_and_put_tell_that_keys_have_expired(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.open_crawl(WEEKLY)
        await put(frontier, 1)
        batch = await frontier.lease([WEEKLY.id], 1, worker="w", seconds=9999.0, horizon=0.0)
        clock.advance(LATEST)
        report = await frontier.settle([Done(lease=batch.leases[0], found=[make_task(2)])])
        assert report.epoch > batch.epoch
        clock.advance(LATEST)
        await put(frontier, 3)
        assert (await frontier.progress(WEEKLY.id)).epoch > report.epoch

    async def test_a_page_done_again_counts_again_and_fills_budgets_again(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.open_crawl(msgspec.structs.replace(WEEKLY, budgets=Budgets(pages=3)))
        for _ in range(2):
            await finish(frontier, 1)
            clock.advance(LATEST)
        progress = await frontier.progress(WEEKLY.id)
        assert (progress.done, progress.known, progress.outcomes) == (2, 2, {"ok": 2})
        report = await frontier.put(WEEKLY.id, [make_task(1), make_task(2)])
        assert (report.new, report.refused) == (1, {2: "max_pages"})
        await settle_all(frontier)
        assert (await frontier.progress(WEEKLY.id)).known == 3

    async def test_all_done_keys_of_a_crawl_that_was_idle_for_long_have_expired(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.open_crawl(WEEKLY)
        await finish(frontier, *range(50))
        await put(frontier, 99)
        clock.advance(1e6 * TTL)
        assert await put(frontier, *range(50), 99) == 50
        await settle_all(frontier)
        clock.advance(TTL - 0.001)
        assert await put(frontier, *range(50)) == 0
        assert (await frontier.progress(WEEKLY.id)).done == 101

    async def test_a_forgotten_key_leaves_no_trace_in_a_crawl_whose_keys_expire(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.open_crawl(WEEKLY)
        await finish(frontier, 1, 2)
        clock.advance(0.6 * TTL)
        await frontier.forget(WEEKLY.id, [1, 7])
        assert await states(frontier, [1, 2]) == [TaskState.UNKNOWN, TaskState.DONE]
        assert await put(frontier, 1, 2) == 1
        batch = await frontier.lease([WEEKLY.id], 9, worker="w", seconds=10.0, horizon=0.0)
        await frontier.settle([Dead(lease=batch.leases[0], reason="gone")])
        await frontier.forget(WEEKLY.id, [1])
        await finish(frontier, 1)
        clock.advance(0.9 * TTL)
        assert await states(frontier, [1, 2]) == [TaskState.DONE, TaskState.UNKNOWN]

    async def test_the_length_of_a_ttl_may_change_but_not_whether_there_is_one(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.open_crawl(WEEKLY)
        taken = await frontier.open_crawl(msgspec.structs.replace(WEEKLY, dedup_ttl=0.0))
        assert taken.dedup_ttl == TTL
        taken = await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=100, dedup_ttl=1.0))
        assert taken.dedup_ttl == 0.0
        assert {crawl.id: crawl.dedup_ttl for crawl in await listed(frontier)} == {CRAWL: 0.0, WEEKLY.id: TTL}
        await frontier.put(CRAWL, [make_task(1)])
        batch = await frontier.lease([CRAWL], 9, worker="w", seconds=10.0, horizon=0.0)
        await frontier.settle([Done(lease=batch.leases[0])])
        epoch = (await frontier.progress(CRAWL)).epoch
        clock.advance(1e9)
        assert (await frontier.put(CRAWL, [make_task(1)])).new == 0
        assert (await frontier.progress(CRAWL)).epoch == epoch

    async def test_a_shorter_ttl_holds_from_the_change_on_and_cuts_no_key_short_of_it(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.open_crawl(WEEKLY)
        await finish(frontier, 1)
        clock.advance(0.45 * TTL)
        await finish(frontier, 2)
        short = msgspec.structs.replace(WEEKLY, dedup_ttl=TTL / 10)
        assert (await frontier.open_crawl(short)).dedup_ttl == TTL / 10
        clock.advance(TTL / 10 - 0.001)
        assert (await states(frontier, [2])) == [TaskState.DONE]
        clock.advance(0.5 * TTL / 10 + 0.002)
        assert await put(frontier, 1, 2) == 2

    async def test_a_longer_ttl_holds_for_tasks_that_end_after_the_change(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.open_crawl(WEEKLY)
        await finish(frontier, 1)
        clock.advance(0.7 * TTL)
        await frontier.open_crawl(msgspec.structs.replace(WEEKLY, dedup_ttl=10 * TTL))
        await finish(frontier, 2)
        clock.advance(0.3 * TTL - 0.001)
        assert await put(frontier, 1, 2) == 0
        clock.advance(9.7 * TTL)
        assert await put(frontier, 2) == 0
        clock.advance(5 * TTL + 0.002)
        assert await put(frontier, 1, 2) == 2

    async def test_a_deleted_crawl_takes_its_expiring_keys_with_it(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.open_crawl(WEEKLY)
        await finish(frontier, 1)
        clock.advance(TTL / 2)
        await finish(frontier, 2)
        await frontier.delete_crawl(WEEKLY.id)
        await frontier.open_crawl(WEEKLY)
        assert await states(frontier, [1, 2]) == [TaskState.UNKNOWN, TaskState.UNKNOWN]
        assert await put(frontier, 1, 2) == 2
