"""The crawl of a Scrapy spider: its settings, and how a process joins or begins it."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import msgspec

from shoal.crawl.joining import places_of_new, places_to_join, results_of
from shoal.crawl.opening import Places
from shoal.crawl.record import CrawlRecord, is_unfinished, next_id, record_of, results_known, with_refusals
from shoal.errors import UsageError
from shoal.exits.configuration import exits_by_name
from shoal.exits.offered import Offered
from shoal.exits.pools import pool_of
from shoal.fetch.exits import ExitConfig
from shoal.frontier.base import Frontier
from shoal.model import Budgets, Crawl, CrawlState
from shoal.policy.limits import limits_of
from shoal.policy.pace import fastest_interval
from shoal.policy.politeness import lent_interval
from shoal.scrapy.fingerprints import PROJECT, check_form
from shoal.scrapy.pools import ProjectPools
from shoal.settings.table import Settings
from shoal.settings.values import parse_duration, parse_rate
from shoal.worker.workers import at_work

REFERENCE = "scrapy:"  # prefix of the spider reference in crawls of Scrapy


class ScrapyCrawl(msgspec.Struct, frozen=True, kw_only=True):
    """The crawl that a process is to join or begin. `crawl`: this crawl, whatever its state; `fresh`: discard an
    unfinished crawl. `goes_on`: also continue a finished crawl. `requests_at_once`: concurrent requests in Scrapy.
    `feeds`: files that the items are written to when the crawl is finished."""

    spider: str
    places: Places
    settings: Settings
    arguments: dict[str, str]
    requests_at_once: int
    pools: ProjectPools = ProjectPools()
    proxy_encoding: str = "latin-1"
    crawl: str = ""
    fresh: bool = False
    goes_on: bool = False
    feeds: list[str] = []


class JoinedCrawl(msgspec.Struct, frozen=True, kw_only=True):
    """The crawl that a process works on, with its places and settings."""

    crawl: Crawl
    places: Places
    settings: Settings
    exits: dict[str, ExitConfig]
    offered: Offered
    is_new: bool


async def join(
    wanted: ScrapyCrawl,
    *,
    frontier: Frontier,
    make_store: Callable[[str], Awaitable[None]],
    say: Callable[[str], None],
) -> JoinedCrawl:
    """The spider's unfinished crawl, or a new one. Processes that start together begin the same crawl: `make_store`
    creates the store of a new crawl before other processes can see the crawl."""
    crawls = [crawl for crawl in with_refusals(await frontier.crawls()) if crawl.spider == wanted.spider]
    former = _former(crawls, wanted)
    if wanted.fresh and former is not None and await _is_unused(former, frontier=frontier, say=say):
        await frontier.delete_crawl(former.id)
        former = None
    if former is None:
        places, crawl_id = places_of_new(wanted.places), wanted.crawl or next_id(wanted.spider, crawls)
    else:
        _check(former, wanted)
        _check_pools(former, wanted)
        places, crawl_id = places_to_join(former, wanted.places), former.id
    known = None if former is None else results_known(former)
    if known is None or known.store is None:
        await make_store(places.store)
    record = CrawlRecord(
        settings=wanted.settings,
        spider=f"{REFERENCE}{wanted.spider}",
        results=results_of(places, known),
        pool=wanted.pools.default,
        arguments=wanted.arguments,
        fingerprints="" if former is None else record_of(former).fingerprints,
    )
    crawl = await frontier.open_crawl(_described(crawl_id, wanted, record, former=former))
    await frontier.set_state(crawl.id, CrawlState.RUNNING)
    offered = wanted.pools.own.for_crawl(crawl.pools, settings=wanted.settings, say=say)
    return JoinedCrawl(
        crawl=crawl,
        places=places,
        settings=wanted.settings,
        exits={**exits_by_name(wanted.pools.specs), **offered.exits},
        offered=offered,
        is_new=former is None,
    )


async def _is_unused(former: Crawl, *, frontier: Frontier, say: Callable[[str], None]) -> bool:
    """Whether no worker works on a crawl, so that it may be discarded. All processes of a fleet have the same settings:
    the second process must not discard the crawl of the first."""
    workers = await at_work(former.id, frontier=frontier)
    if workers:
        say(
            f"{former.id} is not discarded, though SHOAL_FRESH is set: {len(workers)} of its workers are at work, and"
            " this process joins them; stop them first to start over"
        )
    return not workers


async def crawl_to_fill(
    wanted: ScrapyCrawl, form: str, *, frontier: Frontier, again: bool, otherwise: str
) -> tuple[Crawl, str, bool]:
    """The crawl for an imported queue, which processes of the spider join later: the unfinished one, or a new one; the
    form of the fingerprints of its keys; whether it is new. `form`: the required form; empty: any, and a new crawl gets
    `otherwise`. After a finished crawl with an import, another one needs `again`."""
    crawls = [crawl for crawl in with_refusals(await frontier.crawls()) if crawl.spider == wanted.spider]
    former = _former(crawls, wanted)
    if former is not None:
        _check(former, wanted)
        begun_with = record_of(former).fingerprints or PROJECT
        if form and form != begun_with:
            raise UsageError(
                f"{former.id} is unfinished and makes its keys from the fingerprints of {begun_with}, not of {form}:"
                f" let it finish, or discard it with `scrapy crawl {wanted.spider} -s SHOAL_FRESH=1`, then import"
            )
        return former, begun_with, False
    imported = [crawl.id for crawl in crawls if not crawl.refusal and record_of(crawl).fingerprints]
    if imported and not again:
        raise UsageError(
            f"{imported[0]} took over this queue and is finished: remove the keys of scrapy-redis, or"
            " --again takes them over into a new crawl"
        )
    form = form or otherwise
    record = CrawlRecord(
        settings=wanted.settings,
        spider=f"{REFERENCE}{wanted.spider}",
        arguments=wanted.arguments,
        fingerprints=form,
    )
    crawl = await frontier.open_crawl(_described(next_id(wanted.spider, crawls), wanted, record))
    return crawl, form, True


def _former(crawls: list[Crawl], wanted: ScrapyCrawl) -> Crawl | None:
    if wanted.crawl:
        return next((crawl for crawl in crawls if crawl.id == wanted.crawl), None)
    usable = [crawl for crawl in crawls if not crawl.refusal]
    unfinished = (crawl for crawl in usable if wanted.goes_on or is_unfinished(crawl.state))
    stopped = (crawl for crawl in usable[:1] if crawl.state is CrawlState.STOPPED)
    return next(unfinished, None) or next(stopped, None)


def _check(former: Crawl, wanted: ScrapyCrawl) -> None:
    record = record_of(former)
    if not record.spider.startswith(REFERENCE):
        raise UsageError(
            f"{former.id} is a crawl of a spider of shoal's own with this name: rename the Scrapy spider, or give"
            f' SHOAL_CRAWL = "{wanted.spider}-scrapy" to begin another'
        )
    if record.arguments != wanted.arguments:
        given = " ".join(f"-a {name}={text}" for name, text in record.arguments.items()) or "no -a"
        raise UsageError(
            f"{former.id} is unfinished and was begun with {given}: use the same arguments, or -s SHOAL_FRESH=1"
            " discards it and begins a new one"
        )
    check_form(record.fingerprints)


def _check_pools(former: Crawl, wanted: ScrapyCrawl) -> None:
    """Refuse to continue without a pool of the crawl: its tasks could not be fetched."""
    missing = sorted(pool.name for pool in former.pools if pool.name not in wanted.pools.specs)
    if missing:
        problem = wanted.pools.unusable.get(missing[0], "give it the same SHOAL_PROXIES and shoal.toml")
        raise UsageError(
            f"{former.id} is unfinished and was begun with the pool {missing[0]!r}, which this process does not have:"
            f" {problem}; or -s SHOAL_FRESH=1 discards the crawl and begins a new one"
        )


def _described(crawl_id: str, wanted: ScrapyCrawl, record: CrawlRecord, *, former: Crawl | None = None) -> Crawl:
    settings = wanted.settings
    return Crawl(
        id=crawl_id,
        spider=wanted.spider,
        interval=lent_interval(parse_rate(settings.rate)),
        fastest=fastest_interval(settings),
        cap=settings.per_host,
        budgets=Budgets(
            pages=settings.max_pages,
            per_lane=settings.max_per_host,
            per_shape=0,
            cost=settings.budget,
        ),
        settings=msgspec.to_builtins(record),
        feeding=True,
        dedup=settings.dedup,
        dedup_ttl=parse_duration(settings.dedup_ttl),
        pools=tuple(pool_of(spec, settings=settings) for spec in wanted.pools.specs.values()),
        limits=limits_of(settings, now=time.time(), former=former),
    )
