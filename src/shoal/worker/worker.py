"""The loop of a worker: lease, fetch, handle, store, settle. Another worker can get its leases at any time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from shoal.archive.base import Archive
from shoal.errors import ServerUnreachable, StorageError
from shoal.exits.refusals import unused
from shoal.exits.troubles import Troubles
from shoal.frontier.base import Frontier
from shoal.frontier.clock import wait_for_slot
from shoal.journey.intake import RecentKeys
from shoal.journey.notes import FailingHandlers
from shoal.journey.results import Finished
from shoal.logs import PAGE, WORK, Events, Work
from shoal.model import HTTP, CrawlState, Dead, Done, Lease, LeaseBatch, Pool, Released, Result, Retry, SettleReport
from shoal.policy.limits import GOES_ON, pages_per_write
from shoal.settings.table import Settings
from shoal.spider.spider import Spider
from shoal.store.base import Store
from shoal.text.errors import line_of, several, traceback_of
from shoal.worker.black_box import BlackBox, WorkerBox
from shoal.worker.heartbeat import Doing, Heartbeats
from shoal.worker.outages import STORAGE_PATIENCE_SECONDS, Outages, until_reachable
from shoal.worker.page_log import PageLog
from shoal.worker.process import ProcessContext
from shoal.worker.renewals import Renewals
from shoal.worker.retirement import Shutdown
from shoal.worker.slots import LeaseCalls, RoundLimiter, Slots
from shoal.worker.tally import Tally
from shoal.worker.writer import Writer, rule_of

T = TypeVar("T")

TICK_SECONDS = 0.5
LONGEST_WAIT_SECONDS = 0.5
ERROR_RETRY_SECONDS = 10.0
ALONE_SECONDS = 0.05
RESERVED_AT_ONCE = 8
LAST_ANSWER_SECONDS = 2.0


class PageJourney(Protocol):
    """How a worker processes a leased page. `failing` says whether the crawl must pause, `stop` why a handler wants the
    crawl stopped."""

    failing: FailingHandlers
    stop: str

    async def prepare(self, lease: Lease) -> None:
        """Do slow preparations before the start slot of the lease."""

    def take(self, lease: Lease, landed: Callable[[Lease], Awaitable[None] | None]) -> Awaitable[Finished]:
        """Process the page. `landed` is called once its last byte has arrived."""


class Worker:
    """Works on one crawl until it is finished or told to stop.

    - `say`: takes one line for people
    - `process`: what the worker shares with the other workers of its process
    - `box`: shared memory that the parent reads after a crash
    - `kinds`: of the tasks that the worker does
    - `offers`: the exits that only this machine has
    - `settled`: gets the results that the frontier has confirmed, and its report
    - `clock`: the time of day, for heartbeats; `monotonic`: the time of start slots
    """

    def __init__(
        self,
        crawl: str,
        *,
        name: str,
        settings: Settings,
        spider: Spider,
        frontier: Frontier,
        store: Store,
        journey: PageJourney,
        known: RecentKeys,
        say: Callable[[str], None],
        archive: Archive | None = None,
        process: ProcessContext | None = None,
        box: WorkerBox | None = None,
        troubles: Troubles | None = None,
        kinds: tuple[str, ...] = (HTTP,),
        offers: tuple[Pool, ...] = (),
        settled: Callable[[list[Result], SettleReport], None] | None = None,
        tally: Tally | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        process = process or ProcessContext(box.box if box else BlackBox.private())
        self._crawl = crawl
        self._name = name
        self._settings = settings
        self._spider = spider
        self._frontier = frontier
        self._journey = journey
        self._known = known
        self._on_settled = settled
        self._kinds = kinds
        self._offers = offers
        self._say = say
        self._monotonic = monotonic
        self._troubles = troubles or Troubles(say)
        self._tally = tally or Tally()
        self._events = Events(crawl=crawl, worker=name)
        # None at the default level: no page pays for lines that nobody reads.
        self._log = PageLog.if_wanted(self._events)
        self._outages = Outages(self._events)
        self._writer = Writer(
            store=store,
            frontier=frontier,
            pages=pages_per_write(settings),
            seconds=settings.flush_seconds,
            settled=self._settled,
            say=say,
            archive=archive,
            rule=rule_of(settings),
            outages=self._outages,
            tally=self._tally,
            stored=None if self._log is None else self._log.stored,
        )
        self._working: dict[int, asyncio.Task[None]] = {}
        self._slots = Slots(settings.concurrency, in_hand=self._working, crawl=crawl, common=process.slots)
        self._retirement = process.retirement
        self._rounds = RoundLimiter()
        self._held: dict[int, Lease] = {}
        self._box = box or process.box.worker(name, patience=settings.handler_seconds)
        self._renewals = Renewals(
            self._held,
            frontier=frontier,
            seconds=settings.lease_seconds,
            box=self._box,
            asks=lambda: self._awaits_leases,
            open_frontier=process.open_frontier,
        )
        self._isolation = process.isolation
        self._waiting: set[int] = set()
        self._lacks_work = False
        self._awaits_leases = False
        self._epoch = 0
        self._pages = 0
        self._signs = Heartbeats(
            name,
            crawl=crawl,
            pid=self._box.box.pid,
            frontier=frontier,
            reach=self._reach,
            doing=self._doing,
            tally=self._tally,
            kinds=kinds,
            offers=offers,
            code=process.code,
            clock=clock,
            monotonic=monotonic,
        )
        self._calls = LeaseCalls(self._slots, signs=self._signs, monotonic=monotonic)
        self._has_settled = asyncio.Event()
        self._is_alone = asyncio.Event()
        self._begun_alone = contextlib.ExitStack()
        self._reserving = asyncio.Semaphore(RESERVED_AT_ONCE)

    async def run(self, stop: asyncio.Event) -> int:
        """Work until nothing is left or `stop` is set. Returns the number of pages done."""
        WORK.set(Work(self._crawl, self._name))
        self._events.tell(logging.INFO, "worker started", slots=self._settings.concurrency)
        await self._spider.started()
        writing = asyncio.create_task(self._writer.run())
        shutdown = Shutdown(stop, self._retirement)
        leasing = asyncio.create_task(self._lease_until(shutdown.is_due))
        self._box.open()
        self._isolation.join(self._held)
        renewing = self._renewals.run(self._reach, self._lose)
        beside = [asyncio.create_task(part) for part in (renewing, self._signs.run(), self._tick())]
        stopping = asyncio.create_task(self._stop_leasing_on(shutdown, leasing))
        try:
            # The first part to end, also by an error, ends the worker: its leases expire and another worker gets them.
            await asyncio.wait([leasing, writing, *beside], return_when=asyncio.FIRST_COMPLETED)
            for part in (writing, *beside):
                if part.done():
                    part.result()
            if not leasing.cancelled():
                await leasing
            await self._finish_pages(shutdown)
            await self._wait_for_last_write(writing)
            for part in beside:
                part.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
            await self._signs.leave()
        finally:
            parts = [leasing, writing, stopping, *beside, *self._working.values()]
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            self._box.close()
            self._isolation.quit(self._held)
            self._slots.quit()
            await self._spider.finished()
            self._events.tell(logging.INFO, "worker left", pages=self._pages)
        return self._pages

    def ask_again(self) -> None:
        """Lease soon, even if the frontier had nothing a moment ago: tasks were put."""
        self._has_settled.set()

    async def _lease_until(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            if self._journey.failing.reason:
                await self._pause_crawl(self._journey.failing.reason)
            free = self._slots.room() if self._writer.has_room else 0
            if not await self._is_time_to_ask(free):
                continue
            if not self._isolation.is_free.is_set():
                self._writer.flush()
                self._slots.withdraw()
                await _wait(self._isolation.is_free, LONGEST_WAIT_SECONDS)
                continue
            self._has_settled.clear()
            with self._isolation.asking(), self._slots.asking(free):
                batch = await self._lease_when_reachable(free, stop)
                if batch is None:
                    return
                self._check_epoch(batch.epoch)
                if batch.finished:
                    return
                self._begin(batch)
            self._lacks_work = len(batch.leases) < free
            if self._lacks_work:
                self._slots.withdraw()
            if batch.leases and batch.leases[0].alone:
                await self._until_settled(batch.leases[0], stop)
            elif self._lacks_work:
                self._flush_if_idle()
                await self._calls.until_more(self._has_settled, min(batch.ask_again, LONGEST_WAIT_SECONDS))
                await self._let_others_ask(stop)

    def _begin(self, batch: LeaseBatch) -> None:
        """Start a task for each lease."""
        for lease in batch.leases:
            self._held[lease.token] = lease
            self._slots.take(lease)
            self._working[lease.token] = asyncio.create_task(self._work(lease, batch.at + lease.wait))
        if batch.leases and self._slots.is_full:
            self._tally.waiting_for_slots.begin()

    async def _is_time_to_ask(self, free: int) -> bool:
        """Whether to lease for `free` slots now. If not, returns after a wait."""
        if not self._writer.has_room:
            # The worker waits for the store now, not for slots.
            self._tally.waiting_for_slots.end()
            self._slots.withdraw()
        if free <= 0 or not self._writer.has_room:
            await self._slots.until_free(LONGEST_WAIT_SECONDS)
            return False
        return await self._calls.is_time(free)

    async def _let_others_ask(self, stop: asyncio.Event) -> None:
        """Work is scarce: while this worker holds more than its share, it does not lease what its settles free. At most
        for `horizon_seconds`: perhaps no other worker leases."""
        if self._calls.landings_pay:
            # The other workers get the places that this worker's landed requests free.
            return
        until = self._monotonic() + self._settings.horizon_seconds
        while self._signs.share is not None and len(self._working) > self._signs.share and not stop.is_set():
            left = until - self._monotonic()
            if left <= 0:
                return
            await self._slots.until_free(left)

    async def _until_settled(self, lease: Lease, stop: asyncio.Event) -> None:
        """Wait until a page leased alone is settled. It may kill the process: it starts when all other pages of the
        process are settled, and nothing is leased before it is settled itself."""
        try:
            while lease.token in self._held and not stop.is_set():
                if self._isolation.claims(lease):
                    self._is_alone.set()
                self._writer.flush()
                self._has_settled.clear()
                await _wait(self._has_settled, ALONE_SECONDS)
        finally:
            self._begun_alone.close()
            self._is_alone.clear()
            self._isolation.leave(lease)

    async def _until_alone(self, lease: Lease) -> None:
        self._waiting.add(lease.token)
        try:
            await self._is_alone.wait()
        finally:
            self._waiting.discard(lease.token)

    async def _pause_crawl(self, reason: str) -> None:
        """Pause the crawl because its handler fails, release the pages in hand, and count failures from zero again."""
        progress = await self._reach(partial(self._frontier.progress, self._crawl))
        # Only a running crawl: pausing a cancelled one would restore its tasks.
        if progress.state is CrawlState.RUNNING:
            await self._reach(partial(self._frontier.set_state, self._crawl, CrawlState.PAUSED, reason=reason))
            self._say(f"paused: {reason}")
        in_hand = list(self._working.values())
        await self._release(list(self._working))
        await asyncio.gather(*in_hand, return_exceptions=True)
        self._writer.flush()
        self._journey.failing.begin_again()

    async def _stop_crawl(self, reason: str) -> None:
        """Stop the crawl because its spider says so, and release the pages whose requests were not sent yet."""
        progress = await self._reach(partial(self._frontier.progress, self._crawl))
        if progress.state in GOES_ON:
            await self._reach(partial(self._frontier.set_state, self._crawl, CrawlState.STOPPED, reason=reason))
            self._events.tell(logging.INFO, "crawl stopped", reason=reason)
        self._journey.stop = ""
        await self._release(self._waiting)

    async def _lease_when_reachable(self, free: int, stop: asyncio.Event) -> LeaseBatch | None:
        """Lease, and wait while the frontier cannot be reached. None: told to stop meanwhile."""
        try:
            return await self._reach(partial(self._lease, free), stop=stop)
        except (ServerUnreachable, StorageError):
            if not stop.is_set():
                raise
            return None

    async def _reach(self, step: Callable[[], Awaitable[T]], *, stop: asyncio.Event | None = None) -> T:
        """Call the frontier, repeatedly while it cannot be reached."""
        return await until_reachable(step, say=self._say, stop=stop, outage=self._outages.frontier)

    async def _lease(self, free: int) -> LeaseBatch:
        if self._awaits_leases:
            # The answer to the last call was lost: its leases would be idle until they expire.
            await self._frontier.evict(self._name, known=list(self._held))
        self._awaits_leases, asked = True, time.monotonic()
        self._tally.waiting_for_slots.end()
        landed = self._calls.landed()
        limit = self._calls.limit(free, landed)
        asking = self._frontier.lease(
            [self._crawl],
            limit,
            worker=self._name,
            seconds=self._settings.lease_seconds,
            horizon=self._settings.horizon_seconds,
            landed=landed,
            kinds=self._kinds,
            offers=self._offers,
            room=free,
        )
        batch = await self._tally.leases.timed(asking)
        if self._renewals.gave_back_since(asked):
            # The event loop was blocked for too long: the renewal thread has given these leases back.
            return msgspec.structs.replace(batch, leases=[])
        self._awaits_leases = False
        self._calls.answered(batch, free=free, limit=limit, landed=landed)
        return batch

    async def _work(self, lease: Lease, start: float) -> None:
        PAGE.set(lease)
        try:
            finished = await self._finish(lease, start)
            self._slots.land(lease)
            if self._journey.stop:
                # Before the page is settled: if this worker dies now, the page is done again and stops the crawl.
                await self._stop_crawl(self._journey.stop)
            await self._writer.add(finished)
        except BaseException:
            # The lease is lost or released, or shoal itself failed: do not renew it.
            self._held.pop(lease.token, None)
            raise
        finally:
            self._working.pop(lease.token, None)
            self._slots.leave(lease.token)
            self._flush_if_idle()

    async def _wait_for_start(self, lease: Lease, start: float) -> None:
        """Wait for the start slot of the lane. If it was missed, reserve a new one."""
        interval = max(lease.interval, lease.exit_interval)
        take = partial(self._frontier.reserve, lease.crawl, lease.task.lane, exit=lease.exit)

        async def reserve(*, missed: float) -> float:
            slot = self._monotonic() - missed
            # A worker that was frozen has missed all its slots: too many calls at once would make each answer late.
            async with self._reserving:
                return await self._reach(lambda: take(missed=self._monotonic() - slot))

        self._waiting.add(lease.token)
        try:
            await self._journey.prepare(lease)
            await wait_for_slot(start, interval=interval, reserve=reserve, monotonic=self._monotonic)
        finally:
            self._waiting.discard(lease.token)

    def _flush_if_idle(self) -> None:
        """Idle: flush now, unsettled pages may hold new links. Not if tasks wait for places that landings free."""
        is_idle = self._lacks_work and not self._calls.landings_pay
        if is_idle and self._slots.taken <= self._slots.size // 2:
            self._writer.flush()

    async def _finish(self, lease: Lease, start: float) -> Finished:
        try:
            if lease.alone:
                await self._until_alone(lease)
            if lease.interval or lease.exit_interval or lease.wait:
                await self._wait_for_start(lease, start)
            if lease.alone:
                self._begun_alone.enter_context(self._box.alone_with(lease.token, lease.task.url))
            return await self._journey.take(lease, self._land)
        except BaseException as error:
            task = asyncio.current_task()
            if isinstance(error, asyncio.CancelledError) and (task is None or task.cancelling()):
                raise
            # An error in shoal itself ends like any other: shown, retried, no task lost. BaseException: a panic in a
            # Rust library is no Exception.
            return _failed_by(error, lease)

    def _land(self, lease: Lease) -> Awaitable[None] | None:
        self._slots.land(lease)
        return self._rounds.next()

    def _settled(self, results: list[Result], report: SettleReport) -> None:
        """The frontier has confirmed these results: only now do the keys that they found count as known."""
        stale = {lease.token for lease in report.stale}
        self._check_epoch(report.epoch)
        if self._log is not None:
            self._log.settled(results, stale=stale)
        if self._on_settled is not None:
            self._on_settled(results, report)
        failing = self._journey.failing if self._journey.failing.is_watching else None
        for result in results:
            self._held.pop(result.lease.token, None)
            if failing is not None:
                failing.settled(result)
            if isinstance(result, Done) and result.lease.token not in stale:
                self._pages += 1
                for task in result.found:
                    if task.key not in report.refused:
                        self._known.add(task.key)
        self._slots.forget(result.lease.token for result in results)
        pages = len(results) - sum(isinstance(result, Released) for result in results)
        self._box.box.settle(pages)
        if self._retirement is not None:
            self._retirement.settled(pages)
        self._has_settled.set()
        self._slots.wake()

    def _check_epoch(self, epoch: int) -> None:
        """Forget the known keys when the crawl may have forgotten some of them."""
        if epoch != self._epoch:
            self._known.clear()
            self._epoch = epoch

    def _lose(self, lease: Lease) -> None:
        """Cancel the work on a lease that was lost."""
        if self._log is not None and lease.token in self._held:
            self._log.lost(lease, reason="not renewed in time")
        self._held.pop(lease.token, None)
        task = self._working.get(lease.token)
        if task is not None:
            task.cancel()

    async def _tick(self) -> None:
        """Show the supervisor that the event loop runs."""
        while True:
            self._box.box.move()
            await asyncio.sleep(TICK_SECONDS)

    def _doing(self) -> Doing:
        # Landed pages count as busy, too, up to the number of slots.
        busy, most = min(len(self._working), self._slots.size), self._slots.most_since()
        # Slots that other crawls of the process hold do not count.
        slots = max(busy, most, 1) if self._slots.is_full else self._slots.size
        return Doing(busy, most, self._pages, (*self._outages.lines(), *self._troubles.lines()), slots)

    async def _stop_leasing_on(self, shutdown: Shutdown, leasing: asyncio.Task[None]) -> None:
        await shutdown.watch()
        self._slots.wake()
        self._has_settled.set()
        # A server that does not answer must not delay the end: leases from a lost answer expire.
        await asyncio.wait([leasing], timeout=LAST_ANSWER_SECONDS)
        leasing.cancel()

    async def _finish_pages(self, shutdown: Shutdown) -> None:
        """Finish the pages in hand within their grace period, release the other leases, write everything."""
        await self._release(self._waiting)
        await shutdown.finish([*self._working.values()], grace_seconds=self._settings.grace_seconds)
        await self._release(self._working)
        self._writer.close()

    async def _wait_for_last_write(self, writing: asyncio.Task[None]) -> None:
        """Wait for the last write, with a limit: its server may never come back."""
        longest = max(self._settings.grace_seconds, STORAGE_PATIENCE_SECONDS) + 1
        await asyncio.wait([writing], timeout=longest)
        if not writing.done():
            raise ServerUnreachable(
                f"{several(len(self._held), 'page')} could not be settled: done again when the leases have expired"
            )
        await writing

    async def _release(self, tokens: Iterable[int]) -> None:
        # No await between these two steps: a page that finishes in between would be settled twice.
        unfinished = [self._held[token] for token in tokens if token in self._held]
        # Pages that still wait have sent nothing; what the requests of the others did to their exits is unknown.
        unsent = {lease.token: unused(lease) for lease in unfinished if lease.token in self._waiting}
        for lease in unfinished:
            self._working[lease.token].cancel()
        for lease in unfinished:
            await self._writer.add(Finished(Released(lease=lease, exit=unsent.get(lease.token))))


def _failed_by(error: BaseException, lease: Lease) -> Finished:
    """The result of a lease after an error in shoal itself. An unreachable server is not the page's fault."""
    if isinstance(error, ServerUnreachable):
        return Finished(Retry(lease=lease, reason=f"server away: {line_of(error)}", free=True))
    reason = f"internal: {line_of(error)}"
    if lease.attempt >= lease.task.max_attempts:
        return Finished(Dead(lease=lease, reason=reason, detail=traceback_of(error)))
    return Finished(Retry(lease=lease, reason=reason, delay=ERROR_RETRY_SECONDS))


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
