"""A crawl's record in the frontier: its id, its limits, and the settings that all its workers use."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Iterable, Mapping

import msgspec

from shoal.crawl.code import NO_CODE, SpiderCode, SpiderSource, is_same_spider, shown_source
from shoal.crawl.places import ResultPlaces
from shoal.crawl.sources import start_lanes, start_mark
from shoal.errors import StorageBroken, UsageError
from shoal.exits.configuration import PoolSpec
from shoal.exits.pools import default_pool, pool_of, usable_pools
from shoal.model import Budgets, Crawl, CrawlState
from shoal.policy.limits import limits_of
from shoal.policy.pace import fastest_interval
from shoal.policy.politeness import lent_interval
from shoal.settings.table import Settings
from shoal.settings.values import parse_duration, parse_rate
from shoal.spider.spider import Spider, handler_names, spider_name
from shoal.urls.canonical import UrlRules

MOST_RUNS = 20
_NUMBER = re.compile(r"-(\d+)$")


class CrawlRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How a crawl was begun, stored with the crawl so that all its workers work the same way.

    - `spider`: the reference by which worker processes load the spider; `source`: its file
    - `start`: a digest of the start as it was written; empty: it cannot be computed
    - `arguments`: of the spider
    - `fingerprints`: how the keys are made, if the crawl has taken over another crawler's queue
    - `scheduled`: the latest runs of schedules on it, so that a run that is started twice works on one crawl
    - `before`: the spider's earlier crawls, newest first; their archived pages are requested only if changed
    - `code`, `handlers`: of the latest run's spider; empty: unknown
    - `stays`: it waits for URLs from outside, kept open by processes that wait for them
    - `skips_known`: it skips the URLs of earlier crawls; `known_from`: those whose URLs are not copied yet
    - `priority`: the setting, or what `shoal priority` has set since
    """

    settings: Settings
    start_lanes: list[str] = msgspec.field(default_factory=list)
    spider: str = ""
    pool: str = ""
    results: ResultPlaces = ResultPlaces()
    source: SpiderSource = SpiderSource()
    start: str = ""
    arguments: dict[str, str] = msgspec.field(default_factory=dict)
    fingerprints: str = ""
    scheduled: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    code: SpiderCode = NO_CODE
    stays: bool = False
    handlers: tuple[str, ...] = ()
    skips_known: bool = False
    known_from: tuple[str, ...] = ()
    priority: int = 0


def record_of(crawl: Crawl) -> CrawlRecord:
    """The record of a crawl."""
    try:
        return msgspec.convert(crawl.settings, CrawlRecord)
    except msgspec.ValidationError as error:
        raise StorageBroken(
            f"the record of crawl {crawl.id} cannot be read: {error}; it is damaged, or of a newer shoal"
        ) from error


def with_refusals(crawls: Iterable[Crawl]) -> list[Crawl]:
    """The same crawls; those with an unreadable record are marked as refused."""
    return [crawl if crawl.refusal or not crawl.settings else _with_refusal(crawl) for crawl in crawls]


def _with_refusal(crawl: Crawl) -> Crawl:
    try:
        record_of(crawl)
    except StorageBroken as error:
        return msgspec.structs.replace(crawl, refusal=f"{error}; it is left alone")
    return crawl


def is_readable(crawl: Crawl) -> bool:
    """Whether the crawl has a record that can be read."""
    return bool(crawl.settings) and not _with_refusal(msgspec.structs.replace(crawl, refusal="")).refusal


def url_rules_of(crawl: Crawl) -> UrlRules:
    """A crawl's rules for URLs: scope, limits, keys."""
    record = record_of(crawl)
    return UrlRules(record.settings, start_hosts=record.start_lanes)


def results_known(crawl: Crawl) -> ResultPlaces:
    """Where a crawl's results are, if its record says so."""
    return record_of(crawl).results if crawl.settings else ResultPlaces()


def code_known(crawl: Crawl) -> SpiderCode:
    """The code that a crawl works with, if its record says so."""
    return record_of(crawl).code if crawl.settings else NO_CODE


def with_priority(crawl: Crawl, priority: int) -> Crawl:
    """The crawl with another priority."""
    record = msgspec.structs.replace(record_of(crawl), priority=priority)
    return msgspec.structs.replace(crawl, settings=msgspec.to_builtins(record))


def _priority(settings: Settings, former: Crawl | None) -> int:
    """The priority that people have set counts until the setting changes."""
    if former is None or not former.settings:
        return settings.priority
    record = record_of(former)
    return record.priority if record.settings.priority == settings.priority else settings.priority


def has_store_server(crawl: Crawl) -> bool:
    """Whether results go to a server, which allows several writers at once, unlike a file."""
    store = results_known(crawl).store
    return store is not None and store.url.startswith(("postgres://", "postgresql://"))


def belongs_to(crawl: Crawl, reference: str, *, frontier: str = "") -> bool:
    """Whether a crawl belongs to the spider's file that a reference names. `frontier`: where the crawl is."""
    if not crawl.settings:
        return True
    record = record_of(crawl)
    return is_same_spider(record.spider, record.source, reference, frontier=frontier)


def owner_of(crawl: Crawl) -> str:
    """A sentence on which file a crawl belongs to."""
    record = record_of(crawl)
    return f"{crawl.id} belongs to {shown_source(record.spider, record.source)}"


def check_arguments(crawl: Crawl, spider: Spider) -> None:
    """Refuse to resume a crawl with other arguments: pages of both kinds would mix."""
    begun = record_of(crawl).arguments if crawl.settings else {}
    if begun != dict(spider.arguments):
        given = " ".join(f"-a {shlex.quote(f'{name}={text}')}" for name, text in begun.items()) or "no -a"
        raise UsageError(
            f"{crawl.id} is unfinished and was begun with {given}: run it with the same arguments, or --fresh discards"
            " it and begins a new one"
        )


def describe_crawl(
    crawl_id: str,
    spider: Spider,
    *,
    settings: Settings,
    pools: Mapping[str, PoolSpec],
    reference: str,
    source: SpiderSource | None = None,
    results: ResultPlaces | None = None,
    scheduled: str = "",
    before: tuple[str, ...] = (),
    code: SpiderCode = NO_CODE,
    stays: bool = False,
    known_from: tuple[str, ...] | None = None,
    former: Crawl | None = None,
) -> Crawl:
    """The crawl as the frontier stores it; refuses settings that name a pool which this spider cannot use.

    `known_from`: the earlier crawls whose URLs are skipped; None: skip none. `former`: the same crawl before it is
    resumed, which keeps its `before` and `known_from`. The rest: see `CrawlRecord`."""
    if former is not None:
        begun = record_of(former)
        before, known_from = begun.before, begun.known_from if begun.skips_known else None
    record = CrawlRecord(
        settings=settings,
        start_lanes=start_lanes(spider),
        spider=reference,
        pool=default_pool(pools, spider=spider, settings=settings),
        results=results or ResultPlaces(),
        source=source or SpiderSource(),
        start=start_mark(spider),
        arguments=dict(spider.arguments),
        scheduled=_runs(former, scheduled),
        before=before,
        code=code,
        stays=stays,
        handlers=handler_names(type(spider)),
        skips_known=known_from is not None,
        known_from=known_from or (),
        priority=_priority(settings, former),
    )
    return Crawl(
        id=crawl_id,
        spider=spider_name(type(spider)),
        interval=lent_interval(parse_rate(settings.rate)),
        fastest=fastest_interval(settings),
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
        pace_scope=settings.pace_scope,
        weight=settings.weight,
        pools=tuple(pool_of(spec, settings=settings) for spec in usable_pools(pools, spider).values()),
        limits=limits_of(settings, now=time.time(), former=former),
    )


def _runs(former: Crawl | None, run: str) -> tuple[str, ...]:
    """The latest runs of schedules on a crawl, with this one."""
    known = () if former is None or not former.settings else record_of(former).scheduled
    return known if not run or run in known else (*known, run)[-MOST_RUNS:]


def is_unfinished(state: CrawlState) -> bool:
    """Whether a crawl in this state has work to do, now or once it is resumed. A stopped crawl has ended."""
    return state in (CrawlState.RUNNING, CrawlState.PAUSED)


def next_id(spider: str, crawls: Iterable[Crawl]) -> str:
    """The id of the spider's next crawl: its name, and one more than the highest number among its crawls."""
    numbers = [int(match[1]) for crawl in crawls if crawl.spider == spider and (match := _NUMBER.search(crawl.id))]
    return f"{spider}-{max(numbers, default=0) + 1}"


def spider_of(crawl_id: str) -> str:
    """The name of the spider in a crawl's id."""
    return _NUMBER.sub("", crawl_id)
