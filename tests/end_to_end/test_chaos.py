"""The verdict of `shoal chaos` finds what is wrong with a tampered shoal, and its plan follows from a seed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.crawl import intake_of, worker_for
from shoal.model import Crawl, CrawlState, Dead, Done, Lease, LeaseBatch, Progress, Result, SettleReport, TaskState
from shoal.processes.beginning import begin
from shoal.processes.opening import Places, opened
from shoal.processes.sources import feed, requests_of
from shoal.store.base import FetchRow, ItemRow
from shoal.testing.chaos.bad_pages import DEADLY, HANGING
from shoal.testing.chaos.diary import Diary
from shoal.testing.chaos.graph_spider import Graph
from shoal.testing.chaos.plan import CHOICE, Deed, Plan, bad_pages, pages_for, schedule, settings_for, with_deeds
from shoal.testing.chaos.report import Report, pace_of, report_on, total
from shoal.testing.chaos.straggler import Straggler
from shoal.testing.chaos.survey import Survey, survey
from shoal.testing.sites.catalogue import LinkGraph
from shoal.testing.sites.loopback import Hit
from shoal.testing.sites.site import GraphSite
from shoal.testing.waiting import eventually
from shoal.urls import lane_of

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
    diary = Diary()
    charged = report_on(plan(), found, [], diary=diary, late_settles=0, seconds=1.0)
    assert charged.surprises == [f"{PAGES} attempts were used up; ends of workers explain 0 at most"]
    diary.done[Deed.KILL] = PAGES
    assert report_on(plan(), found, [], diary=diary, late_settles=0, seconds=1.0).is_kept


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


def hits(times: Sequence[float]) -> list[Hit]:
    return [Hit(time, time, "127.0.0.1", "GET", "/", "", 200) for time in times]


def evenly(rate: float, *, seconds: float = 10.0) -> list[float]:
    return [number / rate for number in range(int(rate * seconds))]


def test_a_pace_that_is_kept_has_no_violations() -> None:
    assert pace_of(hits(evenly(RATE)), rate=RATE).violations == 0


def test_what_a_busy_machine_holds_up_is_no_violation() -> None:
    held_up = [max(time, 3.2) if 3.0 <= time < 3.2 else time for time in evenly(RATE)]
    assert pace_of(hits(held_up), rate=RATE).violations == 0


def test_a_pace_that_each_worker_keeps_for_itself_is_seen() -> None:
    pace = pace_of(hits([*evenly(RATE), *evenly(RATE)]), rate=RATE)
    assert pace.violations > RATE
    assert pace.busiest_second >= 2 * RATE > pace.allowed_second


def test_a_pace_that_is_a_little_too_fast_all_the_time_is_seen() -> None:
    assert pace_of(hits(evenly(1.1 * RATE)), rate=RATE).violations > 0


def test_a_burst_after_an_emptied_lane_is_seen() -> None:
    assert pace_of(hits([*evenly(RATE, seconds=2.0), *([2.0] * 20)]), rate=RATE).violations > 0


def plan(**fields: Any) -> Plan:
    return Plan(**{"folder": Path(), "frontier": "shoal.db", "pages": 1000, **fields})


def test_the_same_seed_does_the_same_things() -> None:
    assert schedule(plan(seed=3)) == schedule(plan(seed=3)) != schedule(plan(seed=4))


def test_everything_asked_for_is_done_in_order_while_there_are_pages_left() -> None:
    events = schedule(plan(kills=7, freezes=2, restarts=3))
    deeds = [event.deed for event in events]
    assert [deeds.count(deed) for deed in (Deed.KILL, Deed.FREEZE, Deed.RESTART)] == [7, 2, 3]
    assert deeds[0] is Deed.STRAGGLE
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert events[0].at > 0
    assert events[-1].at < 900


def test_workers_that_were_killed_often_are_relieved_by_a_new_fleet() -> None:
    deeds = [event.deed for event in schedule(plan(kills=20, freezes=0, workers=2))]
    assert deeds.count(Deed.RELIEVE) == 2
    assert deeds[: deeds.index(Deed.RELIEVE)].count(Deed.KILL) == 8


def test_the_same_seed_has_the_same_bad_pages() -> None:
    first = bad_pages(plan(seed=3, deadly=2, hanging=1))
    assert first == bad_pages(plan(seed=3, deadly=2, hanging=1)) != bad_pages(plan(seed=4, deadly=2, hanging=1))
    assert (first.of_kind(DEADLY), first.of_kind(HANGING)) == (4, 2)


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_reached_only_by_a_page_that_always_harms(seed: int) -> None:
    one = plan(seed=seed, deadly=2, hanging=1, pages=100)
    graph = LinkGraph(pages=one.pages - one.apart, apart=one.apart, links=2)
    linked = {target for number in range(one.pages) for target in graph.targets(number)}
    bad = bad_pages(one)
    assert not linked & set(bad.always)
    assert set(bad.always) <= set(graph.pages_apart)
    assert set(bad.once) <= set(range(1, graph.pages))


def test_two_feeders_share_the_pages_that_no_link_leads_to() -> None:
    one = plan(dead_feeders=1, pages=1000)
    slow, other = one.parts
    assert [*slow, *other] == list(range(900, 1000))
    assert plan(dead_feeders=0).apart == 0


def test_what_is_done_to_servers_needs_servers_of_ones_own() -> None:
    everything = with_deeds(plan(), CHOICE, steerable=())
    assert (everything.restarts, everything.stalls, everything.resets, everything.clock_steps) == (0, 0, 0, 0)
    assert (everything.kills, everything.freezes, everything.deadly, everything.dead_feeders) == (10, 1, 2, 1)
    some = with_deeds(plan(), [Deed.STALL, Deed.CLOCK], steerable=[Deed.STALL, Deed.RESTART])
    assert (some.kills, some.freezes, some.stalls, some.restarts, some.clock_steps) == (0, 0, 1, 0, 0)


def test_more_kills_need_more_pages() -> None:
    assert pages_for(4) < pages_for(10) < pages_for(11)


def report(**fields: int) -> Report:
    names = [field.name for field in msgspec.structs.fields(Report) if field.type is int or field.name == "seconds"]
    texts = {"frontier": "sqlite", "store": "sqlite", "surprises": [], "lost_pages": [], "left_out": []}
    return msgspec.convert({**dict.fromkeys(names, 0), **texts, **fields}, Report)


def test_a_report_without_faults_is_kept() -> None:
    assert report(kills=10, recovered=100, stale_settles_refused=20).is_kept


@pytest.mark.parametrize("fault", ["lost", "duplicated", "unexpected", "pace_violations"])
def test_a_single_fault_breaks_the_promise(fault: str) -> None:
    assert not report(**{fault: 1}).is_kept


def test_runs_are_added_up_and_the_last_one_has_the_verdict() -> None:
    whole = total([report(kills=3, busiest_second=40, seed=1), report(kills=4, busiest_second=39, seed=2, lost=1)])
    assert (whole.kills, whole.busiest_second, whole.seed, whole.lost) == (7, 40, 2, 1)
    assert not whole.is_kept


def test_workers_that_end_more_often_than_pages_explain_are_seen() -> None:
    found = Survey(
        progress=Progress(state=CrawlState.FINISHED),
        attempted=0,
        acknowledged=0,
        ok=0,
        lost=[],
        duplicated=0,
        dead=0,
        charged=0,
        surprises=[],
    )
    diary = Diary()
    diary.ended = 1
    parts = {"diary": diary, "late_settles": 0, "seconds": 1.0}
    assert report_on(plan(), found, [], **parts).surprises == [
        "1 workers ended by themselves; the pages explain 0 at most"
    ]
    assert report_on(plan(deadly=1), found, [], **parts).is_kept


def test_states_are_counters_by_the_same_name() -> None:
    assert set(TaskState) - {TaskState.UNKNOWN} <= set(Progress.__struct_fields__)
