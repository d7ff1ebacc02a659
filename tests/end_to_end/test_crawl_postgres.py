"""Crawls that store in a real PostgreSQL server: one that goes away in the middle, one that is slow."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from shoal.crawl.opening import Places, opened
from shoal.model import Progress, WorkerBeat
from shoal.run.coordinator import Coordinator
from shoal.store.base import ItemFilter
from shoal.testing.chaos.check import check_crawl
from shoal.testing.servers.postgres_server import PostgresServer
from shoal.testing.sites.site_process import SiteProcess, site_process
from shoal.testing.waiting import eventually

PAGES = 300
SECONDS = 120.0
LEASE_SECONDS = 2.0
MIB = 1024 * 1024
SPIDER = """
from shoal import Item, Spider

class Graph(Spider):
    start = ["{url}"]
    rate = "unlimited"
    settings = {settings!r}

    def parse(self, page):
        yield Item(key=page.url, number=page.text("h1"))
        yield page.follow("a")
"""
SLOW = """
    CREATE FUNCTION shoal.nap() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.01); RETURN NEW; END';
    CREATE TRIGGER nap BEFORE INSERT ON shoal.items FOR EACH ROW EXECUTE FUNCTION shoal.nap()"""


@dataclass
class StoredCrawl:
    """A crawl of the graph by one `shoal run`, its items in PostgreSQL."""

    folder: Path
    site: SiteProcess
    server: PostgresServer
    store: str

    @property
    def places(self) -> Places:
        return Places(frontier=str(self.folder / "shoal.db"), store=self.store)

    def spider(self, **settings: Any) -> None:
        always = {
            "allow_private": True,
            "obey_robots": False,
            "pace": "fixed",
            "per_host": 64,
            "lease_seconds": LEASE_SECONDS,
        }
        text = SPIDER.format(url=self.site.url, settings={**always, **settings})
        (self.folder / "graph.py").write_text(text)

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "shoal", *arguments, "--store", self.store]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("SHOAL_")}
        return subprocess.Popen(
            command, cwd=self.folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    async def look(self) -> tuple[Progress, list[WorkerBeat]] | None:
        """What the frontier says; None before there is a crawl. The store is left alone: it may be away."""
        if not (self.folder / "shoal.db").exists():
            return None
        async with opened(Places(frontier=self.places.frontier, store=self.places.frontier)) as (frontier, _):
            crawls = await frontier.crawls()
            return (await frontier.progress(crawls[0].id), await frontier.workers()) if crawls else None

    async def bound(self) -> str:
        """What the crawl is bound by."""
        async with opened(Places(frontier=self.places.frontier, store=self.places.frontier)) as (frontier, _):
            (crawl,) = await frontier.crawls()
            return (await Coordinator(crawl, frontier=frontier, show=id, say=print).look()).bound

    def progress(self) -> Progress:
        """The crawl's counters, once there is a crawl."""
        return self.wait_for(lambda _: True)

    def progress_at_rest(self) -> Progress:
        """The crawl's counters, once five looks in a row, a fifth of a second apart, have found them the same."""
        seen: deque[Progress] = deque(maxlen=5)

        async def read() -> Progress | None:
            found = await self.look()
            assert found is not None
            seen.append(found[0])
            return found[0] if list(seen) == [found[0]] * 5 else None

        return asyncio.run(eventually(read, seconds=SECONDS, pause=0.2))

    def wait_for(self, is_so: Callable[[Progress], bool]) -> Progress:
        """The crawl's counters, once this holds of them."""

        async def read() -> Progress | None:
            seen = await self.look()
            return seen[0] if seen is not None and is_so(seen[0]) else None

        return asyncio.run(eventually(read, seconds=SECONDS))

    async def check(self) -> None:
        """Every page once in the store, none lost, none fetched twice: no lease ran out."""
        async with opened(self.places) as (frontier, store):
            (crawl,) = await frontier.crawls()
            found = await check_crawl(frontier, store, crawl)
            assert found.faults == []
            assert found.ok == found.progress.done == PAGES
            assert await store.count_items(ItemFilter(crawl=crawl.id)) == PAGES
        assert set(Counter(hit.path for hit in self.site.hits()).values()) == {1}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[SiteProcess]:
    with site_process("--graph", str(PAGES), log=tmp_path / "hits.jsonl") as site:
        yield site


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that the test may stop."""
    server = PostgresServer().start()
    yield server
    server.remove()


# Nine seconds: the server has to be away for longer than the two seconds of a lease.
def test_a_server_that_goes_away_for_longer_than_a_lease_is_waited_for_and_nothing_is_lost(
    tmp_path: Path, site: SiteProcess, own_server: PostgresServer
) -> None:
    crawl = StoredCrawl(tmp_path, site, own_server, own_server.url())
    crawl.spider(flush_pages=16, concurrency=16, rate="150/s")
    run = crawl.start("run", "graph.py")
    try:
        crawl.wait_for(lambda progress: progress.done >= 40)
        crawl.server.stop()
        done = crawl.progress_at_rest()
        time.sleep(LEASE_SECONDS + 0.5)  # every lease would have run out by now
        later = crawl.progress()
        assert later.done == done.done < PAGES
        # Pages in hand, pages that wait to be written, pages in the write: no more was lent, and none was lost.
        assert 0 < later.leased == done.leased <= 16 + 2 * 16 + 2 * 16
        assert later.lost == 0
        assert run.poll() is None
        assert asyncio.run(crawl.bound()).startswith("the store: waiting for ")
        crawl.server.start()
        _, err = run.communicate(timeout=SECONDS)
    finally:
        run.kill()
        run.wait()
    assert run.returncode == 0, err
    assert err.count("; waiting") == 1, err
    assert "s3cr3t" not in err
    asyncio.run(crawl.check())


# Six seconds: long enough for a buffer without a bound to be seen in the memory of the worker.
def test_a_slow_store_holds_up_leasing_and_memory_stays_flat(
    tmp_path: Path, site: SiteProcess, postgres: PostgresServer
) -> None:
    database = f"slow_{uuid.uuid4().hex}"
    crawl = StoredCrawl(tmp_path, site, postgres, postgres.new_database(database))
    crawl.spider(flush_pages=4, concurrency=4)
    out, _ = crawl.start("store", "init").communicate(timeout=SECONDS)
    assert "is ready" in out
    crawl.server.call(SLOW, database=database)
    run = crawl.start("run", "graph.py")
    leased, memory = [], []
    try:
        while run.poll() is None:
            seen = asyncio.run(crawl.look())
            if seen is not None and seen[0].done:
                leased.append(seen[0].leased)
                memory += [beat.memory_bytes for beat in seen[1]]
            time.sleep(0.05)  # between two looks
        _, err = run.communicate(timeout=SECONDS)
    finally:
        run.kill()
        run.wait()
    assert run.returncode == 0, err
    assert 0 < max(leased) <= 4 + 2 * 4 + 2 * 4
    assert max(memory) - memory[0] < 16 * MIB
    asyncio.run(crawl.check())
