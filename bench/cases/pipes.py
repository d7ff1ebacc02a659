"""Case O: one worker, with its frontier reached directly and through RabbitMQ on the same machine."""

from __future__ import annotations

from functools import partial

from bench import piped
from bench.case import Case, Figure, Plan
from bench.case_main import main
from bench.contest import COLUMNS, System, bars_of, busy_notes, hold
from bench.crawlers import fresh_folder
from bench.grounds import open_ground
from bench.site import SitePlan
from shoal.testing.servers.rabbitmq_server import RabbitServer

PAGES, QUICK_PAGES = 10_000, 1_000
DIRECTLY, THROUGH = "frontier reached directly", "through RabbitMQ"
WANTED_PERCENT = 70.0
BOUND = "two more processes, broker and coordinator, on the cores of worker and web server"


def run(plan: Plan) -> Case:
    site = SitePlan(pages=QUICK_PAGES if plan.quick else PAGES)
    server = RabbitServer(fresh_folder("rabbitmq")).start()
    try:
        with open_ground("site-pipes-quick" if plan.quick else "site-pipes", site) as ground:
            systems = [
                System(DIRECTLY, ground, piped.directly),
                System(THROUGH, ground, partial(piped.through_rabbitmq, server=server)),
            ]
            standings = hold(systems, rounds=plan.rounds)
    finally:
        server.remove()
    share = standings[THROUGH].pages_per_second.median / standings[DIRECTLY].pages_per_second.median
    return Case(
        letter="O",
        title="one worker behind RabbitMQ",
        how=[
            f"One worker crawls {ground.pages:,} pages of 16 kB with 32 links each; the frontier is a SQLite file, "
            "items go to another one. The worker opens the file itself, or reaches it through a RabbitMQ server and "
            "`shoal serve --pipe` on the same machine. Its start is included; that of the servers is not, nor is their "
            "CPU time.",
        ],
        columns=COLUMNS,
        rows=[standing.row for standing in standings.values()],
        figures=[
            Figure(
                what="pages/s through RabbitMQ, of those with the frontier reached directly",
                value=round(100 * share, 1),
                wanted=WANTED_PERCENT,
                sense="at least",
                unit="%",
                bound_by=BOUND,
            )
        ],
        bars=bars_of(standings),
        notes=busy_notes(standings),
    )


if __name__ == "__main__":
    main(run)
