"""A crawl of a numbered graph by worker processes that can be killed, and what must be true at its end."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from exit_crawl import BACKENDS, ExitCrawl
from piped_fleet import PipedFleet

from shoal import Spider
from shoal.archive import open_archive
from shoal.crawl.beginning import begin
from shoal.crawl.opening import Places, opened
from shoal.crawl.sources import feed, requests_of
from shoal.model import Progress
from shoal.run.intakes import intake_of, settings_of
from shoal.spider.loading import load_spider
from shoal.testing.chaos.survey import survey
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.site_process import SiteProcess, site_process
from shoal.testing.waiting import eventually
from started_proxies import start_proxy  # noqa: F401 -- a fixture

SPIDER = "shoal.testing.chaos.graph_spider:Graph"
PAGES = 260
SEED = 20


@pytest.fixture
def graph(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[SiteProcess]:
    """A graph of PAGES pages, or of as many as a test asks for."""
    with site_process("--graph", str(getattr(request, "param", PAGES)), log=tmp_path / "hits.jsonl") as site:
        yield site


@dataclass
class GraphCrawl:
    """One crawl of the graph, its workers, and the proof at the end."""

    db: Path
    site: SiteProcess
    settings: dict[str, Any]
    frontier: str
    store: str
    crawl: str = ""
    archive: str = ""
    spider: str = SPIDER
    start: str = ""
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    async def prepare(self) -> None:
        """Open the crawl and put its start page."""
        spider_class = load_spider(self.spider)
        spider = spider_class()
        spider.start = [self.start or self.site.url]  # type: ignore[misc]  # an instance may have a start of its own
        settings = settings_of(spider_class, {"allow_private": True, "obey_robots": False, **self.settings}).values
        async with self.opened() as (frontier, _):
            crawl, _ = await begin(frontier, spider, settings=settings, reference=self.spider)
            self.crawl = crawl.id
            await feed(frontier, crawl.id, requests_of(spider), intake=intake_of(crawl), max_pending=10**6, say=print)
            await frontier.set_feeding(crawl.id, "feeder", seconds=0)

    async def wait_for_pages(self, pages: int) -> None:
        """Wait until this many pages are done."""
        async with self.opened() as (frontier, _):

            async def is_so() -> bool:
                return (await frontier.progress(self.crawl)).done >= pages

            await eventually(is_so)

    def start_worker(self, *, at: str = "never", call: int = 1) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "shoal.testing.killing", str(self.db), self.crawl, self.spider]
        kept = ["--archive", self.archive] if self.archive else []
        where = ["--frontier", self.frontier, "--store", self.store, *kept]
        worker = subprocess.Popen([*command, *where, "--at", at, "--call", str(call)])
        self.workers.append(worker)
        return worker

    @asynccontextmanager
    async def opened(self) -> Any:
        async with opened(Places(frontier=self.frontier, store=self.store)) as parts:
            yield parts

    async def finish(self, seconds: float = 120.0) -> None:
        """One worker that is not killed works to the end."""
        worker = self.start_worker()
        async with asyncio.timeout(seconds):
            assert await asyncio.to_thread(worker.wait) == 0

    async def check(self, pages: int = PAGES) -> Progress:
        """Every page once in the store, none lost, counters equal to a recount."""
        async with self.opened() as (frontier, store):
            crawl = next(crawl for crawl in await frontier.crawls() if crawl.id == self.crawl)
            found = await survey(frontier, store, crawl)
            assert found.faults == []
            assert found.ok == found.progress.done == found.progress.known == pages
            if self.archive:
                await self.check_archive(pages)
            return found.progress

    async def check_archive(self, pages: int) -> None:
        """Every page is in it, every object is whole, and each log line names the object that tells of its page."""
        archive, told = await open_archive(self.archive), {}
        captures = [capture async for some in archive.scan(self.crawl) for capture in some]
        for capture in captures:
            assert len(await archive.body(capture.content_hash)) == capture.size
            told[capture.key, capture.token] = capture
        keys = sorted({capture.key for capture in captures})
        async with self.opened() as (_, store):
            rows = await store.fetches(self.crawl, keys)
        assert len(keys) == len(rows) == pages
        # One object tells of all pages of a flush.
        objects = {name: await archive.captures(name) for name in {row.archived for row in rows}}
        for row in rows:
            capture = told[row.key, row.token]
            assert capture in objects[row.archived]
            assert (capture.content_hash, capture.url) == (row.content_hash, row.url)
        await archive.close()

    def end_workers(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.kill()
                worker.wait()


@pytest.fixture
def new_crawl(tmp_path: Path, graph: SiteProcess) -> Iterator[Any]:
    crawls: list[GraphCrawl] = []

    async def make(
        frontier: str = "", store: str = "", *, spider: str = SPIDER, start: str = "", **settings: Any
    ) -> GraphCrawl:
        db = tmp_path / "shoal.db"
        crawl = GraphCrawl(db, graph, settings, frontier or str(db), store or str(db), spider=spider, start=start)
        crawls.append(crawl)
        await crawl.prepare()
        return crawl

    yield make
    for crawl in crawls:
        crawl.end_workers()


@pytest.fixture
def new_fleet(new_crawl: Any) -> Iterator[Callable[..., Any]]:
    """Crawls whose workers are behind a pipe."""
    fleets: list[PipedFleet] = []

    async def make(pipe: str, **settings: Any) -> PipedFleet:
        always = {"pace": "fixed", "per_host": 32, "lease_seconds": 5.0, "grace_seconds": 3.0}
        crawl = await new_crawl(**{**always, **settings})
        fleets.append(PipedFleet(crawl, pipe))
        return fleets[-1]

    yield make
    for fleet in fleets:
        fleet.end()


@pytest.fixture(params=BACKENDS)
def frontier(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where commands keep the tasks: a file, then Redis."""
    return str(tmp_path / "shoal.db") if request.param == "sqlite" else str(request.getfixturevalue("redis").url)


@pytest.fixture
def rng() -> random.Random:
    """Random moments, the same in every run; a failing test prints the seed."""
    print(f"seed {SEED}")
    return random.Random(SEED)


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> str:
    """Where the tasks of an `exit_crawl` are: "sqlite", unless a test asks for another."""
    return getattr(request, "param", "sqlite")


@pytest.fixture
def exit_crawl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str) -> Iterator[Callable[..., ExitCrawl]]:
    """A crawl by this spider from these URLs, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    server = RedisServer(tmp_path / "redis").start() if backend == "redis" else None

    def make(spider: type[Spider], *urls: str, **settings: Any) -> ExitCrawl:
        kind = type(spider.__name__, (spider,), {"start": list(urls)})
        return ExitCrawl(tmp_path, kind, frontier_url=server.url if server else "", settings=settings)

    yield make
    if server is not None:
        server.stop()
