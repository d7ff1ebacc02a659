"""One worker process: finds its crawls, works on them, waits for the next ones."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from asyncio import FIRST_COMPLETED
from collections.abc import Iterable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from shoal.archive.base import Archive
from shoal.backends import is_pipe
from shoal.cli.crawl_choice import choose
from shoal.cli.display.inboxes import say_inboxes, with_inbox
from shoal.cli.display.lines import Say, SpiderOutput, say_on
from shoal.cli.display.next_commands import begin_again, command, quote
from shoal.cli.main import INTERRUPTED
from shoal.cli.process.signals import Stopping, stop_without
from shoal.cli.process.worker_inboxes import WorkerCode, WorkerInboxes
from shoal.crawl.inbox import Listener
from shoal.crawl.joining import places_to_join, results_of
from shoal.crawl.opening import Places, SharedResults, frontier_at, shared_results, waiting_for
from shoal.crawl.places import path_of
from shoal.crawl.record import belongs_to, is_unfinished, owner_of, record_of, with_refusals
from shoal.duties.clearing import clearing_beside
from shoal.errors import CrawlLost, ServerUnreachable, ShoalError, StorageError, UsageError
from shoal.frontier.base import Frontier
from shoal.model import Crawl, CrawlState
from shoal.policy.failures import faults_of
from shoal.run.building import worker_for
from shoal.run.coordinator import StateChanges
from shoal.run.intakes import listener_at, settings_of
from shoal.settings.table import Settings
from shoal.spider.loading import load_spiders, made
from shoal.spider.spider import Spider, spider_name
from shoal.store import STORE_CONNECTIONS
from shoal.store.base import Store
from shoal.text.errors import several
from shoal.text.secrets import masked
from shoal.worker.black_box import BlackBox
from shoal.worker.deaths import Watched, reclaim_former
from shoal.worker.outages import SaidOnce, until_reachable
from shoal.worker.process import Isolation, ProcessContext, SharedSlots
from shoal.worker.retirement import Idleness, Limits, Retirement, Shutdown

FAILED = 1
POLL_SECONDS = 1.0
USE_ITS_FILE = "work on it with that file, or name your spider"
LONGEST_POLL_SECONDS = 15.0
POLL_SHARE = 0.05


@dataclass(frozen=True, kw_only=True)
class WorkerJob:
    """The options of `shoal worker`.

    parent: process id of the coordinator, for a worker of its fleet. other_code: accept other spider code than the
    crawl's. inbox: a folder to read. watched: what the coordinator or supervisor of this process knows. max_…: when it
    retires; None: by its spiders' settings. replaced: a new worker follows. idle_seconds: end after this time without
    work; 0: never."""

    reference: str
    places: Places
    crawl_id: str | None = None
    name: str | None = None
    store_connections: int | None = None
    parent: int | None = None
    burst: bool = False
    metrics: str | None = None
    kinds: tuple[str, ...] = ()
    other_code: bool = False
    inbox: str | None = None
    watched: Watched | None = None
    max_pages: int | None = None
    max_seconds: float | None = None
    max_memory: int | None = None
    replaced: bool = False
    idle_seconds: float = 0.0

    @property
    def box(self) -> BlackBox | None:
        return None if self.watched is None else self.watched.box


async def work_on_crawls(job: WorkerJob) -> int:
    """Work until stopped, or with --burst until the crawls are finished."""
    spiders = {spider_name(spider): spider for spider in load_spiders(job.reference)}
    if job.parent is None:
        job = replace(job, places=with_inbox(job.places, job.inbox, spiders=list(spiders.values())))
    say = SaidOnce(say_on(sys.stderr))
    # Loaded now: the files may change while servers are awaited.
    code = WorkerCode(job.reference, places=job.places, accepts_other=job.other_code or job.parent is not None, say=say)
    said = say if job.parent is None else _silent
    stopping = Stopping(say=said, grace_seconds=Settings().grace_seconds, box=job.box)
    watching = asyncio.create_task(stop_without(job.parent, stopping.stop))
    try:
        faults = await _work(job, spiders=spiders, code=code, stopping=stopping, say=say)
    except CrawlLost as error:
        # It happens to every worker of a fleet: the coordinator says it once.
        if job.parent is not None:
            return FAILED
        raise CrawlLost(f"{error}; {_begin_again(job)}") from None
    finally:
        watching.cancel()
    if faults and not stopping.stop.is_set():
        for fault in faults:
            say(fault)
        return FAILED
    # A worker that waits for crawls ends normally when stopped; with --burst its crawl is unfinished.
    return INTERRUPTED if job.burst and stopping.stop.is_set() else 0


async def _work(
    job: WorkerJob, *, spiders: dict[str, type[Spider]], code: WorkerCode, stopping: Stopping, say: Say
) -> list[str]:
    """Work to the end; returns why crawls failed, if this worker judges that."""
    output, stop, places = SpiderOutput(sys.stderr), stopping.stop, job.places
    by_settings = (settings_of(spider, {}).values.store_connections for spider in spiders.values())
    connections = job.store_connections or max(by_settings, default=STORE_CONNECTIONS)
    async with AsyncExitStack() as stack:
        # While it waits for servers, signals end it at once: it has no pages to finish.
        frontier = await stack.enter_async_context(
            frontier_at(places.frontier, wait=_patience(job, places.frontier, say), stop=stop)
        )
        results = await stack.enter_async_context(shared_results(connections=connections))
        # A named store is opened at once; otherwise the crawl names its store.
        if places.store and path_of(places.store) is None:
            await results.store(places.store, wait=_patience(job, places.store, say), stop=stop)
        stack.enter_context(stopping.listening())
        stack.enter_context(contextlib.redirect_stdout(output))
        stack.enter_context(contextlib.redirect_stderr(output))
        listener = await stack.enter_async_context(listener_at(places, frontier=frontier, say=say))
        await reclaim_former(job.watched, frontier=frontier, say=say)
        if job.metrics is not None:
            frontier = stack.enter_context(_serving_metrics(job.metrics, frontier, say))
        if job.parent is None and not is_pipe(places.frontier):
            # In a fleet and behind a pipe the coordinator does it.
            await stack.enter_async_context(clearing_beside(places, frontier=frontier, say=say))
        process = WorkerProcess(job, spiders=spiders, code=code, frontier=frontier, results=results, say=say)
        await process.run(stop, listener=listener)
        # In a fleet the coordinator judges the crawl.
        if not job.burst or job.parent is not None:
            return []
        faults = await process.faults()
        if not stop.is_set():
            await process.say_inboxes()
        return faults


@contextlib.contextmanager
def _serving_metrics(address: str, frontier: Frontier, say: Say) -> Iterator[Frontier]:
    """The frontier, with the heartbeats of this process served as metrics."""
    # Imported here: most workers serve no metrics.
    from shoal.cli.process.dashboard import check_extra

    check_extra()
    from shoal.serve.metrics import OwnBeats, telling_metrics

    beats = OwnBeats()
    with telling_metrics(address, beats) as port:
        say(f"metrics are served on port {port}")
        yield beats.on(frontier)


def _patience(job: WorkerJob, url: str, say: Say) -> Say | None:
    """A worker waits for servers; in a fleet also for files, which its coordinator has already opened."""
    return waiting_for(url, say) if job.parent is None else say


def _limits(job: WorkerJob, spiders: Iterable[type[Spider]]) -> Limits:
    """When this process retires: by its flags, else by the strictest settings of its spiders."""
    own = Limits.strictest([Limits.of(settings_of(spider, {}).values) for spider in spiders])
    return own.unless_told(pages=job.max_pages, seconds=job.max_seconds, memory=job.max_memory)


class WorkerProcess:
    """Works on all unfinished crawls of its spiders at once, and on crawls that begin meanwhile. Crawls with the same
    store share its connections."""

    def __init__(
        self,
        job: WorkerJob,
        *,
        spiders: dict[str, type[Spider]],
        code: WorkerCode,
        frontier: Frontier,
        results: SharedResults,
        say: Say,
    ) -> None:
        self._job = job
        self._spiders = spiders
        self._code = code
        self._frontier = frontier
        self._results = results
        self._say = say
        self._running: dict[str, asyncio.Task[None]] = {}
        self._left_alone: set[str] = set()
        self._worked: dict[str, Crawl] = {}
        self._states = StateChanges()
        self._inboxes = WorkerInboxes(
            job, spiders=spiders, code=code.loaded, frontier=frontier, results=results, say=say
        )
        self._isolation = Isolation()
        self._retirement = Retirement(_limits(job, spiders.values()), in_hand=lambda: self._isolation.in_hand)
        self._idleness = Idleness(job.idle_seconds)
        self._slots = SharedSlots(retirement=self._retirement)
        self._process = ProcessContext(
            job.box or BlackBox.private(),
            isolation=self._isolation,
            open_frontier=partial(frontier_at, job.places.frontier),
            code=self._code.loaded.digest,
            slots=self._slots,
            retirement=self._retirement,
        )

    async def run(self, stop: asyncio.Event, *, listener: Listener) -> None:
        """Work until stopped or retired, or with --burst until no crawl is left. Takes in pushed URLs meanwhile."""
        self._retirement.check_memory()
        shutdown = Shutdown(stop, self._retirement)
        beside = [asyncio.create_task(part) for part in (self._retirement.watch(), shutdown.watch())]
        try:
            await self._work(shutdown.is_due, stop, listener=listener)
        finally:
            for task in (*beside, *self._running.values()):
                task.cancel()
            await asyncio.gather(*beside, *self._running.values(), return_exceptions=True)
            await self._inboxes.leave()
        if self._retirement.reason and not stop.is_set():
            await self._retire(stop)

    async def _retire(self, stop: asyncio.Event) -> None:
        """Say why this process retires, to people and to its supervisor. With --burst and all crawls finished, it ends
        normally."""
        if self._job.burst and not any(is_unfinished(crawl.state) for crawl in self._mine(await self._crawls(stop))):
            return
        if self._job.box is not None:
            self._job.box.retire(self._retirement.reason)
        follows = "; a new worker takes its place" if self._job.replaced else ""
        self._tell(f"retired {self._retirement.reason}{follows}")

    async def _work(self, shutdown: asyncio.Event, stop: asyncio.Event, *, listener: Listener) -> None:
        left = asyncio.create_task(shutdown.wait())
        has_waited = False
        pause = 0.0
        try:
            while not shutdown.is_set():
                began = time.monotonic()
                try:
                    crawls = self._unfinished(await self._poll(listener, stop))
                    await self._inboxes.keep_open(crawl for crawl in crawls if crawl.id in self._running)
                    for crawl in crawls:
                        self._slots.prioritise(crawl.id, crawl.priority)
                        if crawl.id in self._running:
                            self._code.notice(crawl)
                        elif self._code.admits(crawl, is_alone=not self._running):
                            await self._take_up(crawl, stop)
                except (ServerUnreachable, StorageError):
                    if stop.is_set():
                        break
                    raise
                if not self._running and self._job.burst:
                    return
                if self._is_idle(pause):
                    self._retirement.leave()
                    break
                if not self._running and not has_waited:
                    self._say(f"waiting for a crawl of {self._names()}{self._inboxes.or_for_urls()}")
                    has_waited = True
                pause = pause_after(time.monotonic() - began)
                await asyncio.wait([left, *self._running.values()], timeout=pause, return_when=FIRST_COMPLETED)
                self._forget_ended()
            await asyncio.gather(*self._running.values())
        finally:
            left.cancel()

    def _is_idle(self, pause: float) -> bool:
        """Whether there was no work for `idle_seconds`."""
        is_over = self._idleness.is_over(
            in_hand=self._isolation.in_hand, pages=self._retirement.pages, within=pause + POLL_SECONDS
        )
        if is_over:
            self._say(f"ends: no work for {self._job.idle_seconds:g} s (--idle-seconds)")
        return is_over

    async def faults(self) -> list[str]:
        """Why finished crawls of this process failed, a line each."""
        lines = []
        for crawl in self._worked.values():
            progress = await until_reachable(partial(self._frontier.progress, crawl.id), say=self._say)
            if progress.state in (CrawlState.FINISHED, CrawlState.STOPPED):
                faults = faults_of(progress, max_failures=record_of(crawl).settings.max_failures)
                lines += [f"{crawl.id} failed: {fault}" for fault in faults]
        return lines

    async def say_inboxes(self) -> None:
        """Say which entries arrived in the inboxes of crawls that this process has left."""
        with contextlib.suppress(ShoalError):
            await say_inboxes(list(self._worked.values()), places=self._job.places, say=self._say)

    async def _poll(self, listener: Listener, stop: asyncio.Event) -> list[Crawl]:
        """Take in pushed URLs, unless the coordinator does it; returns the crawls in the frontier."""
        crawls = await self._crawls(stop)
        if self._job.parent is not None:
            return crawls
        for crawl in crawls:
            if crawl.id in self._worked:
                self._states.see(crawl.id, crawl.state)
        # Also for finished crawls: a pushed URL makes them run again.
        mine = self._mine(crawls)
        taken = await listener.take_in(mine)
        begun = await self._inboxes.begin(crawls, listener)
        return await self._crawls(stop) if taken or begun else crawls

    async def _take_up(self, crawl: Crawl, stop: asyncio.Event) -> None:
        """Begin to work on a crawl, with its own store and archive."""
        try:
            places = places_to_join(crawl, self._job.places)
        except UsageError as error:
            if not self._running:
                raise
            # Other crawls continue.
            self._left_alone.add(crawl.id)
            self._say(str(error))
            return
        store = await self._results.store(places.store, wait=self._patience(places.store), stop=stop)
        archive = await self._results.archive(places.archive, wait=self._patience(places.archive or ""), stop=stop)
        if places.other_store:
            await self._remember(crawl, places)
        await self._inboxes.keep_open_also(crawl)
        self._tell(f"took up {crawl.id} (store {masked(places.store)})")
        self._running[crawl.id] = asyncio.create_task(self._work_on(crawl, stop, store=store, archive=archive))
        self._worked[crawl.id] = crawl
        self._states.see(crawl.id, crawl.state)

    def _patience(self, url: str) -> Say | None:
        return self._say if self._running else _patience(self._job, url, self._say)

    async def _remember(self, crawl: Crawl, places: Places) -> None:
        """Add another store or archive to the crawl's record."""
        record = record_of(crawl)
        results = results_of(places, record.results)
        if results != record.results:
            settings = msgspec.to_builtins(msgspec.structs.replace(record, results=results))
            changed = msgspec.structs.replace(crawl, settings=settings)
            await until_reachable(lambda: self._frontier.open_crawl(changed), say=self._say)

    async def _work_on(self, crawl: Crawl, stop: asyncio.Event, *, store: Store, archive: Archive | None) -> None:
        spider = made(self._spiders[crawl.spider], record_of(crawl).arguments)
        async with worker_for(
            crawl,
            spider,
            frontier=self._frontier,
            store=store,
            say=self._say,
            name=self._job.name,
            archive=archive,
            process=self._process,
            kinds=self._job.kinds,
        ) as worker:
            pages = await worker.run(stop)
        self._tell(f"left {crawl.id}: {several(pages, 'page')}")

    def _tell(self, line: str) -> None:
        """Say a line, unless the coordinator of a fleet says it for all its workers."""
        if self._job.parent is None:
            self._say(line)

    def _forget_ended(self) -> None:
        """Remove ended crawls; an error in one of them ends the process."""
        for name, task in list(self._running.items()):
            if task.done():
                del self._running[name]
                try:
                    task.result()
                except CrawlLost as error:
                    if self._job.burst:
                        raise
                    self._say(f"{error}; {_begin_again(self._job)}; this worker waits for a new crawl")

    async def _crawls(self, stop: asyncio.Event) -> list[Crawl]:
        # During a crawl, that crawl's worker says that it waits.
        say = _silent if self._running else self._say
        crawls = self._usable(await until_reachable(self._frontier.crawls, say=say, stop=stop))
        named = self._job.crawl_id
        if named is None:
            return crawls
        # A crawl that it worked on, or of its coordinator, may be gone: others report that.
        is_new = self._job.burst and self._job.parent is None and named not in self._worked
        crawls = [choose(crawls, named)] if is_new else [one for one in crawls if one.id == named]
        return [self._as_served(crawl) for crawl in crawls]

    def _usable(self, crawls: list[Crawl]) -> list[Crawl]:
        """The crawls that this version can read; each other crawl of its spiders is named once."""
        checked = with_refusals(crawls)
        for crawl in checked:
            if crawl.refusal and crawl.id == self._job.crawl_id:
                raise UsageError(crawl.refusal)
            if crawl.refusal and crawl.spider in self._spiders and crawl.id not in self._left_alone:
                self._left_alone.add(crawl.id)
                self._tell(crawl.refusal)
        return [crawl for crawl in checked if not crawl.refusal]

    def _mine(self, crawls: list[Crawl]) -> list[Crawl]:
        """The crawls that belong to the spiders' file."""
        named = [crawl for crawl in crawls if crawl.spider in self._spiders]
        return [crawl for crawl in named if crawl.id not in self._left_alone and self._belongs(crawl)]

    def _belongs(self, crawl: Crawl) -> bool:
        """Whether a crawl belongs to the spiders' file. A crawl of another file with the same spider name is left
        alone, or an error if it was named."""
        if belongs_to(crawl, self._job.reference, frontier=self._job.places.frontier):
            return True
        if self._job.crawl_id is not None or (self._job.burst and is_unfinished(crawl.state)):
            raise UsageError(f"{owner_of(crawl)}, not to {self._job.reference}: {USE_ITS_FILE}")
        self._left_alone.add(crawl.id)
        if is_unfinished(crawl.state):
            self._say(f"{owner_of(crawl)}, not to {self._job.reference}: this worker leaves it alone; {USE_ITS_FILE}")
        return False

    def _unfinished(self, crawls: list[Crawl]) -> list[Crawl]:
        unfinished = [crawl for crawl in self._mine(crawls) if is_unfinished(crawl.state)]
        if self._job.burst and self._job.crawl_id is None and not unfinished and not self._worked:
            begin = command(f"run {quote(self._job.reference)}", self._job.places)
            raise UsageError(f"no crawl of {self._names()} is unfinished: `{begin}` begins one")
        return unfinished

    def _as_served(self, crawl: Crawl) -> Crawl:
        """The crawl; if it was named by its id, the file's only spider works on it whatever its name."""
        if crawl.spider not in self._spiders and len(self._spiders) == 1:
            self._spiders[crawl.spider] = next(iter(self._spiders.values()))
        return crawl

    def _names(self) -> str:
        return " or ".join(repr(name) for name in self._spiders)


def _begin_again(job: WorkerJob) -> str:
    return begin_again(f"run {quote(job.reference)}", job.places)


def pause_after(seconds: float) -> float:
    """Seconds to wait after a poll that took `seconds`: polling thousands of crawls takes long."""
    return min(max(POLL_SECONDS, seconds / POLL_SHARE), LONGEST_POLL_SECONDS)


def _silent(line: str) -> None:
    """Shows nothing: the coordinator says it."""
