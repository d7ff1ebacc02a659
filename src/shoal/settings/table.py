"""Every setting in one table: its name, its type, its default and its purpose.

A setting comes from, weakest first: the default, `shoal.toml`, `SHOAL_…` in the environment, the spider class,
the command line. An unknown name or a value of the wrong kind is an error that says what was meant.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from shoal.model import HTTP

MIB = 1024 * 1024
# The places of a crawl are no settings of it; the command line reads these variables itself.
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
# Nor is how a process logs: its workers do it in the same way.
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
    """The table. Zero means "no limit" where a limit may be absent."""

    rate: Annotated[str, _help('starts per host for the whole fleet: "4/s", "30/m", "unlimited"')] = "1/s"
    per_host: Annotated[Positive, _help("requests in flight to one host, for the whole fleet")] = 8
    pace: Annotated[
        Literal["fixed", "adaptive", "search"],
        _help(
            "adaptive: slower when a host struggles, back to `rate` slowly; search: also faster than `rate`, up to"
            " `max_rate`, as long as a host answers as fast as before"
        ),
    ] = "adaptive"
    max_rate: Annotated[
        str, _help('the most that `pace = "search"` asks of one host, for the whole fleet: "50/s"; empty: no search')
    ] = ""
    concurrency: Annotated[
        Positive, _help("requests that a worker has on their way at once, over all crawls that it works on")
    ] = 32
    priority: Annotated[
        Annotated[int, Meta(ge=-1000, le=1000)],
        _help("where workers have several crawls, and where crawls share a host, the higher one goes first"),
    ] = 0
    weight: Annotated[
        Annotated[float, Meta(ge=0.001, le=1000)],
        _help("a crawl's share of a host that it shares with other crawls: one of weight 2 starts twice as much there"),
    ] = 1.0
    pace_scope: Annotated[
        Literal["host", "crawl"],
        _help(
            "host: crawls of one frontier keep the limits of a host together, the strictest of theirs; crawl: this one"
            " keeps its own, whatever others send there; decided when a crawl begins"
        ),
    ] = "host"

    allow: Annotated[
        tuple[str, ...],
        _help(
            "hosts (with a leading dot their subdomains too) or URL prefixes in scope; empty: the hosts of"
            " `start`, and each page's own host"
        ),
    ] = ()
    deny: Annotated[tuple[str, ...], _help("URL patterns kept out, as regular expressions over the whole URL")] = ()
    max_depth: Annotated[Count, _help("links away from a start URL; 0: no limit")] = 0
    max_pages: Annotated[Count, _help("tasks a crawl accepts; 0: no limit")] = 0
    max_per_host: Annotated[Count, _help("tasks a crawl accepts for one host; 0: no limit")] = 1_000_000
    max_per_shape: Annotated[
        Count, _help("tasks a crawl accepts for URLs of one shape (/list/2026/05?page=…) on one host; 0: no limit")
    ] = 100_000
    max_items: Annotated[Count, _help("items of its pages after which a crawl is stopped; 0: no limit")] = 0
    max_bytes: Annotated[
        Count,
        _help(
            "bytes of pages, after decompression, after which a crawl is stopped, such as 5GB; counted from when it is"
            " set; 0: no limit"
        ),
    ] = 0
    max_seconds: Annotated[
        Seconds,
        _help(
            "seconds of work, or such as 2h, over all runs, after which a crawl is stopped; time without workers does"
            " not count"
        ),
    ] = 0.0
    deadline: Annotated[
        str,
        _help(
            'when a crawl is stopped: "06:00" (the next one, by the clock of the machine that begins it), "06:00'
            ' Europe/Berlin", or with a day, "2026-11-20 06:00"; empty: never'
        ),
    ] = ""
    max_url_length: Annotated[Positive, _help("characters of a URL")] = 2048
    max_path_segments: Annotated[Positive, _help("segments of a URL's path")] = 20
    max_segment_repeats: Annotated[Positive, _help("times one path segment may occur in a URL")] = 3
    max_links: Annotated[Positive, _help("links taken from one page")] = 10_000
    max_facets: Annotated[
        Count, _help("different sets of parameter names that one path may have, as faceted lists do; 0: no limit")
    ] = 20
    max_equal_pages: Annotated[
        Count,
        _help("pages of one shape in a row with nothing new on them, after which more of them are given up; 0: never"),
    ] = 200
    strip_parameters: Annotated[
        tuple[str, ...],
        _help(
            "query parameters that make no difference to a page; a trailing * is a prefix; jsessionid also stands for"
            " session ids in the path and in sid="
        ),
    ] = TRACKING_PARAMETERS
    same_page: Annotated[
        tuple[SamePage, ...],
        _help(
            'what else makes no other page: "trailing_slash" (/a/ is /a), "index" (/a/index.html is /a/); the URL that'
            " is fetched stays as written"
        ),
    ] = ()

    dedup: Annotated[
        str,
        _help(
            'how a crawl remembers known URLs: "exact", or "bloom:0.001" to save memory in Redis and miss one new URL'
            " in a thousand; cannot be changed later"
        ),
    ] = "exact"
    dedup_ttl: Annotated[
        str,
        _help(
            "how long a URL stays known after it is done: 12h, 4d, 2w; then, after half as long again at the latest, it"
            " may be fetched again; empty: for ever; a running crawl may change the length, not turn it on or off"
        ),
    ] = ""

    keep_crawls: Annotated[
        Count,
        _help(
            "ended crawls of the spider that stay in the frontier, the newest ones; older ones are removed from there,"
            " their items, log and archived pages stay; 0: no limit"
        ),
    ] = 10
    crawl_ttl: Annotated[
        str,
        _help(
            "how long an ended crawl stays in the frontier, such as 30d; the spider's newest one stays longer; empty:"
            " for ever"
        ),
    ] = "30d"
    known_ttl: Annotated[
        str,
        _help(
            "how long a finished crawl remembers its URLs, such as 14d: for what is added to it late and for"
            " `--skip-known` of the next one; its counters and dead letters stay; empty: for ever"
        ),
    ] = "14d"

    revisit: Annotated[
        str,
        _help(
            "how long after a visit a page is visited again: 90s, 30m, 24h, 7d; the crawl then goes on until it is"
            " stopped; empty: one visit"
        ),
    ] = ""
    revisit_bounds: Annotated[
        str,
        _help(
            "the shortest and the longest time between the visits of a page, such as 1h-7d: pages that change are"
            " visited more often, the others less; empty: all as `revisit` has it"
        ),
    ] = ""

    conditional_requests: Annotated[
        bool,
        _help(
            "ask for a page that was visited before, or that an earlier crawl of the spider archived, only if it has"
            " changed since; false: always in full, for sites that answer 304 in error"
        ),
    ] = True

    mark_gone: Annotated[
        bool,
        _help(
            "when a crawl has seen the whole site, mark the spider's items that it did not see as gone; for crawls that"
            " always begin at the same place, with the same limits"
        ),
    ] = False

    obey_robots: Annotated[bool, _help("obey robots.txt and its Crawl-delay")] = True
    robots_seconds: Annotated[Seconds, _help("how long a robots.txt is good for")] = 86_400.0
    max_robots_bytes: Annotated[Positive, _help("bytes of a robots.txt that are read")] = 512 * 1024
    user_agent: Annotated[str, _help("how requests introduce themselves; name yourself and a way to reach you")] = (
        "shoal/0.1 (+https://pypi.org/project/shoal)"
    )
    cookies: Annotated[
        Literal["worker", "fleet", "off"],
        _help(
            "cookies that sites set without a login: kept by each worker for itself, shared by the fleet through the"
            " frontier, or not kept"
        ),
    ] = "worker"
    allow_private: Annotated[bool, _help("let requests go to private, loopback and other special addresses")] = False
    allow_addresses: Annotated[
        tuple[str, ...], _help("networks such as 10.1.0.0/16 that requests may go to though they are private")
    ] = ()

    proxies: Annotated[
        str, _help("file with proxies, one URL a line, or with pools as in shoal.toml; on every machine of the fleet")
    ] = ""

    pool: Annotated[
        str,
        _help(
            "pool of proxies or accounts for requests that name none; empty: the only pool of the file that `proxies`"
            ' names, else the pool of the page that has the link, else "direct"'
        ),
    ] = ""
    region: Annotated[
        str,
        _help(
            "region for requests that name neither a region nor a pool, such as de: they leave through exits that"
            " workers offer for it (`--exits`), or through the pool with that region"
        ),
    ] = ""
    kind: Annotated[
        str,
        _help("kind of worker for requests that name none: only workers that do this kind (`--kinds`) get them"),
    ] = HTTP
    render: Annotated[bool, _help("let a browser render all pages whose requests do not say `render=False`")] = False
    render_seconds: Annotated[Seconds, _help("deadline for a rendered page, with all that it loads and does")] = 30.0
    render_pages: Annotated[Positive, _help("pages that a worker of the kind `browser` renders at once")] = 4
    render_requests: Annotated[Positive, _help("requests that a rendered page may make; then it is given up")] = 1000
    render_bytes: Annotated[Positive, _help("bytes that a rendered page may load; then it is given up")] = 100 * MIB
    render_memory: Annotated[Positive, _help("bytes of memory that a rendered page may take; then it is killed")] = (
        1024 * MIB
    )
    render_recycle: Annotated[Positive, _help("pages after which a worker starts its browser anew")] = 200
    chromium: Annotated[
        str, _help("program that renders pages; empty: `chromium`, `chromium-browser` or `google-chrome` in the PATH")
    ] = ""
    chromium_sandbox: Annotated[
        bool, _help("Chromium's own sandbox, which root never has; false in containers that forbid it")
    ] = True
    exit_patience: Annotated[
        str,
        _help("how long pages wait while no exit of their pool is healthy; after that they become dead letters"),
    ] = "1h"
    max_exit_tries: Annotated[
        Positive, _help("times a page may be refused through exits before it is a dead letter")
    ] = 6
    budget: Annotated[
        Annotated[float, Meta(ge=0)],
        _help("what all requests through pools may cost; then the crawl pauses; 0: no limit"),
    ] = 0.0

    max_attempts: Annotated[Positive, _help("attempts at a page before it is a dead letter")] = 4
    handle_statuses: Annotated[
        tuple[int, ...], _help("statuses besides 2xx whose pages go to the spider's handlers, such as 404")
    ] = ()
    max_failures: Annotated[
        str,
        _help(
            "dead letters that a crawl may end with before its exit code is 1: a share of its pages as 50%, or a number"
        ),
    ] = "50%"
    stop_after_failures: Annotated[
        Count,
        _help("pages in a row, from its first one on, on which a handler may fail before the crawl pauses; 0: never"),
    ] = 50
    max_free_retries: Annotated[Count, _help("retries for faults that are not the page's fault")] = 20
    retry_seconds: Annotated[Seconds, _help("backoff before the second attempt; doubles with each one")] = 2.0
    max_retry_seconds: Annotated[Seconds, _help("longest backoff")] = 600.0
    max_rest_seconds: Annotated[Seconds, _help("longest rest that a Retry-After may ask of a host")] = 3600.0

    connect_seconds: Annotated[Seconds, _help("deadline for a connection")] = 10.0
    first_byte_seconds: Annotated[Seconds, _help("deadline for the first byte of an answer")] = 30.0
    idle_seconds: Annotated[Seconds, _help("longest silence inside an answer")] = 15.0
    total_seconds: Annotated[Seconds, _help("deadline for a whole answer")] = 60.0
    max_body_bytes: Annotated[Positive, _help("bytes of a page, after decompression")] = 10 * MIB
    max_tags: Annotated[Positive, _help("tags in the HTML of a page; one with more is not parsed")] = 1_000_000
    max_nesting: Annotated[
        Positive, _help("elements nested in each other in the HTML of a page; one with more is not parsed")
    ] = 1_000
    max_ratio: Annotated[Positive, _help("how many times larger a page may get by decompression")] = 200
    max_redirects: Annotated[Count, _help("redirects in a row")] = 10
    handler_seconds: Annotated[
        Seconds, _help("deadline for a spider's handler on one page; 0: none, also for a worker that hangs in it")
    ] = 30.0

    lease_seconds: Annotated[
        Seconds, _help("how long a worker that sends no renewal keeps its tasks; it renews while a handler runs, too")
    ] = 60.0
    horizon_seconds: Annotated[Seconds, _help("how far ahead a worker takes start slots of a fast host")] = 1.0
    grace_seconds: Annotated[Seconds, _help("how long a worker that was told to stop may finish its pages")] = 20.0
    flush_pages: Annotated[Positive, _help("pages per write to the store and the frontier")] = 128
    flush_seconds: Annotated[Seconds, _help("longest time that a finished page waits for this write")] = 0.2
    max_pending: Annotated[Positive, _help("waiting tasks above which sources stop feeding")] = 1_000_000

    item_key: Annotated[str, _help("the field that identifies an item; empty: the page's URL")] = ""
    merge: Annotated[
        Literal["replace", "fill"],
        _help("replace: the newer scrape of an item stands; fill: fields of its different pages are merged"),
    ] = "replace"
    freshness: Annotated[
        str, _help('how long an item stays as it was last written, such as "1h"; empty: every write counts')
    ] = ""
    keep_versions: Annotated[bool, _help("keep every version of an item")] = False
    versions_retention: Annotated[
        str, _help('how long kept versions stay after they were replaced, such as "365d"; empty: for ever')
    ] = ""
    retention: Annotated[str, _help('how long lines of the fetch log are kept, such as "90d"; empty: for ever')] = ""
    retention_archive: Annotated[
        str,
        _help(
            "the archive (a folder, or a URL such as s3://bucket/prefix) to which old weeks of the fetch log are moved"
            " as Parquet, instead of being dropped"
        ),
    ] = ""
    store_connections: Annotated[Positive, _help("connections of one worker to a database server")] = 2
    worker_max_pages: Annotated[
        Count, _help("pages after which a worker process retires and a new one takes its place; 0: never")
    ] = 0
    worker_max_seconds: Annotated[
        str, _help("time after which a worker process retires: 90s, 30m, 6h, 1d; empty: never")
    ] = ""
    worker_max_memory: Annotated[
        str, _help("memory with which a worker process retires: 500MB, 2GB; empty: as much as it likes")
    ] = ""
    trace_share: Annotated[
        Annotated[float, Meta(ge=0, le=1)],
        _help("share of the pages whose journey is traced, where OTEL_EXPORTER_OTLP_ENDPOINT names a collector"),
    ] = 0.01

    machines: Annotated[
        tuple[str, ...],
        _help(
            "sizes of machines that `shoal advise` reckons with, and what each costs per hour, in any currency; the"
            " defaults are about what large clouds ask in dollars"
        ),
    ] = MACHINES


FIELDS = {field.name: field for field in msgspec.structs.fields(Settings)}
