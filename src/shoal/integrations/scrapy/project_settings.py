"""A project's Scrapy settings as shoal understands them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings

from shoal.crawl.opening import Places
from shoal.crawl.places import check_place
from shoal.errors import ShoalError, UsageError
from shoal.exits.offered import own_exits
from shoal.integrations.scrapy.bridge import bridge_of, spider_of
from shoal.integrations.scrapy.command_line import arguments
from shoal.integrations.scrapy.crawl_of_spider import ScrapyCrawl
from shoal.integrations.scrapy.project_pools import exits_file, pools_of
from shoal.integrations.scrapy.redis_settings import frontier_of, reads_redis, remarks_on
from shoal.integrations.scrapy.settings_of_scrapy import PREFIX, check_effects, pass_on, unused_parts, wants_guard
from shoal.results.export import STDOUT, check_targets
from shoal.settings.layers import resolve
from shoal.settings.table import EXITS_VARIABLE, Settings
from shoal.settings.values import parse_rate

# Settings of this package, beside those that shoal has anyway.
OWN = ("FRONTIER", "STORE", "ARCHIVE", "CRAWL", "FRESH", "ITEMS", "FEED", "EXITS")
DEFAULT_FRONTIER = "shoal.db"
# Settings of shoal that Scrapy's own parts do not read, and what does instead.
NOT_HERE = {
    "ARCHIVE": "raw pages of Scrapy spiders are not archived",
}


def wanted_of(crawler: Crawler, *, say: Callable[[str], None]) -> ScrapyCrawl:
    """What the settings of a project ask for."""
    settings, spider = crawler.settings, spider_of(crawler)
    at_once = settings.getint("CONCURRENT_REQUESTS") or 16
    given = _given(settings)
    _check(settings, given)
    for remark in remarks_on(settings, spider):
        say(remark)
    limits = _limits(settings, given)
    resolved = _resolved(limits, given)
    check_effects(given, resolved, settings=settings)
    for remark in (*unused_parts(settings), *_remarks_on_limits(limits)):
        say(remark)
    places = Places(
        frontier=settings.get("SHOAL_FRONTIER") or frontier_of(settings) or DEFAULT_FRONTIER,
        store=settings.get("SHOAL_STORE") or "",
    )
    return ScrapyCrawl(
        spider=spider.name,
        places=places,
        settings=resolved,
        arguments=arguments(sys.orig_argv),
        requests_at_once=at_once,
        pools=pools_of(
            resolved,
            settings,
            has_judge=bridge_of(crawler).has_judge,
            own=own_exits({**os.environ, EXITS_VARIABLE: exits_file(settings)}),
        ),
        proxy_encoding=settings.get("HTTPPROXY_AUTH_ENCODING") or "latin-1",
        crawl=settings.get("SHOAL_CRAWL") or "",
        fresh=settings.getbool("SHOAL_FRESH") or settings.getbool("SCHEDULER_FLUSH_ON_START"),
        goes_on=reads_redis(spider) and settings.getbool("SCHEDULER_PERSIST"),
        feeds=_feeds(settings),
    )


def shoal_settings(settings: BaseSettings) -> Settings:
    """shoal's settings of a project."""
    given = _given(settings)
    return _resolved(_limits(settings, given), given)


def adapt(settings: BaseSettings) -> bool:
    """Set Scrapy's own settings that shoal's ones stand for; gives whether the project asks for shoal's guard. Slips
    are passed over: the scheduler refuses to run, and says why."""
    try:
        given, values = _given(settings), shoal_settings(settings)
    except ShoalError:
        return False
    pass_on(given, values, settings=settings)
    return wants_guard(given, values)


def _resolved(limits: Mapping[str, Any], given: Mapping[str, Any]) -> Settings:
    return resolve([("Scrapy's settings", {**limits, **given})]).values


def _feeds(settings: BaseSettings) -> list[str]:
    """The files that the crawl's items are written to at its end."""
    feeds = settings.getlist("SHOAL_FEED")
    if feeds and not settings.getbool("SHOAL_ITEMS", True):
        raise UsageError("SHOAL_FEED is written from shoal's store: leave SHOAL_ITEMS = False out")
    if STDOUT in feeds:
        raise UsageError("SHOAL_FEED is a file: shoal export CRAWL writes to standard output")
    check_targets(feeds)
    return feeds


def _check(settings: BaseSettings, given: Mapping[str, Any]) -> None:
    """Refuse what would be taken for something else, or be ignored in silence."""
    for name in ("SHOAL_FRONTIER", "SHOAL_STORE"):
        check_place(settings.get(name) or "", where=name)
    for name in NOT_HERE:
        if settings.get(f"{PREFIX}{name}") or given.get(name.lower()):
            raise UsageError(f"{PREFIX}{name} has no effect on a Scrapy spider: leave it out; {NOT_HERE[name]}")


def _given(settings: BaseSettings) -> dict[str, Any]:
    """shoal's settings by their own names."""
    names = [name for name in settings if name.startswith(PREFIX) and name.removeprefix(PREFIX) not in OWN]
    return {name.removeprefix(PREFIX).lower(): settings[name] for name in names}


def _limits(settings: BaseSettings, given: Mapping[str, Any]) -> dict[str, Any]:
    """The limits that Scrapy's own settings ask for, for the whole fleet, where shoal's are not given."""
    at_once = settings.getint("CONCURRENT_REQUESTS") or 16
    # Twice what Scrapy sends at once: the next requests are here before the first ones are done.
    limits: dict[str, Any] = {"concurrency": 2 * at_once, "obey_robots": False, "max_depth": 0}
    delay, per_host = settings.getfloat("DOWNLOAD_DELAY"), settings.getint("CONCURRENT_REQUESTS_PER_DOMAIN")
    if "rate" not in given:
        limits["rate"] = f"{1 / delay:.12g}/s" if delay > 0 else "unlimited"
    if "per_host" not in given:
        limits["per_host"] = max(per_host, 1)
    return limits


def _remarks_on_limits(limits: Mapping[str, Any]) -> list[str]:
    remarks = []
    if "rate" in limits:
        interval = parse_rate(limits["rate"])
        pace = f"one request per {interval:g} s" if interval > 0 else "no limit of requests per second"
        remarks.append(f"DOWNLOAD_DELAY holds for the whole fleet: {pace} and host; SHOAL_RATE changes that")
    if "per_host" in limits:
        remarks.append(
            f"CONCURRENT_REQUESTS_PER_DOMAIN holds for the whole fleet: {limits['per_host']} requests at once per host;"
            " SHOAL_PER_HOST changes that"
        )
    return remarks
