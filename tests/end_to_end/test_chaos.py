"""The verdict of `shoal chaos` finds what is wrong with a tampered shoal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.crawl.beginning import begin
from shoal.crawl.opening import Places, opened
from shoal.crawl.sources import feed, requests_of
from shoal.model import Crawl, Dead, Done, Lease, LeaseBatch, Progress, Result, SettleReport
from shoal.run.building import worker_for
from shoal.run.intakes import intake_of
from shoal.store.base import FetchRow, ItemRow
from shoal.testing.chaos.diary import Diary
from shoal.testing.chaos.graph_spider import Graph
from shoal.testing.chaos.plan import Deed, Plan, settings_for
from shoal.testing.chaos.report import report_on
from shoal.testing.chaos.straggler import Straggler
from shoal.testing.chaos.survey import Survey, survey
from shoal.testing.sites.site import GraphSite
from shoal.testing.waiting import eventually
from shoal.urls.canonical import lane_of

PAGES = 60
SECONDS = 120.0
RATE = 40


class Tampered:
    """A frontier or a store that passes every call on but those that a subclass has spoilt."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class ForgetsLinks(Tampered):
    """The links of one page are gone, though its settle was taken."""

    async def settle(self, results: Sequence[Result]) -> SettleReport:
        for result in results:
            if isinstance(result, Done) and result.lease.task.url.endswith("/g/5"):
                result.found.clear()
        report: SettleReport = await self.inner.settle(results)
        return report


class FencesNobody(Tampered):
    """A settle ends the task's lease, whosever it is by now."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self._last: dict[int, Lease] = {}

    async def lease(self, *args: Any, **options: Any) -> LeaseBatch:
        batch: LeaseBatch = await self.inner.lease(*args, **options)
        self._last |= {lease.task.key: lease for lease in batch.leases}
        return batch

    async def settle(self, results: Sequence[Result]) -> SettleReport:
        latest = [msgspec.structs.replace(result, lease=self._last[result.lease.task.key]) for result in results]
        report: SettleReport = await self.inner.settle(latest)
        ended = {lease.task.key for lease in report.stale}
        return msgspec.structs.replace(
            report, stale=[result.lease for result in results if result.lease.task.key in ended]
        )


class CountsTwice(Tampered):
    async def progress(self, crawl: str) -> Progress:
        progress: Progress = await self.inner.progress(crawl)
        return msgspec.structs.replace(progress, done=progress.done + 1)


class WritesTwice(Tampered):
    """A row for every write of an item instead of one for every item."""

    async def write(self, items: Sequence[ItemRow], fetches: Sequence[FetchRow], **options: Any) -> dict[int, str]:
        again = [msgspec.structs.replace(item, key=f"{item.key} again") for item in items if item.key.endswith("7")]
        refused: dict[int, str] = await self.inner.write([*items, *again], fetches, **options)
        return refused


class LosesRows(Tampered):
    """What a store that answers before it has written loses with its power."""

    async def write(self, items: Sequence[ItemRow], fetches: Sequence[FetchRow], **options: Any) -> dict[int, str]:
        kept = [item for item in items if not item.key.endswith("/g/8")]
        refused: dict[int, str] = await self.inner.write(kept, fetches, **options)
        return refused


class BuriesAPage(Tampered):
    """The last page is given up as if it had killed its workers."""

    async def settle(self, results: Sequence[Result]) -> SettleReport:
        doomed = f"/g/{PAGES - 1}"
        ends: list[Result] = [
            Dead(lease=result.lease, reason="worker lost: SIGKILL")
            if result.lease.task.url.endswith(doomed)
            else result
            for result in results
        ]
        report: SettleReport = await self.inner.settle(ends)
        return report


class LogsASecondAttempt(Tampered):
    """Every page seems to be done at its second attempt."""

    async def write(self, items: Sequence[ItemRow], fetches: Sequence[FetchRow], **options: Any) -> dict[int, str]:
        second = [msgspec.structs.replace(row, attempt=2) for row in fetches]
        refused: dict[int, str] = await self.inner.write(items, second, **options)
        return refused


class Case:
    """A small crawl in this process, by one worker, over a frontier and a store that may be tampered with."""

    def __init__(self, site: GraphSite, crawl: Crawl, *, frontier: Any, store: Any) -> None:
        self.site = site
        self.crawl = crawl
        self.frontier = frontier
        self.store = store

    async def finish(self) -> None:
        parts = {"frontier": self.frontier, "store": self.store, "say": print}
        async with asyncio.timeout(SECONDS), worker_for(self.crawl, Graph(), **parts) as worker:
            await worker.run(asyncio.Event())

    async def survey(self, **options: Any) -> Survey:
        return await survey(self.frontier, self.store, self.crawl, urls=self.site.expected_urls(), **options)


@asynccontextmanager
async def crawl_of_a_graph(folder: Path, *, frontier: Any = Tampered, store: Any = Tampered) -> AsyncIterator[Case]:
    database = str(folder / "shoal.db")
    places = Places(frontier=database, store=database)
    async with GraphSite(pages=PAGES, links=2, latency=0.02) as site, opened(places) as (real_frontier, real_store):
        spider = Graph()
        spider.start = [site.url]  # type: ignore[misc]  # an instance may have a start of its own
        plan = Plan(folder=folder, frontier=database, rate=400)
        settings = settings_for(plan, lanes=(lane_of(site.url),))
        crawl, _ = await begin(real_frontier, spider, settings=settings, reference=plan.spider)
        await feed(real_frontier, crawl.id, requests_of(spider), intake=intake_of(crawl), max_pending=10**6, say=print)
        await real_frontier.set_feeding(crawl.id, "feeder", seconds=0)
        yield Case(site, crawl, frontier=frontier(real_frontier), store=store(real_store))


async def test_an_honest_crawl_has_no_faults(tmp_path: Path) -> None:
    async with crawl_of_a_graph(tmp_path) as case:
        await case.finish()
        found = await case.survey()
    assert found.faults == []
    assert found.attempted == found.acknowledged == found.ok == PAGES


async def test_sees_pages_that_are_lost_because_their_links_were(tmp_path: Path) -> None:
    async with crawl_of_a_graph(tmp_path, frontier=ForgetsLinks) as case:
        await case.finish()
        found = await case.survey()
    assert found.acknowledged < PAGES
    assert found.ok == PAGES - len(found.lost)
    assert all(line.endswith("is unknown at the end") for line in found.lost)


async def test_sees_a_page_that_is_done_without_its_item(tmp_path: Path) -> None:
    async with crawl_of_a_graph(tmp_path, store=LosesRows) as case:
        await case.finish()
        found = await case.survey()
    assert found.lost == [f"{case.site.graph.url(8)} is done, but has no item"]
    assert found.ok == PAGES - 1


async def test_sees_rows_that_are_there_twice(tmp_path: Path) -> None:
    async with crawl_of_a_graph(tmp_path, store=WritesTwice) as case:
        await case.finish()
        found = await case.survey()
    assert found.duplicated == PAGES // 10
    assert found.faults == ["rows that are there twice: 6"]


async def test_sees_a_counter_that_a_recount_does_not_confirm(tmp_path: Path) -> None:
    async with crawl_of_a_graph(tmp_path, frontier=CountsTwice) as case:
        await case.finish()
        found = await case.survey()
    assert found.surprises[0] == f"the counter done says {PAGES + 1}, a recount {PAGES}"


async def test_sees_a_dead_letter_that_need_not_be(tmp_path: Path) -> None:
    async with crawl_of_a_graph(tmp_path, frontier=BuriesAPage) as case:
        await case.finish()
        url = case.site.graph.url(PAGES - 1)
        found = await case.survey()
        assert found.lost == []
        assert f"{url} is dead: worker lost: SIGKILL" in found.surprises
        assert (found.dead, found.ok) == (0, PAGES - 1)
        found = await case.survey(doomed={url: ("worker lost: SIGSEGV",)})
        assert f"{url} is dead: worker lost: SIGKILL, not worker lost: SIGSEGV" in found.surprises
        found = await case.survey(doomed={url: ("worker lost: SIGKILL",)})
    assert found.faults == []
    assert (found.dead, found.ok) == (1, PAGES - 1)


async def test_sees_a_page_that_had_to_be_a_dead_letter(tmp_path: Path) -> None:
    async with crawl_of_a_graph(tmp_path) as case:
        await case.finish()
        url = case.site.graph.url(PAGES - 1)
        found = await case.survey(doomed={url: ("worker lost: SIGKILL",)})
    assert found.faults == [f"{url} is done, not dead: worker lost: SIGKILL"]


async def test_counts_attempts_that_were_used_up(tmp_path: Path) -> None:
    async with crawl_of_a_graph(tmp_path, store=LogsASecondAttempt) as case:
        await case.finish()
        found = await case.survey()
    assert found.charged == PAGES
    no_deeds = {"kills": 0, "freezes": 0, "stragglers": 0}
    plan, diary = Plan(folder=tmp_path, frontier="shoal.db", pages=PAGES, **no_deeds), Diary()
    charged = report_on(plan, found, [], diary=diary, late_settles=0, seconds=1.0)
    assert charged.surprises == [f"{PAGES} attempts were used up; ends of workers explain 0 at most"]
    diary.done[Deed.KILL] = PAGES
    assert report_on(plan, found, [], diary=diary, late_settles=0, seconds=1.0).is_kept


async def test_sees_a_crawl_that_did_not_finish(tmp_path: Path) -> None:
    async with crawl_of_a_graph(tmp_path) as case:
        found = await case.survey()
    assert (found.acknowledged, found.ok, len(found.lost)) == (1, 0, PAGES)
    assert found.surprises == ["the crawl is not finished: 1 task left"]


@pytest.mark.parametrize(("frontier", "is_fenced"), [(Tampered, True), (FencesNobody, False)])
async def test_sees_whether_late_settles_are_refused(tmp_path: Path, frontier: Any, is_fenced: bool) -> None:
    async with crawl_of_a_graph(tmp_path, frontier=frontier) as case:
        await open_the_lane(case)
        straggler = Straggler(case.crawl, case.frontier)
        await straggler.borrow()
        working = asyncio.create_task(case.finish())
        taken = await straggler.settle_late()
        await working
        again = await straggler.settle_again()
        found = await case.survey()
    assert again == []
    assert (taken == []) == is_fenced
    assert (found.faults == []) == is_fenced


async def open_the_lane(case: Case) -> None:
    """Work until there are a few pages to lend."""
    stop = asyncio.Event()

    async def has_a_few() -> bool:
        return bool((await case.frontier.progress(case.crawl.id)).done >= 8)

    parts = {"frontier": case.frontier, "store": case.store, "say": print}
    async with asyncio.timeout(SECONDS), worker_for(case.crawl, Graph(), **parts) as worker:
        working = asyncio.create_task(worker.run(stop))
        await eventually(has_a_few)
        stop.set()
        await working
