"""Case C: pages of 138 kB with 150 links and the markup of large sites."""

from __future__ import annotations

import contextlib

from bench import own_crawls, peers
from bench.case import Case, Plan
from bench.case_main import main
from bench.contest import COLUMNS, Rivalry, System, bars_of, busy_notes, figures_of, hold
from bench.grounds import open_ground
from bench.peer_notes import PEERS_HOW, same_for_all
from bench.site import SitePlan

PAGES, PEERS_PAGES = 3_000, 600
QUICK_PAGES, QUICK_PEERS_PAGES = 200, 40
PAGE_BYTES, LINKS = 138 * 1024, 150

PEERS = ("scrapy", "crawlee", "crawlee-node")
OURS = "shoal, SQLite"
RIVALRIES = (Rivalry(OURS, "Scrapy", 12, bound_by="parsing: two fifths of a page"),)


def run(plan: Plan) -> Case:
    form = "-quick" if plan.quick else ""
    with contextlib.ExitStack() as stack:
        site = _site(QUICK_PAGES if plan.quick else PAGES)
        peers_site = _site(QUICK_PEERS_PAGES if plan.quick else PEERS_PAGES)
        ours = stack.enter_context(open_ground(f"site-large{form}", site))
        theirs = stack.enter_context(open_ground(f"site-large-peers{form}", peers_site))
        systems = [
            System(OURS, ours, own_crawls.embedded),
            System("bare loop", ours, peers.bare_loop),
            System("Scrapy", theirs, peers.scrapy),
            System("Crawlee for Python", theirs, peers.crawlee),
            System("Crawlee for Node", theirs, peers.crawlee_node),
        ]
        standings = hold(systems, rounds=plan.rounds)
    return Case(
        letter="C",
        title=f"{PAGE_BYTES // 1024} kB pages with {LINKS} links",
        how=[
            "Pages as large sites send them today: 1,500 elements in deep nesting, a third of the bytes scripts and "
            "styles, drawings (SVG) within the page.",
            *same_for_all(ours, theirs),
            *PEERS_HOW,
        ],
        columns=COLUMNS,
        rows=[standing.row for standing in standings.values()],
        figures=figures_of(standings, RIVALRIES),
        bars=bars_of(standings),
        notes=busy_notes(standings),
    )


def _site(pages: int) -> SitePlan:
    return SitePlan(pages=pages, page_bytes=PAGE_BYTES, links=LINKS, manner="portal")


if __name__ == "__main__":
    main(run)
