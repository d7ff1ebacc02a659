"""What the cases that hold a contest say of all systems, and of the peers' settings."""

from __future__ import annotations

from bench.grounds import Ground

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
