"""Every setting: its name, type, default and help. `layers.py` merges their sources."""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from shoal.model import HTTP
from shoal.version import DISTRIBUTION

MIB = 1024 * 1024
# Places are not settings: the command line reads these variables itself.
CONFIG_FILE: Final = "shoal.toml"
FRONTIER_VARIABLE, STORE_VARIABLE, PIPE_VARIABLE = "SHOAL_FRONTIER", "SHOAL_STORE", "SHOAL_PIPE"
ARCHIVE_VARIABLE, SINK_VARIABLE, INBOX_VARIABLE = "SHOAL_ARCHIVE", "SHOAL_SINK", "SHOAL_INBOX"
PLACE_VARIABLES: Final = {
    "frontier": FRONTIER_VARIABLE,
    "store": STORE_VARIABLE,
    "archive": ARCHIVE_VARIABLE,
    "pipe": PIPE_VARIABLE,
    "sink": SINK_VARIABLE,
    "inbox": INBOX_VARIABLE,
}
EXITS_VARIABLE = "SHOAL_EXITS"
TOKEN_VARIABLE, READER_VARIABLE = "SHOAL_TOKEN", "SHOAL_READER_TOKEN"
WEBHOOK_VARIABLE = "SHOAL_WEBHOOK_SECRET"
# Not settings either: worker processes inherit them.
LOG_FORMAT_VARIABLE, LOG_LEVEL_VARIABLE, LOG_MARK_VARIABLE = "SHOAL_LOG_FORMAT", "SHOAL_LOG_LEVEL", "SHOAL_LOG_MARK"
TRACKING_PARAMETERS = (
    "utm_*",
    "fbclid",
    "gclid",
    "gclsrc",
    "dclid",
    "gbraid",
    "wbraid",
    "msclkid",
    "twclid",
    "yclid",
    "igshid",
    "mc_cid",
    "mc_eid",
    "_ga",
    "_gl",
    "_hsenc",
    "_hsmi",
    "jsessionid",
    "JSESSIONID",
    "PHPSESSID",
    "phpsessid",
    "ASPSESSIONID*",
    "CFID",
    "CFTOKEN",
    "osCsid",
    "zenid",
    "sessionid",
    "session_id",
    "sessid",
)

MACHINES = (
    "2 cores 4 GB 0.09/h",
    "2 cores 8 GB 0.10/h",
    "4 cores 8 GB 0.17/h",
    "8 cores 16 GB 0.34/h",
    "16 cores 32 GB 0.69/h",
    "32 cores 128 GB 1.61/h",
    "64 cores 256 GB 3.23/h",
)

SamePage = Literal["trailing_slash", "index"]
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(ge=0)]


def _help(text: str) -> Meta:
    return Meta(description=text)


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of a crawl. 0 means "no limit" where the help says so."""

    rate: Annotated[str, _help('starts per host for the whole fleet: "4/s", "30/m", "unlimited"')] = "1/s"
    per_host: Annotated[Positive, _help("requests in flight to one host, for the whole fleet")] = 8
    pace: Annotated[
        Literal["fixed", "adaptive", "search"],
        _help(
            "fixed: always `rate`; adaptive: slower while a host struggles, then slowly back to `rate`; search: also"
            " faster than `rate`, up to `max_rate`, while the host answers as fast as before"
        ),
    ] = "adaptive"
    max_rate: Annotated[
        str, _help('upper limit for one host with `pace = "search"`, for the whole fleet: "50/s"; empty: no search')
    ] = ""
    concurrency: Annotated[Positive, _help("requests in flight per worker, over all its crawls")] = 32
    priority: Annotated[
        Annotated[int, Meta(ge=-1000, le=1000)],
        _help("higher goes first, where a worker has several crawls and where crawls share a host"),
    ] = 0
    weight: Annotated[
        Annotated[float, Meta(ge=0.001, le=1000)],
        _help("the crawl's share of a host that several crawls use: weight 2 gets twice the starts of weight 1"),
    ] = 1.0
    pace_scope: Annotated[
        Literal["host", "crawl"],
        _help(
            "host: crawls of one frontier share the limits of a host, the strictest ones apply; crawl: this crawl"
            " keeps limits of its own, whatever others send; fixed when the crawl begins"
        ),
    ] = "host"

    allow: Annotated[
        tuple[str, ...],
        _help(
            "hosts (with a leading dot: with their subdomains) or URL prefixes to crawl; empty: the hosts of `start`,"
            " and each page's own host"
        ),
    ] = ()
    deny: Annotated[tuple[str, ...], _help("URLs to skip, as regular expressions over the whole URL")] = ()
    max_depth: Annotated[Count, _help("links to follow from a start URL; 0: no limit")] = 0
    max_pages: Annotated[Count, _help("tasks a crawl accepts; 0: no limit")] = 0
    max_per_host: Annotated[Count, _help("tasks a crawl accepts for one host; 0: no limit")] = 1_000_000
    max_per_shape: Annotated[
        Count, _help("tasks a crawl accepts for URLs of one shape (/list/2026/05?page=…) on one host; 0: no limit")
    ] = 100_000
    max_items: Annotated[Count, _help("stop the crawl after this many items; 0: no limit")] = 0
    max_bytes: Annotated[
        Count,
        _help(
            "stop the crawl after this many bytes of decompressed pages, such as 5GB, counted from the moment the"
            " limit is set; 0: no limit"
        ),
    ] = 0
    max_seconds: Annotated[
        Seconds,
        _help(
            "stop the crawl after this working time, in seconds or such as 2h, over all runs; time without workers"
            " does not count; 0: no limit"
        ),
    ] = 0.0
    deadline: Annotated[
        str,
        _help(
            'stop the crawl at this time: "06:00" (the next one, by the clock of the machine that begins the crawl),'
            ' "06:00 Europe/Berlin", or "2026-11-20 06:00"; empty: never'
        ),
    ] = ""
    max_url_length: Annotated[Positive, _help("longest URL, in characters")] = 2048
    max_path_segments: Annotated[Positive, _help("most segments in the path of a URL")] = 20
    max_segment_repeats: Annotated[Positive, _help("how often one path segment may occur in a URL")] = 3
    max_links: Annotated[Positive, _help("links taken from one page")] = 10_000
    max_facets: Annotated[
        Count, _help("different sets of query parameters that one path may have, as in faceted lists; 0: no limit")
    ] = 20
    max_equal_pages: Annotated[
        Count,
        _help(
            "pages of one shape in a row with nothing new, after which the others of that shape are dropped; 0: never"
        ),
    ] = 200
    strip_parameters: Annotated[
        tuple[str, ...],
        _help(
            "query parameters that do not change a page; a trailing * is a prefix; jsessionid also covers session ids"
            " in the path and in sid="
        ),
    ] = TRACKING_PARAMETERS
    same_page: Annotated[
        tuple[SamePage, ...],
        _help(
            'differences that are ignored when URLs are compared: "trailing_slash" (/a/ is /a), "index" (/a/index.html'
            " is /a/); the URL that is fetched stays as written"
        ),
    ] = ()

    dedup: Annotated[
        str,
        _help(
            'how known URLs are stored: "exact", or "bloom:0.001", which saves memory in Redis and misses one new URL'
            " in a thousand; fixed when the crawl begins"
        ),
    ] = "exact"
    dedup_ttl: Annotated[
        str,
        _help(
            "how long a URL stays known after its page is done: 12h, 4d, 2w; it expires after 1 to 1.5 times as long"
            " and may then be fetched again; empty: for ever; a running crawl may change the length, not switch it on"
            " or off"
        ),
    ] = ""

    keep_crawls: Annotated[
        Count,
        _help(
            "how many ended crawls per spider stay in the frontier; older ones are removed from it, their items, log"
            " and archived pages stay; 0: no limit"
        ),
    ] = 10
    crawl_ttl: Annotated[
        str,
        _help(
            "how long an ended crawl stays in the frontier, such as 30d; the newest one of a spider stays longer;"
            " empty: for ever"
        ),
    ] = "30d"
    known_ttl: Annotated[
        str,
        _help(
            "how long a finished crawl keeps its known URLs, such as 14d: URLs added late and `--skip-known` of the"
            " next crawl need them; counters and dead letters stay; empty: for ever"
        ),
    ] = "14d"

    revisit: Annotated[
        str,
        _help(
            "time between two visits of a page: 90s, 30m, 24h, 7d; the crawl then runs until it is stopped; empty: one"
            " visit"
        ),
    ] = ""
    revisit_bounds: Annotated[
        str,
        _help(
            "shortest and longest time between two visits, such as 1h-7d: pages that change are visited more often,"
            " the others less; empty: always `revisit`"
        ),
    ] = ""

    conditional_requests: Annotated[
        bool,
        _help("send If-None-Match and If-Modified-Since for known pages; false: for sites that answer 304 wrongly"),
    ] = True

    mark_gone: Annotated[
        bool,
        _help(
            "after a crawl of the whole site, mark the spider's items that it did not see as gone; for crawls that"
            " always have the same start and the same limits"
        ),
    ] = False

    obey_robots: Annotated[bool, _help("obey robots.txt and its Crawl-delay")] = True
    robots_seconds: Annotated[Seconds, _help("how long a robots.txt is cached")] = 86_400.0
    max_robots_bytes: Annotated[Positive, _help("bytes of a robots.txt that are read")] = 512 * 1024
    user_agent: Annotated[str, _help("the User-Agent header; name yourself and how to reach you")] = (
        f"shoal/0.1 (+https://pypi.org/project/{DISTRIBUTION})"
    )
    cookies: Annotated[
        Literal["worker", "fleet", "off"],
        _help(
            "cookies that sites set without a login: kept by each worker for itself, shared by the fleet through the"
            " frontier, or not kept"
        ),
    ] = "worker"
    allow_private: Annotated[bool, _help("allow requests to private, loopback and other special addresses")] = False
    allow_addresses: Annotated[
        tuple[str, ...], _help("private networks that requests may go to, such as 10.1.0.0/16")
    ] = ()

    proxies: Annotated[
        str,
        _help(
            "file with proxies, one URL per line, or with pools as in shoal.toml; needed on every machine of the fleet"
        ),
    ] = ""

    pool: Annotated[
        str,
        _help(
            "pool of proxies or accounts for requests that name none; default: the only pool of the `proxies` file,"
            " else the linking page's pool, else direct"
        ),
    ] = ""
    region: Annotated[
        str,
        _help(
            "region for requests that name neither a region nor a pool, such as de; they use exits that workers offer"
            " for it (`--exits`), or the pool with that region"
        ),
    ] = ""
    kind: Annotated[
        str,
        _help("kind of worker for requests that name none: only workers started for this kind (`--kinds`) take them"),
    ] = HTTP
    render: Annotated[bool, _help("render pages in a browser, except requests with `render=False`")] = False
    render_seconds: Annotated[Seconds, _help("deadline for a rendered page, with all that it loads")] = 30.0
    render_pages: Annotated[Positive, _help("pages that a worker of the kind `browser` renders at once")] = 4
    render_requests: Annotated[Positive, _help("most requests of one rendered page; a page with more is given up")] = (
        1000
    )
    render_bytes: Annotated[
        Positive, _help("most bytes that one rendered page loads; a page with more is given up")
    ] = 100 * MIB
    render_memory: Annotated[
        Positive, _help("most bytes of memory for one rendered page; a page with more is killed")
    ] = 1024 * MIB
    render_recycle: Annotated[Positive, _help("pages after which a worker restarts its browser")] = 200
    chromium: Annotated[
        str, _help("browser program; empty: `chromium`, `chromium-browser` or `google-chrome` in the PATH")
    ] = ""
    chromium_sandbox: Annotated[
        bool, _help("use Chromium's own sandbox (never as root); false: for containers that forbid it")
    ] = True
    exit_patience: Annotated[
        str,
        _help("how long pages wait while no exit of their pool is healthy; then they become dead letters"),
    ] = "1h"
    max_exit_tries: Annotated[Positive, _help("refusals through exits after which a page becomes a dead letter")] = 6
    budget: Annotated[
        Annotated[float, Meta(ge=0)],
        _help("most that all requests through pools may cost; then the crawl pauses; 0: no limit"),
    ] = 0.0

    max_attempts: Annotated[Positive, _help("attempts at a page before it becomes a dead letter")] = 4
    handle_statuses: Annotated[
        tuple[int, ...], _help("statuses besides 2xx that the spider's handlers receive, such as 404")
    ] = ()
    max_failures: Annotated[
        str,
        _help("dead letters above which a run returns 1: a share of the pages such as 50%, or a number"),
    ] = "50%"
    stop_after_failures: Annotated[
        Count,
        _help("pause the crawl if a handler fails on each of its first pages, this many; 0: never"),
    ] = 50
    max_free_retries: Annotated[
        Count,
        _help("retries that use up no attempt: 429, 503 with Retry-After, faults of this machine"),
    ] = 20
    retry_seconds: Annotated[Seconds, _help("backoff before the second attempt; doubles with each further one")] = 2.0
    max_retry_seconds: Annotated[Seconds, _help("longest backoff")] = 600.0
    max_rest_seconds: Annotated[Seconds, _help("longest rest of a host that a Retry-After may ask for")] = 3600.0

    connect_seconds: Annotated[Seconds, _help("deadline for a connection")] = 10.0
    first_byte_seconds: Annotated[Seconds, _help("deadline for the first byte of a response")] = 30.0
    idle_seconds: Annotated[Seconds, _help("longest pause inside a response")] = 15.0
    total_seconds: Annotated[Seconds, _help("deadline for a whole response")] = 60.0
    max_body_bytes: Annotated[Positive, _help("largest page in bytes, after decompression")] = 10 * MIB
    max_tags: Annotated[Positive, _help("most tags in a page's HTML; a page with more is not parsed")] = 1_000_000
    max_nesting: Annotated[Positive, _help("deepest nesting in a page's HTML; a page with more is not parsed")] = 1_000
    max_ratio: Annotated[Positive, _help("how many times larger a page may become by decompression")] = 200
    max_redirects: Annotated[Count, _help("redirects in a row")] = 10
    handler_seconds: Annotated[
        Seconds, _help("deadline for a spider's handler on one page; 0: none, even for a handler that hangs")
    ] = 30.0

    lease_seconds: Annotated[
        Seconds,
        _help("how long a worker keeps its tasks without renewing the lease; it renews while a handler runs, too"),
    ] = 60.0
    horizon_seconds: Annotated[Seconds, _help("how far ahead a worker reserves start times on a fast host")] = 1.0
    grace_seconds: Annotated[Seconds, _help("how long a stopping worker may take to finish its pages")] = 20.0
    flush_pages: Annotated[Positive, _help("pages per write to the store and the frontier")] = 128
    flush_seconds: Annotated[Seconds, _help("longest time that a finished page waits for this write")] = 0.2
    max_pending: Annotated[Positive, _help("waiting tasks above which sources stop feeding")] = 1_000_000

    item_key: Annotated[str, _help("field that identifies an item; empty: the page's URL")] = ""
    merge: Annotated[
        Literal["replace", "fill"],
        _help(
            "replace: the newest scrape of an item replaces the older one; fill: fields from different pages are merged"
        ),
    ] = "replace"
    freshness: Annotated[
        str, _help('how long after a write an item is not written again, such as "1h"; empty: no such time')
    ] = ""
    keep_versions: Annotated[bool, _help("keep every version of an item")] = False
    versions_retention: Annotated[
        str, _help('how long replaced versions are kept, such as "365d"; empty: for ever')
    ] = ""
    retention: Annotated[str, _help('how long the fetch log is kept, such as "90d"; empty: for ever')] = ""
    retention_archive: Annotated[
        str,
        _help(
            "archive (a folder, or a URL such as s3://bucket/prefix) for old weeks of the fetch log, as Parquet;"
            " empty: they are deleted"
        ),
    ] = ""
    store_connections: Annotated[Positive, _help("connections per worker to a database server")] = 2
    worker_max_pages: Annotated[
        Count, _help("pages after which a worker process is replaced by a new one; 0: never")
    ] = 0
    worker_max_seconds: Annotated[
        str, _help("age at which a worker process is replaced: 90s, 30m, 6h, 1d; empty: never")
    ] = ""
    worker_max_memory: Annotated[
        str, _help("memory at which a worker process is replaced: 500MB, 2GB; empty: no limit")
    ] = ""
    trace_share: Annotated[
        Annotated[float, Meta(ge=0, le=1)],
        _help("share of pages that are traced, if OTEL_EXPORTER_OTLP_ENDPOINT names a collector"),
    ] = 0.01

    machines: Annotated[
        tuple[str, ...],
        _help(
            "machine sizes that `shoal advise` considers, with the price of each per hour in any currency; the"
            " defaults are about what large clouds ask in dollars"
        ),
    ] = MACHINES


FIELDS = {field.name: field for field in msgspec.structs.fields(Settings)}
