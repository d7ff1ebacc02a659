"""Stages: a page that was fetched is handed over to workers of another kind, as the same task."""

from __future__ import annotations

import msgspec

from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import MAX_KINDS
from shoal.model import Budgets, Crawl, Dead, DeadFilter, Done, Handed, LaneUpdate, Lease, Retry, Task, stage_lane
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import CRAWL, FrontierCase, check_counts, keys, make_task, take, take_one

PARSE = "parse"


def next_stage(lease: Lease, kind: str = PARSE) -> Task:
    """The task of a page that was fetched."""
    lane = stage_lane(lease.task.lane, kind)
    return msgspec.structs.replace(lease.task, kind=kind, lane=lane, meta={"capture": "c"}, max_attempts=3)


async def ask(frontier: Frontier, *, limit: int = 100) -> list[Lease]:
    """The leases of a worker of the next stage."""
    batch = await frontier.lease([CRAWL], limit, worker="w2", seconds=60.0, horizon=0.0, kinds=[PARSE])
    return batch.leases


class StagePromises(FrontierCase):
    """Promises about tasks that are handed over."""

    async def test_a_task_that_is_handed_over_goes_on_as_its_new_self(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1, max_attempts=1)])
        lease = await take_one(frontier)
        report = await frontier.settle([Handed(lease=lease, task=next_stage(lease), notes={"handed": 1})])
        assert (report.stale, report.failed) == ([], {})
        assert keys(await take(frontier)) == []
        (second,) = await ask(frontier)
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
        second = await ask(frontier)
        assert [(lease.wait, lease.opens_lane) for lease in second] == [(0.0, False)] * 3
        await frontier.open_crawl(msgspec.structs.replace(slow, interval=20.0))
        await frontier.settle([Retry(lease=lease, reason="again") for lease in second])
        assert len(await ask(frontier)) == 3
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
        assert len(await ask(frontier)) == 2

    async def test_the_update_of_a_lane_goes_to_the_lane_of_the_lease(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1), make_task(2)])
        lease = await take_one(frontier)
        await frontier.settle([Handed(lease=lease, task=next_stage(lease), lane=LaneUpdate(rest_seconds=60.0))])
        assert keys(await take(frontier)) == []
        assert len(await ask(frontier)) == 1

    async def test_a_page_that_was_handed_over_may_fail_and_be_queued_again(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1)])
        lease = await take_one(frontier)
        await frontier.settle([Handed(lease=lease, task=next_stage(lease))])
        (second,) = await ask(frontier)
        assert await frontier.evict("w2") == 1
        (second,) = await ask(frontier)
        await frontier.settle([Dead(lease=second, reason="handler: x")])
        (letter,) = await frontier.dead(CRAWL, DeadFilter())
        assert letter.task == next_stage(lease)
        assert await frontier.requeue_dead(CRAWL, DeadFilter()) == 1
        assert [lease.task.key for lease in await ask(frontier)] == [1]

    async def test_only_the_holder_of_a_lease_hands_its_task_over(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1)])
        lease = await take_one(frontier)
        await frontier.evict("w1")
        report = await frontier.settle([Handed(lease=lease, task=next_stage(lease))])
        assert [lost.token for lost in report.stale] == [lease.token]
        assert await ask(frontier) == []
        assert keys(await take(frontier)) == [1]

    async def test_a_stage_of_one_kind_too_many_fails_and_the_lease_stands(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(number, kind=f"kind-{number}") for number in range(1, MAX_KINDS)])
        await frontier.put(CRAWL, [make_task(50), make_task(51)])
        first, other = (await take(frontier)).leases
        report = await frontier.settle([Handed(lease=first, task=next_stage(first)), Done(lease=other)])
        assert report.failed.keys() == {0}
        assert "too_many_kinds" in report.failed[0]
        assert await frontier.extend([first], seconds=60.0) == []
