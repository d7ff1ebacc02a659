"""A project's Scrapy settings as shoal's settings: counterparts in Scrapy, settings without effect, and the command
line, which Scrapy passes neither to its scheduler nor to its add-ons.

Settings in neither table belong to the frontier, the store or the worker and mean the same as elsewhere."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NamedTuple

from scrapy.crawler import Crawler
from scrapy.settings import BaseSettings, default_settings

from shoal.crawl.opening import Places
from shoal.crawl.places import check_place
from shoal.errors import ShoalError, UsageError
from shoal.exits.offered import own_exits
from shoal.results.export import STDOUT, check_targets
from shoal.scrapy.bridge import bridge_of, spider_of
from shoal.scrapy.crawl import ScrapyCrawl
from shoal.scrapy.pools import exits_file, pools_of
from shoal.scrapy.redis_client import frontier_of, reads_redis, remarks_on
from shoal.settings.layers import resolve
from shoal.settings.table import EXITS_VARIABLE, Settings
from shoal.settings.values import parse_rate

# These commands try a page or two by hand and are no part of a crawl.
PAGE_COMMANDS = frozenset({"bench", "check", "fetch", "parse", "shell", "view"})
CRAWL_COMMANDS = frozenset({"crawl", "runspider"})
_PROGRAMS = frozenset({"scrapy", "scrapy.exe", "scrapy.cmdline", "scrapyd.runner"})
_FILES = frozenset({("scrapy", "__main__.py"), ("scrapy", "cmdline.py"), ("scrapyd", "runner.py")})
_WITH_VALUE = frozenset(
    {"-W", "-X", "--check-hash-based-pycs"}
)  # options of Python that take a value; -m is followed by the program


def is_page_command(command_line: Sequence[str]) -> bool:
    """Whether the process runs a command of Scrapy that tries pages. `command_line` is `sys.orig_argv`: Scrapy removes
    the command from `sys.argv`."""
    return _command(command_line)[0] in PAGE_COMMANDS


def is_crawl_command(command_line: Sequence[str]) -> bool:
    """Whether the process runs a command of Scrapy that runs one spider and ends."""
    return _command(command_line)[0] in CRAWL_COMMANDS


def arguments(command_line: Sequence[str]) -> dict[str, str]:
    """The spider's arguments of `scrapy crawl -a name=value`. Names with a leading underscore, such as the job number
    of scrapyd, do not change what the spider crawls."""
    command, options = _command(command_line)
    if command not in CRAWL_COMMANDS:
        return {}
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-a", action="append", default=[])
    given = parser.parse_known_args(options)[0].a
    pairs = (text.partition("=") for text in given if "=" in text)
    return {name: value for name, _, value in pairs if not name.startswith("_")}


def _command(command_line: Sequence[str]) -> tuple[str, list[str]]:
    """The command of Scrapy and its options; empty for another program."""
    words = list(command_line[1:])
    while words and words[0].startswith("-"):
        del words[: 2 if words[0] in _WITH_VALUE else 1]
    if not words:
        return "", []
    program, options = PurePath(words[0]), words[1:]
    if program.name not in _PROGRAMS and program.parts[-2:] not in _FILES:
        return "", []
    command = next((word for word in options if not word.startswith("-")), "")
    return command, options


PREFIX = "SHOAL_"
PACKAGE, GUARD = "shoal.scrapy", "GuardMiddleware"


class Counterpart(NamedTuple):
    """The Scrapy setting with the same meaning, and its value."""

    name: str
    value: Callable[[Any], Any]


def _same(value: Any) -> Any:
    return value


COUNTERPARTS: dict[str, Counterpart] = {
    "user_agent": Counterpart("USER_AGENT", _same),
    "obey_robots": Counterpart("ROBOTSTXT_OBEY", _same),
    "max_depth": Counterpart("DEPTH_LIMIT", _same),
    "max_redirects": Counterpart("REDIRECT_MAX_TIMES", _same),
    "max_attempts": Counterpart("RETRY_TIMES", lambda attempts: attempts - 1),
    "max_body_bytes": Counterpart("DOWNLOAD_MAXSIZE", _same),
    "max_url_length": Counterpart("URLLENGTH_LIMIT", _same),
    "total_seconds": Counterpart("DOWNLOAD_TIMEOUT", _same),
    "handle_statuses": Counterpart("HTTPERROR_ALLOWED_CODES", list),
    "cookies": Counterpart("COOKIES_ENABLED", lambda cookies: cookies != "off"),
}
_SCOPE = "a Scrapy spider has allowed_domains, and the rules of its link extractors"
_PARSING = "Scrapy parses pages by itself"
_TRAPS = "of Scrapy's own limits there are DEPTH_LIMIT and URLLENGTH_LIMIT; SHOAL_MAX_PER_HOST holds as well"
_KEYS = "the project's REQUEST_FINGERPRINTER_CLASS decides which requests are the same"
_TIMES = "Scrapy has one deadline, DOWNLOAD_TIMEOUT"
_ROBOTS = "Scrapy reads robots.txt once per process"
NO_EFFECT: dict[str, str] = {
    "allow": _SCOPE,
    "deny": _SCOPE,
    "max_per_shape": _TRAPS,
    "max_path_segments": _TRAPS,
    "max_segment_repeats": _TRAPS,
    "max_links": _TRAPS,
    "max_facets": _TRAPS,
    "max_equal_pages": _TRAPS,
    "strip_parameters": _KEYS,
    "same_page": _KEYS,
    "robots_seconds": _ROBOTS,
    "max_robots_bytes": _ROBOTS,
    "connect_seconds": _TIMES,
    "first_byte_seconds": _TIMES,
    "idle_seconds": _TIMES,
    "max_ratio": "DOWNLOAD_MAXSIZE limits what a page is decompressed to",
    "max_tags": _PARSING,
    "max_nesting": _PARSING,
    "max_bytes": "bytes are counted of shoal's own pages; SHOAL_MAX_ITEMS and SHOAL_MAX_SECONDS stop a crawl",
    "handler_seconds": "a callback has no deadline in Scrapy",
    "stop_after_failures": "CLOSESPIDER_ERRORCOUNT ends a spider that fails",
    "max_failures": "a run of Scrapy has no return code for failed pages: shoal status shows them",
    "kind": "the requests of Scrapy spiders are done by Scrapy processes",
    "trace_share": "traces are made of shoal's own pages",
}

_ORDER = "the frontier chooses by host, then by priority, then the oldest first"
# Parts of Scrapy's own scheduler. Parts of scrapy-redis are in redis_settings.py.
UNUSED_PARTS: dict[str, str] = {
    "DUPEFILTER_CLASS": (
        "the frontier keeps the keys of requests, made by REQUEST_FINGERPRINTER_CLASS; dont_filter=True lets a request"
        " pass"
    ),
    "SCHEDULER_PRIORITY_QUEUE": _ORDER,
    "SCHEDULER_MEMORY_QUEUE": _ORDER,
    "SCHEDULER_DISK_QUEUE": _ORDER,
}


def check_effects(given: Mapping[str, Any], values: Settings, *, settings: BaseSettings) -> None:
    """Refuse settings that have no effect, or that contradict Scrapy's own settings."""
    for name in given:
        if name in NO_EFFECT:
            raise UsageError(
                f"{PREFIX}{name.upper()} has no effect on a Scrapy spider: leave it out; {NO_EFFECT[name]}"
            )
        counterpart = COUNTERPARTS.get(name)
        if counterpart is not None and settings[counterpart.name] != counterpart.value(getattr(values, name)):
            raise UsageError(
                f"{PREFIX}{name.upper()} and {counterpart.name} say different things: give {counterpart.name} alone"
            )
    if wants_guard(given, values) and not any(
        GUARD in str(part) for part in settings.getdict("DOWNLOADER_MIDDLEWARES")
    ):
        raise UsageError(
            f'{PREFIX}ALLOW_PRIVATE needs shoal\'s add-on, or DOWNLOADER_MIDDLEWARES = {{"{PACKAGE}.{GUARD}": 899}}'
        )


def pass_on(given: Mapping[str, Any], values: Settings, *, settings: BaseSettings) -> None:
    """Set the Scrapy counterparts of these settings; the project's own values stay."""
    for name in given.keys() & COUNTERPARTS.keys():
        counterpart = COUNTERPARTS[name]
        settings.set(counterpart.name, counterpart.value(getattr(values, name)), priority="addon")


def wants_guard(given: Mapping[str, Any], values: Settings) -> bool:
    """Whether a project asks for the guard: without it, a Scrapy spider may go where Scrapy lets it."""
    return ("allow_private" in given or "allow_addresses" in given) and not values.allow_private


def unused_parts(settings: BaseSettings) -> list[str]:
    """Remarks on parts of Scrapy's scheduler that a project has replaced."""
    return [
        f"{name} is not used: {instead}"
        for name, instead in UNUSED_PARTS.items()
        if str(settings.get(name)) != str(getattr(default_settings, name, None))
    ]


# Settings of this package, beside the usual settings of shoal.
OWN = ("FRONTIER", "STORE", "ARCHIVE", "CRAWL", "FRESH", "ITEMS", "FEED", "EXITS")
DEFAULT_FRONTIER = "shoal.db"
# Settings of shoal that have no effect in Scrapy, and why.
NOT_HERE = {
    "ARCHIVE": "raw pages of Scrapy spiders are not archived",
}


def scrapy_crawl_of(crawler: Crawler, *, say: Callable[[str], None]) -> ScrapyCrawl:
    """The crawl that a project's settings ask for."""
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
    """A project's settings of shoal."""
    given = _given(settings)
    return _resolved(_limits(settings, given), given)


def adapt(settings: BaseSettings) -> bool:
    """Set the Scrapy counterparts of shoal's settings; returns whether the project asks for the guard. Errors are
    ignored: the scheduler refuses to run and says why."""
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
    """Refuse settings that would be misread or silently ignored."""
    for name in ("SHOAL_FRONTIER", "SHOAL_STORE"):
        check_place(settings.get(name) or "", where=name)
    for name in NOT_HERE:
        if settings.get(f"{PREFIX}{name}") or given.get(name.lower()):
            raise UsageError(f"{PREFIX}{name} has no effect on a Scrapy spider: leave it out; {NOT_HERE[name]}")


def _given(settings: BaseSettings) -> dict[str, Any]:
    """shoal's settings by name."""
    names = [name for name in settings if name.startswith(PREFIX) and name.removeprefix(PREFIX) not in OWN]
    return {name.removeprefix(PREFIX).lower(): settings[name] for name in names}


def _limits(settings: BaseSettings, given: Mapping[str, Any]) -> dict[str, Any]:
    """The limits in Scrapy's own settings, for the whole fleet, where shoal's are not given."""
    at_once = settings.getint("CONCURRENT_REQUESTS") or 16
    # Twice the concurrency of Scrapy: the next requests are leased before the first ones are done.
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
