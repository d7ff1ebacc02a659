"""shoal's crawls of a ground: `shoal run` with one worker; queue and items in shoal.db, Redis, PostgreSQL."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from bench.contest import Crawl
from bench.crawlers import HERE, WORK, fresh_folder
from bench.grounds import Ground
from bench.measure import Cost, run_measured
from bench.postgres_cpu import postgres_cpu_seconds
from bench.redis_server import redis_server
from shoal.testing.servers.postgres_server import PostgresServer

README_FORM = "readme_spider.py"
REQUESTS_FORM = "requests_spider.py"


def embedded(ground: Ground, *, spider: str = README_FORM, environment: Mapping[str, str] | None = None) -> Crawl:
    folder = fresh_folder("shoal-run")
    cost = _run(ground, spider, folder=folder, environment=environment)
    check_file(folder, ground)
    return Crawl(cost)


def over_redis(ground: Ground) -> Crawl:
    folder = fresh_folder("shoal-redis-run")
    with redis_server(WORK / "redis-shoal") as redis:
        cost = _run(ground, README_FORM, "--frontier", redis.url, folder=folder)
        check_file(folder, ground)
        return Crawl(cost, redis.cpu_seconds)


def over_redis_and_postgres(ground: Ground, *, postgres: PostgresServer) -> Crawl:
    postgres.call("DROP SCHEMA IF EXISTS shoal CASCADE; CHECKPOINT")
    before = postgres_cpu_seconds(postgres)
    with redis_server(WORK / "redis-shoal") as redis:
        flags = ("--frontier", redis.url, "--store", postgres.url())
        cost = _run(ground, README_FORM, *flags, folder=fresh_folder("shoal-postgres-run"))
        crawl = Crawl(cost, redis.cpu_seconds + postgres_cpu_seconds(postgres) - before)
    _check(int(postgres.call("SELECT count(*) FROM shoal.items")), ground)
    return crawl


def _run(ground: Ground, spider: str, *flags: str, folder: Path, environment: Mapping[str, str] | None = None) -> Cost:
    shoal = str(Path(sys.executable).with_name("shoal"))
    command = [shoal, "run", str(HERE / spider), "--workers", "1", *flags]
    return run_measured(command, folder=folder, environment={"BENCH_URL": ground.start, **(environment or {})})


def check_file(folder: Path, ground: Ground) -> None:
    with closing(sqlite3.connect(folder / "shoal.db")) as database:
        (found,) = database.execute("SELECT count(*) FROM item").fetchone()
    _check(found, ground)


def _check(found: int, ground: Ground) -> None:
    """Exactly one item per page, or the run does not count: an item's key is its page's URL, so none is there twice."""
    if found != ground.pages:
        raise SystemExit(f"shoal has {found:,} items instead of {ground.pages:,}")
