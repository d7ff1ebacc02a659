"""`shoal chaos` finds nothing wrong with shoal, and finds what is wrong with a shoal that was tampered with."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from shoal.crawl import begin, intake_of, worker_for
from shoal.model import Crawl, Done, Lease, LeaseBatch, Progress, Result, SettleReport, TaskState
from shoal.processes.opening import Places, opened
from shoal.processes.sources import feed, requests_of
from shoal.store.base import FetchRow, ItemRow
from shoal.testing.chaos.deeds import Straggler
from shoal.testing.chaos.graph_spider import Graph
from shoal.testing.chaos.plan import Deed, Plan, pages_for, schedule, settings_for
from shoal.testing.chaos.report import Report, Survey, pace_of, survey
from shoal.testing.sites.loopback import Hit
from shoal.testing.sites.site import GraphSite
from shoal.testing.waiting import eventually
from shoal.urls import lane_of

PAGES = 60
SECONDS = 60.0
RATE = 40


# Thirteen seconds: at the paced rate 1,080 pages take nine, which is how long four kills, one freeze past the leases
# and the starts of the new workers need. With fewer pages the crawl can end before the last kill.
def test_workers_that_are_killed_and_stopped_lose_and_double_nothing(tmp_path: Path) -> None:
    options = ["--kills", "4", "--workers", "3", "--pages", "1080", "--seed", "7", "--json"]
    command = [sys.executable, "-m", "shoal", "chaos", *options]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert result.returncode == 0, result.stdout + result.stderr
    report = json.loads(result.stdout)
    assert report["attempted"] == report["acknowledged"] == report["ok"] == 1080
    assert (report["lost"], report["duplicated"], report["unexpected"], report["pace_violations"]) == (0, 0, 0, 0)
    assert (report["kills"], report["freezes"]) == (4, 1)
    assert report["recovered"] > 0
    # Each lease that the straggler could borrow is settled late twice.
    assert report["stale_settles_refused"] >= report["late_settles"] >= 2
    assert "gets SIGKILL" in result.stderr
    assert "is stopped past its leases" in result.stderr


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

    async def survey(self) -> Survey:
        return await survey(self.frontier, self.store, self.crawl, urls=self.site.expected_urls())


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


def test_more_kills_need_more_pages() -> None:
    assert pages_for(4) < pages_for(10) < pages_for(11)


def report(**fields: int) -> Report:
    names = [field.name for field in msgspec.structs.fields(Report) if field.type is int or field.name == "seconds"]
    texts = {"frontier": "sqlite", "surprises": [], "lost_pages": []}
    return msgspec.convert({**dict.fromkeys(names, 0), **texts, **fields}, Report)


def test_a_report_without_faults_is_kept() -> None:
    assert report(kills=10, recovered=100, stale_settles_refused=20).is_kept


@pytest.mark.parametrize("fault", ["lost", "duplicated", "unexpected", "pace_violations"])
def test_a_single_fault_breaks_the_promise(fault: str) -> None:
    assert not report(**{fault: 1}).is_kept


def test_states_are_counters_by_the_same_name() -> None:
    assert set(TaskState) - {TaskState.UNKNOWN} <= set(Progress.__struct_fields__)
