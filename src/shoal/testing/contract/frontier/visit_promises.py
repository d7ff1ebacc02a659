"""Visits: a page that is done and visited again later goes on as the same task."""

from __future__ import annotations

from typing import Any

import msgspec

from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import MAX_KINDS
from shoal.model import VISITS, Budgets, Crawl, CrawlState, Done, Lease, Retry, Task, TaskState, Visit
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import CRAWL, FrontierCase, check_counts, keys, make_task, take, take_one

DAY = 86_400.0


def next_visit(lease: Lease, **fields: Any) -> Task:
    """The task as it is visited next."""
    visit = Visit(visits=1, at=1000.5, harvest=-(2**63), compared=1.5, changes=0.25, seconds=DAY)
    return msgspec.structs.replace(lease.task, visit=visit, **fields)


def visited(lease: Lease, **fields: Any) -> Done:
    return Done(lease=lease, again=next_visit(lease), again_in=DAY, notes={VISITS: 1}, **fields)


class VisitPromises(FrontierCase):
    """Promises about pages that are visited again."""

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
