"""The shoal worker behind a Scrapy process. It leases, renews, stores and settles in its own thread: the reactor never
waits for a server, and no lease expires during a long callback."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from scrapy import Request

from shoal.crawl.feeder import RENEW_SECONDS
from shoal.crawl.opening import frontier_at, store_at
from shoal.duties.clearing import clearing_beside
from shoal.errors import ShoalError
from shoal.exits.troubles import Troubles
from shoal.frontier.base import Frontier
from shoal.journey.intake import RecentKeys
from shoal.journey.results import Keeping, Records
from shoal.model import HTTP, CrawlState, Lease, Progress, Task
from shoal.policy.failures import ITEMS
from shoal.results.export import ExportRequest, export
from shoal.run.coordinator import Coordinator
from shoal.scrapy.crawl import JoinedCrawl, ScrapyCrawl, join
from shoal.scrapy.exits import LeasedExits
from shoal.scrapy.journey import ScrapyJourney
from shoal.scrapy.visits import Visit
from shoal.spider.spider import Spider
from shoal.store.base import ItemFilter, ItemRow, Store
from shoal.worker.black_box import BlackBox
from shoal.worker.outages import until_reachable
from shoal.worker.tally import Tally
from shoal.worker.worker import Worker

BATCH_SIZE = 500
POLL_SECONDS = 0.05
STATE_SECONDS = 1.0
UNFINISHED = -1

T = TypeVar("T")


class Inflow:
    """Passed from the reactor's thread to the worker's: tasks and items that belong to no page, and dead letters of
    unfit requests. `given` counts these tasks, `put` those that the frontier has. `known`: keys that the frontier has
    confirmed. `has_fed`: all start requests are among the tasks; `has_broken_off`: the rest of the start will not come.
    `refused`: why an entry of Redis made no task. `left`: unfinished tasks of the crawl, None: unknown; kept current if
    `watches_left`."""

    def __init__(self) -> None:
        self.tasks: deque[Task] = deque()
        self.items: deque[ItemRow] = deque()
        self.letters: deque[tuple[Task, str]] = deque()
        self.given = 0
        self.put = 0
        self.known = RecentKeys()
        self.has_fed = False
        self.has_broken_off = False
        self.refused: dict[str, str] = {}
        self.watches_left = False
        self.left: int | None = None

    def give(self, task: Task) -> None:
        """Pass on a task that belongs to no page."""
        self.given += 1
        self.tasks.append(task)

    @property
    def is_fed(self) -> bool:
        """Whether the whole start was put."""
        return self.has_fed and not self.tasks and not self.letters


@dataclass(frozen=True, kw_only=True)
class Reports:
    """Callbacks of the thread, each called in the reactor's thread. `dropped`: the frontier knew these requests.
    `finished`: the crawl is finished after so many tasks were put; UNFINISHED: it has work again."""

    joined: Callable[[JoinedCrawl], None]
    offered: Callable[[Visit], None]
    dropped: Callable[[list[Request]], None]
    finished: Callable[[int], None]
    ended: Callable[[ShoalError | None], None]
    say: Callable[[str], None]


class WorkerThread:
    """Works on the crawl of one spider until it is stopped. Its methods may be called from any thread."""

    def __init__(self, wanted: ScrapyCrawl, *, inflow: Inflow, reports: Reports, call: Callable[..., None]) -> None:
        self._wanted = wanted
        self._inflow = inflow
        self._reports = reports
        self._call = call
        self._thread = threading.Thread(target=self._main, name="shoal-worker", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._stops = False

    def start(self) -> None:
        """Begin; a report says when the crawl is joined."""
        self._thread.start()

    def stop(self) -> None:
        """Write finished pages, release the rest, end."""
        self._stops = True
        if self._loop is not None and self._stop is not None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._stop.set)

    def _main(self) -> None:
        error: ShoalError | None = None
        try:
            with asyncio.Runner(loop_factory=_new_loop) as runner:
                runner.run(self._run())
        except ShoalError as failure:
            error = failure
        except Exception as failure:  # reported to the reactor: else the spider would wait for ever
            error = ShoalError(f"internal: {type(failure).__name__}: {failure}")
        self._call(self._reports.ended, error)

    async def _run(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        if self._stops:
            return
        async with frontier_at(self._wanted.places.frontier, wait=self._say, stop=self._stop) as frontier:
            joining = partial(join, self._wanted, frontier=frontier, make_store=self._make_store, say=self._say)
            joined = await until_reachable(joining, say=self._say, stop=self._stop)
            async with store_at(joined.places.store, wait=self._say, stop=self._stop) as store:
                self._call(self._reports.joined, joined)
                work = _CrawlWork(
                    joined,
                    frontier=frontier,
                    store=store,
                    inflow=self._inflow,
                    say=self._say,
                    offer=partial(self._call, self._reports.offered),
                    drop=partial(self._call, self._reports.dropped),
                    report_finished=partial(self._call, self._reports.finished),
                )
                async with clearing_beside(self._wanted.places, frontier=frontier, say=self._say):
                    await work.run(self._wanted, self._stop)
                await work.conclude(self._wanted.feeds)

    async def _make_store(self, store: str) -> None:
        async with store_at(store, wait=self._say, stop=self._stop):
            pass

    def _say(self, line: str) -> None:
        self._call(self._reports.say, line)


class _CrawlWork:
    """The thread's work on one crawl: feeds, works, and writes the crawl's history."""

    def __init__(
        self,
        joined: JoinedCrawl,
        *,
        frontier: Frontier,
        store: Store,
        inflow: Inflow,
        say: Callable[[str], None],
        offer: Callable[[Visit], None],
        drop: Callable[[list[Request]], None],
        report_finished: Callable[[int], None],
    ) -> None:
        self._crawl, self._settings, self._exits = joined.crawl, joined.settings, joined.exits
        self._offered = joined.offered
        self._offer, self._drop, self._report_finished = offer, drop, report_finished
        self._frontier, self._store, self._inflow, self._say = frontier, store, inflow, say
        self._coordinator = Coordinator(self._crawl, frontier=frontier, show=lambda _: None, say=say)
        self._has_put = asyncio.Event()
        self._worker: Worker | None = None

    async def run(self, wanted: ScrapyCrawl, stop: asyncio.Event) -> None:
        """Work until stopped: a finished crawl continues when a task is put."""
        exits = LeasedExits(
            self._exits, pools=self._offered.pools, troubles=Troubles(self._say), say=self._say,
            encoding=wanted.proxy_encoding,
        )  # fmt: skip
        await self._coordinator.reclaim_from_exited_workers()
        await self._coordinator.feeder.begin()
        inflow = [asyncio.create_task(self._drain_often()), asyncio.create_task(self._feed())]
        parts = (self._coordinator.keep_history(), self._coordinator.feeder.make_up())
        beside = [*inflow, *(asyncio.create_task(part) for part in parts)]
        try:
            while not stop.is_set():
                self._worker = self._new_worker(wanted.requests_at_once, exits)
                await self._worker.run(stop)
                for part in inflow:
                    if part.done():
                        part.result()
                self._has_put.clear()
                # Read before the frontier is asked: its answer may not include a task that is put meanwhile.
                put = self._inflow.put
                if not stop.is_set() and await self._is_finished():
                    self._report_finished(put)
                    await _first(stop, self._has_put)
                    self._report_finished(UNFINISHED)
            await self._drain()
        finally:
            for part in beside:
                part.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            if not self._coordinator.feeder.has_ended:
                await self._coordinator.feeder.give_up()
            await self._coordinator.end_history()

    async def conclude(self, feeds: Sequence[str]) -> None:
        """After a finished crawl: write its items to these files, each item once and each file whole, and report items
        that have replaced each other."""
        progress = await self._progress()
        if not progress.is_finished:
            for feed in feeds:
                unfinished = f"{self._crawl.id} is not finished; the run that finishes it writes it"
                self._say(f"{feed} is not written: {unfinished}")
            return
        wanted = ExportRequest(which=ItemFilter(spider=self._crawl.spider, crawl=self._crawl.id))
        yielded = progress.notes.get(ITEMS, 0)
        stored = await until_reachable(partial(self._store.count_items, wanted.which), say=self._say)
        # With `freshness` items stay with the crawl that wrote them; with `dedup_ttl` pages yield their items again.
        if stored < yielded and not self._settings.freshness and not self._settings.dedup_ttl:
            by = f"SHOAL_ITEM_KEY = {self._settings.item_key!r}" if self._settings.item_key else "their pages"
            self._say(
                f"{self._crawl.id} has yielded {yielded} items, of which {stored} are stored: those with one key, by"
                f" {by}, have replaced each other"
            )
        for feed in feeds:
            written = await until_reachable(partial(export, self._store, feed, wanted=wanted), say=self._say)
            self._say(f"{written} items of {self._crawl.id} are in {feed}")

    async def _is_finished(self) -> bool:
        """Whether nothing was put since the worker saw the end. Raises if the crawl was cancelled: the run ends, but
        the spider is not done."""
        progress = await self._progress()
        if progress.state is CrawlState.CANCELLED:
            raise ShoalError(
                f"{self._crawl.id} was cancelled: {progress.cancelled:,} tasks are set aside; shoal resume"
                f" {self._crawl.id} takes them up again"
            )
        if progress.state is CrawlState.STOPPED:
            self._say(
                f"{self._crawl.id} is stopped: {progress.reason}; the same command with a higher limit resumes it"
            )
            return True
        return progress.is_finished

    async def _progress(self) -> Progress:
        return await until_reachable(lambda: self._frontier.progress(self._crawl.id), say=self._say)

    def _new_worker(self, requests_at_once: int, exits: LeasedExits) -> Worker:
        box = BlackBox.private().worker(None, patience=0.0)
        keeping: Keeping = "hash" if self._store.wants_hashes else "nothing"
        records = Records(spider_name=self._crawl.spider, worker=box.name, keeping=keeping, clock=time.time)
        tally = Tally()
        journey = ScrapyJourney(
            offer=self._offer,
            drop=self._drop,
            put=self._put,
            reserve=self._reserve,
            places=requests_at_once,
            exits=exits,
            records=records,
            settings=self._settings,
            tally=tally,
        )
        return Worker(
            self._crawl.id,
            name=box.name,
            settings=self._settings,
            spider=Spider(),
            frontier=self._frontier,
            store=self._store,
            journey=journey,
            known=self._inflow.known,
            say=self._say,
            troubles=exits.troubles,
            box=box,
            settled=journey.settled,
            kinds=self._offered.kinds((HTTP,)),
            offers=self._offered.offers,
            tally=tally,
        )

    async def _put(self, crawl: str, tasks: list[Task]) -> None:
        for start in range(0, len(tasks), BATCH_SIZE):
            some = tasks[start : start + BATCH_SIZE]
            report = await until_reachable(partial(self._frontier.put, crawl, some), say=self._say)
            for task in some:
                if task.key not in report.refused:
                    self._inflow.known.add(task.key)

    async def _reserve(self, lease: Lease, *, missed: float) -> float:
        slot = time.monotonic() - missed
        frontier, lane = self._frontier, lease.task.lane

        def reserve() -> Awaitable[float]:
            return frontier.reserve(lease.crawl, lane, exit=lease.exit, missed=time.monotonic() - slot)

        return await until_reachable(reserve, say=self._say)

    async def _feed(self) -> None:
        """Keep the feeder alive until the whole start was put, or is no longer needed."""
        looks_at = 0.0
        while not self._inflow.is_fed:
            if self._inflow.has_broken_off and not self._inflow.tasks:
                # The crawl does not count as fed: the next run feeds it again.
                await self._coordinator.feeder.give_up()
                return
            await self._coordinator.feeder.go_on()
            if self._inflow.watches_left or time.monotonic() >= looks_at:
                looks_at, progress = time.monotonic() + STATE_SECONDS, await self._progress()
                self._inflow.left = progress.left
                if progress.state in (CrawlState.CANCELLED, CrawlState.STOPPED):
                    await self._coordinator.feeder.give_up()
                    return
            await asyncio.sleep(RENEW_SECONDS)
        await self._coordinator.feeder.end()

    async def _drain_often(self) -> None:
        while True:
            await self._drain()
            await asyncio.sleep(POLL_SECONDS)

    async def _drain(self) -> None:
        while rows := _first_of(self._inflow.items):
            await until_reachable(partial(self._store.write, rows, []), say=self._say)
            for _ in rows:
                self._inflow.items.popleft()
        while letters := _first_of(self._inflow.letters):
            await until_reachable(partial(self._frontier.bury, self._crawl.id, letters), say=self._say)
            for _ in letters:
                self._inflow.letters.popleft()
        while tasks := _first_of(self._inflow.tasks):
            await self._put(self._crawl.id, tasks)
            # Only now: `is_fed` means that nothing is left here.
            for _ in tasks:
                self._inflow.tasks.popleft()
            self._inflow.put += len(tasks)
            self._has_put.set()
            if self._worker is not None:
                self._worker.ask_again()


def _first_of(waiting: deque[T]) -> list[T]:
    return [waiting[index] for index in range(min(len(waiting), BATCH_SIZE))]


async def _first(*events: asyncio.Event) -> None:
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        from uvloop import new_event_loop
    except ImportError:
        return asyncio.new_event_loop()
    return new_event_loop()
