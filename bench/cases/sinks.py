"""Case P: the same crawl without a sink, with a file as its sink, and with a Redis list."""

from __future__ import annotations

from functools import partial

from bench import sinks
from bench.case import Case, Figure, Plan
from bench.case_main import main
from bench.contest import COLUMNS, Standing, System, bars_of, busy_notes, hold
from bench.crawlers import WORK
from bench.grounds import open_ground
from bench.redis_server import redis_server
from bench.site import SitePlan

PAGES, QUICK_PAGES = 20_000, 1_000
WITHOUT, FILE, REDIS = "without a sink", "a file as its sink", "a Redis list as its sink"
MOST_PERCENT = 5.0


def run(plan: Plan) -> Case:
    name, pages = ("site-quick", QUICK_PAGES) if plan.quick else ("site", PAGES)
    with redis_server(WORK / "redis-sinks") as server, open_ground(name, SitePlan(pages=pages)) as ground:
        systems = [
            System(WITHOUT, ground, sinks.without),
            System(FILE, ground, sinks.to_a_file),
            System(REDIS, ground, partial(sinks.to_redis, server=server)),
        ]
        standings = hold(systems, rounds=plan.rounds)
    return Case(
        letter="P",
        title="items that flow on to a sink",
        how=[
            f"The site of case A, {pages:,} pages with an item each, one worker, queue and items in shoal.db. The run "
            "itself sends to the sink; the CPU is that of the run with its sending, not that of the Redis server. "
            "Starting and ending are included: a run ends when the sink has every item.",
        ],
        columns=COLUMNS,
        rows=[standing.row for standing in standings.values()],
        figures=[figure for name in (FILE, REDIS) for figure in _figures(standings[name], standings[WITHOUT])],
        bars=bars_of(standings),
        notes=busy_notes(standings),
    )


def _figures(ours: Standing, plain: Standing) -> list[Figure]:
    """How much more CPU a page takes, and how many pages per second fewer there are."""
    more = ours.cpu_per_thousand.median / plain.cpu_per_thousand.median - 1
    fewer = 1 - ours.pages_per_second.median / plain.pages_per_second.median
    return [
        _figure(f"CPU per page: what {ours.name} adds", more),
        _figure(f"pages/s: what {ours.name} takes away", fewer),
    ]


def _figure(what: str, share: float) -> Figure:
    return Figure(what=what, value=round(100 * share, 1), wanted=MOST_PERCENT, sense="at most", unit="%")


if __name__ == "__main__":
    main(run)
