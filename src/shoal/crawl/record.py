"""A crawl's record in the frontier: its id, its limits, and the settings that every worker of the fleet works by."""

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
from shoal.urls.canonical import KEY_RULES, UrlRules

MOST_RUNS = 20
_NUMBER = re.compile(r"-(\d+)$")


class CrawlRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How a crawl was begun. Stored with the crawl, so that every worker of the fleet works the same way.

    `spider` is the reference by which worker processes load the spider, `source` the file that it leads to. `key_rules`
    says how its keys are made: a crawl that a former release began has none stored, and goes on with the first.
    `start` marks the start as it was written, empty where it cannot be told. `arguments` are those that the spider was
    made with, and that every worker makes it with. `fingerprints`: the form that the keys are made of, where the
    crawl took over the queue of another crawler; empty: it did not. `scheduled` are the latest runs of schedules that
    worked on it: a run that is started twice works on one crawl. `before` are the earlier crawls of the spider whose
    archived pages this one asks for only if they have changed, newest first. `code` is that of the latest run's
    spider, and so are `handlers`, their names; empty: they are not known. `stays`: it is fed from outside, and kept
    open by the processes that wait for that. `skips_known`: it was begun to skip what earlier crawls of the spider have
    done, those in `known_from`. `priority` is the setting of that name, unless people have changed it since."""

    settings: Settings
    start_lanes: list[str] = msgspec.field(default_factory=list)
    spider: str = ""
    pool: str = ""
    key_rules: int = 1
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
    """How a crawl was begun, as it remembers it."""
    try:
        return msgspec.convert(crawl.settings, CrawlRecord)
    except msgspec.ValidationError as error:
        raise StorageBroken(
            f"the record of crawl {crawl.id} cannot be read: {error}; it is damaged, or of another version of shoal"
        ) from error


def with_refusals(crawls: Iterable[Crawl]) -> list[Crawl]:
    """The same crawls; those whose record cannot be read are refused, as those are that a frontier refuses."""
    return [crawl if crawl.refusal or not crawl.settings else _with_refusal(crawl) for crawl in crawls]


def _with_refusal(crawl: Crawl) -> Crawl:
    try:
        record_of(crawl)
    except StorageBroken as error:
        return msgspec.structs.replace(crawl, refusal=f"{error}; it is left alone")
    return crawl


def is_readable(crawl: Crawl) -> bool:
    """Whether the record tells how the crawl was begun."""
    return bool(crawl.settings) and not _with_refusal(msgspec.structs.replace(crawl, refusal="")).refusal


def url_rules_of(crawl: Crawl) -> UrlRules:
    """What a crawl makes of URLs: scope, limits, keys."""
    record = record_of(crawl)
    return UrlRules(record.settings, start_hosts=record.start_lanes, key_rules=record.key_rules)


def results_known(crawl: Crawl) -> ResultPlaces:
    """Where a crawl's results lie, as far as it remembers."""
    return record_of(crawl).results if crawl.settings else ResultPlaces()


def code_known(crawl: Crawl) -> SpiderCode:
    """The code that a crawl works with, as far as it remembers."""
    return record_of(crawl).code if crawl.settings else NO_CODE


def with_priority(crawl: Crawl, priority: int) -> Crawl:
    """The crawl with another priority. It counts at hosts that it shares, too."""
    record = msgspec.structs.replace(record_of(crawl), priority=priority)
    return msgspec.structs.replace(crawl, settings=msgspec.to_builtins(record))


def _priority(settings: Settings, former: Crawl | None) -> int:
    """What people have changed stands until the setting changes."""
    if former is None or not former.settings:
        return settings.priority
    record = record_of(former)
    return record.priority if record.settings.priority == settings.priority else settings.priority


def has_store_server(crawl: Crawl) -> bool:
    """Whether results go to a server, which takes several writers at once; a file has one at a time."""
    store = results_known(crawl).store
    return store is not None and store.url.startswith(("postgres://", "postgresql://"))


def belongs_to(crawl: Crawl, reference: str, *, frontier: str = "") -> bool:
    """Whether a crawl belongs to the spider's file that a reference leads to. `frontier`: where the crawl is."""
    if not crawl.settings:
        return True
    record = record_of(crawl)
    return is_same_spider(record.spider, record.source, reference, frontier=frontier)


def owner_of(crawl: Crawl) -> str:
    """Which file a crawl belongs to, for people."""
    record = record_of(crawl)
    return f"{crawl.id} belongs to {shown_source(record.spider, record.source)}"


def check_arguments(crawl: Crawl, spider: Spider) -> None:
    """Refuse to go on with a crawl that was begun with other arguments: its pages and those that follow would mix."""
    begun = record_of(crawl).arguments if crawl.settings else {}
    if begun != dict(spider.arguments):
        given = " ".join(f"-a {shlex.quote(f'{name}={text}')}" for name, text in begun.items()) or "no -a"
        raise UsageError(
            f"{crawl.id} is unfinished and was begun with {given}: run it with the same arguments, or --fresh discards"
            " it and begins a new one"
        )


class Origin(msgspec.Struct, frozen=True, kw_only=True):
    """Where a crawl comes from and its results go: the reference by which worker processes load the spider, the file
    that it leads to, the places, the run of a schedule, the earlier crawls whose pages may be asked for again,
    the code, and whether it is fed from outside. `known_from`: the earlier crawls whose URLs are skipped; None: none
    are to be."""

    reference: str
    source: SpiderSource = SpiderSource()
    results: ResultPlaces = ResultPlaces()
    scheduled: str = ""
    before: tuple[str, ...] = ()
    code: SpiderCode = NO_CODE
    stays: bool = False
    known_from: tuple[str, ...] | None = None


def describe_crawl(
    crawl_id: str,
    spider: Spider,
    *,
    settings: Settings,
    origin: Origin,
    pools: Mapping[str, PoolSpec],
    former: Crawl | None = None,
) -> Crawl:
    """The crawl as the frontier stores it, from now on; `former` is the same crawl before it is resumed.

    Refuses settings that name a pool this spider cannot use."""
    record = CrawlRecord(
        settings=settings,
        start_lanes=start_lanes(spider),
        spider=origin.reference,
        pool=default_pool(pools, spider=spider, settings=settings),
        key_rules=KEY_RULES if former is None else record_of(former).key_rules,
        results=origin.results,
        source=origin.source,
        start=start_mark(spider),
        arguments=dict(spider.arguments),
        scheduled=_runs(former, origin.scheduled),
        before=origin.before if former is None else record_of(former).before,
        code=origin.code,
        stays=origin.stays,
        handlers=handler_names(type(spider)),
        skips_known=origin.known_from is not None if former is None else record_of(former).skips_known,
        known_from=(origin.known_from or ()) if former is None else record_of(former).known_from,
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
    """The latest runs of schedules that worked on a crawl, with this one."""
    known = () if former is None or not former.settings else record_of(former).scheduled
    return known if not run or run in known else (*known, run)[-MOST_RUNS:]


def is_unfinished(state: CrawlState) -> bool:
    """Whether a crawl in this state has work to do, now or when it is resumed. One that was stopped has ended, and is
    resumed only by people."""
    return state in (CrawlState.RUNNING, CrawlState.PAUSED)


def next_id(spider: str, crawls: Iterable[Crawl]) -> str:
    """The id of the spider's next crawl: its name, and one more than the highest number among its crawls."""
    numbers = [int(match[1]) for crawl in crawls if crawl.spider == spider and (match := _NUMBER.search(crawl.id))]
    return f"{spider}-{max(numbers, default=0) + 1}"


def spider_of(crawl_id: str) -> str:
    """The name of the spider that a crawl's id begins with."""
    return _NUMBER.sub("", crawl_id)
