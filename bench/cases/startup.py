"""Case J: ten pages, from Enter to exit: `python -m bench.cases.startup`."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from bench.case import Bar, Case, Figure, Plan, spread_of
from bench.case_main import main
from bench.crawlers import HERE, WORK, fresh_folder
from bench.environments import install
from bench.measure import Cost, run_measured
from bench.nginx import free_port, serve
from bench.site import SitePlan, build_site

PEERS = ("scrapy",)
PAGES = 10
LINKS = 8
ROUNDS = 5  # a run takes a second: five of each, however few are asked for
WANTED_CPU_SECONDS = 0.5


def run(plan: Plan) -> Case:
    rounds = 1 if plan.quick else max(plan.rounds, ROUNDS)
    site = SitePlan(pages=PAGES, links=LINKS)
    folder = WORK / "site-startup"
    build_site(site, folder=folder)
    scrapy = install("scrapy") / "bin" / "scrapy"
    costs: dict[str, list[Cost]] = {"shoal": [], "Scrapy": []}
    with serve(folder, port=free_port(), work=WORK / "nginx-startup") as address:
        start = f"{address}/{site.path(0)}"
        # Once unmeasured: Python compiles the modules that it has not seen yet.
        for name in ["unmeasured", *map(str, range(1, rounds + 1))]:
            found = {"shoal": shoal_run(start), "Scrapy": scrapy_run(scrapy, start)}
            for system, cost in found.items():
                print(f"{name}: {system} {cost.seconds:.2f} s, {cost.cpu_seconds:.2f} CPU-s", flush=True)
                if name != "unmeasured":
                    costs[system].append(cost)
    return _case(costs)


def shoal_run(start: str) -> Cost:
    """`shoal run` as people type it, in an empty folder."""
    folder = fresh_folder("startup-shoal")
    command = [sys.executable, "-m", "shoal", "run", str(HERE / "startup_spider.py")]
    cost = run_measured(command, folder=folder, environment={"BENCH_URL": start})
    with closing(sqlite3.connect(folder / "shoal.db")) as database:
        (found,) = database.execute("SELECT count(*) FROM item").fetchone()
    _check("shoal", found)
    return cost


def scrapy_run(scrapy: Path, start: str) -> Cost:
    """`scrapy runspider` of the benchmark's spider."""
    folder = fresh_folder("startup-scrapy")
    items = folder / "items.jsonl"
    spider = str(HERE / "scrapy_spider.py")
    cost = run_measured([str(scrapy), "runspider", spider, "-a", f"url={start}", "-O", str(items)], folder=folder)
    _check("Scrapy", len({json.loads(line)["url"] for line in items.read_bytes().splitlines()}))
    return cost


def _check(system: str, found: int) -> None:
    if found != PAGES:
        raise SystemExit(f"{system} has items of {found} pages instead of {PAGES}")


def _case(costs: dict[str, list[Cost]]) -> Case:
    seconds = {system: spread_of([cost.seconds for cost in found]) for system, found in costs.items()}
    cpu = {system: spread_of([cost.cpu_seconds for cost in found]) for system, found in costs.items()}
    return Case(
        letter="J",
        title="start-up: ten pages, from Enter to exit",
        how=[
            f"A site of {PAGES} pages on loopback, one item per page; CPU-seconds are those of all processes.",
            "shoal run FILE in an empty folder, default settings except the rate and private addresses: it makes"
            " shoal.db, asks for robots.txt, and a supervisor process watches the worker.",
            "scrapy runspider FILE, robots.txt off, queue in memory, items as JSON Lines.",
            "Each was run once before, unmeasured, so that Python has compiled its modules.",
        ],
        columns=["system", "CPU-s", "seconds"],
        rows=[[system, cpu[system].shown(".3f"), seconds[system].shown(".3f")] for system in costs],
        figures=[
            Figure(
                what="CPU of a shoal run of ten pages",
                value=cpu["shoal"].median,
                wanted=WANTED_CPU_SECONDS,
                sense="at most",
                unit="s",
            )
        ],
        bars=[Bar(label=system, value=1 / spread.median) for system, spread in cpu.items()],
        bar_unit="runs per CPU-second",
    )


if __name__ == "__main__":
    main(run)
