"""D: a thousand hosts at one request per second each, two processes; by the site's clock, also with a frozen worker."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.case import Case, Figure, Plan, spread_of
from bench.crawlers import HERE, WORK, fresh_folder
from bench.measure import Cost, run_measured
from bench.paced_site import Arrival, PacedSite, arrivals, host_names, paced_site
from bench.redis_server import redis_server

WORKERS = 2
CONCURRENCY = 256
INTERVAL = 1.0
CLOSE = 0.9
START_SECONDS = 1.5
FROZEN_SECONDS = 3.0
LOOK_SECONDS = 0.05
SYSTEMS = ("SQLite", "Redis")


class Size(NamedTuple):
    """So many hosts, each with a robots.txt and so many pages, one request a second."""

    hosts: int
    pages: int


class Verdict(NamedTuple):
    """What the hosts saw. `share`: of the rate that they allow. `close`: gaps under nine tenths of the interval."""

    share: float
    gaps: int
    close: int
    shortest: float


class Run(NamedTuple):
    system: str
    frozen: bool
    verdict: Verdict
    cost: Cost
    site_load: float
    pages: int

    @property
    def cpu_per_thousand(self) -> float:
        return self.cost.cpu_seconds / self.pages * 1000


def run(plan: Plan) -> Case:
    size = Size(200, 5) if plan.quick else Size(1000, 30)
    forms = list(itertools.product(SYSTEMS, (False, True)))
    # At a pace a crawl mostly waits: two of a few hosts leave room for each other.
    groups = [forms[::3]] if plan.quick else [[form] for form in forms]
    runs = [run for _ in range(plan.rounds) for group in groups for run in crawl(group, size)]
    return _case(runs, size)


def crawl(forms: Sequence[tuple[str, bool]], size: Size) -> list[Run]:
    """These crawls at once, each of all hosts of a site of its own, to the end; and what the hosts saw."""
    pages = size.hosts * size.pages
    with contextlib.ExitStack() as stack:
        # Before there is a thread: nginx gets its priority between fork and exec.
        sites = [
            stack.enter_context(paced_site(fresh_folder(f"broad-site-{number}"), pages=size.pages))
            for number, _ in enumerate(forms)
        ]
        with ThreadPoolExecutor(len(forms)) as pool:
            ended = list(pool.map(partial(_crawl, size=size), forms, sites, itertools.count()))
    # A site that is down has written all of its log.
    verdicts = [judge(arrivals(site.log)) for site in sites]
    runs = [Run(*form, verdict, *end, pages) for form, verdict, end in zip(forms, verdicts, ended, strict=True)]
    for run in runs:
        print(_line(run), flush=True)
    return runs


def _crawl(form: tuple[str, bool], site: PacedSite, number: int, *, size: Size) -> tuple[Cost, float]:
    """What the crawl cost, and how busy its site was."""
    system, frozen = form
    folder = fresh_folder(f"broad-run-{number}")
    (folder / "starts.txt").write_text("\n".join(map(site.url, host_names(size.hosts))))
    with _frontier(system) as flags:
        command = [sys.executable, "-m", "shoal", "run", str(HERE / "paced_spider.py"), "--workers", str(WORKERS)]
        command += ["--rate", "1/s", "--concurrency", str(CONCURRENCY), *flags]
        with _freezing(folder, after=START_SECONDS + size.pages / 2) if frozen else contextlib.nullcontext():
            cost = run_measured(command, folder=folder, environment={"BENCH_STARTS": str(folder / "starts.txt")})
    _check(folder, expected=size.hosts * size.pages)
    return cost, _cpu_seconds(site.process) / cost.seconds


def judge(seen: Sequence[Arrival], *, interval: float = INTERVAL) -> Verdict:
    """The share counts from the first to the last page of each host; the gaps also that after its robots.txt."""
    by_host: dict[str, list[Arrival]] = {}
    for arrival in seen:
        by_host.setdefault(arrival.host, []).append(arrival)
    gaps = [
        later.time - earlier.time for requests in by_host.values() for earlier, later in itertools.pairwise(requests)
    ]
    pages = [[arrival.time for arrival in requests if arrival.path.endswith(".html")] for requests in by_host.values()]
    seconds = sum(times[-1] - times[0] for times in pages)
    starts = sum(len(times) - 1 for times in pages)
    close = sum(gap < CLOSE * interval for gap in gaps)
    return Verdict(starts * interval / seconds, len(gaps), close, min(gaps))


@contextlib.contextmanager
def _frontier(system: str) -> Iterator[list[str]]:
    if system == "SQLite":
        yield []
        return
    with redis_server(WORK / "redis-broad") as server:
        yield ["--frontier", server.url]


@contextlib.contextmanager
def _freezing(folder: Path, *, after: float) -> Iterator[None]:
    """Freeze one of the workers that the block starts in the folder, once, when they have run for so many seconds."""
    over = threading.Event()
    frozen: list[psutil.Process] = []

    def freeze() -> None:
        while not (workers := _workers(folder)):
            if over.wait(LOOK_SECONDS):
                return
        if over.wait(after):
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            workers[0].suspend()
            frozen.append(workers[0])
            over.wait(FROZEN_SECONDS)
            workers[0].resume()

    thread = threading.Thread(target=freeze)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    if not frozen:
        raise SystemExit("the crawl was over before one of its workers was frozen")


def _workers(folder: Path) -> list[psutil.Process]:
    """The worker processes of the crawl in this folder."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if "worker" in child.cmdline() and child.cwd() == str(folder):
                found.append(child)
    return found


def _cpu_seconds(pid: int) -> float:
    """Of nginx and the process that serves for it."""
    master = psutil.Process(pid)
    times = [process.cpu_times() for process in (master, *master.children())]
    return sum(spent.user + spent.system for spent in times)


def _check(folder: Path, *, expected: int) -> None:
    with closing(sqlite3.connect(folder / "shoal.db")) as database:
        (found,) = database.execute("SELECT count(*) FROM item").fetchone()
    if found != expected:
        raise SystemExit(f"the crawl has {found:,} of {expected:,} pages: see {folder / 'output.log'}")


def _line(run: Run) -> str:
    verdict = run.verdict
    return (
        f"{_name(run)}: {verdict.share:.1%} of the allowed rate, {verdict.close:,} of {verdict.gaps:,} gaps under "
        f"{CLOSE * INTERVAL:g} s, shortest {verdict.shortest:.3f} s, {run.cpu_per_thousand:.3f} CPU-s per 1,000, "
        f"site busy {run.site_load:.0%}, {run.cost.seconds:.1f} s"
    )


def _name(run: Run) -> str:
    return f"shoal, {run.system}{', a worker frozen' if run.frozen else ''}"


def _case(runs: Sequence[Run], size: Size) -> Case:
    rows, figures = [], []
    for name in dict.fromkeys(map(_name, runs)):
        mine = [run for run in runs if _name(run) == name]
        close = sum(run.verdict.close for run in mine)
        gaps = sum(run.verdict.gaps for run in mine)
        share = spread_of([100 * run.verdict.share for run in mine])
        rows.append(
            [
                name,
                f"{share.shown('.1f')} %",
                f"{close:,} of {gaps:,}",
                f"{min(run.verdict.shortest for run in mine):.3f} s",
                spread_of([run.cpu_per_thousand for run in mine]).shown(".3f"),
                f"{spread_of([100 * (1 - run.site_load) for run in mine]).shown('.0f')} %",
            ]
        )
        if not mine[0].frozen:
            figures.append(
                Figure(
                    what=f"{name}: share of the allowed rate",
                    value=share.median,
                    wanted=98.0,
                    sense="at least",
                    unit="%",
                )
            )
        figures.append(
            Figure(
                what=f"{name}: gaps under 90 % of the interval",
                value=close / gaps * 100,
                wanted=0.0,
                sense="at most",
                unit="%",
            )
        )
    return Case(
        letter="D",
        title=f"Broad: {size.hosts:,} hosts at one request per second each, {WORKERS} processes",
        how=[
            f"Every host is a loopback address with a robots.txt and {size.pages} pages of 16 kB with 32 links. nginx"
            " serves them all, at real-time priority, and notes when each request came.",
            f"`shoal run --workers {WORKERS} --rate 1/s --concurrency {CONCURRENCY}`, all else as it comes: robots.txt"
            " is obeyed, traps and shapes are watched.",
            "The share of the allowed rate: pages after the first of each host, divided by the seconds from its first"
            " page to its last. So the start, in which all hosts are due at once, and robots.txt do not count.",
            "Gaps are between any two requests to a host that follow each other, robots.txt included.",
            f"Frozen: one of the two workers is stopped (SIGSTOP) for {FROZEN_SECONDS:g} seconds in the middle.",
        ],
        columns=[
            "system",
            "of the allowed rate",
            "gaps under 0.9 s",
            "shortest gap",
            "CPU-s per 1,000 pages",
            "site idle",
        ],
        rows=rows,
        figures=figures,
    )


if __name__ == "__main__":
    from bench.case_main import main

    main(run)
