"""What the cases say of the peers: their settings, and which of them were left out."""

from __future__ import annotations

from collections.abc import Sequence

from bench.case import Plan
from bench.contest import System
from bench.grounds import Ground
from bench.peers import is_installed

ENVIRONMENTS = {
    "scrapy-redis": "scrapy-redis",
    "Scrapy": "scrapy",
    "Crawlee for Python": "crawlee",
    "Crawlee for Node": "crawlee-node",
}
BARE_LOOP = "Bare loop: pyreqwest, selectolax, ada-url and a set, without a crawler's promises (`bench/bare_loop.py`)."
PEERS_HOW = [
    "Scrapy: queue in memory, items to JSON Lines; uvloop, robots.txt, cookies, telnet and autothrottle off; "
    "`response.css` with plain requests, which is faster than its link extractors. scrapy-redis: the same with its "
    "scheduler and duplicate filter in Redis, hiredis; with PostgreSQL one INSERT and commit per item (psycopg), as "
    "tutorials show it.",
    'Crawlee for Python: HttpCrawler with selectolax and impit, the fastest form that we found; "Parsel" is '
    "ParselCrawler with `enqueue_links`, as its documentation shows it. Queue and items in memory, or in Redis; no "
    "session pool, no fingerprint, no log, uvloop. On a Redis before 8 its JSON documents are hashes and lists, which "
    "costs it less. Crawlee for Node: CheerioCrawler with impit, in memory, no session pool, no log. Both have "
    "robots.txt off, which is their default.",
    BARE_LOOP,
]


def same_for_all(ours: Ground, theirs: Ground) -> list[str]:
    """What holds for every system of a case."""
    return [
        f"shoal and the bare loop crawl the whole of a site of {ours.pages:,} static pages, the peers the whole of one "
        f"of {theirs.pages:,} such pages: the large one would take them minutes. nginx serves each with one process.",
        "One process each, 64 requests in flight, no delay; one item per page: URL, title, number of links. A run with "
        "another number of items does not count. Time is that of the whole command, its start and end included.",
        'shoal: the README\'s form (`yield from page.follow("a[href]")`), robots.txt obeyed, default settings but for '
        "`rate`, `per_host`, `concurrency` and `allow_private`.",
    ]


def without_missing(systems: Sequence[System], plan: Plan) -> list[System]:
    """All of them, or in a quick run those that need not be installed first."""
    return [system for system in systems if not plan.quick or _is_there(system.name)]


def left_out(wanted: Sequence[System], ran: Sequence[System]) -> list[str]:
    missing = [system.name for system in wanted if system not in ran]
    return [f"not installed yet, so left out of this quick run: {', '.join(missing)}"] if missing else []


def _is_there(name: str) -> bool:
    environment = next((place for start, place in ENVIRONMENTS.items() if name.startswith(start)), None)
    return environment is None or is_installed(environment)
