"""Puts the parts together: the only place that knows which class keeps which contract."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from shoal.archive import open_archive
from shoal.archive.base import Archive
from shoal.exits.configuration import exits_by_name, load_pools
from shoal.exits.passage import Passages
from shoal.exits.pools import default_pool, pool_of, usable_pools
from shoal.fetch.http import HttpFetcher
from shoal.frontier import REDIS_SCHEMES, open_frontier
from shoal.frontier.base import Frontier
from shoal.journey.handlers import Handlers
from shoal.journey.intake import Intake
from shoal.journey.journey import Journey
from shoal.journey.lane_rules import LaneRules
from shoal.journey.recent_keys import RecentKeys
from shoal.journey.results import Keeping
from shoal.model import Budgets, Crawl, CrawlState
from shoal.policy.politeness import lent_interval
from shoal.processes.coordinator import Coordinator
from shoal.processes.fleet import Fleet, Start
from shoal.processes.listener import Inbox, Listener, NoInbox
from shoal.processes.patience import patiently
from shoal.processes.sources import start_lanes
from shoal.processes.worker import Worker, WorkerParts, worker_name
from shoal.processes.writer import rule_of
from shoal.results.replay import Replay, ReplayParts
from shoal.settings import (
    FRONTIER_VARIABLE,
    STORE_VARIABLE,
    Resolved,
    Settings,
    environment_layer,
    file_layer,
    parse_duration,
    parse_rate,
    resolve,
)
from shoal.spider import Spider, spider_name
from shoal.store import STORE_CONNECTIONS, open_store
from shoal.store.base import Store
from shoal.urls import UrlRules

DEFAULT_FILE = "shoal.db"
CONFIG_FILE = "shoal.toml"

Say = Callable[[str], None]


class Places(msgspec.Struct, frozen=True, kw_only=True):
    """Where a crawl lives: the URLs of its frontier and its store, and of the archive if raw pages are kept."""

    frontier: str = DEFAULT_FILE
    store: str = DEFAULT_FILE
    archive: str | None = None


class CrawlRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a crawl remembers of how it was started, so that every worker of the fleet agrees."""

    settings: Settings
    start_lanes: list[str] = msgspec.field(default_factory=list)
    spider: str = ""
    pool: str = ""


@asynccontextmanager
async def opened(
    places: Places, *, wait: Say | None = None, store_connections: int = STORE_CONNECTIONS
) -> AsyncIterator[tuple[Frontier, Store]]:
    """The frontier and the store, closed at the end. A worker that is part of a fleet waits for a server that is
    away, and says so with `wait`; people want to be told at once."""

    async def reach() -> Frontier:
        return await open_frontier(places.frontier)

    async def join() -> Store:
        return await open_store(places.store, connections=store_connections)

    frontier = await (reach() if wait is None else patiently(reach, say=wait))
    try:
        store = await (join() if wait is None else patiently(join, say=wait))
        try:
            yield frontier, store
        finally:
            await store.close()
    finally:
        await frontier.close()


@asynccontextmanager
async def archive_at(places: Places, *, wait: Say | None = None) -> AsyncIterator[Archive | None]:
    """The archive that raw pages are to be kept in, if any, closed at the end; `wait` is that of `opened`."""
    url = places.archive
    if url is None:
        yield None
        return

    async def reach() -> Archive:
        return await open_archive(url, create=True)

    archive = await (reach() if wait is None else patiently(reach, say=wait))
    try:
        yield archive
    finally:
        await archive.close()


def settings_of(spider: type[Spider], flags: dict[str, Any], *, folder: Path = Path()) -> Resolved:
    """The settings a spider runs with, and where each came from."""
    own = {name: getattr(spider, name) for name in msgspec.structs.asdict(Settings()) if hasattr(spider, name)}
    return resolve(
        [
            file_layer(folder / CONFIG_FILE),
            environment_layer(),
            (f"spider {spider.__name__}", {**own, **spider.settings}),
            ("command line", flags),
        ]
    )


async def begin(
    frontier: Frontier, store: Store, spider: Spider, *, settings: Settings, reference: str, fresh: bool = False
) -> tuple[Crawl, Crawl | None]:
    """The spider's unfinished crawl with the settings as they are now, or a new one; and the former as it was."""
    name = spider_name(type(spider))
    pools = load_pools(Path(CONFIG_FILE), proxies=settings.proxies)
    pool = default_pool(pools, spider=spider, settings=settings)
    mine = [crawl for crawl in await frontier.crawls() if crawl.spider == name]
    unfinished = [crawl for crawl in mine if crawl.state in (CrawlState.RUNNING, CrawlState.PAUSED)]
    if fresh:
        for crawl in unfinished:
            await frontier.delete_crawl(crawl.id)
            await store.delete_crawl(crawl.id)
        unfinished = []
    numbers = [int(match[1]) for crawl in mine if (match := re.search(r"-(\d+)$", crawl.id))]
    crawl_id = unfinished[0].id if unfinished else f"{name}-{max(numbers, default=0) + 1}"
    record = CrawlRecord(settings=settings, start_lanes=start_lanes(spider), spider=reference, pool=pool)
    crawl = Crawl(
        id=crawl_id,
        spider=name,
        interval=lent_interval(parse_rate(settings.rate)),
        cap=settings.per_host,
        needs_rules=settings.obey_robots,
        budgets=Budgets(
            pages=settings.max_pages,
            per_lane=settings.max_per_host,
            per_shape=settings.max_per_shape,
            cost=settings.budget,
        ),
        settings=msgspec.to_builtins(record),
        feeding=True,
        dedup=settings.dedup,
        dedup_ttl=parse_duration(settings.dedup_ttl),
        pools=tuple(pool_of(spec, settings=settings) for spec in usable_pools(pools, spider).values()),
    )
    opened_crawl = await frontier.open_crawl(crawl)
    await frontier.set_state(crawl_id, CrawlState.RUNNING)
    await frontier.set_feeding(crawl_id, feeding=True)
    return opened_crawl, unfinished[0] if unfinished else None


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
    """What turns pushed URLs into tasks, closed at the end."""
    async with inbox_at(places) as inbox:
        yield Listener(inbox, frontier=frontier, intake_of=intake_of, say=say)


async def empty_inboxes(places: Places, spider: Spider, *, frontier: Frontier) -> None:
    """Drop what was pushed for the spider's unfinished crawls: they are about to be deleted."""
    name = spider_name(type(spider))
    async with inbox_at(places) as inbox:
        for crawl in await frontier.crawls():
            if crawl.spider == name and crawl.state in (CrawlState.RUNNING, CrawlState.PAUSED):
                await inbox.delete(crawl.id)


def record_of(crawl: Crawl) -> CrawlRecord:
    """How a crawl was started, as it remembers it."""
    return msgspec.convert(crawl.settings, CrawlRecord)


def intake_of(crawl: Crawl, *, known: RecentKeys | None = None) -> Intake:
    """The rules under which a crawl takes in URLs."""
    record = record_of(crawl)
    return Intake(
        UrlRules(record.settings, start_hosts=record.start_lanes),
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
) -> AsyncIterator[Worker]:
    """A worker with all its parts, closed at the end."""
    settings = record_of(crawl).settings
    name = name or worker_name()
    known = RecentKeys()
    intake = intake_of(crawl, known=known)
    exits = exits_by_name(load_pools(Path(CONFIG_FILE), proxies=settings.proxies))
    fetcher = HttpFetcher(settings, exits=exits)
    handlers = Handlers(spider, intake=intake, item_key=settings.item_key, seconds=settings.handler_seconds)
    journey = Journey(
        spider_name=crawl.spider,
        worker=name,
        settings=settings,
        needs_rules=crawl.needs_rules,
        handlers=handlers,
        intake=intake,
        lane_rules=LaneRules(frontier=frontier, settings=settings),
        passages=Passages(
            exits=exits,
            pools=crawl.pools,
            frontier=frontier,
            fetcher=fetcher,
            log_in=handlers.log_in,
            rules=intake.rules,
            settings=settings,
            say=say,
        ),
        keeping=_keeping(store, archive),
    )
    parts = WorkerParts(
        spider=spider, frontier=frontier, store=store, journey=journey, known=known, say=say, archive=archive
    )
    try:
        yield Worker(crawl.id, name=name, settings=settings, parts=parts)
    finally:
        handlers.close()
        await fetcher.close()


def _keeping(store: Store, archive: Archive | None) -> Keeping:
    """Hashing costs a little for every page: it is done for an archive, and for a log that `wants_hashes`."""
    if archive is not None:
        return "page"
    return "hash" if store.wants_hashes else "nothing"


def replay_for(crawl: str, spider: Spider, *, settings: Settings, archive: Archive, store: Store, say: Say) -> Replay:
    """A replay of what was archived of a crawl, with the spider and the settings as they are now."""
    intake = Intake(UrlRules(settings, start_hosts=start_lanes(spider)), settings)
    parts = ReplayParts(
        spider=spider,
        # A crawl's id is its spider's name and a number: items keep their identity though a class was renamed.
        spider_name=re.sub(r"-\d+$", "", crawl),
        settings=settings,
        archive=archive,
        store=store,
        handlers=Handlers(spider, intake=intake, item_key=settings.item_key, seconds=settings.handler_seconds),
        intake=intake,
        # What is corrected is written however fresh the wrong item is.
        rule=msgspec.structs.replace(rule_of(settings), freshness=0.0),
        say=say,
    )
    return Replay(crawl, parts=parts)


def fleet_for(crawl: Crawl, places: Places, *, workers: int, frontier: Frontier, say: Say) -> Fleet:
    """That many worker processes of this machine."""
    record = record_of(crawl)
    # Not on the command line: everybody on the machine could read the passwords in them there.
    environment = {**os.environ, FRONTIER_VARIABLE: places.frontier, STORE_VARIABLE: places.store}

    def command(name: str) -> list[str]:
        flags = ["--crawl", crawl.id, "--name", name, "--parent", str(os.getpid()), "--burst"]
        flags += [] if places.archive is None else ["--archive", places.archive]
        flags += ["--store-connections", str(record.settings.store_connections)]
        return [sys.executable, "-m", "shoal", "worker", record.spider, *flags]

    async def gone(name: str) -> None:
        await patiently(lambda: frontier.evict(name), say=say)

    host, started = socket.gethostname(), f"{time.time_ns() // 1000 % 2**32:x}"
    names = [f"{host}:{os.getpid()}.{started}:{number}" for number in range(1, workers + 1)]
    start = Start(command=command, environment=environment)
    return Fleet(names, start=start, gone=gone, say=say, grace_seconds=record.settings.grace_seconds)


async def run_crawl(
    crawl: Crawl, spider: Spider, *, places: Places, workers: int, coordinator: Coordinator, stop: asyncio.Event
) -> None:
    """Feed the crawl and work on it, here or in several processes, until it is finished or told to stop."""
    frontier, store, say = coordinator.frontier, coordinator.store, coordinator.say

    async def work() -> None:
        if workers > 1:
            await fleet_for(crawl, places, workers=workers, frontier=frontier, say=say).run(stop)
        else:
            async with (
                archive_at(places) as archive,
                worker_for(crawl, spider, frontier=frontier, store=store, say=say, archive=archive) as worker,
            ):
                await worker.run(stop)

    await coordinator.take_back_from_the_gone()
    async with listener_at(places, frontier=frontier, say=say) as listener:
        feeding = asyncio.create_task(coordinator.feed(spider, intake=intake_of(crawl)))
        retention = parse_duration(record_of(crawl).settings.retention)
        parts = (coordinator.watch(), listener.listen(crawl), coordinator.tidy(retention=retention))
        aside = [asyncio.create_task(part) for part in parts]
        try:
            await _until(work(), feeding)
            while not stop.is_set() and await _goes_on(coordinator, listener):
                await work()
        finally:
            for task in (feeding, *aside):
                task.cancel()
            await asyncio.gather(feeding, *aside, return_exceptions=True)


async def _goes_on(coordinator: Coordinator, listener: Listener) -> bool:
    """Whether something came in at the last moment, when the workers had just found nothing left."""
    await listener.take_in([coordinator.crawl])
    return (await coordinator.progress()).state in (CrawlState.RUNNING, CrawlState.PAUSED)


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
