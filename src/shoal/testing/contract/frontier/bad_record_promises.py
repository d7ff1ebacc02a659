"""Promises about records that cannot be read: they stop nobody, and are counted."""

from __future__ import annotations

import pytest

from shoal.frontier.base import Frontier
from shoal.frontier.rules.tasks import BAD_RECORD, SET_ASIDE
from shoal.model import CrawlState, DeadFilter, Done, Retry
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import CRAWL, LEASE_SECONDS, FrontierCase, check_counts, make_task, take

LANES = ("a.test", "b.test", "c.test", "d.test")
BAD = 2


class BadRecordPromises(FrontierCase):
    """What happens to a task whose record was damaged, and to the tasks beside it."""

    async def damage(self, frontier: Frontier, crawl: str, key: int) -> None:
        """Let the record of the task with this key become bytes that are none. Only a backend can do that."""
        pytest.skip("this frontier keeps no bytes that could be damaged, or its test does not say how")

    async def work_to_the_end(self, frontier: Frontier, clock: FakeClock) -> None:
        for _ in range(20):
            batch = await take(frontier)
            await frontier.settle([Done(lease=lease) for lease in batch.leases])
            if CRAWL in batch.finished:
                return
            clock.advance(LEASE_SECONDS)
        pytest.fail(f"the crawl does not end: {await frontier.progress(CRAWL)}")

    async def check_one_is_bad(self, frontier: Frontier) -> None:
        """One task is a dead letter or set aside; the others are done, and the counters add up."""
        progress = await frontier.progress(CRAWL)
        letters = await frontier.dead(CRAWL, DeadFilter())
        assert progress.state is CrawlState.FINISHED
        assert sum(number for name, number in progress.notes.items() if name.startswith(SET_ASIDE)) == 1
        assert [letter.reason for letter in letters] in ([], [BAD_RECORD])
        dead = {"dead": len(letters)} if letters else {}
        await check_counts(frontier, done=len(LANES) - 1, **dead)

    async def put_some(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(key, lane) for key, lane in enumerate(LANES, 1)])

    async def test_a_waiting_task_that_cannot_be_read_stops_no_other(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await self.put_some(frontier)
        await self.damage(frontier, CRAWL, BAD)
        await self.work_to_the_end(frontier, clock)
        await self.check_one_is_bad(frontier)

    async def test_a_task_of_another_kind_that_cannot_be_read_stops_no_other(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.put(CRAWL, [make_task(key, lane, kind="browser") for key, lane in enumerate(LANES, 1)])
        await self.damage(frontier, CRAWL, BAD)
        for _ in range(20):
            batch = await frontier.lease([CRAWL], 9, worker="w1", seconds=LEASE_SECONDS, horizon=0.0, kinds=["browser"])
            await frontier.settle([Done(lease=lease) for lease in batch.leases])
            if CRAWL in batch.finished:
                break
            clock.advance(LEASE_SECONDS)
        await self.check_one_is_bad(frontier)
        assert (await frontier.progress(CRAWL)).kinds == {"http": 0, "browser": 0}

    async def test_a_delayed_task_that_cannot_be_read_stops_no_other(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await self.put_some(frontier)
        leases = (await take(frontier)).leases
        await frontier.settle([Retry(lease=lease, reason="again", delay=5.0) for lease in leases])
        await self.damage(frontier, CRAWL, BAD)
        await self.work_to_the_end(frontier, clock)
        await self.check_one_is_bad(frontier)

    async def test_a_leased_task_that_cannot_be_read_stops_no_other(self, frontier: Frontier, clock: FakeClock) -> None:
        await self.put_some(frontier)
        leases = (await take(frontier)).leases
        await self.damage(frontier, CRAWL, BAD)
        report = await frontier.settle([Done(lease=lease) for lease in leases if lease.task.key != BAD])
        assert (report.stale, report.failed) == ([], {})
        # Its worker is lost.
        await frontier.evict("w1")
        await self.work_to_the_end(frontier, clock)
        await self.check_one_is_bad(frontier)

    async def test_requests_that_have_landed_stay_landed_beside_a_bad_record(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await self.put_some(frontier)
        await frontier.put(CRAWL, [make_task(key) for key in (5, 6)])
        leases = [lease for lease in (await take(frontier)).leases if lease.task.lane == LANES[0]]
        await take(frontier, landed=leases[:2])
        await self.damage(frontier, CRAWL, BAD)
        # Meets the bad record.
        await frontier.evict("w2", known=[])
        clock.advance(LEASE_SECONDS / 2)
        await frontier.settle([Done(lease=leases[0])])
        lanes = {lane.lane: lane.in_flight for lane in await frontier.lanes(CRAWL)}
        assert lanes[LANES[0]] == 1
        await frontier.evict("w1")
        assert not any(lane.in_flight for lane in await frontier.lanes(CRAWL))

    async def test_the_result_of_a_task_that_cannot_be_read_fails_no_other(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        """A frontier that needs no more than the lease to end it counts the task as done."""
        await self.put_some(frontier)
        leases = (await take(frontier)).leases
        await self.damage(frontier, CRAWL, BAD)
        report = await frontier.settle([Done(lease=lease) for lease in leases])
        assert [lease for lease in report.stale if lease.task.key != BAD] == []
        assert report.failed == {}
        await self.work_to_the_end(frontier, clock)
        progress = await frontier.progress(CRAWL)
        if progress.done < len(LANES):
            await self.check_one_is_bad(frontier)
