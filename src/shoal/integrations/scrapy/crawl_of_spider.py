"""The crawl of a Scrapy spider: its settings as shoal has them, and how a process joins it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from shoal.errors import UsageError
from shoal.exits.configuration import exits_by_name
from shoal.exits.pools import pool_of
from shoal.fetch.exit_config import ExitConfig
from shoal.frontier.base import Frontier
from shoal.integrations.scrapy.project_pools import ProjectPools
from shoal.model import Budgets, Crawl, CrawlState
from shoal.policy.politeness import lent_interval
from shoal.processes.crawl_record import CrawlRecord, is_unfinished, next_id, record_of, results_known, with_refusals
from shoal.processes.joining import places_of_new, places_to_join, results_of
from shoal.processes.opening import Places
from shoal.setting_values import parse_duration, parse_rate
from shoal.settings import Settings

REFERENCE = "scrapy:"  # begins the reference of a spider that Scrapy runs


class ScrapyCrawl(msgspec.Struct, frozen=True, kw_only=True):
    """What a process wants to work on. `crawl`: this one, whatever its state; `fresh`: unfinished ones are discarded.
    `goes_on`: also with a finished one. `requests_at_once` are those that Scrapy has on their way."""

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


class JoinedCrawl(msgspec.Struct, frozen=True, kw_only=True):
    """The crawl that a process works on, with the places and settings that it uses for it."""

    crawl: Crawl
    places: Places
    settings: Settings
    exits: dict[str, ExitConfig]
    is_new: bool


async def join(wanted: ScrapyCrawl, *, frontier: Frontier, make_store: Callable[[str], Awaitable[None]]) -> JoinedCrawl:
    """The spider's unfinished crawl, or a new one. Processes that begin at the same time begin the same one:
    `make_store` makes the store of a new one before others see the crawl, and miss it."""
    crawls = [crawl for crawl in with_refusals(await frontier.crawls()) if crawl.spider == wanted.spider]
    former = _former(crawls, wanted)
    if wanted.fresh and former is not None:
        await frontier.delete_crawl(former.id)
        former = None
    if former is None:
        places = places_of_new(wanted.places)
        await make_store(places.store)
        crawl_id = wanted.crawl or next_id(wanted.spider, crawls)
    else:
        _check(former, wanted)
        _check_pools(former, wanted)
        places, crawl_id = places_to_join(former, wanted.places), former.id
    known = None if former is None else results_known(former)
    record = CrawlRecord(
        settings=wanted.settings,
        spider=f"{REFERENCE}{wanted.spider}",
        results=results_of(places, known),
        pool=wanted.pools.default,
        arguments=wanted.arguments,
    )
    crawl = await frontier.open_crawl(_described(crawl_id, wanted, record))
    await frontier.set_state(crawl.id, CrawlState.RUNNING)
    exits = exits_by_name(wanted.pools.specs)
    return JoinedCrawl(crawl=crawl, places=places, settings=wanted.settings, exits=exits, is_new=former is None)


def _former(crawls: list[Crawl], wanted: ScrapyCrawl) -> Crawl | None:
    if wanted.crawl:
        return next((crawl for crawl in crawls if crawl.id == wanted.crawl), None)
    return next(
        (crawl for crawl in crawls if (wanted.goes_on or is_unfinished(crawl.state)) and not crawl.refusal), None
    )


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


def _check_pools(former: Crawl, wanted: ScrapyCrawl) -> None:
    """Refuse to go on without a pool that the crawl has: its tasks there could not leave."""
    missing = sorted(pool.name for pool in former.pools if pool.name not in wanted.pools.specs)
    if missing:
        problem = wanted.pools.unusable.get(missing[0], "give it the same SHOAL_PROXIES and shoal.toml")
        raise UsageError(
            f"{former.id} is unfinished and was begun with the pool {missing[0]!r}, which this process does not have:"
            f" {problem}; or -s SHOAL_FRESH=1 discards the crawl and begins a new one"
        )


def _described(crawl_id: str, wanted: ScrapyCrawl, record: CrawlRecord) -> Crawl:
    settings = wanted.settings
    return Crawl(
        id=crawl_id,
        spider=wanted.spider,
        interval=lent_interval(parse_rate(settings.rate)),
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
    )
