"""shoal's settings in a Scrapy project: which are Scrapy's own settings under another name, and which have no effect.

Those that are in neither table are the frontier's, the store's or the worker's, and mean what they mean anywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from scrapy.settings import BaseSettings, default_settings

from shoal.errors import UsageError
from shoal.settings import Settings

PREFIX = "SHOAL_"
PACKAGE, GUARD = "shoal.integrations.scrapy", "GuardMiddleware"


class Counterpart(NamedTuple):
    """The setting of Scrapy that does the same, and its value."""

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
_KEYS = "which requests are the same is told by the project's REQUEST_FINGERPRINTER_CLASS"
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
# Of Scrapy's own scheduler. Those of scrapy-redis are told of where its settings are read.
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
    """Refuse settings that would do nothing, or that Scrapy's own settings contradict."""
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
    """Set Scrapy's own settings that these stand for; what the project itself says of them stays."""
    for name in given.keys() & COUNTERPARTS.keys():
        counterpart = COUNTERPARTS[name]
        settings.set(counterpart.name, counterpart.value(getattr(values, name)), priority="addon")


def wants_guard(given: Mapping[str, Any], values: Settings) -> bool:
    """Whether a project asks for the guard: without it, a Scrapy spider may go where Scrapy lets it go."""
    return ("allow_private" in given or "allow_addresses" in given) and not values.allow_private


def unused_parts(settings: BaseSettings) -> list[str]:
    """What to say of parts of Scrapy's own scheduler that a project has replaced by its own."""
    return [
        f"{name} is not used: {instead}"
        for name, instead in UNUSED_PARTS.items()
        if str(settings.get(name)) != str(getattr(default_settings, name, None))
    ]
