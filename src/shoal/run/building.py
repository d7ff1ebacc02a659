"""Workers with all their parts, fleets of worker processes, and replays."""

from __future__ import annotations

import math
import os
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from shoal.archive.base import Archive
from shoal.backends import is_pipe
from shoal.browser.installed import check_browser
from shoal.crawl.opening import Places, Say
from shoal.crawl.record import record_of, spider_of
from shoal.crawl.sources import start_lanes
from shoal.exits.configuration import exits_by_name, load_pools
from shoal.exits.offered import own_exits
from shoal.exits.passage import Passages
from shoal.exits.troubles import Troubles
from shoal.fetch.base import Fetcher
from shoal.fetch.descriptors import within_limit
from shoal.fetch.exits import ExitConfig
from shoal.fetch.http import HttpFetcher
from shoal.frontier.base import Frontier
from shoal.insight.stats import check_stages, handled_elsewhere, kinds_of
from shoal.insight.traces import Traces, wants_traces
from shoal.journey.alarm import Witness
from shoal.journey.conditional import FormerPages, LastVisits
from shoal.journey.handlers import Handlers
from shoal.journey.intake import Intake
from shoal.journey.journey import Journey
from shoal.journey.recent_keys import RecentKeys
from shoal.journey.results import Keeping
from shoal.journey.robots import LaneRules
from shoal.journey.stages import Stages
from shoal.model import BROWSER, Crawl, Pool
from shoal.run.intakes import intake_of
from shoal.settings.table import (
    ARCHIVE_VARIABLE,
    CONFIG_FILE,
    FRONTIER_VARIABLE,
    PIPE_VARIABLE,
    STORE_VARIABLE,
    Settings,
)
from shoal.spider.spider import Spider
from shoal.store.base import Store
from shoal.urls.canonical import UrlRules
from shoal.worker.black_box import BlackBox
from shoal.worker.deaths import Death, evict, sign_off
from shoal.worker.fleet import Fleet, Start
from shoal.worker.outages import until_reachable
from shoal.worker.parts import Shared, WorkerParts
from shoal.worker.shared_slots import Solitude
from shoal.worker.tally import CountedFetcher, Tally
from shoal.worker.worker import Worker
from shoal.worker.writer import rule_of

if TYPE_CHECKING:
    from shoal.results.replay import Replay


@asynccontextmanager
async def worker_for(
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
    from shoal.browser.fetcher import BrowserFetcher

    fetcher = BrowserFetcher(plain, program=program, settings=settings, exits=exits)
    await fetcher.warm()
    return fetcher


def _traces_of(settings: Settings, *, worker: str, say: Say) -> Traces | None:
    """Traces of a share of a worker's pages, where a collector is named. Nothing of OpenTelemetry is loaded else."""
    if not wants_traces(settings.trace_share, environ=os.environ):
        return None
    from shoal.insight.traces import Collector

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
    from shoal.results.replay import Replay

    intake = Intake(UrlRules(settings, start_hosts=start_lanes(spider)), settings)
    return Replay(
        crawl,
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


def fleet_for(
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
