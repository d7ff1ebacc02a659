"""Case N: one Scrapy spider with three schedulers: Scrapy's own, scrapy-redis's, shoal's."""

from __future__ import annotations

from bench import peers
from bench.case import Case, Plan
from bench.case_main import main
from bench.contest import COLUMNS, Rivalry, System, bars_of, busy_notes, figures_of, hold
from bench.grounds import open_ground
from bench.site import SitePlan

PAGES, QUICK_PAGES = 3_000, 100

PEERS = ("scrapy", "scrapy-redis")
OURS = "Scrapy on shoal, Redis"
BOUND = "Scrapy itself, which takes most of the CPU of a page whatever its scheduler"
RIVALRIES = (
    Rivalry(OURS, "scrapy-redis", 1.6, bound_by=BOUND),
    Rivalry(OURS, "Scrapy", 0.85, is_share=True, bound_by="a second thread, which leases, stores and settles"),
)


def run(plan: Plan) -> Case:
    site = SitePlan(pages=QUICK_PAGES if plan.quick else PAGES)
    with open_ground("site-peers-quick" if plan.quick else "site-peers", site) as ground:
        systems = [
            System("Scrapy", ground, peers.scrapy),
            System("scrapy-redis", ground, peers.scrapy_redis),
            System(OURS, ground, peers.scrapy_on_shoal_redis),
            System("Scrapy on shoal, SQLite", ground, peers.scrapy_on_shoal),
        ]
        standings = hold(systems, rounds=plan.rounds)
    return Case(
        letter="N",
        title="one Scrapy spider, three schedulers",
        how=[
            f"The same spider (`bench/scrapy_spider.py`) crawls the whole of a site of {ground.pages:,} pages of 16 kB "
            "with 32 links: with Scrapy's queue in memory, with the scheduler and duplicate filter of scrapy-redis, "
            "and with shoal's add-on. 64 requests in flight, no delay, uvloop; items to JSON Lines by Scrapy's "
            "exporter. Time is that of the whole command, its start and end included.",
            "shoal's own item pipeline, which the add-on puts in place by default, is off here (`SHOAL_ITEMS`), and "
            "was not measured. shoal writes its fetch log, to a SQLite file.",
        ],
        columns=COLUMNS,
        rows=[standing.row for standing in standings.values()],
        figures=figures_of(standings, RIVALRIES),
        bars=bars_of(standings),
        notes=busy_notes(standings),
    )


if __name__ == "__main__":
    main(run)
