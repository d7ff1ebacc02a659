"""The peers and their crawls: each in an environment of its own, in the versions that the repository names."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from bench.contest import Crawl
from bench.crawlers import HERE, WORK, fresh_folder
from bench.environments import NODE, install
from bench.grounds import Ground
from bench.measure import Cost, run_measured
from bench.postgres_cpu import postgres_cpu_seconds
from bench.redis_server import redis_server
from shoal.testing.servers.postgres_server import PostgresServer

ITEMS_TABLE = "DROP TABLE IF EXISTS scraped; CREATE TABLE scraped (url text PRIMARY KEY, title text, links integer)"
ROOT = HERE.parent
# These two are read before the spider's own settings.
FASTER_LOOP = (
    "TWISTED_REACTOR=twisted.internet.asyncioreactor.AsyncioSelectorReactor",
    "ASYNCIO_EVENT_LOOP=uvloop.Loop",
)


def scrapy(ground: Ground) -> Crawl:
    return Crawl(_scrapy("scrapy", "scrapy_spider.py", ground))


def scrapy_redis(ground: Ground) -> Crawl:
    with redis_server(WORK / "redis-peers") as redis:
        cost = _scrapy("scrapy-redis", "scrapy_redis_spider.py", ground, f"REDIS_URL={redis.url}")
        return Crawl(cost, redis.cpu_seconds)


def scrapy_redis_postgres(ground: Ground, *, postgres: PostgresServer) -> Crawl:
    postgres.call(f"{ITEMS_TABLE}; CHECKPOINT")
    before = postgres_cpu_seconds(postgres)
    with redis_server(WORK / "redis-peers") as redis:
        settings = (f"REDIS_URL={redis.url}", f"POSTGRES_URL={postgres.url()}")
        cost = _scrapy("scrapy-redis", "scrapy_redis_spider.py", ground, *settings, exports=False)
        crawl = Crawl(cost, redis.cpu_seconds + postgres_cpu_seconds(postgres) - before)
    stored = int(postgres.call("SELECT count(*) FROM scraped"))
    if stored != ground.pages:
        raise SystemExit(f"scrapy-redis stored {stored:,} items in PostgreSQL instead of {ground.pages:,}")
    return crawl


def scrapy_on_shoal(ground: Ground, *, frontier: str = "shoal.db", exports: bool = False) -> Crawl:
    """Scrapy in this environment, which has shoal. By default the items are in shoal's store and nowhere else;
    `exports`: they are written by Scrapy's exporter instead, as those of the others."""
    settings = [f"SHOAL_FRONTIER={frontier}", *(["SHOAL_ITEMS=0"] if exports else [])]
    cost = _scrapy("scrapy-on-shoal", "scrapy_on_shoal_spider.py", ground, *settings, exports=exports)
    if not exports:
        check_stored(WORK / "scrapy-on-shoal-run" / "shoal.db", pages=ground.pages)
    return Crawl(cost)


def scrapy_on_shoal_redis(ground: Ground, *, exports: bool = False) -> Crawl:
    with redis_server(WORK / "redis-peers") as redis:
        return Crawl(scrapy_on_shoal(ground, frontier=redis.url, exports=exports).cost, redis.cpu_seconds)


def _scrapy(name: str, spider: str, ground: Ground, *settings: str, exports: bool = True) -> Cost:
    folder = fresh_folder(f"{name}-run")
    items = folder / "items.jsonl"
    bin_folder = Path(sys.executable).parent if name == "scrapy-on-shoal" else install(name) / "bin"
    command = [str(bin_folder / "scrapy"), "runspider", str(HERE / spider), "-a", f"url={ground.start}"]
    for setting in (*FASTER_LOOP, *settings):
        command += ["-s", setting]
    if exports:
        command += ["-O", str(items)]
    cost = run_measured(command, folder=folder)
    if exports:
        check_items(name, items, pages=ground.pages)
    return cost


def check_stored(database: Path, *, pages: int) -> None:
    """Exactly one item per page in shoal's store, or the run does not count."""
    with closing(sqlite3.connect(database)) as store:
        urls = [json.loads(data)["url"] for (data,) in store.execute("SELECT data FROM item")]
    _check_urls("Scrapy on shoal", urls, pages=pages)


def crawlee(ground: Ground, *, form: str = "selectolax") -> Crawl:
    return Crawl(_crawlee(ground, form))


def crawlee_redis(ground: Ground) -> Crawl:
    with redis_server(WORK / "redis-peers") as redis:
        return Crawl(_crawlee(ground, "selectolax", redis.url), redis.cpu_seconds)


def _crawlee(ground: Ground, form: str, *redis_url: str) -> Cost:
    folder = fresh_folder("crawlee-run")
    items = folder / "items.jsonl"
    python = install("crawlee") / "bin" / "python"
    command = [str(python), str(HERE / "crawlee_crawl.py"), form, ground.start, str(items), *redis_url]
    cost = run_measured(command, folder=folder)
    check_items("Crawlee", items, pages=ground.pages)
    return cost


def crawlee_node(ground: Ground) -> Crawl:
    folder = fresh_folder("crawlee-node-run")
    items = folder / "items.jsonl"
    # Node looks for packages beside the script.
    script = shutil.copy(HERE / NODE / "crawl.js", install(NODE))
    cost = run_measured(["node", str(script), ground.start, str(items)], folder=folder)
    check_items("Crawlee for Node", items, pages=ground.pages)
    return Crawl(cost)


def bare_loop(ground: Ground) -> Crawl:
    folder = fresh_folder("bare-run")
    items = folder / "items.jsonl"
    command = [sys.executable, "-m", "bench.bare_loop", ground.start, "--concurrency", "64", "--out", str(items)]
    command += ["--insecure"] if ground.start.startswith("https:") else []
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    cost = run_measured(command, folder=folder, environment={"PYTHONPATH": path})
    check_items("the bare loop", items, pages=ground.pages)
    return Crawl(cost)


def check_items(system: str, items: Path, *, pages: int) -> None:
    """Exactly one item per page, or the run does not count."""
    with items.open("rb") as lines:
        urls = [json.loads(line)["url"] for line in lines]
    _check_urls(system, urls, pages=pages)


def _check_urls(system: str, urls: list[str], *, pages: int) -> None:
    if len(urls) != pages or len(set(urls)) != pages:
        raise SystemExit(f"{system} has {len(urls):,} items of {len(set(urls)):,} pages instead of {pages:,}")
