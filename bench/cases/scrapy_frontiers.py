"""Case N: one Scrapy spider with three schedulers: Scrapy's own, scrapy-redis's, shoal's."""

from __future__ import annotations

from functools import partial

from bench import peers
from bench.case import Case, Plan
from bench.case_main import main
from bench.contest import COLUMNS, Rivalry, System, bars_of, busy_notes, figures_of, hold
from bench.grounds import open_ground
from bench.machine import load_notes
from bench.site import SitePlan

PAGES, QUICK_PAGES = 3_000, 100

PEERS = ("scrapy", "scrapy-redis")
OURS, OURS_EXPORTED = "Scrapy on shoal, Redis", "Scrapy on shoal, Redis, Scrapy's exporter"
BOUND = "Scrapy itself, which takes most of the CPU of a page whatever its scheduler"
RIVALRIES = (
    Rivalry(OURS, "scrapy-redis", 1.6, bound_by=BOUND, with_servers=True),
    Rivalry(OURS, "Scrapy", 0.85, is_share=True, bound_by="a second thread, which leases, stores and settles"),
)


def run(plan: Plan) -> Case:
    busy = load_notes()
    site = SitePlan(pages=QUICK_PAGES if plan.quick else PAGES)
    with open_ground("site-peers-quick" if plan.quick else "site-peers", site) as ground:
        systems = [
            System("Scrapy", ground, peers.scrapy),
            System("scrapy-redis", ground, peers.scrapy_redis),
            System(OURS, ground, peers.scrapy_on_shoal_redis),
            System(OURS_EXPORTED, ground, partial(peers.scrapy_on_shoal_redis, exports=True)),
            System("Scrapy on shoal, SQLite", ground, peers.scrapy_on_shoal),
        ]
        standings = hold(systems, rounds=plan.rounds)
    return Case(
        letter="N",
        title="one Scrapy spider, three schedulers",
        how=[
            f"The same spider (`bench/scrapy_spider.py`) crawls the whole of a site of {ground.pages:,} pages of 16 kB "
            "with 32 links: with Scrapy's queue in memory, with the scheduler and duplicate filter of scrapy-redis, "
            "and with shoal's add-on. 64 requests in flight, no delay, uvloop. Time is that of the whole command, its "
            "start and end included.",
            "Scrapy and scrapy-redis write the items to JSON Lines by Scrapy's exporter. shoal runs with the add-on's "
            "default settings: items and fetch log in a SQLite file, each page settled after its items are there. One "
            "row has shoal's item pipeline off (`SHOAL_ITEMS`), and Scrapy's exporter in its place.",
            "One of a page's 32 links is new. shoal remembers the fingerprints of URLs that it has seen, and "
            "lets Python look for garbage among new objects only: so it takes less CPU than Scrapy's own queue.",
        ],
        columns=COLUMNS,
        rows=[standing.row for standing in standings.values()],
        figures=figures_of(standings, RIVALRIES),
        bars=bars_of(standings),
        notes=[*busy, *busy_notes(standings)],
    )


if __name__ == "__main__":
    main(run)
