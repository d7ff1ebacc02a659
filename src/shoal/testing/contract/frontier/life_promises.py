"""Frontier promises about the life of a crawl, and about records that cannot be decoded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest

from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.frontier.rules.tasks import BAD_RECORD, SET_ASIDE
from shoal.model import Crawl, CrawlState, Dead, DeadFilter, Done, Heartbeat, LaneUpdate, Point, Retry, Task, TaskState
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import (
    CRAWL,
    LEASE_SECONDS,
    FrontierCase,
    check_counts,
    listed,
    make_task,
    take,
)

NEXT = "next"
LANES = ("a.test", "b.test", "c.test", "d.test")
MANY = 6_000
POINT = Point(
    queued=0, delayed=0, leased=0, done=1, dead=0, retried=0, lost=0, outcomes={}, fetch_times=(), received_bytes=0,
    workers=1, cost=0.0,
)  # fmt: skip


def many_tasks(number: int) -> list[Task]:
    return [make_task(key, LANES[key % 4], priority=key % 3, shape=key % 50) for key in range(number)]


async def put_many(frontier: Frontier, number: int) -> None:
    tasks = many_tasks(number)
    for start in range(0, number, 1000):
        await frontier.put(CRAWL, tasks[start : start + 1000])


async def finish(frontier: Frontier, crawl: str = CRAWL, *, dead: Sequence[int] = ()) -> None:
    """Do all waiting tasks, until the crawl is finished."""
    while True:
        batch = await frontier.lease([crawl], 500, worker="w1", seconds=60.0, horizon=0.0)
        if crawl in batch.finished:
            return
        assert batch.leases
        await frontier.settle(
            [
                Dead(lease=lease, reason="gone") if lease.task.key in dead else Done(lease=lease)
                for lease in batch.leases
            ]
        )


async def begin_next(frontier: Frontier, *, dedup_ttl: float = 0.0) -> None:
    await frontier.open_crawl(Crawl(id=NEXT, spider="s", interval=0.0, cap=100, dedup_ttl=dedup_ttl))


async def is_listed(frontier: Frontier, crawl: str = CRAWL) -> bool:
    return crawl in [one.id for one in await listed(frontier)]


class LifePromises(FrontierCase):
    """Long work is done in batches and may be interrupted."""

    async def test_a_crawl_is_deleted_in_steps_and_from_the_first_one_on_nobody_sees_it(
        self, frontier: Frontier, second: Frontier
    ) -> None:
        await put_many(frontier, MANY)
        held = await take(frontier, 10)
        is_gone = await frontier.delete_crawl(CRAWL, seconds=0.0)
        while not is_gone:
            assert await second.half_deleted() == [CRAWL]
            assert not await is_listed(second)
            assert (await take(second)).leases == []
            assert len((await second.settle([Done(lease=held.leases[0])])).stale) == 1
            assert await second.evict("w1") == 0
            with pytest.raises(UsageError, match="no crawl 'contract'"):
                await second.put(CRAWL, [make_task(MANY)])
            with pytest.raises(UsageError, match="no crawl 'contract'"):
                await second.progress(CRAWL)
            is_gone = await second.delete_crawl(CRAWL, seconds=0.0)
        assert await frontier.half_deleted() == []
        assert await frontier.delete_crawl(CRAWL, seconds=0.0)

    async def test_a_crawl_that_was_half_deleted_is_begun_anew_without_the_rest(
        self, frontier: Frontier, second: Frontier
    ) -> None:
        await put_many(frontier, MANY)
        await frontier.update_lane(CRAWL, LANES[0], LaneUpdate(interval=600.0, why="busy"))
        await frontier.delete_crawl(CRAWL, seconds=0.0)
        await second.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=100))
        assert await second.half_deleted() == []
        assert (await second.progress(CRAWL)).known == 0
        assert (await second.put(CRAWL, many_tasks(100))).new == 100
        assert len((await take(second)).leases) == 100

    async def test_other_crawls_are_worked_on_while_one_is_deleted(self, frontier: Frontier, second: Frontier) -> None:
        await begin_next(frontier)
        await put_many(frontier, MANY)
        is_gone, number = False, 0
        while not is_gone:
            is_gone = await frontier.delete_crawl(CRAWL, seconds=0.0)
            await second.put(NEXT, [make_task(number)])
            (lease,) = (await second.lease([CRAWL, NEXT], 5, worker="w2", seconds=60.0, horizon=0.0)).leases
            await second.settle([Done(lease=lease)])
            number += 1
        assert (await second.progress(NEXT)).done == number

    async def test_workers_and_history_go_with_their_crawl(self, frontier: Frontier) -> None:
        await frontier.beat(Heartbeat(worker="w1", crawl=CRAWL, host="h", pid=1, version="1", slots=1))
        await frontier.keep_point(CRAWL, POINT)
        assert await frontier.delete_crawl(CRAWL)
        assert await frontier.workers_of(CRAWL) == []
        assert await frontier.workers() == []
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s"))
        assert await frontier.points(CRAWL, seconds=3600.0) == []

    async def test_the_size_of_a_crawl_grows_with_its_tasks_and_shrinks_when_its_keys_are_dropped(
        self, frontier: Frontier
    ) -> None:
        empty = await frontier.size(CRAWL)
        assert empty.bytes > 0
        await frontier.put(CRAWL, many_tasks(1000))
        waiting = await frontier.size(CRAWL)
        assert waiting.bytes > empty.bytes + 20_000
        await finish(frontier)
        done = await frontier.size(CRAWL)
        assert empty.bytes < done.bytes < waiting.bytes
        await frontier.drop_keys(CRAWL)
        assert empty.bytes <= (await frontier.size(CRAWL)).bytes < done.bytes
        with pytest.raises(UsageError, match="no crawl 'missing'"):
            await frontier.size("missing")

    async def test_what_a_finished_crawl_tells_stays_when_its_keys_are_dropped(
        self, frontier: Frontier, second: Frontier
    ) -> None:
        await frontier.put(CRAWL, many_tasks(1000))
        await frontier.keep_point(CRAWL, POINT)
        await finish(frontier, dead=[7])
        before = await frontier.progress(CRAWL)
        assert [one.keys for one in await listed(second)] == ["known"]
        assert await frontier.drop_keys(CRAWL)
        assert await second.drop_keys(CRAWL)
        (crawl,) = await listed(second)
        assert (crawl.state, crawl.keys) == (CrawlState.FINISHED, "dropped")
        assert await second.progress(CRAWL) == before
        assert [letter.task.key for letter in await second.dead(CRAWL, DeadFilter())] == [7]
        assert (await second.look_up(CRAWL, 7)).state == TaskState.DEAD
        assert (await second.look_up(CRAWL, 8)).state == TaskState.UNKNOWN
        assert len(await second.points(CRAWL, seconds=3600.0)) == 1

    async def test_nothing_comes_into_a_crawl_whose_keys_were_dropped(
        self, frontier: Frontier, second: Frontier
    ) -> None:
        await frontier.put(CRAWL, many_tasks(10))
        await finish(frontier, dead=[7])
        await frontier.drop_keys(CRAWL)
        refused: list[Callable[[], Awaitable[object]]] = [
            lambda: second.put(CRAWL, [make_task(1)]),
            lambda: second.bury(CRAWL, [(make_task(1), "unfit")]),
            lambda: second.know(CRAWL, [1]),
            lambda: second.set_feeding(CRAWL, "f", seconds=60.0),
            lambda: second.requeue_dead(CRAWL, DeadFilter()),
        ]
        for change in refused:
            with pytest.raises(UsageError, match=r"'contract' is finished and its URL keys were dropped.*--again"):
                await change()
        # It may be opened, by a reader, and its dead letters may be dropped.
        await second.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=100))
        assert [(one.state, one.keys) for one in await listed(second)] == [(CrawlState.FINISHED, "dropped")]
        assert await second.drop_dead(CRAWL, DeadFilter()) == 1
        assert (await second.progress(CRAWL)).done == 10

    async def test_only_a_finished_crawl_can_lose_its_keys(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, many_tasks(10))
        for state in (CrawlState.RUNNING, CrawlState.PAUSED, CrawlState.CANCELLED):
            await frontier.set_state(CRAWL, state)
            with pytest.raises(UsageError, match=f"'contract' is {state}"):
                await frontier.drop_keys(CRAWL)
        assert (await frontier.put(CRAWL, many_tasks(12))).duplicates == 10
        with pytest.raises(UsageError, match="no crawl 'missing'"):
            await frontier.drop_keys("missing")

    async def test_keys_are_dropped_in_steps_and_another_process_goes_on(
        self, frontier: Frontier, second: Frontier
    ) -> None:
        await frontier.know(CRAWL, range(3 * MANY))
        assert CRAWL in (await take(frontier)).finished
        is_done = await frontier.drop_keys(CRAWL, seconds=0.0)
        while not is_done:
            assert [one.keys for one in await listed(second)] == ["dropping"]
            with pytest.raises(UsageError, match="were dropped"):
                await second.put(CRAWL, [make_task(1)])
            is_done = await second.drop_keys(CRAWL, seconds=0.0)
        assert [one.keys for one in await listed(frontier)] == ["dropped"]

    async def test_a_crawl_whose_keys_were_dropped_is_deleted_whole(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, many_tasks(1000))
        await finish(frontier)
        await frontier.drop_keys(CRAWL)
        assert await frontier.delete_crawl(CRAWL)
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=100))
        assert (await frontier.put(CRAWL, [make_task(1)])).new == 1

    @pytest.mark.parametrize("ttl", [0.0, 1000.0])
    @pytest.mark.parametrize("ttl_before", [0.0, 1000.0])
    async def test_a_crawl_knows_what_an_earlier_one_has_done_and_nothing_else(
        self, frontier: Frontier, second: Frontier, ttl: float, ttl_before: float
    ) -> None:
        earlier = "earlier"
        await frontier.open_crawl(Crawl(id=earlier, spider="s", interval=0.0, cap=100, dedup_ttl=ttl_before))
        await frontier.put(earlier, [make_task(key, LANES[key % 4]) for key in range(8)])
        await frontier.know(earlier, [-(2**63), 2**63 - 1])
        leases = (await frontier.lease([earlier], 4, worker="w1", seconds=60.0, horizon=0.0)).leases
        done, dead, retried, leased = [lease.task.key for lease in leases]
        await frontier.settle(
            [
                Done(lease=leases[0]),
                Dead(lease=leases[1], reason="gone"),
                Retry(lease=leases[2], reason="busy", delay=60),
            ]
        )
        await begin_next(frontier, dedup_ttl=ttl)
        assert await second.know_from(NEXT, earlier) == 3
        assert await second.know_from(NEXT, earlier) == 0
        tasks = [make_task(key, LANES[key % 4]) for key in (*range(9), -(2**63), 2**63 - 1)]
        report = await second.put(NEXT, tasks)
        assert (report.new, report.duplicates) == (8, 3)
        states = {key: (await second.look_up(NEXT, key)).state for key in (done, dead, retried, leased)}
        assert states == {
            done: TaskState.DONE,
            dead: TaskState.QUEUED,
            retried: TaskState.QUEUED,
            leased: TaskState.QUEUED,
        }

    async def test_a_cancelled_crawl_tells_what_it_had_done(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, many_tasks(20))
        await frontier.settle([Done(lease=lease) for lease in (await take(frontier, 5)).leases])
        await frontier.set_state(CRAWL, CrawlState.CANCELLED)
        await begin_next(frontier)
        assert await frontier.know_from(NEXT, CRAWL) == 5
        assert (await frontier.put(NEXT, many_tasks(20))).new == 15

    async def test_many_keys_of_an_earlier_crawl_are_known_after_one_call(self, frontier: Frontier) -> None:
        await frontier.know(CRAWL, range(3 * MANY))
        await begin_next(frontier)
        assert await frontier.know_from(NEXT, CRAWL) == 3 * MANY
        assert (await frontier.put(NEXT, many_tasks(100))).duplicates == 100

    async def test_keys_that_expired_in_the_earlier_crawl_are_not_known_from_it(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        weekly = Crawl(id="weekly", spider="s", interval=0.0, cap=100, dedup_ttl=100.0)
        await frontier.open_crawl(weekly)
        await frontier.know(weekly.id, [1])
        clock.advance(200.0)
        await frontier.know(weekly.id, [2])
        await begin_next(frontier)
        assert await frontier.know_from(NEXT, weekly.id) == 1
        assert (await frontier.put(NEXT, [make_task(1)])).new == 1

    async def test_refuses_to_know_from_a_crawl_whose_keys_were_dropped_or_that_is_not_there(
        self, frontier: Frontier, tmp_path: Path
    ) -> None:
        await frontier.put(CRAWL, many_tasks(10))
        await finish(frontier)
        await frontier.drop_keys(CRAWL)
        await begin_next(frontier)
        with pytest.raises(UsageError, match=r"'contract' cannot say which URLs it has done.*--skip-stored"):
            await frontier.know_from(NEXT, CRAWL)
        for names in ((NEXT, "missing"), ("missing", NEXT)):
            with pytest.raises(UsageError, match="no crawl 'missing'"):
                await frontier.know_from(*names)


DAMAGED_LANES = ("a.test", "b.test", "c.test", "d.test")
BAD = 2


class BadRecordPromises(FrontierCase):
    """A task with a damaged record, and the tasks beside it."""

    async def damage(self, frontier: Frontier, crawl: str, key: int) -> None:
        """Replace the record of the task with this key by undecodable bytes. Only a backend can do that."""
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
        """One task is a dead letter or set aside, the others are done, and the counters add up."""
        progress = await frontier.progress(CRAWL)
        letters = await frontier.dead(CRAWL, DeadFilter())
        assert progress.state is CrawlState.FINISHED
        assert sum(number for name, number in progress.notes.items() if name.startswith(SET_ASIDE)) == 1
        assert [letter.reason for letter in letters] in ([], [BAD_RECORD])
        dead = {"dead": len(letters)} if letters else {}
        await check_counts(frontier, done=len(DAMAGED_LANES) - 1, **dead)

    async def put_some(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(key, lane) for key, lane in enumerate(DAMAGED_LANES, 1)])

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
        await frontier.put(CRAWL, [make_task(key, lane, kind="browser") for key, lane in enumerate(DAMAGED_LANES, 1)])
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
        # Its worker dies.
        await frontier.evict("w1")
        await self.work_to_the_end(frontier, clock)
        await self.check_one_is_bad(frontier)

    async def test_requests_that_have_landed_stay_landed_beside_a_bad_record(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await self.put_some(frontier)
        await frontier.put(CRAWL, [make_task(key) for key in (5, 6)])
        leases = [lease for lease in (await take(frontier)).leases if lease.task.lane == DAMAGED_LANES[0]]
        await take(frontier, landed=leases[:2])
        await self.damage(frontier, CRAWL, BAD)
        # Reads the bad record.
        await frontier.evict("w2", known=[])
        clock.advance(LEASE_SECONDS / 2)
        await frontier.settle([Done(lease=leases[0])])
        lanes = {lane.lane: lane.in_flight for lane in await frontier.lanes(CRAWL)}
        assert lanes[DAMAGED_LANES[0]] == 1
        await frontier.evict("w1")
        assert not any(lane.in_flight for lane in await frontier.lanes(CRAWL))

    async def test_the_result_of_a_task_that_cannot_be_read_fails_no_other(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        """A frontier that ends a task without reading its record counts it as done."""
        await self.put_some(frontier)
        leases = (await take(frontier)).leases
        await self.damage(frontier, CRAWL, BAD)
        report = await frontier.settle([Done(lease=lease) for lease in leases])
        assert [lease for lease in report.stale if lease.task.key != BAD] == []
        assert report.failed == {}
        await self.work_to_the_end(frontier, clock)
        progress = await frontier.progress(CRAWL)
        if progress.done < len(DAMAGED_LANES):
            await self.check_one_is_bad(frontier)
