"""What a sink costs: the same crawl with `--sink` and without, `python -m bench.sinks`.

Runs are interleaved and repeated; the table shows medians. After each run with a sink it must have every item.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from bench.crawl import Median, Run, crawl_with_shoal, prepare_site, summarise
from bench.crawlers import HERE, WORK, fresh_folder
from bench.measure import run_measured
from bench.nginx import serve
from shoal.testing.servers.redis_server import RedisServer

PLAIN, FILE, REDIS = "without", "a file", "a Redis list"


def main() -> None:
    options = _options()
    plan = prepare_site(options.pages)
    runs: list[Run] = []
    redis = RedisServer(fresh_folder("sink-redis")).start()
    try:
        with serve(WORK / "site", port=int(plan.base.rpartition(":")[2]), work=WORK / "nginx") as address:
            start = f"{address}/{plan.path(0)}"
            for number in range(1, options.rounds + 1):
                runs.append(crawl_with_shoal(start, total=plan.pages)._replace(system=PLAIN))
                runs.append(_with_file(start, total=plan.pages))
                runs.append(_with_redis(start, redis, total=plan.pages))
                print(f"round {number}: " + ", ".join(f"{run.pages_per_second:,.0f} {run.system}" for run in runs[-3:]))
    finally:
        redis.stop()
    print_table(summarise(runs), pages=plan.pages)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.sinks", description="a crawl with a sink and without")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each kind, interleaved")
    parser.add_argument("--pages", type=int, default=20_000, help="pages of the site")
    return parser.parse_args()


def _with_file(start: str, *, total: int) -> Run:
    run, folder = _crawl(start, FILE, "items.jsonl", total=total)
    _check(len((folder / "items.jsonl").read_bytes().splitlines()), total)
    return run


def _with_redis(start: str, redis: RedisServer, *, total: int) -> Run:
    redis.call("DEL", "items")
    run, _ = _crawl(start, REDIS, f"{redis.url}?list=items", total=total)
    _check(redis.call("LLEN", "items"), total)
    return run


def _crawl(start: str, system: str, sink: str, *, total: int) -> tuple[Run, Path]:
    folder = fresh_folder("sink-run")
    program = str(Path(sys.executable).with_name("shoal"))
    command = [program, "run", str(HERE / "shoal_spider.py"), "--workers", "1", "--sink", sink]
    return Run(system, total, run_measured(command, folder=folder, environment={"BENCH_URL": start})), folder


def _check(found: int, total: int) -> None:
    if found != total:
        raise SystemExit(f"the sink has {found:,} changes instead of {total:,}")


def print_table(medians: list[Median], *, pages: int) -> None:
    plain = next(row for row in medians if row.system == PLAIN)
    print(f"\n{pages:,} pages, an item each, one process")
    print(f"{'':14}{'pages/s':>10}{'':>8}{'CPU-s per 1,000':>18}{'':>8}{'runs':>7}")
    for row in medians:
        speed = row.pages_per_second / plain.pages_per_second
        cost = row.cpu_seconds_per_1000_pages / plain.cpu_seconds_per_1000_pages
        print(
            f"{row.system:14}{row.pages_per_second:10,.0f}{speed:8.1%}"
            f"{row.cpu_seconds_per_1000_pages:18.3f}{cost:8.1%}{row.runs:7}"
        )


if __name__ == "__main__":
    main()
