"""Frontier promises about crawls that are stopped before their work is done."""

from __future__ import annotations

import msgspec
import pytest

from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import LONGEST_BREAK, STAYER
from shoal.model import Crawl, CrawlState, Dead, Done, Limit, Progress, Retry
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import (
    CRAWL,
    LEASE_SECONDS,
    FrontierCase,
    check_counts,
    keys,
    listed,
    make_task,
    take,
    take_one,
)

OPENED = Crawl(id=CRAWL, spider="s", interval=0.0, cap=100)
LANES = ("a.test", "b.test", "c.test", "d.test")


async def limit_to(frontier: Frontier, *limits: Limit) -> None:
    await frontier.open_crawl(msgspec.structs.replace(OPENED, limits=limits))


async def fill(frontier: Frontier, number: int) -> None:
    await frontier.put(CRAWL, [make_task(key, LANES[key % len(LANES)]) for key in range(1, number + 1)])


def items(most: float) -> Limit:
    return Limit(of="note", note="items", most=most, why=f"max_items {most:g} reached")


async def reason_of(frontier: Frontier) -> tuple[CrawlState, str]:
    progress: Progress = await frontier.progress(CRAWL)
    return progress.state, progress.reason


class StopPromises(FrontierCase):
    """Stopped by a person, a count, or time."""

    async def test_a_stopped_crawl_lends_nothing_takes_results_and_keeps_its_tasks(
        self, frontier: Frontier, second: Frontier, clock: FakeClock
    ) -> None:
        await frontier.put(CRAWL, [make_task(1), make_task(2), make_task(3, delay=5.0)])
        lease = await take_one(frontier)
        await second.set_state(CRAWL, CrawlState.STOPPED, reason="spider: enough")
        batch = await take(frontier)
        assert (batch.leases, batch.finished) == ([], ())
        assert (await frontier.settle([Done(lease=lease, found=[make_task(4, "b.test")])])).stale == []
        batch = await take(frontier)
        assert (batch.leases, batch.finished) == ([], (CRAWL,))
        await check_counts(frontier, queued=2, delayed=1, done=1)
        assert await reason_of(frontier) == (CrawlState.STOPPED, "spider: enough")
        crawl = (await listed(frontier))[0]
        assert (crawl.state, crawl.finished) == (CrawlState.STOPPED, clock())

    async def test_a_stopped_crawl_that_is_resumed_goes_on(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1)])
        await frontier.set_state(CRAWL, CrawlState.STOPPED, reason="spider: enough")
        await frontier.set_state(CRAWL, CrawlState.STOPPED, reason="another")
        assert (await reason_of(frontier))[1] == "spider: enough"
        await frontier.set_state(CRAWL, CrawlState.RUNNING)
        assert await reason_of(frontier) == (CrawlState.RUNNING, "")
        assert (await listed(frontier))[0].finished is None
        assert keys(await take(frontier)) == [1]

    async def test_what_is_put_into_a_stopped_crawl_waits_until_it_is_resumed(self, frontier: Frontier) -> None:
        await frontier.set_state(CRAWL, CrawlState.STOPPED)
        assert (await frontier.put(CRAWL, [make_task(1)])).new == 1
        assert (await take(frontier)).leases == []
        await frontier.set_state(CRAWL, CrawlState.RUNNING)
        assert keys(await take(frontier)) == [1]

    async def test_a_stopped_crawl_has_ended_though_it_is_fed(self, frontier: Frontier) -> None:
        await frontier.set_feeding(CRAWL, "f", seconds=30.0)
        await fill(frontier, 2)
        assert (await take(frontier, 0)).finished == ()
        await frontier.set_state(CRAWL, CrawlState.STOPPED)
        assert (await take(frontier)).finished == (CRAWL,)

    async def test_a_stopped_crawl_can_be_cancelled_and_resumed(self, frontier: Frontier) -> None:
        await fill(frontier, 3)
        await frontier.set_state(CRAWL, CrawlState.STOPPED)
        await frontier.set_state(CRAWL, CrawlState.CANCELLED)
        await check_counts(frontier, cancelled=3)
        await frontier.set_state(CRAWL, CrawlState.RUNNING)
        await check_counts(frontier, queued=3)

    async def test_a_lease_of_a_stopped_crawl_that_runs_out_leaves_its_task(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await fill(frontier, 1)
        await take_one(frontier)
        await frontier.set_state(CRAWL, CrawlState.STOPPED)
        clock.advance(LEASE_SECONDS)
        batch = await take(frontier)
        assert (batch.leases, batch.finished) == ([], (CRAWL,))
        await check_counts(frontier, queued=1)

    async def test_is_stopped_when_a_note_comes_to_its_limit_over_all_workers(
        self, frontier: Frontier, second: Frontier, clock: FakeClock
    ) -> None:
        await limit_to(frontier, items(5))
        await fill(frontier, 12)
        ours, theirs = (await take(frontier, 4)).leases, (await take(second, 4, worker="w2")).leases
        await frontier.settle([Done(lease=lease, notes={"items": 1}) for lease in ours])
        assert len((await take(frontier, 1)).leases) == 1
        await second.settle([Retry(lease=theirs[0], reason="again", notes={"items": 1})])
        batch = await take(frontier)
        assert (batch.leases, batch.finished) == ([], ())
        assert await reason_of(second) == (CrawlState.STOPPED, "max_items 5 reached")
        assert (await listed(frontier))[0].finished == clock()
        # Earlier leases may exceed it.
        assert (
            await second.settle([Dead(lease=lease, reason="x", notes={"items": 2}) for lease in theirs[1:]])
        ).stale == []
        assert (await frontier.progress(CRAWL)).notes["items"] == 11

    async def test_a_limit_that_is_not_raised_stops_it_again_and_a_raised_one_does_not(
        self, frontier: Frontier
    ) -> None:
        await limit_to(frontier, items(1))
        await fill(frontier, 4)
        await frontier.settle([Done(lease=await take_one(frontier), notes={"items": 1})])
        assert (await take(frontier)).finished == (CRAWL,)
        await frontier.set_state(CRAWL, CrawlState.RUNNING)
        assert (await take(frontier)).leases == []
        assert (await reason_of(frontier))[0] == CrawlState.STOPPED
        await limit_to(frontier, items(2))
        assert (await listed(frontier))[0].limits == (items(2),)
        await frontier.set_state(CRAWL, CrawlState.RUNNING)
        assert len((await take(frontier)).leases) == 3

    async def test_a_crawl_that_reaches_its_limit_with_its_last_page_is_finished(self, frontier: Frontier) -> None:
        await limit_to(frontier, items(1))
        await fill(frontier, 1)
        await frontier.settle([Done(lease=await take_one(frontier), notes={"items": 1})])
        assert (await take(frontier)).finished == (CRAWL,)
        assert (await reason_of(frontier))[0] == CrawlState.FINISHED

    async def test_a_crawl_that_is_kept_open_is_stopped_though_nothing_is_left(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await limit_to(frontier, items(1))
        await fill(frontier, 1)
        lease = await take_one(frontier)
        await frontier.set_feeding(CRAWL, "f", seconds=30.0)
        await frontier.settle([Done(lease=lease, notes={"items": 1})])
        # Its feeder may have no more URLs: then it is finished.
        await take(frontier)
        assert (await reason_of(frontier))[0] == CrawlState.RUNNING
        await frontier.set_feeding(CRAWL, f"{STAYER}w", seconds=60.0)
        batch = await take(frontier)
        assert (batch.leases, await reason_of(frontier)) == ([], (CrawlState.STOPPED, "max_items 1 reached"))
        # No feeder keeps it open any more.
        await frontier.set_state(CRAWL, CrawlState.RUNNING)
        clock.advance(61.0)
        assert (await take(frontier)).finished == (CRAWL,)
        assert (await reason_of(frontier))[0] == CrawlState.FINISHED

    async def test_a_result_that_comes_too_late_counts_for_no_limit(self, frontier: Frontier, clock: FakeClock) -> None:
        await limit_to(frontier, items(1))
        await fill(frontier, 2)
        late = await take_one(frontier)
        clock.advance(LEASE_SECONDS)
        lease = await take_one(frontier)
        await frontier.settle([Done(lease=late, notes={"items": 1})])
        assert (await reason_of(frontier))[0] == CrawlState.RUNNING
        assert (await take(frontier)).leases != []
        await frontier.settle([Done(lease=lease)])

    async def test_is_stopped_at_a_time_of_day(self, frontier: Frontier, clock: FakeClock) -> None:
        await limit_to(frontier, items(9), Limit(of="wall", most=clock() + 10.0, why="deadline 06:00 passed"))
        await fill(frontier, 8)
        clock.advance(9.0)
        assert len((await take(frontier, 1)).leases) == 1
        clock.advance(1.0)
        assert (await take(frontier)).leases == []
        assert await reason_of(frontier) == (CrawlState.STOPPED, "deadline 06:00 passed")

    async def test_is_stopped_after_it_ran_for_so_long_while_workers_were_there(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await limit_to(frontier, Limit(of="ran", most=100.0, why="max_seconds 100 reached"))
        await fill(frontier, 50)
        assert len((await take(frontier, 1)).leases) == 1
        for _ in range(4):
            clock.advance(20.0)
            assert len((await take(frontier, 1)).leases) == 1
        # Time without workers, or paused, does not count.
        clock.advance(LONGEST_BREAK + 1.0)
        assert len((await take(frontier, 1)).leases) == 1
        await frontier.set_state(CRAWL, CrawlState.PAUSED)
        clock.advance(30.0)
        await take(frontier, 1)
        await frontier.set_state(CRAWL, CrawlState.RUNNING)
        assert (await frontier.progress(CRAWL)).ran == pytest.approx(80.0)
        clock.advance(19.0)
        leases = (await take(frontier, 1)).leases
        assert len(leases) == 1
        clock.advance(1.5)
        # A worker that renews counts.
        await frontier.extend(leases, seconds=LEASE_SECONDS)
        assert (await take(frontier)).leases == []
        assert await reason_of(frontier) == (CrawlState.STOPPED, "max_seconds 100 reached")
        assert (await frontier.progress(CRAWL)).ran == pytest.approx(100.5)

    async def test_the_time_before_it_runs_again_does_not_count(self, frontier: Frontier, clock: FakeClock) -> None:
        await limit_to(frontier, Limit(of="ran", most=100.0, why="max_seconds 100 reached"))
        await frontier.put(CRAWL, [make_task(1), make_task(2)])
        for _ in range(2):
            clock.advance(10.0)
            await frontier.settle([Done(lease=await take_one(frontier))])
        assert (await take(frontier)).finished == (CRAWL,)
        clock.advance(10.0)
        await frontier.put(CRAWL, [make_task(3), make_task(4)])
        # Finished for ten seconds, then stopped for thirty, without workers: it did not run.
        await frontier.settle([Done(lease=await take_one(frontier))])
        await frontier.set_state(CRAWL, CrawlState.STOPPED, reason="spider: enough")
        clock.advance(30.0)
        await frontier.set_state(CRAWL, CrawlState.RUNNING)
        clock.advance(5.0)
        await frontier.settle([Done(lease=await take_one(frontier))])
        assert (await frontier.progress(CRAWL)).ran == pytest.approx(15.0)
