"""Case B: over TLS, a fresh connection per 20 pages."""

from __future__ import annotations

import contextlib
from functools import partial

from bench import own_crawls, peers
from bench.case import Case, Plan
from bench.case_main import main
from bench.contest import COLUMNS, Rivalry, System, bars_of, busy_notes, figures_of, hold
from bench.crawlers import WORK
from bench.grounds import make_certificate, open_ground
from bench.nginx import Tls
from bench.peer_notes import PEERS_HOW, same_for_all
from bench.site import SitePlan

PAGES, PEERS_PAGES = 10_000, 2_000
QUICK_PAGES, QUICK_PEERS_PAGES = 1_000, 100
REQUESTS_PER_CONNECTION = 20

PEERS = ("scrapy", "crawlee", "crawlee-node")
OURS = "shoal, SQLite"
RIVALRIES = (
    Rivalry(OURS, "Scrapy", 12, bound_by="the event loop's thread, which handles pages while TLS is another's"),
)


def run(plan: Plan) -> Case:
    folder = make_certificate(WORK / "certificate")
    tls = Tls(folder / "site.pem", folder / "site.key", REQUESTS_PER_CONNECTION)
    form = "-quick" if plan.quick else ""
    with contextlib.ExitStack() as stack:
        site = SitePlan(pages=QUICK_PAGES if plan.quick else PAGES)
        peers_site = SitePlan(pages=QUICK_PEERS_PAGES if plan.quick else PEERS_PAGES)
        ours = stack.enter_context(open_ground(f"site-tls{form}", site, tls=tls))
        theirs = stack.enter_context(open_ground(f"site-tls-peers{form}", peers_site, tls=tls))
        trusting = {"SSL_CERT_FILE": str(folder / "root.pem")}
        systems = [
            System(OURS, ours, partial(own_crawls.embedded, environment=trusting)),
            System("bare loop", ours, peers.bare_loop),
            System("Scrapy", theirs, peers.scrapy),
            System("Crawlee for Python", theirs, peers.crawlee),
            System("Crawlee for Node", theirs, peers.crawlee_node),
        ]
        standings = hold(systems, rounds=plan.rounds)
    return Case(
        letter="B",
        title=f"over TLS, a fresh connection per {REQUESTS_PER_CONNECTION} pages",
        how=[
            f"As case A (16 kB pages with 32 links) over HTTPS, HTTP/1.1; nginx closes a connection after "
            f"{REQUESTS_PER_CONNECTION} requests. The certificate (P-256) is by an authority of our own: shoal checks "
            "it (`SSL_CERT_FILE`), the others are told not to.",
            *same_for_all(ours, theirs),
            *PEERS_HOW,
        ],
        columns=COLUMNS,
        rows=[standing.row for standing in standings.values()],
        figures=figures_of(standings, RIVALRIES),
        bars=bars_of(standings),
        notes=busy_notes(standings),
    )


if __name__ == "__main__":
    main(run)
