"""Case L: what it costs a crawl to be watched: `python -m bench.cases.watching`."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from bench import own_crawls
from bench.case import Bar, Case, Figure, Plan, spread_of
from bench.case_main import main
from bench.crawlers import WORK
from bench.grounds import Ground, open_ground
from bench.measure import Cost
from bench.site import SitePlan

PAGES, QUICK_PAGES = 20_000, 1_000
ALONE, WATCHED = "alone", "watched"
SCRAPE_SECONDS = 1.0
SEEN_SECONDS = 30.0
MOST_COST = 1.02


def run(plan: Plan) -> Case:
    name, pages = ("site-quick", QUICK_PAGES) if plan.quick else ("site", PAGES)
    costs: dict[str, list[Cost]] = {ALONE: [], WATCHED: []}
    scrapes = 0
    with open_ground(name, SitePlan(pages=pages)) as ground:
        for number in range(plan.rounds):
            # In turn: what else the machine does must not meet one of the two alone.
            for how in (ALONE, WATCHED) if number % 2 == 0 else (WATCHED, ALONE):
                cost, seen = _crawl(ground, is_watched=how == WATCHED)
                scrapes += seen
                costs[how].append(cost)
                print(
                    f"L: round {number + 1}, {how}: {1000 * cost.cpu_seconds / pages:.3f} CPU-s per 1,000", flush=True
                )
    return _case(costs, pages, scrapes)


def _crawl(ground: Ground, *, is_watched: bool) -> tuple[Cost, int]:
    if not is_watched:
        return own_crawls.embedded(ground).cost, 0
    with watching(WORK / "shoal-run") as scraped:
        cost = own_crawls.embedded(ground).cost
        scrapes = len(scraped)
        _wait_until_seen(scraped)
    return cost, scrapes


def _wait_until_seen(scraped: list[int]) -> None:
    """`serve` looks at its crawls every few seconds: a short one may be over before it was seen."""
    deadline = time.monotonic() + SEEN_SECONDS
    while not any(scraped):
        if time.monotonic() > deadline:
            raise SystemExit("shoal serve has not seen the crawl")
        time.sleep(0.05)


@contextlib.contextmanager
def watching(folder: Path) -> Iterator[list[int]]:
    """`shoal serve` on the crawl's file, with a browser's stream of events open and /metrics read every second."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "shoal", "serve", "--port", "0", "--frontier", str(folder / "shoal.db")]
    process = subprocess.Popen(command, cwd=folder.parent, stdout=subprocess.PIPE, text=True)
    scraped: list[int] = []
    over = threading.Event()
    try:
        address = (process.stdout.readline() if process.stdout else "").partition("http://")[2].strip().rstrip("/")
        if not address:
            raise SystemExit("shoal serve did not start")
        for target in (_scrape, _listen):
            threading.Thread(target=target, args=(f"http://{address}", over, scraped), daemon=True).start()
        yield scraped
    finally:
        over.set()
        process.terminate()
        process.wait(30)
        if process.stdout:
            process.stdout.close()


def _scrape(address: str, over: threading.Event, scraped: list[int]) -> None:
    while not over.wait(SCRAPE_SECONDS):
        with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/metrics", timeout=10) as answer:
            scraped.append(answer.read().count(b"\nshoal_tasks{"))


def _listen(address: str, over: threading.Event, scraped: list[int]) -> None:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{address}/api/v1/events", timeout=60) as stream:
        while not over.is_set() and stream.readline():
            pass


def _case(costs: dict[str, list[Cost]], pages: int, scrapes: int) -> Case:
    cpu = {how: spread_of([1000 * cost.cpu_seconds / pages for cost in found]) for how, found in costs.items()}
    rate = {how: spread_of([pages / cost.seconds for cost in found]) for how, found in costs.items()}
    return Case(
        letter="L",
        title="a crawl that is watched",
        how=[
            f"The site and the spider of case A, {pages:,} pages, queue and items in shoal.db; history and figures are"
            " always kept. Watched: `shoal serve` on the same file, one stream of events open, /metrics read every"
            f" second ({scrapes} times in all). The CPU is that of the crawl, not that of `serve`.",
        ],
        columns=["shoal", "CPU-s per 1,000 pages", "pages/s"],
        rows=[[how, cpu[how].shown(".3f"), rate[how].shown(",.0f")] for how in costs],
        figures=[
            Figure(
                what="CPU of a watched crawl, of that of one alone",
                value=cpu[WATCHED].median / cpu[ALONE].median,
                wanted=MOST_COST,
                sense="at most",
                unit="times",
            )
        ],
        bars=[Bar(label=how, value=spread.median) for how, spread in rate.items()],
    )


if __name__ == "__main__":
    main(run)
