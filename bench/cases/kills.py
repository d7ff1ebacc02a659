"""Case G: `kill -9` three times during a crawl, started again each time. What is lost, and what is there twice?"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from redis import Redis

from bench.case import Case, Figure, Plan, spread_of
from bench.case_main import main
from bench.crawlers import HERE, WORK, fresh_folder
from bench.environments import install
from bench.killing import Command, Ended, NotedSite, crawl_killed
from bench.redis_server import redis_server
from bench.site import SitePlan, build_site

FULL_PAGES, QUICK_PAGES = 3000, 200
FULL_SHARES, QUICK_SHARES = (0.25, 0.5, 0.75), (0.5,)
PEERS = ("scrapy", "scrapy-redis", "brpop")
ANSWER_SECONDS = 0.02
IN_FLIGHT = 16
BRPOP_WORKERS = 4


class Scene(NamedTuple):
    """Where one crawler runs: its start, an empty folder, an empty Redis if it wants one."""

    start: str
    folder: Path
    redis: str


class System(NamedTuple):
    """A crawler: how it is started, and the URLs of the items that it has stored. `peer`: its environment."""

    name: str
    command: Callable[[Scene], list[str]]
    items: Callable[[Scene], list[str]]
    peer: str = ""
    wants_redis: bool = False


class Loss(NamedTuple):
    """What a killed crawl came to."""

    ended: Ended
    pages_lost: int
    items_twice: int
    asked_again: int


def run(plan: Plan) -> Case:
    pages, shares = (QUICK_PAGES, QUICK_SHARES) if plan.quick else (FULL_PAGES, FULL_SHARES)
    site = SitePlan(pages=pages)
    folder = WORK / f"kills-site-{pages}"
    build_site(site, folder=folder)
    at = [int(pages * share) for share in shares]
    found: dict[str, list[Loss]] = {system.name: [] for system in SYSTEMS}

    def run_one(system: System) -> None:
        noted = NotedSite(site, folder, delay=ANSWER_SECONDS)
        found[system.name].append(_killed(system, noted, start=site.path(0), at=at))
        print(f"{system.name}: {_told(found[system.name][-1])}", flush=True)

    # What is lost is no matter of speed, and peers wait for seconds until they know that they are done.
    with ThreadPoolExecutor(len(SYSTEMS) if plan.quick else 1) as pool:
        for _ in range(plan.rounds):
            list(pool.map(run_one, SYSTEMS))
    return _case(found, pages=pages, shares=shares)


def _killed(system: System, site: NotedSite, *, start: str, at: Sequence[int]) -> Loss:
    name = system.name.replace(", ", "-").replace(" ", "-").lower()
    folder = fresh_folder(f"kills-{name}")
    with ExitStack() as stack:
        redis = stack.enter_context(redis_server(WORK / f"kills-redis-{name}")).url if system.wants_redis else ""
        scene = Scene(f"{stack.enter_context(site.served())}/{start}", folder, redis)
        command = Command(system.command(scene), folder, {"BENCH_URL": scene.start})
        ended = crawl_killed(command, site=site, at=at)
        stored = Counter(urlsplit(url).path for url in system.items(scene))
    if ended.return_code and not system.peer:
        raise SystemExit(f"{system.name} ended with {ended.return_code}: see {folder / 'output.log'}")
    return Loss(
        ended,
        pages_lost=len(site.paths - stored.keys()),
        items_twice=stored.total() - len(stored),
        asked_again=site.asked.total() - len(site.asked),
    )


def _told(loss: Loss) -> str:
    return (
        f"{loss.ended.kills} kills, {loss.pages_lost:,} pages lost, {loss.items_twice:,} items twice,"
        f" {loss.asked_again:,} requests again, {loss.ended.seconds:.1f} s, return code {loss.ended.return_code}"
    )


def _shoal(scene: Scene) -> list[str]:
    frontier = ["--frontier", scene.redis] if scene.redis else []
    return [sys.executable, "-m", "shoal", "run", str(HERE / "kills_spider.py"), *frontier]


def _shoal_items(scene: Scene) -> list[str]:
    with closing(sqlite3.connect(scene.folder / "shoal.db")) as database:
        return [url for (url,) in database.execute("SELECT url FROM item")]


def _scrapy(scene: Scene) -> list[str]:
    settings = ["JOBDIR=job", f"CONCURRENT_REQUESTS={IN_FLIGHT}", f"CONCURRENT_REQUESTS_PER_DOMAIN={IN_FLIGHT}"]
    command = [str(install("scrapy") / "bin" / "scrapy"), "runspider", str(HERE / "scrapy_spider.py")]
    return [*command, "-a", f"url={scene.start}", "-o", "items.jsonl", *_set(settings)]


def _scrapy_items(scene: Scene) -> list[str]:
    file = scene.folder / "items.jsonl"
    urls = (_url_of(line) for line in file.read_bytes().splitlines()) if file.exists() else ()
    return [url for url in urls if url]


def _scrapy_redis(scene: Scene) -> list[str]:
    with closing(Redis.from_url(scene.redis, driver_info=None)) as database:
        database.lpush("bench:start_urls", scene.start)
    settings = [
        f"REDIS_URL={scene.redis}",
        f"CONCURRENT_REQUESTS={IN_FLIGHT}",
        f"CONCURRENT_REQUESTS_PER_DOMAIN={IN_FLIGHT}",
    ]
    command = [str(install("scrapy-redis") / "bin" / "scrapy"), "runspider", str(HERE / "kills_redis_spider.py")]
    return [*command, *_set(settings)]


def _brpop(scene: Scene) -> list[str]:
    python = install("brpop") / "bin" / "python"
    return [str(python), str(HERE / "brpop_worker.py"), scene.start, scene.redis, str(BRPOP_WORKERS)]


def _redis_items(name: str) -> Callable[[Scene], list[str]]:
    """The URLs of the items in a list of Redis."""

    def items(scene: Scene) -> list[str]:
        with closing(Redis.from_url(scene.redis, driver_info=None)) as database:
            return [_url_of(line) for line in database.lrange(name, 0, -1)]

    return items


def _url_of(line: bytes) -> str:
    """The URL of an item; empty for a line that was cut off by a kill."""
    try:
        return str(json.loads(line)["url"])
    except ValueError:
        return ""


def _set(settings: Sequence[str]) -> list[str]:
    return [part for setting in settings for part in ("-s", setting)]


SYSTEMS = (
    System("shoal, SQLite", _shoal, _shoal_items),
    System("shoal, Redis", _shoal, _shoal_items, wants_redis=True),
    System("Scrapy, JOBDIR", _scrapy, _scrapy_items, peer="scrapy"),
    System("scrapy-redis", _scrapy_redis, _redis_items("bench:items"), peer="scrapy-redis", wants_redis=True),
    System("BRPOP worker", _brpop, _redis_items("items"), peer="brpop", wants_redis=True),
)


def _case(found: dict[str, list[Loss]], *, pages: int, shares: Sequence[float]) -> Case:
    kills = len(shares)
    rows = [[name, *_cells(losses)] for name, losses in found.items()]
    own = [loss for name, losses in found.items() if name.startswith("shoal") for loss in losses]
    early = [name for name, losses in found.items() if any(loss.ended.kills < kills for loss in losses)]
    return Case(
        letter="G",
        title=f"kill -9, {kills} time{'s' if kills > 1 else ''}",
        how=[
            f"A site of {pages:,} pages of 16 kB with 32 links, each answered after {ANSWER_SECONDS * 1000:.0f} ms. "
            f"When {_shares(shares)} of the pages have been asked for, by the site's count, the crawler and all its "
            "processes get SIGKILL; the same command is started again. The last one runs to its end.",
            "Lost: pages of the site without an item at the end. Twice: items of a page beyond its first. "
            "Requests again: requests for a page beyond its first.",
            f"{IN_FLIGHT} requests in flight. shoal: the README's form of a spider, default settings, items in "
            "shoal.db. Scrapy: JOBDIR (its documents want a job to be stopped gracefully), feed export that appends to "
            "a file of JSON lines. scrapy-redis: RedisSpider, SCHEDULER_PERSIST, items by its own pipeline into Redis. "
            f"BRPOP worker: bench/brpop_worker.py with {BRPOP_WORKERS} processes. Redis with its append-only file, "
            "never killed.",
        ],
        columns=["system", "kills", "pages lost", "items twice", "requests again", "seconds"],
        rows=rows,
        figures=[
            Figure(what="pages that shoal lost", value=sum(loss.pages_lost for loss in own), wanted=0, sense="at most"),
            Figure(
                what="items that shoal has twice",
                value=sum(loss.items_twice for loss in own),
                wanted=0,
                sense="at most",
            ),
        ],
        notes=[f"{name} took itself for finished before the next kill was due." for name in early],
    )


def _shares(shares: Sequence[float]) -> str:
    return ", ".join(f"{share:.0%}" for share in shares)


def _cells(losses: Sequence[Loss]) -> list[str]:
    return [
        spread_of([loss.ended.kills for loss in losses]).shown(),
        spread_of([loss.pages_lost for loss in losses]).shown(),
        spread_of([loss.items_twice for loss in losses]).shown(),
        spread_of([loss.asked_again for loss in losses]).shown(),
        spread_of([loss.ended.seconds for loss in losses]).shown(".1f"),
    ]


if __name__ == "__main__":
    main(run)
