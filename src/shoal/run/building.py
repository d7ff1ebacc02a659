"""Builds workers, fleets of worker processes, and replays from a crawl and its settings."""

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
from typing import TYPE_CHECKING

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
from shoal.journey.alarm import HandlerObserver
from shoal.journey.conditional import ArchivedPages, LastVisits
from shoal.journey.handlers import Handlers
from shoal.journey.intake import Intake, RecentKeys
from shoal.journey.journey import Journey
from shoal.journey.results import Keeping
from shoal.journey.robots import LaneRules
from shoal.journey.stages import Stages
from shoal.model import BROWSER, Crawl
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
from shoal.worker.fleet import Fleet
from shoal.worker.outages import until_reachable
from shoal.worker.process import ProcessContext
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
    process: ProcessContext | None = None,
    fetcher: Fetcher | None = None,
    kinds: Sequence[str] = (),
) -> AsyncIterator[Worker]:
    """A worker with everything it needs, closed at the end. No `fetcher`: over HTTP; no `kinds`: the spider's."""
    settings, kinds, shortage = _work_of(crawl, type(spider), kinds=kinds, has_archive=archive is not None)
    process = process or ProcessContext(BlackBox.private())
    box = process.box.worker(name, patience=settings.handler_seconds)
    known, troubles, tally = RecentKeys(), Troubles(say), Tally()
    if shortage:
        troubles.begin("open files", shortage, seconds=math.inf)
    intake = intake_of(crawl, known=known)
    offered = own_exits().for_crawl(crawl.pools, settings=settings, say=say)
    exits = {**exits_by_name(load_pools(Path(CONFIG_FILE), proxies=settings.proxies)), **offered.exits}
    stages = Stages(handled_elsewhere(type(spider), kinds), archive=archive, reach=partial(until_reachable, say=say))
    archived_pages = _archived_pages_of(crawl, settings, store=store, archive=archive, exits=exits, say=say)
    last_visits = LastVisits(store.fetches) if settings.conditional_requests else None
    # Hashing costs a little per page: only a store that wants hashes gets them.
    keeping: Keeping = "page" if archive is not None else "hash" if store.wants_hashes else "nothing"
    fetcher = CountedFetcher(fetcher or await _fetcher_of(settings, exits, kinds=kinds), tally)
    handlers = _handlers_of(spider, intake, observer=box)
    traces = _traces_of(settings, worker=box.name, say=say)
    leasing_frontier, written_store = frontier, store
    if traces is not None:
        leasing_frontier, written_store = traces.frontier(frontier), traces.store(store)
        fetcher, handlers = traces.fetcher(fetcher), traces.handlers(handlers)
    passages = Passages(
        exits=exits,
        pools=offered.pools,
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
        worker=box.name,
        settings=settings,
        needs_rules=crawl.needs_rules,
        handlers=handlers,
        intake=intake,
        lane_rules=LaneRules(frontier=frontier, settings=settings),
        passages=passages,
        keeping=keeping,
        stages=stages,
        shares=tally.shares,
        last_visits=last_visits,
        archived_pages=archived_pages,
    )
    try:
        yield Worker(
            crawl.id,
            name=box.name,
            settings=settings,
            spider=spider,
            frontier=leasing_frontier,
            store=written_store,
            journey=journey,
            known=known,
            say=say,
            archive=archive,
            process=process,
            box=box,
            troubles=troubles,
            kinds=offered.kinds(kinds),
            offers=offered.offers,
            tally=tally,
        )
    finally:
        handlers.close()
        await fetcher.close()
        if traces is not None:
            await traces.close()


def _work_of(
    crawl: Crawl, spider: type[Spider], *, kinds: Sequence[str], has_archive: bool
) -> tuple[Settings, tuple[str, ...], str]:
    """A worker's settings, the kinds of tasks that it does, and which limit of this machine lowered its settings."""
    settings, shortage = within_limit(record_of(crawl).settings)
    kinds = tuple(kinds) or kinds_of(spider, settings)
    check_stages(spider, settings, kinds, has_archive=has_archive)
    if BROWSER in kinds:
        # A page that waits for its browser would miss its start slot.
        settings = msgspec.structs.replace(settings, concurrency=min(settings.concurrency, settings.render_pages))
    return settings, kinds, shortage


async def _fetcher_of(settings: Settings, exits: Mapping[str, ExitConfig], *, kinds: Sequence[str]) -> Fetcher:
    """Sends the requests of a worker. Imports nothing of a browser unless the worker renders pages."""
    plain = HttpFetcher(settings, exits=exits)
    if BROWSER not in kinds:
        return plain
    program = check_browser(settings)
    from shoal.browser.fetcher import BrowserFetcher

    fetcher = BrowserFetcher(plain, program=program, settings=settings, exits=exits)
    await fetcher.warm()
    return fetcher


def _traces_of(settings: Settings, *, worker: str, say: Say) -> Traces | None:
    """Traces of a share of a worker's pages, if a collector is named. Imports nothing of OpenTelemetry otherwise."""
    if not wants_traces(settings.trace_share, environ=os.environ):
        return None
    from shoal.insight.traces import Collector

    return Traces(Collector.open(say=say), share=settings.trace_share, worker=worker)


def _archived_pages_of(
    crawl: Crawl,
    settings: Settings,
    *,
    store: Store,
    archive: Archive | None,
    exits: Mapping[str, ExitConfig],
    say: Say,
) -> ArchivedPages | None:
    """The archived pages of earlier crawls; None: there are none."""
    crawls = record_of(crawl).before
    if archive is None or not crawls or not settings.conditional_requests:
        return None
    return ArchivedPages(
        crawls,
        read=store.fetches,
        archive=archive,
        exits=exits,
        reach=partial(until_reachable, say=say),
        sends_cookies=settings.cookies != "off",
    )


def _handlers_of(spider: Spider, intake: Intake, *, observer: HandlerObserver | None = None) -> Handlers:
    settings = intake.settings
    seconds = settings.handler_seconds
    return Handlers(spider, intake=intake, item_key=settings.item_key, seconds=seconds, observer=observer)


def replay_for(crawl: str, spider: Spider, *, settings: Settings, archive: Archive, store: Store, say: Say) -> Replay:
    """A replay of a crawl's archived pages with the current spider and settings."""
    from shoal.results.replay import Replay

    intake = Intake(UrlRules(settings, start_hosts=start_lanes(spider)), settings)
    return Replay(
        crawl,
        spider=spider,
        # From the crawl's id, not from the class: items keep their identity after the class is renamed.
        spider_name=spider_of(crawl),
        settings=settings,
        archive=archive,
        store=store,
        handlers=_handlers_of(spider, intake),
        intake=intake,
        # A corrected item replaces the wrong one, however fresh that is.
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
    """A fleet of `workers` worker processes on this machine. `environment` is added to this process's own."""
    record = record_of(crawl)
    settings = record.settings
    # Not on the command line, where all users of the machine could read their passwords.
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
        # Also if there are none: else the limits of the spider's class would apply.
        flags += ["--max-pages", str(settings.worker_max_pages), "--max-seconds", settings.worker_max_seconds or "0s"]
        flags += ["--max-memory", settings.worker_max_memory or "0MB"]
        return [sys.executable, "-m", "shoal", "worker", record.spider, *flags]

    async def reclaim(name: str, death: Death) -> None:
        await evict(name, death, frontier=frontier, say=say)
        await until_reachable(lambda: sign_off({name: death.pid}, frontier=frontier), say=say)

    host, started = socket.gethostname(), f"{time.time_ns() // 1000 % 2**32:x}"
    names = [f"{host}:{os.getpid()}.{started}:{number}" for number in range(1, workers + 1)]
    return Fleet(
        names, command=command, environment=variables, reclaim=reclaim, say=say, grace_seconds=settings.grace_seconds
    )
