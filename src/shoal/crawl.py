"""Puts the parts together: the only place that knows which class keeps which contract."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from shoal.archive.base import Archive
from shoal.errors import StorageError, UsageError
from shoal.exits.configuration import exits_by_name, load_pools
from shoal.exits.passage import Passages
from shoal.exits.troubles import Troubles
from shoal.fetch.descriptors import within_limit
from shoal.fetch.http import HttpFetcher
from shoal.frontier import REDIS_SCHEMES
from shoal.frontier.base import Frontier
from shoal.journey.alarm import Witness
from shoal.journey.handlers import Handlers
from shoal.journey.intake import Intake
from shoal.journey.journey import Journey
from shoal.journey.lane_rules import LaneRules
from shoal.journey.recent_keys import RecentKeys
from shoal.journey.results import Keeping
from shoal.model import Crawl, CrawlState
from shoal.processes.black_box import BlackBox
from shoal.processes.coordinator import Coordinator
from shoal.processes.crawl_record import (
    Origin,
    belongs_to,
    describe_crawl,
    is_readable,
    is_unfinished,
    next_id,
    owner_of,
    record_of,
    results_known,
    spider_of,
    url_rules_of,
    with_refusals,
)
from shoal.processes.deaths import Death, Watched, evict, reclaim_former
from shoal.processes.fleet import Fleet, Start
from shoal.processes.joining import results_of
from shoal.processes.listener import Inbox, Listener, NoInbox
from shoal.processes.opening import Places, Say, archive_of, frontier_at, store_at
from shoal.processes.result_places import OutOfReach, is_same, recalled
from shoal.processes.sources import reads_input, start_lanes
from shoal.processes.spider_source import source_of
from shoal.processes.worker import Worker
from shoal.processes.worker_parts import WorkerParts
from shoal.processes.writer import rule_of
from shoal.results.replay import Replay, ReplayParts
from shoal.setting_values import parse_duration
from shoal.settings import (
    FRONTIER_VARIABLE,
    STORE_VARIABLE,
    Resolved,
    Settings,
    environment_layer,
    file_layer,
    refuse_near_misses,
    resolve,
)
from shoal.spider import Spider, own_attributes, spider_name
from shoal.store.base import ItemFilter, Store
from shoal.urls import UrlRules

CONFIG_FILE = "shoal.toml"


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


async def begin(
    frontier: Frontier,
    spider: Spider,
    *,
    settings: Settings,
    reference: str,
    places: Places | None = None,
    store: Store | None = None,
) -> tuple[Crawl, Crawl | None]:
    """Resume the spider's unfinished crawl with the settings as they are now, or begin a new one.

    Gives the crawl, and the resumed one as it was before; `reference` is how worker processes load the spider. The
    crawl remembers the store and the archive of `places`; a new one gets an id that `store` has no items of."""
    crawls = await crawls_of(spider, frontier=frontier)
    former = unfinished_crawl(crawls, reference=reference, places=places)
    origin = _origin(reference, places=places, former=former)
    crawl_id = await _next_id(spider, crawls, store=store) if former is None else former.id
    crawl = _described(crawl_id, spider, settings=settings, origin=origin, former=former)
    return await _start(crawl, frontier=frontier), former


async def begin_afresh(
    frontier: Frontier, store: Store, spider: Spider, *, places: Places, settings: Settings, reference: str
) -> Crawl:
    """Discard the spider's unfinished crawls and begin a new one. Crawls of another file with a spider of this name
    stay."""
    # Before anything is deleted: settings may be refused, and the id of a discarded crawl is not used again, since
    # its workers may still be running.
    crawls = await crawls_of(spider, frontier=frontier)
    origin = _origin(reference, places=places)
    crawl = _described(await _next_id(spider, crawls, store=store), spider, settings=settings, origin=origin)
    for former in own_crawls(crawls, reference=reference, places=places, refused=True):
        if is_unfinished(former.state):
            # One that another version wrote stays if it cannot be deleted.
            with contextlib.suppress(*([UsageError] if former.refusal else [])):
                await discard(former, places=places, frontier=frontier, store=store)
    return await _start(crawl, frontier=frontier)


async def crawls_of(spider: Spider, *, frontier: Frontier) -> list[Crawl]:
    """The crawls of all spiders of this name, newest first; also those that this shoal must leave alone."""
    name = spider_name(type(spider))
    return [crawl for crawl in with_refusals(await frontier.crawls()) if crawl.spider == name]


def own_crawls(crawls: Sequence[Crawl], *, reference: str, places: Places | None, refused: bool = False) -> list[Crawl]:
    """Those of the crawls that belong to the spider's file and can be used; with `refused`, also those that cannot, as
    far as their record tells whose they are."""
    at = "" if places is None else places.frontier
    usable = [crawl for crawl in crawls if not crawl.refusal or (refused and is_readable(crawl))]
    return [crawl for crawl in usable if belongs_to(crawl, reference, frontier=at)]


def unfinished_crawl(crawls: Sequence[Crawl], *, reference: str, places: Places | None) -> Crawl | None:
    """The crawl that the spider's run resumes, if there is one. Refuses when only another file's is unfinished."""
    unfinished = [crawl for crawl in crawls if is_unfinished(crawl.state) and not crawl.refusal]
    mine = own_crawls(unfinished, reference=reference, places=places)
    if unfinished and not mine:
        cure = 'name your spider (name = "…" in its class), or --fresh begins a crawl beside it'
        raise UsageError(f"{owner_of(unfinished[0])}; {cure}")
    return mine[0] if mine else None


async def discard(crawl: Crawl, *, places: Places, frontier: Frontier, store: Store) -> None:
    """Delete a crawl with everything that was pushed for it. Its items stay."""
    # The frontier first: it may refuse, and then nothing must be gone.
    await frontier.delete_crawl(crawl.id)
    async with inbox_at(places) as inbox:
        await inbox.delete(crawl.id)
    known = results_known(crawl).store
    if known is None or is_same(known, places.store, frontier=places.frontier):
        await store.delete_crawl(crawl.id)
        return
    # Its log lies in a store of its own. In one that cannot be reached from here it stays.
    with contextlib.suppress(OutOfReach):
        async with store_at(recalled(known, frontier=places.frontier)) as its_own:
            await its_own.delete_crawl(crawl.id)


async def _next_id(spider: Spider, crawls: Sequence[Crawl], *, store: Store | None) -> str:
    """An id that neither a crawl of this frontier has nor items in the store: they may come from a frontier that is
    lost, or from another one."""
    name = spider_name(type(spider))
    found = next_id(name, crawls)
    if store is None or not await store.count_items(ItemFilter(spider=name, crawl=found)):
        return found
    return next_id(name, [*crawls, *(Crawl(id=crawl, spider=name) for crawl in await store.count_by_crawl(name))])


def _origin(reference: str, *, places: Places | None, former: Crawl | None = None) -> Origin:
    if places is None:
        return Origin(reference=reference)
    known = None if former is None else results_known(former)
    source = source_of(reference, frontier=places.frontier)
    return Origin(reference=reference, source=source, results=results_of(places, known))


def _described(
    crawl_id: str, spider: Spider, *, settings: Settings, origin: Origin, former: Crawl | None = None
) -> Crawl:
    pools = load_pools(Path(CONFIG_FILE), proxies=settings.proxies)
    return describe_crawl(crawl_id, spider, settings=settings, origin=origin, pools=pools, former=former)


async def _start(crawl: Crawl, *, frontier: Frontier) -> Crawl:
    """Open the crawl and let it run: a resumed one may have been paused."""
    begun = await frontier.open_crawl(crawl)
    await frontier.set_state(crawl.id, CrawlState.RUNNING)
    return begun


@asynccontextmanager
async def inbox_at(places: Places) -> AsyncIterator[Inbox]:
    """The inbox beside the frontier, closed at the end."""
    inbox: Inbox = NoInbox()
    if places.frontier.partition("://")[0] in REDIS_SCHEMES:
        from shoal.frontier.redis.inbox import RedisInbox

        inbox = RedisInbox(places.frontier)
    try:
        yield inbox
    finally:
        await inbox.close()


@asynccontextmanager
async def listener_at(places: Places, *, frontier: Frontier, say: Say) -> AsyncIterator[Listener]:
    """The listener that turns pushed URLs into tasks, closed at the end."""
    async with inbox_at(places) as inbox:
        yield Listener(inbox, frontier=frontier, intake_of=intake_of, say=say)


def intake_of(crawl: Crawl, *, known: RecentKeys | None = None) -> Intake:
    """The rules under which a crawl takes in URLs."""
    record = record_of(crawl)
    return Intake(
        url_rules_of(crawl),
        record.settings,
        known=known,
        pools=[pool.name for pool in crawl.pools],
        pool=record.pool,
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
    box: BlackBox | None = None,
    places: Places | None = None,
) -> AsyncIterator[Worker]:
    """A worker with all its parts, closed at the end. `box` is seen by the parent of this process; `places` has the
    frontier for renewals while a handler blocks the event loop."""
    settings, shortage = within_limit(record_of(crawl).settings)
    own_box = (box or BlackBox.private()).worker(name, patience=settings.handler_seconds)
    known, troubles = RecentKeys(), _troubles(say, shortage)
    intake = intake_of(crawl, known=known)
    exits = exits_by_name(load_pools(Path(CONFIG_FILE), proxies=settings.proxies))
    fetcher = HttpFetcher(settings, exits=exits)
    handlers = _handlers_of(spider, intake, witness=own_box)
    passages = Passages(
        exits=exits,
        pools=crawl.pools,
        frontier=frontier,
        fetcher=fetcher,
        log_in=handlers.log_in,
        rules=intake.rules,
        settings=settings,
        say=say,
        troubles=troubles,
    )
    journey = Journey(
        spider_name=crawl.spider,
        worker=own_box.name,
        settings=settings,
        needs_rules=crawl.needs_rules,
        handlers=handlers,
        intake=intake,
        lane_rules=LaneRules(frontier=frontier, settings=settings),
        passages=passages,
        keeping=_keeping(store, archive),
    )
    parts = WorkerParts(
        spider=spider,
        frontier=frontier,
        store=store,
        journey=journey,
        known=known,
        say=say,
        archive=archive,
        troubles=troubles,
        box=own_box,
        beside=None if places is None else partial(frontier_at, places.frontier),
    )
    try:
        yield Worker(crawl.id, name=own_box.name, settings=settings, parts=parts)
    finally:
        handlers.close()
        await fetcher.close()


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


def fleet_for(
    crawl: Crawl,
    places: Places,
    *,
    workers: int,
    frontier: Frontier,
    say: Say,
    environment: Mapping[str, str] | None = None,
) -> Fleet:
    """A fleet of `workers` worker processes on this machine, with these variables besides our own."""
    record = record_of(crawl)
    # Not on the command line, where all users of the machine could read the passwords in them.
    variables = {**os.environ, **(environment or {}), FRONTIER_VARIABLE: places.frontier, STORE_VARIABLE: places.store}

    def command(name: str, black_box: int) -> list[str]:
        flags = ["--crawl", crawl.id, "--name", name, "--parent", str(os.getpid()), "--burst"]
        flags += ["--black-box", str(black_box)]
        flags += [] if places.archive is None else ["--archive", places.archive]
        flags += ["--other-store"] if places.other_store else []
        flags += ["--store-connections", str(record.settings.store_connections)]
        return [sys.executable, "-m", "shoal", "worker", record.spider, *flags]

    async def reclaim(name: str, death: Death) -> None:
        await evict(name, death, frontier=frontier, say=say)

    host, started = socket.gethostname(), f"{time.time_ns() // 1000 % 2**32:x}"
    names = [f"{host}:{os.getpid()}.{started}:{number}" for number in range(1, workers + 1)]
    start = Start(command=command, environment=variables)
    return Fleet(names, start=start, reclaim=reclaim, say=say, grace_seconds=record.settings.grace_seconds)


class WorkPlace(NamedTuple):
    """Where a crawl's results go: its places, and its store, opened; and who watches this process, if anybody does."""

    places: Places
    store: Store
    watched: Watched | None = None


async def run_crawl(
    crawl: Crawl, spider: Spider, *, at: WorkPlace, workers: int, coordinator: Coordinator, stop: asyncio.Event
) -> None:
    """Feed the crawl and work on it, here or in worker processes, until it is finished or told to stop."""
    frontier, say, places = coordinator.frontier, coordinator.say, at.places
    box = None if at.watched is None else at.watched.box

    async def work() -> None:
        if workers > 1:
            try:
                await fleet_for(crawl, places, workers=workers, frontier=frontier, say=say).run(stop)
            except StorageError:
                # If the crawl is lost, its workers have left it to the coordinator to say so.
                await coordinator.progress(stop=stop)
                raise
        else:
            async with (
                archive_of(places) as archive,
                worker_for(
                    crawl, spider, frontier=frontier, store=at.store, say=say, archive=archive, box=box, places=places
                ) as worker,
            ):
                await worker.run(stop)

    await reclaim_former(at.watched, frontier=frontier, say=say)
    await coordinator.reclaim_from_exited_workers()
    await coordinator.feeder.begin()
    async with listener_at(places, frontier=frontier, say=say) as listener:
        feeding = asyncio.create_task(coordinator.feeder.feed(spider, intake=intake_of(crawl)))
        if box is not None and reads_input(spider):
            box.read_input(is_reading=True)
            feeding.add_done_callback(lambda _: box.read_input(is_reading=False))
        retention = parse_duration(record_of(crawl).settings.retention)
        parts = (coordinator.watch(), listener.listen(crawl), coordinator.tidy(at.store, retention=retention))
        beside = [asyncio.create_task(part) for part in parts]
        try:
            await _until(work(), feeding)
            while not stop.is_set() and await _has_more(coordinator, listener, feeding=feeding, stop=stop):
                await _until(work(), feeding)
        finally:
            for task in (feeding, *beside):
                task.cancel()
            await asyncio.gather(feeding, *beside, return_exceptions=True)
            if not coordinator.feeder.has_ended:
                await coordinator.feeder.give_up()


async def _has_more(
    coordinator: Coordinator, listener: Listener, *, feeding: asyncio.Task[None], stop: asyncio.Event
) -> bool:
    """Whether there is more to do though the workers found nothing left: this run has more to feed, but stood still for
    so long that nobody waited for it, or URLs were pushed at the last moment."""
    if feeding.done():
        feeding.result()
        await listener.take_in_all(coordinator.crawl, stop=stop)
    else:
        await coordinator.feeder.go_on()
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
