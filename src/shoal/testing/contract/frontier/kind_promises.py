"""Frontier promises about kinds of tasks and stages of crawls."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pytest

from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import MAX_KINDS, MIN_ASK_AGAIN
from shoal.model import (
    HTTP,
    Budgets,
    Crawl,
    CrawlState,
    Dead,
    DeadFilter,
    Done,
    Handed,
    LaneUpdate,
    Lease,
    LeaseBatch,
    Pool,
    Released,
    Render,
    Retry,
    Task,
    TaskState,
    stage_lane,
)
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

BROWSER = "browser"
BOTH = (HTTP, BROWSER)
SLOW = Crawl(id=CRAWL, spider="s", interval=1.0, cap=100)


def page(number: int, lane: str = "a.test", *, kind: str = BROWSER, delay: float = 0.0, priority: int = 0) -> Task:
    return make_task(number, lane, kind=kind, delay=delay, priority=priority)


async def ask(
    frontier: Frontier,
    *kinds: str,
    limit: int = 100,
    horizon: float = 0.0,
    worker: str = "w1",
    landed: Sequence[Lease] = (),
) -> LeaseBatch:
    """A lease call for tasks of these kinds."""
    return await frontier.lease(
        [CRAWL], limit, worker=worker, seconds=LEASE_SECONDS, horizon=horizon, landed=landed, kinds=kinds
    )


async def kinds_of(frontier: Frontier) -> dict[str, int]:
    return (await frontier.progress(CRAWL)).kinds


class KindPromises(FrontierCase):
    """Tasks of several kinds."""

    async def test_gives_back_how_a_page_is_rendered(self, frontier: Frontier) -> None:
        steps: tuple[dict[str, str | int], ...] = ({"click": "a.more"}, {"scroll": 3}, {"script": "ü()"})
        full = Render(wait="quiet", wait_for="h1", steps=steps, block=("image",), screenshot=True, seconds=7.5)
        tasks = [make_task(number, kind=BROWSER, render=render) for number, render in enumerate((Render(), full, None))]
        await frontier.put(CRAWL, tasks)
        lent = {lease.task.key: lease.task.render for lease in (await ask(frontier, BROWSER)).leases}
        assert lent == {task.key: task.render for task in tasks}

    async def test_lends_only_tasks_of_the_kinds_that_a_worker_asks_for(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1), page(2), page(3, kind="eu"), page(4, "b.test")])
        assert keys(await ask(frontier, "other")) == []
        assert sorted(keys(await ask(frontier, BROWSER))) == [2, 4]
        assert keys(await frontier.lease([CRAWL], 9, worker="w", seconds=60.0, horizon=0.0)) == [1]
        (lease,) = (await ask(frontier, HTTP, "eu")).leases
        assert (lease.task.key, lease.task.kind, lease.task.lane) == (3, "eu", "a.test")

    async def test_inside_a_lane_priority_and_age_count_over_the_kinds_of_a_worker(self, frontier: Frontier) -> None:
        tasks = [make_task(1), page(2), make_task(3), page(4, priority=1), make_task(5, priority=-1), page(6)]
        await frontier.put(CRAWL, tasks)
        assert keys(await ask(frontier, *BOTH, limit=3)) == [4, 1, 2]
        assert keys(await ask(frontier, *BOTH)) == [3, 6, 5]

    async def test_neither_kind_of_a_busy_host_is_kept_waiting_by_the_other(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.open_crawl(SLOW)
        await frontier.put(CRAWL, [page(number, kind=BOTH[number % 2]) for number in range(1, 7)])
        lent: list[int] = []
        for _ in range(6):
            lent += keys(await ask(frontier, *BOTH))
            clock.advance(1.0)
        assert lent == [1, 2, 3, 4, 5, 6]

    async def test_starts_of_two_kinds_of_one_host_are_an_interval_apart(
        self, frontier: Frontier, second: Frontier, clock: FakeClock
    ) -> None:
        await frontier.open_crawl(SLOW)
        await frontier.put(CRAWL, [page(number, kind=BOTH[number % 2]) for number in range(1, 9)])
        starts: list[float] = []
        for turn in range(9):
            asking, kind = (frontier, second)[turn % 2], (HTTP, BROWSER, HTTP)[turn % 3]
            batch = await ask(asking, kind, limit=2, horizon=1.5, worker=f"w{turn % 2}")
            starts += [clock() + lease.wait for lease in batch.leases]
            clock.advance(0.9)
        starts.sort()
        assert len(starts) == 8
        assert all(later - sooner > 0.999 for sooner, later in pairwise(starts))

    async def test_several_kinds_of_one_call_share_the_slots_of_their_host(self, frontier: Frontier) -> None:
        await frontier.open_crawl(SLOW)
        await frontier.put(CRAWL, [make_task(1), make_task(2), page(3), page(4)])
        batch = await ask(frontier, *BOTH, horizon=2.5)
        assert [round(lease.wait, 3) for lease in batch.leases] == [0.0, 1.0, 2.0]

    async def test_a_cap_holds_over_all_kinds(self, frontier: Frontier) -> None:
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=3))
        await frontier.put(CRAWL, [make_task(1), make_task(2), page(3), page(4), page(5)])
        first = await ask(frontier, BROWSER, limit=2)
        assert len(first.leases) == 2
        assert len((await ask(frontier, *BOTH)).leases) == 1
        assert keys(await ask(frontier, *BOTH)) == []
        await frontier.settle([Done(lease=first.leases[0])])
        assert len((await ask(frontier, HTTP)).leases) == 1
        assert len((await ask(frontier, *BOTH, landed=first.leases[1:])).leases) == 1

    async def test_a_rest_and_a_new_pace_hold_for_all_kinds(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.put(CRAWL, [make_task(1), page(2), page(3)])
        (lease,) = (await ask(frontier, BROWSER, limit=1)).leases
        await frontier.settle([Retry(lease=lease, reason="http_429", lane=LaneUpdate(rest_seconds=60.0))])
        assert keys(await ask(frontier, *BOTH)) == []
        clock.advance(60.0)
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=10.0))
        assert keys(await ask(frontier, HTTP)) == [1]
        assert keys(await ask(frontier, BROWSER)) == []
        clock.advance(10.0)
        assert len((await ask(frontier, BROWSER)).leases) == 1
        assert await frontier.reserve(CRAWL, "a.test") == pytest.approx(10.0)

    async def test_one_kind_opens_a_lane_for_all(self, frontier: Frontier) -> None:
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=100, needs_rules=True))
        await frontier.put(CRAWL, [make_task(1), page(2)])
        (opening,) = (await ask(frontier, BROWSER)).leases
        assert opening.opens_lane
        assert keys(await ask(frontier, *BOTH)) == []
        await frontier.settle([Released(lease=opening, lane=LaneUpdate(rules=b"rules", rules_seconds=60.0))])
        batch = await ask(frontier, *BOTH)
        assert [(lease.opens_lane, lease.rules_version) for lease in batch.leases] == [(False, 1), (False, 1)]

    async def test_budgets_of_a_host_count_over_all_kinds(self, frontier: Frontier) -> None:
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, budgets=Budgets(per_lane=2)))
        report = await frontier.put(CRAWL, [make_task(1), page(2), page(3), make_task(4)])
        assert (report.new, report.refused) == (2, {3: "max_per_host", 4: "max_per_host"})

    async def test_is_finished_when_no_kind_has_work_left(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1), page(2)])
        (lease,) = (await ask(frontier, HTTP)).leases
        await frontier.settle([Done(lease=lease)])
        assert (await ask(frontier, HTTP)).finished == ()
        (lease,) = (await ask(frontier, BROWSER)).leases
        await frontier.settle([Done(lease=lease)])
        assert (await ask(frontier, HTTP)).finished == (CRAWL,)

    async def test_a_worker_is_not_called_back_for_tasks_of_another_kind(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [page(1), page(2)])
        assert (await ask(frontier, HTTP)).ask_again == pytest.approx(1.0)
        assert (await ask(frontier, "eu")).ask_again == pytest.approx(1.0)
        assert (await ask(frontier, BROWSER, limit=0)).ask_again == pytest.approx(MIN_ASK_AGAIN)

    async def test_tasks_keep_their_kind_whatever_happens_to_them(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.put(CRAWL, [page(1, delay=5.0), page(2), page(3), page(4), page(5)])
        batch = await ask(frontier, BROWSER)
        leases = {lease.task.key: lease for lease in batch.leases}
        await frontier.settle([Retry(lease=leases[2], reason="r", delay=3.0), Released(lease=leases[3])])
        await frontier.settle([Retry(lease=leases[4], reason="r")])
        assert keys(await ask(frontier, HTTP)) == []
        again = await ask(frontier, BROWSER, worker="w2")
        assert sorted(keys(again)) == [3, 4]
        assert await frontier.evict("w2") == 2
        clock.advance(LEASE_SECONDS + 1)  # the lease of the fifth task has expired, delayed tasks are due
        assert keys(await ask(frontier, HTTP)) == []
        assert sorted(keys(await ask(frontier, BROWSER))) == [1, 2, 3, 4, 5]

    async def test_dead_letters_keep_their_kind(self, frontier: Frontier) -> None:
        await frontier.bury(CRAWL, [(page(1), "bad"), (make_task(2), "bad")])
        await frontier.put(CRAWL, [task := page(3)])
        (lease,) = (await ask(frontier, BROWSER)).leases
        assert lease.task == task
        await frontier.settle([Retry(lease=lease, reason="r")])
        (letter,) = await frontier.dead(CRAWL, DeadFilter(key=1, lane="a.test"))
        assert letter.task.kind == BROWSER
        assert await frontier.requeue_dead(CRAWL, DeadFilter()) == 2
        assert keys(await ask(frontier, HTTP)) == [2]
        assert sorted(keys(await ask(frontier, BROWSER))) == [1, 3]

    async def test_cancelled_tasks_keep_their_kind(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1), page(2), page(3, delay=50.0)])
        await frontier.set_state(CRAWL, CrawlState.CANCELLED)
        await frontier.put(CRAWL, [page(4, "b.test")])
        assert await kinds_of(frontier) == {HTTP: 0, BROWSER: 0}
        assert keys(await ask(frontier, *BOTH)) == []
        await frontier.set_state(CRAWL, CrawlState.RUNNING)
        assert await kinds_of(frontier) == {HTTP: 1, BROWSER: 3}
        assert keys(await ask(frontier, HTTP)) == [1]
        assert sorted(keys(await ask(frontier, BROWSER))) == [2, 4]

    async def test_a_reopened_crawl_gives_all_kinds_its_new_pace(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.open_crawl(SLOW)
        await frontier.put(CRAWL, [page(1), page(2), page(3)])
        assert keys(await ask(frontier, BROWSER)) == [1]
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.25, cap=100))
        clock.advance(0.25)
        assert keys(await ask(frontier, BROWSER)) == [2]

    async def test_exits_of_a_pool_keep_their_limits_over_all_kinds(self, frontier: Frontier) -> None:
        pool = Pool(name="p", exits=("x", "y"), interval=0.0, cap=1)
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=100, pools=(pool,)))
        await frontier.put(CRAWL, [page(number, "a.test via p", kind=BOTH[number % 2]) for number in range(1, 7)])
        first = await ask(frontier, BROWSER, limit=1)
        more = await ask(frontier, *BOTH)
        assert sorted(lease.exit for lease in (*first.leases, *more.leases)) == ["x", "y"]
        assert keys(await ask(frontier, *BOTH)) == []
        await frontier.settle([Done(lease=first.leases[0])])
        assert len((await ask(frontier, HTTP)).leases) == 1

    async def test_counts_waiting_tasks_by_kind(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1)])
        assert await kinds_of(frontier) == {}
        await frontier.put(CRAWL, [make_task(2), page(3), page(4, delay=9.0), page(5, "b.test")])
        assert await kinds_of(frontier) == {HTTP: 2, BROWSER: 3}
        lanes = {lane.lane: lane.waiting for lane in await frontier.lanes(CRAWL)}
        assert lanes == {"a.test": 3, "b.test": 1}
        batch = await ask(frontier, *BOTH)
        assert await kinds_of(frontier) == {HTTP: 0, BROWSER: 1}
        await frontier.settle([Done(lease=lease) for lease in batch.leases])
        assert await kinds_of(frontier) == {HTTP: 0, BROWSER: 1}

    async def test_finds_waiting_tasks_of_every_kind(self, frontier: Frontier) -> None:
        task = page(1)
        await frontier.put(CRAWL, [task])
        status = await frontier.look_up(CRAWL, 1)
        assert (status.state, status.task) == (TaskState.QUEUED, task)
        assert [found.task for found in await frontier.tasks_of(CRAWL, task.url, lanes=["a.test"])] == [task]
        await frontier.forget(CRAWL, [1])
        assert (await frontier.look_up(CRAWL, 1)).state == TaskState.QUEUED

    async def test_found_tasks_of_a_new_kind_wait_for_their_workers(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1), make_task(2)])
        first, other = (await ask(frontier, HTTP)).leases
        await frontier.settle([Done(lease=first, found=[page(3), make_task(4)]), Released(lease=other)])
        assert sorted(keys(await ask(frontier, HTTP))) == [2, 4]
        assert keys(await ask(frontier, BROWSER)) == [3]

    async def test_refuses_tasks_of_more_kinds_than_a_crawl_may_have(self, frontier: Frontier) -> None:
        tasks = [page(number, kind=f"kind-{number}") for number in range(1, MAX_KINDS + 1)]
        report = await frontier.put(CRAWL, [*tasks, make_task(99)])
        assert (report.new, report.refused) == (MAX_KINDS, {MAX_KINDS: "too_many_kinds"})
        assert (await frontier.progress(CRAWL)).rejected == {"too_many_kinds": 1}
        (lease,) = (await ask(frontier, "kind-3")).leases
        found = [page(100, kind="more"), page(101, kind="kind-1")]
        assert (await frontier.settle([Done(lease=lease, found=found)])).refused == {100: "too_many_kinds"}
        assert sorted(keys(await ask(frontier, "more", "kind-1"))) == [1, 101]

    async def test_kinds_of_two_crawls_are_apart(self, frontier: Frontier) -> None:
        await frontier.open_crawl(Crawl(id="other", spider="s", interval=0.0))
        await frontier.put(CRAWL, [page(1), make_task(2)])
        await frontier.put("other", [make_task(1, "b.test"), page(3, lane="b.test", kind="eu")])
        batch = await frontier.lease([CRAWL, "other"], 9, worker="w", seconds=60.0, horizon=0.0, kinds=(BROWSER, "eu"))
        assert sorted((lease.crawl, lease.task.key) for lease in batch.leases) == [(CRAWL, 1), ("other", 3)]
        await frontier.delete_crawl(CRAWL)
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0))
        assert await kinds_of(frontier) == {}
        assert keys(await ask(frontier, *BOTH)) == []


PARSE = "parse"


def next_stage(lease: Lease, kind: str = PARSE) -> Task:
    """The task of a page that was fetched."""
    lane = stage_lane(lease.task.lane, kind)
    return msgspec.structs.replace(lease.task, kind=kind, lane=lane, meta={"capture": "c"}, max_attempts=3)


async def ask_next_stage(frontier: Frontier, *, limit: int = 100) -> list[Lease]:
    """The leases of a worker of the next stage."""
    batch = await frontier.lease([CRAWL], limit, worker="w2", seconds=60.0, horizon=0.0, kinds=[PARSE])
    return batch.leases


class StagePromises(FrontierCase):
    """Tasks that are handed over to a next stage."""

    async def test_a_task_that_is_handed_over_goes_on_as_its_new_self(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1, max_attempts=1)])
        lease = await take_one(frontier)
        report = await frontier.settle([Handed(lease=lease, task=next_stage(lease), notes={"handed": 1})])
        assert (report.stale, report.failed) == ([], {})
        assert keys(await take(frontier)) == []
        (second,) = await ask_next_stage(frontier)
        assert second.task == next_stage(lease)
        assert (second.attempt, second.wait, second.alone) == (1, 0.0, False)
        await check_counts(frontier, leased=1)
        assert (await frontier.progress(CRAWL)).notes == {"handed": 1}
        await frontier.settle([Done(lease=second, found=[make_task(2)])])
        await check_counts(frontier, queued=1, done=1)
        assert (await frontier.put(CRAWL, [make_task(1)])).duplicates == 1
        assert (await frontier.progress(CRAWL)).retried == 0

    async def test_pages_that_were_fetched_take_no_slot_of_their_host_and_need_no_rules(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.put(CRAWL, [make_task(number) for number in range(1, 6)])
        leases = (await take(frontier, 3)).leases
        slow = Crawl(id=CRAWL, spider="s", interval=10.0, cap=1, needs_rules=True)
        await frontier.open_crawl(slow)
        await frontier.settle([Handed(lease=lease, task=next_stage(lease)) for lease in leases])
        second = await ask_next_stage(frontier)
        assert [(lease.wait, lease.opens_lane) for lease in second] == [(0.0, False)] * 3
        await frontier.open_crawl(msgspec.structs.replace(slow, interval=20.0))
        await frontier.settle([Retry(lease=lease, reason="again") for lease in second])
        assert len(await ask_next_stage(frontier)) == 3
        clock.advance(20.0)
        opening = await take_one(frontier)
        assert opening.opens_lane

    async def test_budgets_do_not_count_a_page_twice(self, frontier: Frontier) -> None:
        budgets = Budgets(pages=2, per_lane=2)
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, budgets=budgets))
        assert (await frontier.put(CRAWL, [make_task(1), make_task(2)])).new == 2
        leases = (await take(frontier)).leases
        report = await frontier.settle([Handed(lease=lease, task=next_stage(lease)) for lease in leases])
        assert report.refused == {}
        assert len(await ask_next_stage(frontier)) == 2

    async def test_the_update_of_a_lane_goes_to_the_lane_of_the_lease(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1), make_task(2)])
        lease = await take_one(frontier)
        await frontier.settle([Handed(lease=lease, task=next_stage(lease), lane=LaneUpdate(rest_seconds=60.0))])
        assert keys(await take(frontier)) == []
        assert len(await ask_next_stage(frontier)) == 1

    async def test_a_page_that_was_handed_over_may_fail_and_be_queued_again(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1)])
        lease = await take_one(frontier)
        await frontier.settle([Handed(lease=lease, task=next_stage(lease))])
        (second,) = await ask_next_stage(frontier)
        assert await frontier.evict("w2") == 1
        (second,) = await ask_next_stage(frontier)
        await frontier.settle([Dead(lease=second, reason="handler: x")])
        (letter,) = await frontier.dead(CRAWL, DeadFilter())
        assert letter.task == next_stage(lease)
        assert await frontier.requeue_dead(CRAWL, DeadFilter()) == 1
        assert [lease.task.key for lease in await ask_next_stage(frontier)] == [1]

    async def test_only_the_holder_of_a_lease_hands_its_task_over(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1)])
        lease = await take_one(frontier)
        await frontier.evict("w1")
        report = await frontier.settle([Handed(lease=lease, task=next_stage(lease))])
        assert [lost.token for lost in report.stale] == [lease.token]
        assert await ask_next_stage(frontier) == []
        assert keys(await take(frontier)) == [1]

    async def test_a_stage_of_one_kind_too_many_fails_and_the_lease_stands(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(number, kind=f"kind-{number}") for number in range(1, MAX_KINDS)])
        await frontier.put(CRAWL, [make_task(50), make_task(51)])
        first, other = (await take(frontier)).leases
        report = await frontier.settle([Handed(lease=first, task=next_stage(first)), Done(lease=other)])
        assert report.failed.keys() == {0}
        assert "too_many_kinds" in report.failed[0]
        assert await frontier.extend([first], seconds=60.0) == []
