"""Case A: one fast host, 16 kB pages, 32 links; embedded, over Redis, and over Redis with PostgreSQL."""

from __future__ import annotations

import contextlib
from functools import partial

from bench import own_crawls, peers
from bench.case import Case, Plan
from bench.case_main import main
from bench.contest import COLUMNS, Rivalry, System, bars_of, busy_notes, figures_of, hold
from bench.grounds import Ground, open_ground
from bench.peer_notes import PEERS_HOW, same_for_all
from bench.site import SitePlan
from shoal.testing.servers.postgres_server import PostgresServer

PAGES, PEERS_PAGES = 20_000, 3_000
QUICK_PAGES, QUICK_PEERS_PAGES = 1_000, 100

PEERS = ("scrapy", "scrapy-redis", "crawlee", "crawlee-node")
OURS = "shoal, SQLite"
OURS_POSTGRES = "shoal, Redis + PostgreSQL"
LOOP_BOUND = "one thread, that of the event loop, has a whole core to do"
RIVALRIES = (
    Rivalry(OURS, "Scrapy", 20, bound_by=LOOP_BOUND),
    Rivalry(OURS, "Crawlee for Python", 10, bound_by=LOOP_BOUND),
    Rivalry(OURS, "Crawlee for Node", 10, bound_by=LOOP_BOUND),
    Rivalry(OURS_POSTGRES, "scrapy-redis + PostgreSQL", 40, bound_by=LOOP_BOUND),
    Rivalry(OURS, "bare loop", 0.85, is_share=True, bound_by=LOOP_BOUND),
)


def run(plan: Plan) -> Case:
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(open_ground(*_site(plan, QUICK_PAGES if plan.quick else PAGES, "site")))
        theirs = stack.enter_context(
            open_ground(*_site(plan, QUICK_PEERS_PAGES if plan.quick else PEERS_PAGES, "site-peers"))
        )
        postgres = PostgresServer(durable=True).start()
        stack.callback(postgres.remove)
        standings = hold(_systems(ours, theirs, postgres), rounds=plan.rounds)
    return Case(
        letter="A",
        title="one fast host, 16 kB pages with 32 links",
        how=[
            *same_for_all(ours, theirs),
            "Queue, items and fetch log in shoal.db; or the queue in Redis; or the items in PostgreSQL as well. "
            "Redis has its append-only file on, PostgreSQL is durable as it comes.",
            '"own Requests": Request objects with priorities, meta and two handlers.',
            *PEERS_HOW,
        ],
        columns=COLUMNS,
        rows=[standing.row for standing in standings.values()],
        figures=figures_of(standings, RIVALRIES),
        bars=bars_of(standings),
        notes=busy_notes(standings),
    )


def _site(plan: Plan, pages: int, name: str) -> tuple[str, SitePlan]:
    return f"{name}-quick" if plan.quick else name, SitePlan(pages=pages)


def _systems(ours: Ground, theirs: Ground, postgres: PostgresServer) -> list[System]:
    return [
        System(OURS, ours, own_crawls.embedded),
        System("shoal, SQLite, own Requests", ours, partial(own_crawls.embedded, spider=own_crawls.REQUESTS_FORM)),
        System("bare loop", ours, peers.bare_loop),
        System("Scrapy", theirs, peers.scrapy),
        System("Crawlee for Python", theirs, peers.crawlee),
        System("Crawlee for Python, Parsel", theirs, partial(peers.crawlee, form="parsel")),
        System("Crawlee for Node", theirs, peers.crawlee_node),
        System("shoal, Redis", ours, own_crawls.over_redis),
        System("scrapy-redis", theirs, peers.scrapy_redis),
        System("Crawlee for Python, Redis", theirs, peers.crawlee_redis),
        System(OURS_POSTGRES, ours, partial(own_crawls.over_redis_and_postgres, postgres=postgres)),
        System("scrapy-redis + PostgreSQL", theirs, partial(peers.scrapy_redis_postgres, postgres=postgres)),
    ]


if __name__ == "__main__":
    main(run)
