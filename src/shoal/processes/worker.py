"""A worker: leases, fetches, handles, stores, settles. Stateless: what it holds can be taken from it at any time."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from shoal.archive.base import Archive
from shoal.error_text import line_of, traceback_of
from shoal.errors import ServerUnreachable, StorageError
from shoal.exits.refusals import unused
from shoal.frontier.base import Frontier
from shoal.journey.journey import Journey
from shoal.journey.recent_keys import RecentKeys
from shoal.journey.results import Finished
from shoal.model import Dead, Done, Lease, LeaseBatch, Released, Result, Retry, SettleReport, WorkerBeat
from shoal.processes.machine import this_machine
from shoal.processes.patience import STORAGE_PATIENCE_SECONDS, patiently
from shoal.processes.stats import RecentRate
from shoal.processes.writer import Writer, rule_of
from shoal.settings import Settings
from shoal.spider import Spider
from shoal.store.base import Store
from shoal.version import __version__

BEAT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 0.5
BROKEN_RETRY_SECONDS = 10.0
SHORTEST_SLACK_SECONDS = 0.01
LAST_ANSWER_SECONDS = 2.0


@dataclass(frozen=True, kw_only=True)
class WorkerParts:
    """What a worker is built from. `say` takes one line for people."""

    spider: Spider
    frontier: Frontier
    store: Store
    journey: Journey
    known: RecentKeys
    say: Callable[[str], None]
    archive: Archive | None = None


class Worker:
    """Works on one crawl until it is finished or told to stop. One that `stays` waits for more instead."""

    def __init__(self, crawl: str, *, name: str, settings: Settings, parts: WorkerParts, stays: bool = False) -> None:
        self._crawl = crawl
        self._name = name
        self._settings = settings
        self._stays = stays
        self._spider = parts.spider
        self._frontier = parts.frontier
        self._journey = parts.journey
        self._known = parts.known
        self._say = parts.say
        self._writer = Writer(
            store=parts.store,
            frontier=parts.frontier,
            pages=settings.flush_pages,
            seconds=settings.flush_seconds,
            settled=self._settled,
            say=parts.say,
            archive=parts.archive,
            rule=rule_of(settings),
        )
        self._working: dict[int, asyncio.Task[None]] = {}
        self._held: dict[int, Lease] = {}
        self._waiting: set[int] = set()
        self._is_hungry = False
        self._epoch = 0
        self._pages = 0
        self._started = time.time()
        self._slot_free = asyncio.Event()
        self._news = asyncio.Event()

    async def run(self, stop: asyncio.Event) -> int:
        """Work until nothing is left or `stop` is set; gives the number of pages done."""
        await self._spider.started()
        writing = asyncio.create_task(self._writer.run())
        leasing = asyncio.create_task(self._lease_until(stop))
        aside = [asyncio.create_task(part) for part in (self._renew(), self._beats())]
        waking = asyncio.create_task(self._wake_on(stop, leasing))
        try:
            # Whichever part ends first, by an error too, ends the worker: its leases then wait for another one.
            await asyncio.wait([leasing, writing, *aside], return_when=asyncio.FIRST_COMPLETED)
            for part in (writing, *aside):
                if part.done():
                    part.result()
            if not leasing.cancelled():
                await leasing
            await self._wind_down()
            await self._last_words(writing)
        finally:
            parts = [leasing, writing, waking, *aside, *self._working.values()]
            for part in parts:
                part.cancel()
            await asyncio.gather(*parts, return_exceptions=True)
            await self._spider.finished()
        return self._pages

    async def _lease_until(self, stop: asyncio.Event) -> None:
        slots = self._settings.concurrency
        refill = max(1, slots // 4)
        while not stop.is_set():
            free = slots - len(self._working)
            if free < refill or not self._writer.has_room:
                self._slot_free.clear()
                await _wait(self._slot_free, LONGEST_WAIT_SECONDS)
                continue
            self._news.clear()
            batch = await self._lease_patiently(free, stop)
            if batch is None:
                return
            self._see_epoch(batch.epoch)
            if batch.finished and not self._stays:
                return
            for lease in batch.leases:
                self._held[lease.token] = lease
                self._working[lease.token] = asyncio.create_task(self._work(lease, batch.at + lease.wait))
            self._is_hungry = len(batch.leases) < free
            if self._is_hungry:
                self._hurry()
                await _wait(self._news, min(batch.ask_again, LONGEST_WAIT_SECONDS))

    async def _lease_patiently(self, limit: int, stop: asyncio.Event) -> LeaseBatch | None:
        """Leases, however long the frontier cannot be reached; None when told to stop meanwhile."""
        try:
            return await patiently(partial(self._lease, limit), say=self._say, stop=stop)
        except (ServerUnreachable, StorageError):
            if not stop.is_set():
                raise
            return None

    async def _lease(self, limit: int) -> LeaseBatch:
        return await self._frontier.lease(
            [self._crawl],
            limit,
            worker=self._name,
            seconds=self._settings.lease_seconds,
            horizon=self._settings.horizon_seconds,
        )

    async def _work(self, lease: Lease, start: float) -> None:
        try:
            await self._writer.add(await self._finish(lease, start))
        except asyncio.CancelledError:
            # Lost, or handed back: either way no longer ours to renew.
            self._held.pop(lease.token, None)
            raise
        finally:
            self._working.pop(lease.token, None)
            self._slot_free.set()
            self._hurry()

    async def _wait_for_start(self, lease: Lease, start: float) -> None:
        """Begin at the lane's start slot. A slot missed by half an interval would crowd the next: take a new one."""
        interval = max(lease.interval, lease.exit_interval)
        slack = max(interval / 2, SHORTEST_SLACK_SECONDS)
        self._waiting.add(lease.token)
        try:
            while True:
                await asyncio.sleep(max(0.0, start - time.monotonic()))
                if time.monotonic() - start <= slack or not interval:
                    return
                reserve = partial(self._frontier.reserve, lease.crawl, lease.task.lane, exit=lease.exit)
                wait = await patiently(reserve, say=self._say)
                start = time.monotonic() + wait
        finally:
            self._waiting.discard(lease.token)

    def _hurry(self) -> None:
        """With little in hand and no more to be had, the pages that wait to be settled are what holds us up."""
        if self._is_hungry and len(self._working) <= self._settings.concurrency // 2:
            self._writer.hurry()

    async def _finish(self, lease: Lease, start: float) -> Finished:
        try:
            if lease.interval or lease.exit_interval or lease.wait:
                await self._wait_for_start(lease, start)
            return await self._journey.take(lease)
        except Exception as error:
            # A fault of shoal's own must end like any other: seen, retried, never lost.
            return _broken(lease, error)

    def _settled(self, results: list[Result], report: SettleReport) -> None:
        """The frontier answered: only now are the found keys known for sure."""
        stale = {lease.token for lease in report.stale}
        self._see_epoch(report.epoch)
        for result in results:
            self._held.pop(result.lease.token, None)
            if isinstance(result, Done) and result.lease.token not in stale:
                self._pages += 1
                for task in result.found:
                    if task.key not in report.refused:
                        self._known.add(task.key)
        self._news.set()

    def _see_epoch(self, epoch: int) -> None:
        if epoch != self._epoch:
            self._known.clear()
            self._epoch = epoch

    async def _renew(self) -> None:
        """Keep every lease; drop the work of those that were lost."""
        seconds = self._settings.lease_seconds
        while True:
            await asyncio.sleep(seconds / 3)
            held = list(self._held.values())
            for lease in await patiently(partial(self._frontier.extend, held, seconds=seconds), say=self._say):
                self._held.pop(lease.token, None)
                task = self._working.get(lease.token)
                if task is not None:
                    task.cancel()

    async def _beats(self) -> None:
        rate = RecentRate()
        while True:
            beat = self._beat(rate.read(time.monotonic(), self._pages))
            await patiently(partial(self._frontier.beat, beat), say=self._say)
            await asyncio.sleep(BEAT_SECONDS)

    def _beat(self, rate: float) -> WorkerBeat:
        return WorkerBeat(
            worker=self._name,
            crawl=self._crawl,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=__version__,
            slots=self._settings.concurrency,
            busy=len(self._working),
            pages=self._pages,
            pages_per_second=rate,
            memory_bytes=resident_bytes(),
            started=self._started,
            machine=this_machine(),
        )

    async def _wake_on(self, stop: asyncio.Event, leasing: asyncio.Task[None]) -> None:
        await stop.wait()
        self._slot_free.set()
        self._news.set()
        # A server that does not answer must not hold up the end; what it may have lent us runs out.
        await asyncio.wait([leasing], timeout=LAST_ANSWER_SECONDS)
        leasing.cancel()

    async def _wind_down(self) -> None:
        """Finish what can be finished in the grace period, hand back the rest, write everything."""
        await self._hand_back(self._waiting)
        if self._working:
            await asyncio.wait(self._working.values(), timeout=self._settings.grace_seconds)
        await self._hand_back(self._working)
        self._writer.close()

    async def _last_words(self, writing: asyncio.Task[None]) -> None:
        """Wait for the last write, but not for a server that may be gone for good."""
        patience = max(self._settings.grace_seconds, STORAGE_PATIENCE_SECONDS) + 1
        await asyncio.wait([writing], timeout=patience)
        if not writing.done():
            raise ServerUnreachable(
                f"{len(self._held)} pages could not be handed in; their leases run out and they are done again"
            )
        await writing

    async def _hand_back(self, tokens: Iterable[int]) -> None:
        # No await between these two steps: a page that finishes in between would be settled twice.
        unfinished = [self._held[token] for token in tokens if token in self._held]
        # What a request of the others may have done to its exit is not known, and nothing is said of it.
        unsent = {lease.token: unused(lease) for lease in unfinished if lease.token in self._waiting}
        for lease in unfinished:
            self._working[lease.token].cancel()
        for lease in unfinished:
            await self._writer.add(Finished(Released(lease=lease, exit=unsent.get(lease.token))))


def _broken(lease: Lease, error: Exception) -> Finished:
    reason = f"internal: {line_of(error)}"
    if lease.attempt >= lease.task.max_attempts:
        return Finished(Dead(lease=lease, reason=reason, detail=traceback_of(error)))
    return Finished(Retry(lease=lease, reason=reason, delay=BROKEN_RETRY_SECONDS))


async def _wait(event: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def worker_name() -> str:
    """A name no other worker has: host, process and a random part."""
    return f"{socket.gethostname()}:{os.getpid()}:{os.urandom(3).hex()}"


def resident_bytes() -> int:
    """This process's memory; 0 where the system does not tell."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
