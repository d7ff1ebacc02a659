"""Crawls that leave through real proxies: who the site sees and how often, and what bad exits cost."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from exit_crawl import ExitCrawl, gaps_by_peer, graph, pages_of, site

from shoal import Item, Spider
from shoal.testing.loopback import LoopbackServer
from shoal.testing.proxies import Tinyproxy

PAGES = 20


class Numbers(Spider):
    """Takes every page of the graph."""

    pool = "ring"

    def parse(self, page: Any) -> Any:
        yield Item(key=page.url, number=page.text("h1"))
        yield page.follow("a")


@pytest.fixture
async def graph_site() -> AsyncIterator[LoopbackServer]:
    async with site(graph(PAGES)) as server:
        yield server


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[Callable[..., Tinyproxy]]:
    """Starts proxies, each on the loopback address it is given."""
    started: list[Tinyproxy] = []

    def start(address: str, **options: Any) -> Tinyproxy:
        started.append(Tinyproxy(tmp_path, address=address, **options).start())
        return started[-1]

    yield start
    for one in started:
        one.stop()


@pytest.fixture
def new_crawl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ExitCrawl]:
    monkeypatch.chdir(tmp_path)

    def make(spider: type[Spider], server: LoopbackServer, **settings: Any) -> ExitCrawl:
        start = [f"http://127.0.0.1:{server.port}/0"]
        return ExitCrawl(tmp_path, type(spider.__name__, (spider,), {"start": start}), settings=settings)

    return make


async def test_pages_leave_through_the_proxies_of_the_pool_in_turn(
    graph_site: LoopbackServer, proxy: Callable[..., Tinyproxy], new_crawl: Callable[..., ExitCrawl]
) -> None:
    crawl = new_crawl(Numbers, graph_site, obey_robots=True)
    open_one, locked = proxy("127.0.0.2"), proxy("127.0.0.3", user="anna", password="secret")
    crawl.pool("ring", [open_one.url, locked.url], rate="20/s")
    progress = await crawl.run()
    assert (progress.done, progress.dead, progress.retried) == (PAGES, 0, 0)
    assert pages_of(graph_site.requests) == {f"/{number}": 1 for number in range(PAGES)}
    assert len(await crawl.items()) == PAGES
    seen = gaps_by_peer(graph_site.requests)
    assert seen.keys() == {"127.0.0.2", "127.0.0.3"}
    assert min(len(gaps) for gaps in seen.values()) >= PAGES // 2 - 2
