"""The program whose instructions are counted: a worker with all its parts crawls sites of prepared answers.

Everything is real (journey, handlers, intake, writer, SQLite frontier and store) except the network, whose answers lie
ready, and the clock, which stands still: so the same code does the same work, instruction by instruction. Over
Redis the frontier alone is driven."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

from bench.guard.still_loop import StillLoop
from shoal import Item, Page, Request, Spider
from shoal.crawl.beginning import begin
from shoal.crawl.feeder import Feeder
from shoal.fetch.base import Fetch, Response
from shoal.frontier.sqlite.frontier import SqliteFrontier
from shoal.run.building import worker_for
from shoal.run.intakes import intake_of, settings_of
from shoal.store.sqlite.store import SqliteStore
from shoal.worker.retirement import collect_rarely, keep_freed_memory

ROBOTS = b"User-agent: *\nDisallow: /private/\nDisallow: /*.pdf$\nCrawl-delay: 0\n"
HEADERS = {"content-type": "text/html; charset=utf-8", "server": "nginx", "connection": "keep-alive"}


class ReadyFetcher:
    """Answers at once: the pages of a folder, for whatever host, and a robots.txt."""

    def __init__(self, site: Path) -> None:
        self.pages = {str(file.relative_to(site)): file.read_bytes() for file in sorted(site.glob("*/*.html"))}

    async def fetch(self, request: Fetch) -> Response:
        path = request.url.split("/", 3)[3]
        body = ROBOTS if path == "robots.txt" else self.pages[path]
        # A real answer never comes before the loop has turned.
        await asyncio.sleep(0)
        return Response(
            url=request.url, status=200, headers=dict(HEADERS), body=body, wire_size=len(body), elapsed=0.01
        )

    async def close(self) -> None:
        pass


class Quick(Spider):
    """What all spiders here have in common: no pace, and otherwise the defaults."""

    rate = "unlimited"
    per_host = 64
    concurrency = 64


class WarmUp(Quick):
    """Imports what is imported late, fills caches that fill once."""

    start = ("http://warm-up.test/section-000/page-000000.html",)

    def parse(self, page: Page) -> Iterator[Any]:
        yield Item(url=page.url, title=page.text("title"))
        yield page.follow("a[href]")
        yield from page.follow("h1 a")
        for link in page.links()[:1]:
            yield Request(link, self.parse)


class FollowFrom(Quick):
    """As the README writes it."""

    start = ("http://follow-from.test/section-000/page-000000.html",)

    def parse(self, page: Page) -> Iterator[Any]:
        yield Item(url=page.url, title=page.text("title"))
        yield from page.follow("a[href]")


class Follow(Quick):
    """All links of a page in one object."""

    start = ("http://follow.test/section-000/page-000000.html",)

    def parse(self, page: Page) -> Iterator[Any]:
        yield Item(url=page.url, title=page.text("title"))
        yield page.follow("a[href]")


class Requests(Quick):
    """A request of its own for each link."""

    start = ("http://requests.test/section-000/page-000000.html",)

    def parse(self, page: Page) -> Iterator[Any]:
        yield Item(url=page.url, title=page.text("title"))
        for link in page.links():
            yield Request(link, self.parse)


# In this order they are crawled and counted.
PARTS: dict[str, type[Spider]] = {
    "yield from page.follow(…)": FollowFrom,
    "yield page.follow(…)": Follow,
    "Request per link": Requests,
}


REDIS_PART = "Redis, the frontier's client alone"


async def crawl(spider: Spider, *, fetcher: ReadyFetcher, path: Path, loop: StillLoop) -> int:
    """A crawl from its start to its end in a new file; gives the number of pages."""
    frontier = await SqliteFrontier.open(path, clock=loop.wall, steady=loop.time)
    store = await SqliteStore.open(path, clock=loop.wall)
    settings = settings_of(type(spider), {}, folder=path.parent).values
    begun, _ = await begin(frontier, spider, settings=settings, reference="guard.py")
    feeder = Feeder(begun.id, frontier=frontier, say=print)
    await feeder.begin()
    await feeder.feed(spider, intake=intake_of(begun))
    parts: dict[str, Any] = {"frontier": frontier, "store": store, "fetcher": fetcher, "say": print}
    async with worker_for(begun, spider, name="guard:1:1", **parts) as worker:
        pages = await worker.run(asyncio.Event())
    await store.close()
    await frontier.close()
    return pages


def run(sites: Sequence[Path], *, redis: str, mark: Callable[[], None]) -> None:
    """Crawl the sites, the small one and the large one, with each spider in turn; then the same number of pages over
    Redis, if there is one. `mark` is called when a crawl that counts begins and when it ends."""
    fetchers = [ReadyFetcher(site) for site in sites]
    keep_freed_memory()
    collect_rarely()
    loop = StillLoop()
    asyncio.set_event_loop(loop)
    with tempfile.TemporaryDirectory(prefix="guard") as folder:
        loop.run_until_complete(crawl(WarmUp(), fetcher=fetchers[0], path=Path(folder) / "warm.db", loop=loop))
        for number, (spider, fetcher) in enumerate(product(PARTS.values(), fetchers)):
            mark()
            done = loop.run_until_complete(
                crawl(spider(), fetcher=fetcher, path=Path(folder) / f"{number}.db", loop=loop)
            )
            mark()
            if done != len(fetcher.pages):
                raise SystemExit(f"{spider.__name__} did {done:,} of {len(fetcher.pages):,} pages: not counted")
    loop.close()
    if redis:
        _run_over_redis(redis, [len(fetcher.pages) for fetcher in fetchers], mark=mark)


def _run_over_redis(url: str, sizes: Sequence[int], *, mark: Callable[[], None]) -> None:
    from bench.guard.redis_side import RedisSide

    side = RedisSide(url, most=max(sizes))
    side.run("warm-1", pages=min(sizes))
    for number, pages in enumerate(sizes):
        mark()
        side.run(f"guard-{number}", pages=pages)
        mark()


def count_calls(sites: Sequence[Path], *, redis: str) -> list[int]:
    """The calls of functions, of Python's and of C's, in each crawl."""
    counts: list[int] = []
    is_counting = False

    def note(_: object, event: str, __: object) -> None:
        if event in ("call", "c_call"):
            counts[-1] += 1

    def mark() -> None:
        nonlocal is_counting
        is_counting = not is_counting
        if is_counting:
            counts.append(0)
        sys.setprofile(note if is_counting else None)

    run(sites, redis=redis, mark=mark)
    return counts


def main() -> None:
    """`calls REDIS SMALL LARGE` prints how many calls each crawl made; `instructions …` is run under valgrind. REDIS is
    the URL of an empty server, or empty."""
    what, redis, *names = sys.argv[1:]
    sites = [Path(name) for name in names]
    if what == "calls":
        print(json.dumps(count_calls(sites, redis=redis)))
    else:
        # A function of the C library that nothing else here calls: valgrind writes its counts down at each call.
        run(sites, redis=redis, mark=os.getloadavg)


if __name__ == "__main__":
    main()
