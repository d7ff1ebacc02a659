"""Frontier promises about visits: a page that is visited again later continues as the same task."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import MAX_KINDS
from shoal.model import VISITS, Budgets, Crawl, CrawlState, Dead, Done, Lease, Retry, Task, TaskState, Visit
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import CRAWL, FrontierCase, check_counts, keys, make_task, take, take_one

DAY = 86_400.0


def next_visit(lease: Lease, **fields: Any) -> Task:
    """The task of the next visit."""
    visit = Visit(visits=1, at=1000.5, harvest=-(2**63), compared=1.5, changes=0.25, seconds=DAY)
    return msgspec.structs.replace(lease.task, visit=visit, **fields)


def visited(lease: Lease, **fields: Any) -> Done:
    return Done(lease=lease, again=next_visit(lease), again_in=DAY, notes={VISITS: 1}, **fields)


class VisitPromises(FrontierCase):
    """Pages that are visited again."""

    async def test_a_page_is_lent_again_when_its_next_visit_is_due_and_not_before(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.put(CRAWL, [make_task(1, priority=3, meta={"a": [1]}, handler="book")])
        lease = await take_one(frontier)
        report = await frontier.settle([visited(lease)])
        assert (report.stale, report.failed) == ([], {})
        clock.advance(DAY - 1.0)
        assert keys(await take(frontier)) == []
        clock.advance(1.5)
        second = await take_one(frontier)
        assert second.task == next_visit(lease)
        assert (second.attempt, second.alone) == (1, False)
        assert second.token > lease.token

    async def test_a_page_that_waits_for_its_next_visit_is_delayed_and_the_crawl_not_finished(
        self, frontier: Frontier
    ) -> None:
        await frontier.put(CRAWL, [make_task(1)])
        await frontier.settle([visited(await take_one(frontier), outcome="ok")])
        await check_counts(frontier, delayed=1)
        progress = await frontier.progress(CRAWL)
        assert (progress.visits, progress.done, progress.ended, progress.outcomes) == (1, 0, 1, {"ok": 1})
        assert not progress.is_finished
        assert (await frontier.look_up(CRAWL, 1)).state is TaskState.DELAYED

    async def test_the_links_of_a_visit_appear_with_it(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1)])
        lease = await take_one(frontier)
        found = [make_task(1), make_task(2), make_task(3)]
        report = await frontier.settle([visited(lease, found=found, rejected={"scope": 2})])
        assert report.duplicates == [(lease.token, 1)]
        await check_counts(frontier, delayed=1, queued=2)
        assert (await frontier.progress(CRAWL)).rejected["scope"] == 2

    async def test_the_key_of_a_visited_page_stays_known(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1)])
        await frontier.settle([visited(await take_one(frontier))])
        assert (await frontier.put(CRAWL, [make_task(1)])).duplicates == 1

    async def test_each_visit_has_all_attempts(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.put(CRAWL, [make_task(1, max_attempts=2)])
        await frontier.settle([Retry(lease=await take_one(frontier), reason="timeout")])
        lease = await take_one(frontier)
        assert lease.attempt == 2
        await frontier.settle([visited(lease)])
        clock.advance(DAY)
        assert (await take_one(frontier)).attempt == 1

    async def test_a_visit_is_settled_once(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.put(CRAWL, [make_task(1)])
        lease = await take_one(frontier)
        await frontier.settle([visited(lease)])
        report = await frontier.settle([visited(lease, found=[make_task(2)])])
        assert [lost.token for lost in report.stale] == [lease.token]
        await check_counts(frontier, delayed=1)
        clock.advance(DAY)
        lease = await take_one(frontier)
        await frontier.evict("w1")
        assert len((await frontier.settle([visited(lease)])).stale) == 1
        assert keys(await take(frontier)) == [1]

    async def test_the_last_visit_ends_the_task(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.put(CRAWL, [make_task(1)])
        await frontier.settle([visited(await take_one(frontier))])
        clock.advance(DAY)
        await frontier.settle([Done(lease=await take_one(frontier))])
        await check_counts(frontier, done=1)
        assert (await frontier.progress(CRAWL)).is_finished

    async def test_a_visit_is_not_counted_in_the_budgets_again(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, budgets=Budgets(pages=1, per_lane=1)))
        await frontier.put(CRAWL, [make_task(1)])
        for _ in range(3):
            report = await frontier.settle([visited(await take_one(frontier))])
            assert report.refused == {}
            clock.advance(DAY)

    async def test_visits_of_a_cancelled_crawl_count_as_cancelled(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(1)])
        lease = await take_one(frontier)
        await frontier.set_state(CRAWL, CrawlState.CANCELLED)
        await frontier.settle([visited(lease)])
        await check_counts(frontier, cancelled=1)

    async def test_a_visit_by_workers_of_one_kind_too_many_fails_and_the_lease_stands(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(number, kind=f"kind-{number}") for number in range(1, MAX_KINDS)])
        await frontier.put(CRAWL, [make_task(50)])
        lease = await take_one(frontier)
        again = next_visit(lease, kind="one-more")
        report = await frontier.settle([Done(lease=lease, again=again, again_in=DAY, found=[make_task(51)])])
        assert report.failed.keys() == {0}
        assert await frontier.extend([lease], seconds=60.0) == []
        assert (await frontier.look_up(CRAWL, 51)).state is TaskState.UNKNOWN

    async def test_a_visit_that_is_hastened_is_due_now_and_the_page_stays_the_same_task(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.put(CRAWL, [make_task(number) for number in (1, 2)])
        leases = (await take(frontier)).leases
        await frontier.settle([visited(lease) for lease in leases])
        clock.advance(60.0)
        report = await frontier.put(CRAWL, [make_task(1, hastens=True), make_task(2), make_task(3, hastens=True)])
        assert (report.new, report.duplicates) == (1, 2)
        await check_counts(frontier, delayed=2, queued=1)
        lent = {lease.task.key: lease for lease in (await take(frontier)).leases}
        assert lent.keys() == {1, 3}
        assert lent[1].task == next_visit(next(lease for lease in leases if lease.task.key == 1))
        assert (lent[1].attempt, lent[3].task.hastens) == (1, True)
        await check_counts(frontier, leased=2, delayed=1)
        # Its next visit is due after this one, not also at the time planned before.
        await frontier.settle([visited(lent[1]), Done(lease=lent[3])])
        clock.advance(DAY - 60.0)
        other = await take_one(frontier)
        assert other.task.key == 2
        await frontier.settle([Done(lease=other)])
        clock.advance(60.0)
        assert keys(await take(frontier)) == [1]

    async def test_a_found_link_hastens_a_visit_also_that_of_the_page_that_has_it(self, frontier: Frontier) -> None:
        await frontier.put(CRAWL, [make_task(number) for number in (1, 2, 3)])
        first, second, third = (await take(frontier)).leases
        await frontier.settle([visited(first), visited(second)])
        found = [make_task(number, hastens=True) for number in (1, 3)]
        report = await frontier.settle([visited(third, found=found)])
        assert sorted(report.duplicates) == [(third.token, 1), (third.token, 3)]
        assert sorted(keys(await take(frontier))) == [1, 3]
        await check_counts(frontier, leased=2, delayed=1)

    async def test_only_tasks_that_wait_for_their_next_visit_are_hastened(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.put(CRAWL, [make_task(number) for number in (1, 2, 3, 4)])
        tried, free, dead, done = (await take(frontier)).leases
        await frontier.put(CRAWL, [make_task(5, delay=DAY)])
        again = [Retry(lease=tried, reason="r", delay=DAY), Retry(lease=free, reason="r", delay=DAY, free=True)]
        await frontier.settle([*again, Dead(lease=dead, reason="gone"), Done(lease=done)])
        counts = {"delayed": 3, "dead": 1, "done": 1}
        await check_counts(frontier, **counts)
        await frontier.put(CRAWL, [make_task(number, hastens=True) for number in (1, 2, 3, 4, 5)])
        assert keys(await take(frontier)) == []
        await check_counts(frontier, **counts)

    async def test_a_visit_that_is_due_earlier_or_tried_again_is_not_moved(
        self, frontier: Frontier, clock: FakeClock
    ) -> None:
        await frontier.put(CRAWL, [make_task(1)])
        await frontier.settle([visited(await take_one(frontier))])
        clock.advance(DAY + 1.0)
        await frontier.put(CRAWL, [make_task(1, hastens=True)])
        lease = await take_one(frontier)
        await frontier.put(CRAWL, [make_task(1, hastens=True)])
        await check_counts(frontier, leased=1)
        await frontier.settle([Retry(lease=lease, reason="timeout", delay=60.0)])
        await frontier.put(CRAWL, [make_task(1, hastens=True)])
        assert keys(await take(frontier)) == []
        clock.advance(61.0)
        assert (await take_one(frontier)).attempt == 2

    async def test_no_visit_of_a_cancelled_crawl_is_hastened(self, frontier: Frontier, clock: FakeClock) -> None:
        await frontier.put(CRAWL, [make_task(1)])
        await frontier.settle([visited(await take_one(frontier))])
        await frontier.set_state(CRAWL, CrawlState.CANCELLED)
        await frontier.put(CRAWL, [make_task(1, hastens=True)])
        await frontier.set_state(CRAWL, CrawlState.RUNNING)
        assert keys(await take(frontier)) == []
        await frontier.put(CRAWL, [make_task(1, hastens=True)])
        assert keys(await take(frontier)) == [1]

    async def test_one_of_many_visits_that_are_due_together_is_hastened(self, frontier: Frontier) -> None:
        lanes = ["a.test", "b.test", "c.test"]
        await frontier.put(CRAWL, [make_task(number, lanes[number % 3]) for number in range(30)])
        leases = (await take(frontier, limit=30)).leases
        await frontier.settle([visited(lease) for lease in leases])
        await frontier.put(CRAWL, [make_task(number, lanes[number % 3], hastens=True) for number in (4, 9)])
        assert sorted(keys(await take(frontier, limit=30))) == [4, 9]
        await check_counts(frontier, leased=2, delayed=28)

    async def test_links_to_other_shards_hasten_visits_there(self, frontier: Frontier, clock: FakeClock) -> None:
        pages = [make_task(number, f"{number}.test") for number in range(1, 7)]
        await frontier.put(CRAWL, pages)
        first, *others = (await take(frontier)).leases
        await frontier.settle([visited(lease) for lease in others])
        found = [msgspec.structs.replace(task, hastens=True) for task in pages]
        await frontier.settle([visited(first, found=found)])
        assert sorted(keys(await take(frontier))) == [1, 2, 3, 4, 5, 6]
