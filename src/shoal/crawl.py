"""Puts the parts together: the only place that knows which class keeps which contract."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from shoal.archive.base import Archive
from shoal.errors import StorageError
from shoal.exits.configuration import exits_by_name, load_pools
from shoal.exits.offered import own_exits
from shoal.exits.passage import Passages
from shoal.exits.regions import tagged_pools
from shoal.exits.troubles import Troubles
from shoal.fetch.base import Fetcher
from shoal.fetch.browser.installed import check_browser
from shoal.fetch.descriptors import within_limit
from shoal.fetch.exit_config import ExitConfig
from shoal.fetch.http import HttpFetcher
from shoal.frontier.base import Frontier
from shoal.journey.alarm import Witness
from shoal.journey.former_pages import FormerPages
from shoal.journey.handlers import Handlers
from shoal.journey.intake import Intake
from shoal.journey.journey import Journey
from shoal.journey.lane_rules import LaneRules
from shoal.journey.last_visits import LastVisits
from shoal.journey.recent_keys import RecentKeys
from shoal.journey.results import Keeping
from shoal.journey.stages import Stages
from shoal.model import BROWSER, Crawl, Pool
from shoal.pipes import is_pipe
from shoal.processes.alerts.alert_config import AlertConfig
from shoal.processes.black_box import BlackBox
from shoal.processes.clearing import clearing_beside
from shoal.processes.coordinator import Coordinator
from shoal.processes.crawl_record import (
    code_known,
    is_unfinished,
    record_of,
    spider_of,
    url_rules_of,
)
from shoal.processes.deaths import Death, Watched, evict, reclaim_former, sign_off
from shoal.processes.fleet import Fleet, Start
from shoal.processes.listener import Listener
from shoal.processes.opening import Places, Say, archive_of, frontier_at, inbox_at
from shoal.processes.outages import until_reachable
from shoal.processes.retirement import Limits
from shoal.processes.served_kinds import check_stages, handled_elsewhere, kinds_of
from shoal.processes.solitude import Solitude
from shoal.processes.sources import reads_input, start_lanes
from shoal.processes.staying import Stayer
from shoal.processes.tally import CountedFetcher, Tally
from shoal.processes.traces import Traces, wants_traces
from shoal.processes.worker import Worker
from shoal.processes.worker_parts import Shared, WorkerParts
from shoal.processes.writer import rule_of
from shoal.results.retention import Retention
from shoal.setting_layers import Resolved, environment_layer, file_layer, refuse_near_misses, resolve
from shoal.settings import ARCHIVE_VARIABLE, CONFIG_FILE, FRONTIER_VARIABLE, PIPE_VARIABLE, STORE_VARIABLE, Settings
from shoal.spider import Spider, own_attributes
from shoal.store.base import Store
from shoal.urls import UrlRules

if TYPE_CHECKING:
    from shoal.results.replay import Replay


def settings_of(spider: type[Spider], flags: dict[str, Any], *, folder: Path = Path()) -> Resolved:
    """The settings that a spider runs with, and where each came from."""
    own = {name: getattr(spider, name) for name in msgspec.structs.asdict(Settings()) if hasattr(spider, name)}
    refuse_near_misses(own_attributes(spider), f"spider {spider.__name__}")
    return resolve(
        [
            file_layer(folder / CONFIG_FILE),
            environment_layer(),
            (f"spider {spider.__name__}", {**own, **spider.settings}),
            ("command line", flags),
        ]
    )


@asynccontextmanager
async def listener_at(places: Places, *, frontier: Frontier, say: Say) -> AsyncIterator[Listener]:
    """The listener that turns pushed URLs into tasks, closed at the end."""
    async with inbox_at(places) as inbox:
        yield Listener(inbox, frontier=frontier, intake_of=intake_of, say=say)


@asynccontextmanager
async def coordinating(pipe: str, places: Places, *, say: Say, stop: asyncio.Event) -> AsyncIterator[None]:
    """A coordinator at a pipe, meanwhile: it answers workers, and takes in the URLs that programs push.
    When it cannot go on it sets `stop`; its error is raised at the end."""
    from shoal.processes.pump import pumping

    async with (
        pumping(pipe, places.frontier, say=say, stop=stop) as frontier,
        listener_at(places, frontier=frontier, say=say) as listener,
    ):
        listening = asyncio.create_task(listener.listen_to_all())
        listening.add_done_callback(lambda done: stop.set() if _has_failed(done) else None)
        try:
            yield
        finally:
            listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listening


def _has_failed(task: asyncio.Task[None]) -> bool:
    return not task.cancelled() and task.exception() is not None


def intake_of(crawl: Crawl, *, known: RecentKeys | None = None) -> Intake:
    """The rules under which a crawl takes in URLs."""
    record = record_of(crawl)
    return Intake(
        url_rules_of(crawl),
        record.settings,
        known=known,
        pools=[pool.name for pool in crawl.pools],
        pool=record.pool,
        regions=tagged_pools(crawl.pools),
    )


@asynccontextmanager
async def worker_for(  # noqa: PLR0913 -- the parts that workers of one process share
    crawl: Crawl,
    spider: Spider,
    *,
    frontier: Frontier,
    store: Store,
    say: Say,
    name: str | None = None,
    archive: Archive | None = None,
    shared: Shared | None = None,
    fetcher: Fetcher | None = None,
    kinds: Sequence[str] = (),
) -> AsyncIterator[Worker]:
    """A worker with all its parts, closed at the end. `shared` with others of its process; no `fetcher`: over HTTP; no
    `kinds`: those of the spider."""
    settings, kinds, shortage = _work_of(crawl, type(spider), kinds=kinds, has_archive=archive is not None)
    stages = Stages(handled_elsewhere(type(spider), kinds), archive=archive, reach=partial(until_reachable, say=say))
    shared = shared or Shared(BlackBox.private(), Solitude())
    own_box = shared.box.worker(name, patience=settings.handler_seconds)
    known, troubles, tally = RecentKeys(), _troubles(say, shortage), Tally()
    traces, keeping = _traces_of(settings, worker=own_box.name, say=say), _keeping(store, archive)
    intake = intake_of(crawl, known=known)
    offered = own_exits().for_crawl(crawl.pools, settings=settings, say=say)
    exits = {**exits_by_name(load_pools(Path(CONFIG_FILE), proxies=settings.proxies)), **offered.exits}
    former_pages = _former_pages_of(crawl, settings, store=store, archive=archive, exits=exits, say=say)
    common = _Common(crawl, settings, frontier, intake, say, troubles, tally, LastVisits(store.fetches), former_pages)
    fetcher = CountedFetcher(fetcher or await _fetcher_of(settings, exits, kinds=kinds), tally)
    handlers = _handlers_of(spider, intake, witness=own_box)
    if traces is not None:
        frontier, store = traces.frontier(frontier), traces.store(store)
        fetcher, handlers = traces.fetcher(fetcher), traces.handlers(handlers)
    passages = _passages_of(common, exits=exits, pools=offered.pools, fetcher=fetcher, handlers=handlers)
    parts = WorkerParts(
        spider=spider,
        frontier=frontier,
        store=store,
        journey=_journey_of(
            common, worker=own_box.name, handlers=handlers, passages=passages, keeping=keeping, stages=stages
        ),
        known=known,
        say=say,
        archive=archive,
        troubles=troubles,
        box=own_box,
        beside=shared.beside,
        solitude=shared.solitude,
        slots=shared.slots,
        retirement=shared.retirement,
        kinds=offered.kinds(kinds),
        offers=offered.offers,
        code=shared.code,
        tally=tally,
    )
    try:
        yield Worker(crawl.id, name=own_box.name, settings=settings, parts=parts)
    finally:
        handlers.close()
        await fetcher.close()
        if traces is not None:
            await traces.close()


def _work_of(
    crawl: Crawl, spider: type[Spider], *, kinds: Sequence[str], has_archive: bool
) -> tuple[Settings, tuple[str, ...], str]:
    """The settings that a worker works by, the kinds of tasks that it does, and what this machine lacks for more."""
    settings, shortage = within_limit(record_of(crawl).settings)
    kinds = tuple(kinds) or kinds_of(spider, settings)
    check_stages(spider, settings, kinds, has_archive=has_archive)
    if BROWSER in kinds:
        # A page that waits for its browser would start after its slot.
        settings = msgspec.structs.replace(settings, concurrency=min(settings.concurrency, settings.render_pages))
    return settings, kinds, shortage


async def _fetcher_of(settings: Settings, exits: Mapping[str, ExitConfig], *, kinds: Sequence[str]) -> Fetcher:
    """What sends the requests of a worker. Nothing of a browser is loaded unless the worker renders pages."""
    plain = HttpFetcher(settings, exits=exits)
    if BROWSER not in kinds:
        return plain
    program = check_browser(settings)
    from shoal.fetch.browser.fetcher import BrowserFetcher

    fetcher = BrowserFetcher(plain, program=program, settings=settings, exits=exits)
    await fetcher.warm()
    return fetcher


def _traces_of(settings: Settings, *, worker: str, say: Say) -> Traces | None:
    """Traces of a share of a worker's pages, where a collector is named. Nothing of OpenTelemetry is loaded else."""
    if not wants_traces(settings.trace_share, environ=os.environ):
        return None
    from shoal.processes.otlp import Collector

    return Traces(Collector.open(say=say), share=settings.trace_share, worker=worker)


class _Common(NamedTuple):
    """What several parts of one worker are built from."""

    crawl: Crawl
    settings: Settings
    frontier: Frontier
    intake: Intake
    say: Say
    troubles: Troubles
    tally: Tally
    last_visits: LastVisits
    former_pages: FormerPages | None


def _former_pages_of(
    crawl: Crawl,
    settings: Settings,
    *,
    store: Store,
    archive: Archive | None,
    exits: Mapping[str, ExitConfig],
    say: Say,
) -> FormerPages | None:
    """The archived pages of earlier crawls; None where there are none: then no page is looked up."""
    crawls = record_of(crawl).before
    if archive is None or not crawls or not settings.conditional_requests:
        return None
    return FormerPages(
        crawls,
        read=store.fetches,
        archive=archive,
        exits=exits,
        reach=partial(until_reachable, say=say),
        sends_cookies=settings.cookies != "off",
    )


def _passages_of(
    common: _Common, *, exits: Mapping[str, ExitConfig], pools: Sequence[Pool], fetcher: Fetcher, handlers: Handlers
) -> Passages:
    return Passages(
        exits=exits,
        pools=pools,
        frontier=common.frontier,
        fetcher=fetcher,
        log_in=handlers.log_in,
        rules=common.intake.rules,
        settings=common.settings,
        say=common.say,
        troubles=common.troubles,
    )


def _journey_of(
    common: _Common, *, worker: str, handlers: Handlers, passages: Passages, keeping: Keeping, stages: Stages
) -> Journey:
    return Journey(
        spider_name=common.crawl.spider,
        worker=worker,
        settings=common.settings,
        needs_rules=common.crawl.needs_rules,
        handlers=handlers,
        intake=common.intake,
        lane_rules=LaneRules(frontier=common.frontier, settings=common.settings),
        passages=passages,
        keeping=keeping,
        stages=stages,
        shares=common.tally.shares,
        last_visits=common.last_visits if common.settings.conditional_requests else None,
        former_pages=common.former_pages,
    )


def _troubles(say: Say, shortage: str) -> Troubles:
    """Where a worker notes its troubles; a shortage of open files is one for as long as it works."""
    troubles = Troubles(say)
    if shortage:
        troubles.begin("open files", shortage, seconds=math.inf)
    return troubles


def _handlers_of(spider: Spider, intake: Intake, *, witness: Witness | None = None) -> Handlers:
    settings = intake.settings
    seconds = settings.handler_seconds
    return Handlers(spider, intake=intake, item_key=settings.item_key, seconds=seconds, witness=witness)


def _keeping(store: Store, archive: Archive | None) -> Keeping:
    """How raw pages are kept. Hashing costs a little per page: only a store that `wants_hashes` gets hashes."""
    if archive is not None:
        return "page"
    return "hash" if store.wants_hashes else "nothing"


def replay_for(crawl: str, spider: Spider, *, settings: Settings, archive: Archive, store: Store, say: Say) -> Replay:
    """A replay of a crawl's archived pages, with the spider and the settings as they are now."""
    from shoal.results.replay import Replay, ReplayParts

    intake = Intake(UrlRules(settings, start_hosts=start_lanes(spider)), settings)
    parts = ReplayParts(
        spider=spider,
        # From the crawl's id, not from the class: items keep their identity though the class was renamed.
        spider_name=spider_of(crawl),
        settings=settings,
        archive=archive,
        store=store,
        handlers=_handlers_of(spider, intake),
        intake=intake,
        # A corrected item is written however fresh the wrong one is.
        rule=msgspec.structs.replace(rule_of(settings), freshness=0.0),
        say=say,
    )
    return Replay(crawl, parts=parts)


def fleet_for(  # noqa: PLR0913 -- what a fleet has of its coordinator
    crawl: Crawl,
    places: Places,
    *,
    workers: int,
    frontier: Frontier,
    say: Say,
    environment: Mapping[str, str] | None = None,
    kinds: Sequence[str] = (),
) -> Fleet:
    """A fleet of `workers` worker processes on this machine, with these variables besides our own."""
    record = record_of(crawl)
    settings = record.settings
    # Not on the command line, where all users of the machine could read the passwords in them.
    how = {FRONTIER_VARIABLE: places.frontier, PIPE_VARIABLE: ""}
    if is_pipe(places.frontier):
        how = {FRONTIER_VARIABLE: "", PIPE_VARIABLE: places.frontier}
    named = {**how, STORE_VARIABLE: places.store, ARCHIVE_VARIABLE: places.archive or ""}
    variables = {**os.environ, **(environment or {}), **named}

    def command(name: str, black_box: int) -> list[str]:
        flags = ["--crawl", crawl.id, "--name", name, "--parent", str(os.getpid()), "--burst"]
        flags += ["--black-box", str(black_box)]
        flags += ["--other-store"] if places.other_store else []
        flags += ["--kinds", ",".join(kinds)] if kinds else []
        flags += ["--store-connections", str(settings.store_connections)]
        # Also where there are none: those of the spider's class are not the crawl's.
        flags += ["--max-pages", str(settings.worker_max_pages), "--max-seconds", settings.worker_max_seconds or "0s"]
        flags += ["--max-memory", settings.worker_max_memory or "0MB"]
        return [sys.executable, "-m", "shoal", "worker", record.spider, *flags]

    async def reclaim(name: str, death: Death) -> None:
        await evict(name, death, frontier=frontier, say=say)
        await until_reachable(lambda: sign_off({name: death.pid}, frontier=frontier), say=say)

    host, started = socket.gethostname(), f"{time.time_ns() // 1000 % 2**32:x}"
    names = [f"{host}:{os.getpid()}.{started}:{number}" for number in range(1, workers + 1)]
    start = Start(command=command, environment=variables)
    return Fleet(names, start=start, reclaim=reclaim, say=say, grace_seconds=record.settings.grace_seconds)


class WorkPlace(NamedTuple):
    """Where a crawl's results go: its places, and its store, opened; who watches this process, if anybody does; which
    alerts are watched for; the kinds of tasks that are done here, if not those of the spider; and whether the crawl is
    kept open for what comes from outside, until this process is told to stop."""

    places: Places
    store: Store
    watched: Watched | None = None
    alerts: AlertConfig | None = None
    kinds: tuple[str, ...] = ()
    stays: bool = False


@asynccontextmanager
async def watching(at: WorkPlace, *, frontier: Frontier, say: Say, stop: asyncio.Event) -> AsyncIterator[None]:
    """A watchman at work meanwhile, if there are alerts to watch for. It looks a last time at the end of the crawl, not
    where people or an error ended the run."""
    if at.alerts is None:
        yield
        return
    from shoal.processes.alerts.watchman import Watchman, local_paths

    paths = local_paths(at.places)
    watchman = Watchman(at.alerts, frontier=frontier, say=say, paths=paths, sinks=at.store.outbox.sinks)
    running, is_over = asyncio.create_task(watchman.run()), False
    try:
        yield
        is_over = not stop.is_set()
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await watchman.finish(looks=is_over)


def _shared(crawl: Crawl, places: Places, *, box: BlackBox | None) -> Shared:
    beside = partial(frontier_at, places.frontier)
    return Shared(box or BlackBox.private(), Solitude(), beside, code_known(crawl).digest)


async def run_crawl(
    crawl: Crawl, spider: Spider, *, at: WorkPlace, workers: int, coordinator: Coordinator, stop: asyncio.Event
) -> None:
    """Feed the crawl and work on it, here or in worker processes, until it is finished or told to stop."""
    frontier, say, places = coordinator.frontier, coordinator.say, at.places
    box = None if at.watched is None else at.watched.box
    shared = _shared(crawl, places, box=box)

    with_parts = partial(
        worker_for, crawl, spider, frontier=frontier, store=at.store, say=say, shared=shared, kinds=at.kinds
    )

    async def work() -> None:
        # A worker that retires leaves a process that goes on: the coordinator's.
        if workers > 1 or any(Limits.of(record_of(crawl).settings)):
            try:
                fleet = fleet_for(crawl, places, workers=workers, frontier=frontier, say=say, kinds=at.kinds)
                await fleet.run(stop)
            except StorageError:
                # If the crawl is lost, its workers have left it to the coordinator to say so.
                await coordinator.progress(stop=stop)
                raise
        else:
            async with archive_of(places) as archive, with_parts(archive=archive) as worker:
                await worker.run(stop)

    await reclaim_former(at.watched, frontier=frontier, say=say)
    await coordinator.reclaim_from_exited_workers()
    stayer = Stayer(frontier, say=say) if at.stays else None
    if stayer is not None:
        await stayer.hold([crawl.id])
    await coordinator.feeder.begin()
    async with (
        watching(at, frontier=frontier, say=say, stop=stop),
        clearing_beside(places, frontier=frontier, say=say),
        listener_at(places, frontier=frontier, say=say) as listener,
    ):
        feeding = asyncio.create_task(_feed(coordinator, spider, stayer))
        if box is not None and reads_input(spider):
            box.read_input(is_reading=True)
            feeding.add_done_callback(lambda _: box.read_input(is_reading=False))
        beside = [asyncio.create_task(part) for part in _upkeep(crawl, at.store, coordinator, listener)]
        try:
            await _until(work(), feeding)
            while not stop.is_set() and await _has_more(coordinator, listener, stayer, feeding=feeding, stop=stop):
                await _until(work(), feeding)
        finally:
            for task in (feeding, *beside):
                task.cancel()
            await asyncio.gather(feeding, *beside, return_exceptions=True)
            if not coordinator.feeder.has_ended:
                await coordinator.feeder.give_up()
            if stayer is not None:
                await stayer.leave()
            await coordinator.end_history()


async def _feed(coordinator: Coordinator, spider: Spider, stayer: Stayer | None) -> None:
    """Feed the start; where the crawl is kept open, that goes on until cancelled."""
    staying = None if stayer is None else asyncio.create_task(stayer.stay(coordinator.crawl.id))
    try:
        await coordinator.feeder.feed(spider, intake=intake_of(coordinator.crawl))
        if staying is not None:
            await staying
    finally:
        if staying is not None:
            staying.cancel()
            await asyncio.gather(staying, return_exceptions=True)


def _upkeep(
    crawl: Crawl, store: Store, coordinator: Coordinator, listener: Listener
) -> list[Coroutine[Any, Any, None]]:
    """What a coordinator does beside the work, until that ends."""
    return [
        coordinator.watch(),
        coordinator.keep_history(),
        coordinator.feeder.make_up(),
        listener.listen(crawl),
        Retention(store, record_of(crawl).settings, spider=crawl.spider, say=coordinator.say).run(),
        coordinator.mark_gone(store),
    ]


async def _has_more(
    coordinator: Coordinator,
    listener: Listener,
    stayer: Stayer | None,
    *,
    feeding: asyncio.Task[None],
    stop: asyncio.Event,
) -> bool:
    """Whether there is more to do though the workers found nothing left: this run has more to feed, or stays, but stood
    still for so long that nobody waited for it, or URLs were pushed at the last moment."""
    if feeding.done():
        feeding.result()
        await listener.take_in_all(coordinator.crawl, stop=stop)
    elif not coordinator.feeder.has_ended:
        await coordinator.feeder.go_on()
    elif stayer is not None:
        await stayer.hold([coordinator.crawl.id], now=True)
    return is_unfinished((await coordinator.progress()).state)


async def _until(work: Any, feeding: asyncio.Task[None]) -> None:
    """Wait for the work; a source that fails ends it at once, with its own error."""
    working = asyncio.ensure_future(work)
    waiting: Sequence[asyncio.Future[Any]] = [working, feeding]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if feeding.done() and not feeding.cancelled():
            feeding.result()
        await working
    finally:
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
