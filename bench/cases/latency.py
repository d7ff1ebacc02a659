"""Case E: pages that take 300 ms each, 800 requests in flight. What does a crawler make of the waiting?

`python -m bench.cases.latency [--quick] [--rounds N]`
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any, NamedTuple

from bench.case import Bar, Case, Figure, Plan, spread_of
from bench.crawlers import HERE, WORK, fresh_folder
from bench.measure import Cost, run_measured
from bench.paced_site import host_names
from bench.redis_server import redis_server

DELAY_SECONDS = 0.3
IN_FLIGHT = 800
PAGES, QUICK_PAGES = 16_000, 1_200
HOSTS = 100
WANTED = 0.9
LEAST_IDLE = 0.2
BARE, SQLITE, REDIS = "bare loop", "shoal, SQLite", "shoal, Redis"


class Shape(NamedTuple):
    """One host with all pages, or many with a part of them each."""

    name: str
    hosts: int
    pages: int

    @property
    def per_host(self) -> int:
        return IN_FLIGHT // self.hosts

    @property
    def pages_per_host(self) -> int:
        return self.pages // self.hosts


class Run(NamedTuple):
    """One crawl, as the site saw it, and what it cost the crawler."""

    shape: Shape
    system: str
    told: dict[str, Any]
    cost: Cost

    @property
    def pages_per_second(self) -> float:
        """From the first request to the last answer."""
        return self.shape.pages / float(self.told["seconds"])

    @property
    def unused_share(self) -> float:
        """The share of the slices of 0.1 s, between the ramps at both ends, with less than half the average starts."""
        starts = self.told["starts"]
        middle = starts[len(starts) // 4 : len(starts) * 3 // 4]
        return sum(count < sum(middle) / len(middle) / 2 for count in middle) / len(middle) if middle else 0.0


def run(plan: Plan) -> Case:
    pages = QUICK_PAGES if plan.quick else PAGES
    shapes = [Shape("one host", 1, pages), Shape(f"{HOSTS} hosts", HOSTS, pages)]
    runs: list[Run] = []
    for number in range(plan.rounds):
        for shape in shapes:
            with site(shape) as starts:
                for system, crawl in SYSTEMS.items():
                    done = measured(shape, system, crawl, starts)
                    print(f"E: round {number + 1}, {shape.name}, {system}: {line_of(done)}", flush=True)
                    runs.append(done)
    return case_of(shapes, runs)


@contextlib.contextmanager
def site(shape: Shape, *, delay: float = DELAY_SECONDS) -> Iterator[list[str]]:
    """The site in a process of its own; gives the first page of each host."""
    command = [sys.executable, "-m", "bench.latency_site", "--pages", str(shape.pages_per_host), "--delay"]
    process = subprocess.Popen(
        [*command, str(delay)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE.parent
    )
    try:
        port = process.stdout.readline().strip() if process.stdout else ""
        if not port:
            raise SystemExit("the site of case E did not start")
        yield [f"http://{name}:{port}/page-0.html" for name in host_names(shape.hosts)]
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()


def measured(shape: Shape, system: str, crawl: Callable[[Shape, list[str]], Cost], starts: list[str]) -> Run:
    read_log(starts[0])
    cost = crawl(shape, starts)
    done = Run(shape, system, read_log(starts[0]), cost)
    if done.told["requests"] > shape.pages + shape.hosts:
        raise SystemExit(f"{system} sent {done.told['requests']:,} requests for {shape.pages:,} pages")
    return done


def read_log(start: str) -> dict[str, Any]:
    """What the site saw since the last time."""
    with urllib.request.urlopen(start.rsplit("/", 1)[0] + "/log") as answer:
        told: dict[str, Any] = json.load(answer)
    return told


def bare_loop(shape: Shape, starts: list[str]) -> Cost:
    folder = fresh_folder("latency-bare")
    command = [
        sys.executable,
        "-m",
        "bench.bare_loop",
        *starts,
        "--concurrency",
        str(IN_FLIGHT),
        "--out",
        "items.jsonl",
    ]
    cost = run_measured(command, folder=folder, environment={"PYTHONPATH": python_path()})
    with (folder / "items.jsonl").open("rb") as lines:
        check(BARE, sum(1 for _ in lines), shape)
    return cost


def shoal_sqlite(shape: Shape, starts: list[str]) -> Cost:
    return shoal(shape, starts, system=SQLITE)


def shoal_redis(shape: Shape, starts: list[str]) -> Cost:
    with redis_server(WORK / "latency-redis") as server:
        return shoal(shape, starts, "--frontier", server.url, system=REDIS)


def shoal(shape: Shape, starts: list[str], *flags: str, system: str) -> Cost:
    folder = fresh_folder("latency-shoal")
    command = [sys.executable, "-m", "shoal", "run", str(HERE / "latency_spider.py"), *flags]
    environment = {
        "BENCH_URL": " ".join(starts),
        "BENCH_PER_HOST": str(shape.per_host),
        "PYTHONPATH": python_path(),
    }
    cost = run_measured(command, folder=folder, environment=environment)
    with closing(sqlite3.connect(folder / "shoal.db")) as database:
        (found,) = database.execute("SELECT count(*) FROM item").fetchone()
    check(system, found, shape)
    return cost


SYSTEMS: dict[str, Callable[[Shape, list[str]], Cost]] = {BARE: bare_loop, SQLITE: shoal_sqlite, REDIS: shoal_redis}


def python_path() -> str:
    """This folder's parent, for the programs of the benchmark, which run in folders of their own."""
    return os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])


def check(system: str, found: int, shape: Shape) -> None:
    if found != shape.pages:
        raise SystemExit(f"{system} has {found:,} items of {shape.pages:,} pages")


def line_of(done: Run) -> str:
    return (
        f"{done.pages_per_second:,.0f} pages/s, at most {done.told['most_at_once']} at once at a host,"
        f" {done.unused_share:.0%} slack slices, CPU {done.cost.cpu_seconds:.1f} s, site {done.told['idle']:.0%} idle"
    )


def case_of(shapes: list[Shape], runs: list[Run]) -> Case:
    rows, figures, bars = [], [], []
    for shape in shapes:
        bare = spread_of([one.pages_per_second for one in of(runs, shape, BARE)])
        for system in SYSTEMS:
            some = of(runs, shape, system)
            speed = spread_of([one.pages_per_second for one in some])
            most = max(one.told["most_at_once"] for one in some)
            rows.append(
                [
                    f"{system}, {shape.name}",
                    speed.shown(),
                    f"{speed.median / bare.median:.0%}",
                    f"{most}",
                    f"{spread_of([one.unused_share for one in some]).median:.0%}",
                    f"{spread_of([one.cost.cpu_seconds for one in some]).median / shape.pages * 1000:.2f}",
                    f"{min(one.told['idle'] for one in some):.0%}",
                ]
            )
            bars.append(Bar(label=f"{system}, {shape.name}", value=speed.median))
            if system == BARE:
                continue
            figures += figures_of(system, shape, share=speed.median / bare.median, most=most)
    return Case(
        letter="E",
        title=f"Latency: {DELAY_SECONDS * 1000:.0f} ms per page, {IN_FLIGHT} requests in flight",
        how=[
            f"{shapes[0].pages:,} pages of 4 kB with 20 links each, every answer {DELAY_SECONDS} s after its request:"
            f" one host with per_host = concurrency = {IN_FLIGHT}, and {HOSTS} hosts with {IN_FLIGHT // HOSTS} each.",
            "shoal with a spider as in the README, robots.txt obeyed, default settings but rate, per_host, concurrency"
            " and allow_private; items in SQLite.",
            "The bare loop: pyreqwest fetches, selectolax parses, ada-url resolves, a set knows the URLs; no caps per"
            " host.",
            "Pages per second from the first request to the last answer, and requests at once, by the site's clock."
            " A slack slice is a tenth of a second, in the middle half of the run, with less than half the average"
            " starts.",
        ],
        columns=["", "pages/s", "of the bare loop", "most at once", "slack slices", "CPU s/1,000", "site idle"],
        rows=rows,
        figures=figures,
        bars=bars,
        notes=[
            f"{one.system}, {one.shape.name}: the site was only {one.told['idle']:.0%} idle, it may have been the limit"
            for one in runs
            if one.told["idle"] < LEAST_IDLE
        ],
    )


def figures_of(system: str, shape: Shape, *, share: float, most: int) -> list[Figure]:
    return [
        Figure(
            what=f"{system}, {shape.name}: share of the bare loop's pages/s",
            value=share,
            wanted=WANTED,
            sense="at least",
            bound_by="the interpreter lock, which each page holds for a while",
        ),
        Figure(
            what=f"{system}, {shape.name}: most requests at once at a host, by the site's clock",
            value=most,
            wanted=shape.per_host,
            sense="at most",
        ),
    ]


def of(runs: list[Run], shape: Shape, system: str) -> list[Run]:
    return [one for one in runs if one.shape == shape and one.system == system]


if __name__ == "__main__":
    from bench.case_main import main

    main(run)
