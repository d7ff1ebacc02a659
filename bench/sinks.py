"""A crawl whose items flow on to a sink, or to none. Afterwards the sink must have every item."""

from __future__ import annotations

import sys
from pathlib import Path

from redis import Redis

from bench.contest import Crawl
from bench.crawlers import HERE, fresh_folder
from bench.grounds import Ground
from bench.measure import run_measured
from bench.own_crawls import check_file
from bench.redis_server import RedisServer

# Its pages cost less than the README's form: beside them a sink weighs most.
SPIDER = "shoal_spider.py"
FILE, LIST = "items.jsonl", "items"


def without(ground: Ground) -> Crawl:
    crawl, _ = _crawl(ground)
    return crawl


def to_a_file(ground: Ground) -> Crawl:
    crawl, folder = _crawl(ground, "--sink", FILE)
    _check(len((folder / FILE).read_bytes().splitlines()), ground)
    return crawl


def to_redis(ground: Ground, *, server: RedisServer) -> Crawl:
    with Redis.from_url(server.url) as client:
        client.delete(LIST)
        crawl, _ = _crawl(ground, "--sink", f"{server.url}?list={LIST}")
        _check(int(client.llen(LIST)), ground)
    return crawl


def _crawl(ground: Ground, *flags: str) -> tuple[Crawl, Path]:
    folder = fresh_folder("sink-run")
    shoal = str(Path(sys.executable).with_name("shoal"))
    command = [shoal, "run", str(HERE / SPIDER), "--workers", "1", *flags]
    cost = run_measured(command, folder=folder, environment={"BENCH_URL": ground.start})
    check_file(folder, ground)
    return Crawl(cost), folder


def _check(found: int, ground: Ground) -> None:
    if found != ground.pages:
        raise SystemExit(f"the sink has {found:,} changes instead of {ground.pages:,}")
