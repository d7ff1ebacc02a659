"""One host at 50 requests per second, eight worker processes over Redis: `python -m bench.pace`.

Judged by the site's own clock: the rate achieved from the first to the last request, and the busiest second.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.crawlers import HERE, WORK, fresh_folder
from bench.measure import run_measured
from bench.redis_server import redis_server
from shoal.testing.sites.loopback import Hit, busiest_window
from shoal.testing.sites.site_process import site_process

LATENCY_SECONDS = 0.02


class Verdict(NamedTuple):
    """What the site saw."""

    requests: int
    allowed_per_second: float
    achieved_per_second: float
    busiest_second: int
    too_many: int
    longest_gap_seconds: float

    @property
    def share(self) -> float:
        return self.achieved_per_second / self.allowed_per_second


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.pace", description=__doc__)
    parser.add_argument("--rate", type=int, default=50, help="requests per second that the host allows")
    parser.add_argument("--workers", type=int, default=8, help="worker processes")
    parser.add_argument("--pages", type=int, default=3_000, help="pages of the site")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    hits = crawl(options.pages, rate=options.rate, workers=options.workers)
    verdict = judge(hits, rate=options.rate)
    print(f"{options.workers} workers, {verdict.requests:,} requests to one host at {options.rate}/s")
    print(f"achieved {verdict.achieved_per_second:.2f}/s, {verdict.share:.1%} of the allowed rate")
    print(f"busiest second: {verdict.busiest_second} requests; {verdict.too_many} requests were one too many")
    print(f"longest gap: {verdict.longest_gap_seconds * 1000:.0f} ms")
    if options.json:
        options.json.write_text(json.dumps({**verdict._asdict(), "share": verdict.share}, indent=2) + "\n")


def crawl(pages: int, *, rate: int, workers: int) -> list[Hit]:
    """Crawl the whole graph; gives the site's log."""
    folder = fresh_folder("pace-run")
    log = folder / "hits.jsonl"
    shoal = str(Path(sys.executable).with_name("shoal"))
    arguments = ("--graph", str(pages), "--latency", str(LATENCY_SECONDS))
    with redis_server(WORK / "redis-pace") as server, site_process(*arguments, log=log) as site:
        run_measured(
            [shoal, "run", str(HERE / "pace_spider.py"), "--frontier", server.url, "--workers", str(workers)],
            folder=folder,
            environment=os.environ | {"BENCH_URL": site.url, "BENCH_RATE": f"{rate}/s"},
        )
        hits = site.hits()
    if len({hit.path for hit in hits}) != pages:
        raise SystemExit(f"the crawl saw {len({hit.path for hit in hits}):,} of {pages:,} pages")
    return hits


def judge(hits: Sequence[Hit], *, rate: int) -> Verdict:
    times = sorted(hit.time for hit in hits)
    # A request is one too many if the request `rate` positions earlier came less than a second before it.
    too_many = sum(later - earlier < 1.0 for earlier, later in zip(times, times[rate:], strict=False))
    return Verdict(
        requests=len(times),
        allowed_per_second=rate,
        achieved_per_second=(len(times) - 1) / (times[-1] - times[0]),
        busiest_second=busiest_window(hits),
        too_many=too_many,
        longest_gap_seconds=max(later - earlier for earlier, later in itertools.pairwise(times)),
    )


if __name__ == "__main__":
    main()
