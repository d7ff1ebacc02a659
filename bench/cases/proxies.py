"""I: one host through 10, 50 and 100 proxies at one request per second each; by the site's clock."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from bench.case import Case, Figure, Plan, spread_of
from bench.crawlers import HERE, fresh_folder
from bench.measure import Cost, run_measured
from bench.paced_site import Arrival, arrivals, paced_site
from shoal.testing.servers.proxy_servers import Tinyproxy

SIZES = (10, 50, 100)
INTERVAL = 1.0
CONCURRENCY = 256
BEGIN_SECONDS = 2.0
END_SECONDS = 1.0
SITE = "127.0.0.1"


class Verdict(NamedTuple):
    """What the site saw: the share of what the proxies allow, and the shortest gap between two requests of a proxy."""

    share: float
    pages_per_minute: float
    shortest: float


class Run(NamedTuple):
    proxies: int
    pages: int
    verdict: Verdict
    cost: Cost

    @property
    def load(self) -> float:
        """Of one processor."""
        return self.cost.cpu_seconds / self.cost.seconds

    @property
    def served_by_one(self) -> float:
        """How many such proxies one worker could serve, by its processor time."""
        return self.pages / self.cost.cpu_seconds * INTERVAL


def run(plan: Plan) -> Case:
    sizes, seconds = ((10,), 5) if plan.quick else (SIZES, 30)
    runs: list[Run] = []
    for _ in range(plan.rounds):
        for proxies in sizes:
            runs.append(crawl(proxies, seconds=seconds))
            print(_line(runs[-1]), flush=True)
    return _case(runs)


def crawl(proxies: int, *, seconds: int) -> Run:
    """One crawl of as many pages as the proxies may fetch in so many seconds."""
    folder, pages = fresh_folder("proxies-run"), proxies * seconds
    with paced_site(fresh_folder("proxies-site"), pages=pages) as site, _proxies(folder, proxies) as urls:
        (folder / "starts.txt").write_text(site.url(SITE))
        listed = ", ".join(f'"{url}"' for url in urls)
        (folder / "proxies.toml").write_text(f'[proxies.bench]\nurls = [{listed}]\nrate = "1/s"\n')
        command = [sys.executable, "-m", "shoal", "run", str(HERE / "paced_spider.py"), "--workers", "1"]
        command += ["--proxies", str(folder / "proxies.toml"), "--concurrency", str(CONCURRENCY)]
        cost = run_measured(command, folder=folder, environment={"BENCH_STARTS": str(folder / "starts.txt")})
    _check(folder, expected=pages)
    return Run(proxies, pages, judge(arrivals(site.log), proxies=proxies), cost)


def judge(seen: Sequence[Arrival], *, proxies: int, interval: float = INTERVAL) -> Verdict:
    """The share counts without the first two seconds and the last: the crawl begins with one page."""
    times = [arrival.time for arrival in seen if arrival.path.endswith(".html")]
    begin, end = times[0] + BEGIN_SECONDS, times[-1] - END_SECONDS
    pages = sum(begin <= time < end for time in times)
    by_proxy: dict[str, list[float]] = {}
    for arrival in seen:
        by_proxy.setdefault(arrival.source, []).append(arrival.time)
    gaps = [later - earlier for times in by_proxy.values() for earlier, later in itertools.pairwise(times)]
    share = pages * interval / (proxies * (end - begin))
    return Verdict(share, 60 * pages / (end - begin), min(gaps))


@contextlib.contextmanager
def _proxies(folder: Path, count: int) -> Iterator[list[str]]:
    """So many tinyproxy processes, each on an address of its own, which its requests to the site come from."""
    with contextlib.ExitStack() as running:
        urls = []
        for number in range(count):
            proxy = Tinyproxy(folder, address=f"127.2.{number // 250}.{1 + number % 250}")
            running.callback(proxy.stop)
            proxy.start()
            urls.append(f"http://{proxy.address}:{proxy.port}")
        yield urls


def _check(folder: Path, *, expected: int) -> None:
    with closing(sqlite3.connect(folder / "shoal.db")) as database:
        (found,) = database.execute("SELECT count(*) FROM item").fetchone()
    if found != expected:
        raise SystemExit(f"the crawl has {found:,} of {expected:,} pages: see {folder / 'output.log'}")


def _line(run: Run) -> str:
    verdict = run.verdict
    return (
        f"{run.proxies} proxies: {verdict.pages_per_minute:,.0f} pages/min, {verdict.share:.1%} of what they allow,"
        f" shortest gap {verdict.shortest:.3f} s; the worker took {run.load:.0%} of a processor, and could serve"
        f" {run.served_by_one:,.0f} proxies"
    )


def _case(runs: Sequence[Run]) -> Case:
    rows, figures = [], []
    for proxies in dict.fromkeys(run.proxies for run in runs):
        mine = [run for run in runs if run.proxies == proxies]
        share = spread_of([100 * run.verdict.share for run in mine])
        rows.append(
            [
                f"shoal, {proxies} proxies",
                spread_of([run.verdict.pages_per_minute for run in mine]).shown(),
                f"{share.shown('.1f')} %",
                f"{min(run.verdict.shortest for run in mine):.3f} s",
                "1",
                f"{spread_of([100 * run.load for run in mine]).shown('.0f')} %",
                spread_of([run.served_by_one for run in mine]).shown(),
            ]
        )
        figures.append(
            Figure(
                what=f"{proxies} proxies: share of what they allow",
                value=share.median,
                wanted=95.0,
                sense="at least",
                unit="%",
            )
        )
    return Case(
        letter="I",
        title="Through proxies: one host, one request per second and proxy",
        how=[
            "Each proxy is a tinyproxy process (Debian's package) on a loopback address of its own; its requests come"
            " from that address, so the site tells them apart. nginx serves the site and notes when each request came.",
            f'`shoal run --workers 1 --concurrency {CONCURRENCY} --proxies proxies.toml` with `rate = "1/s"` in the'
            " pool, SQLite, all else as it comes: robots.txt is obeyed, through the proxies too.",
            "The share of what the proxies allow, and the pages per minute: without the first two seconds, as the crawl"
            " begins with one page, and without the last.",
            "Workers needed: one did it. Its load is that of all its processes, start included; how many such proxies"
            " it could serve is reckoned from it.",
            "shoal alone: Scrapy, scrapy-redis and Crawlee have no pace per proxy that holds for all processes of a"
            " crawl. Scrapy's delay is per host and process, and its proxies come from a middleware without a pace;"
            " Crawlee rotates its proxies without one.",
        ],
        columns=["", "pages/min", "of what they allow", "shortest gap", "workers", "load", "proxies per worker"],
        rows=rows,
        figures=figures,
    )


if __name__ == "__main__":
    from bench.case_main import main

    main(run)
