"""A name server that changes its mind during a crawl: what was vetted is what is connected to, and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from shoal import Item, Page, Spider
from shoal.crawl.beginning import begin
from shoal.crawl.opening import Places, opened
from shoal.crawl.record import record_of
from shoal.crawl.sources import feed, requests_of
from shoal.fetch.http import HttpFetcher
from shoal.fetch.routes import ROUTE_SECONDS
from shoal.journey.handlers import Handlers
from shoal.journey.journey import Journey
from shoal.journey.recent_keys import RecentKeys
from shoal.journey.robots import LaneRules
from shoal.model import DeadFilter
from shoal.run.intakes import intake_of, settings_of
from shoal.store.base import ItemFilter
from shoal.testing.fakes import passages_for
from shoal.testing.sites.hostile import HostileSite, answer
from shoal.worker.parts import WorkerParts
from shoal.worker.worker import Worker

OUTSIDE, INSIDE = "127.0.1.9", "127.0.0.1"
PORT_TRIES = 20
SETTINGS: dict[str, Any] = {
    "allow_addresses": [OUTSIDE],
    "obey_robots": False,
    "rate": "unlimited",
    "max_attempts": 1,
    "per_host": 1,
}


@asynccontextmanager
async def both_sites() -> AsyncIterator[tuple[HostileSite, HostileSite]]:
    """The site, and the operator's own server on the same port. A port that is free there may be in use here."""
    async with AsyncExitStack() as stack:
        for _ in range(PORT_TRIES):
            site = await stack.enter_async_context(HostileSite(host=OUTSIDE))
            try:
                inside = await stack.enter_async_context(HostileSite(host=INSIDE, port=site.port))
            except OSError:
                continue
            yield site, inside
            return
        raise RuntimeError("no port is free on both addresses")


class NameServer:
    """Says where the site is, then where the operator's own server is. Keeps what it was asked."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.asked: list[str] = []

    def clock(self) -> float:
        return self.now

    async def look_up(self, host: str) -> Sequence[str]:
        self.asked.append(host)
        if host == "mixed.test":
            return [INSIDE, OUTSIDE]
        return [OUTSIDE] if self.asked.count(host) == 1 else [INSIDE]


class Visitor(Spider):
    name = "visitor"
    names: NameServer

    def parse(self, page: Page) -> Iterator[Any]:
        yield Item(key=page.url)
        if page.url.endswith("/last"):
            self.names.now += ROUTE_SECONDS + 1
            yield page.follow("a")
        elif page.url.endswith("/first"):
            yield page.follow("a")


async def crawl(db: Path, start: list[str], names: NameServer) -> tuple[dict[str, str], set[str]]:
    """The reasons of the dead letters by URL, and the keys of the items."""
    spider = Visitor()
    spider.start, spider.names = start, names  # type: ignore[misc]  # an instance may have a start of its own
    async with opened(Places(frontier=str(db), store=str(db))) as (frontier, store):
        settings = settings_of(Visitor, SETTINGS).values
        crawl, _ = await begin(frontier, spider, settings=settings, reference="none")
        known = RecentKeys()
        intake = intake_of(crawl, known=known)
        await feed(frontier, crawl.id, requests_of(spider), intake=intake, max_pending=10**6, say=print)
        await frontier.set_feeding(crawl.id, "feeder", seconds=0)
        fetcher = HttpFetcher(record_of(crawl).settings, resolver=names.look_up, clock=names.clock)
        journey = Journey(
            spider_name=crawl.spider,
            worker="one",
            settings=settings,
            needs_rules=False,
            handlers=Handlers(spider, intake=intake, item_key="", seconds=5.0),
            intake=intake,
            lane_rules=LaneRules(frontier=frontier, settings=settings),
            passages=passages_for(fetcher, settings=settings),
        )
        parts = WorkerParts(spider=spider, frontier=frontier, store=store, journey=journey, known=known, say=print)
        async with asyncio.timeout(20):
            await Worker(crawl.id, name="one", settings=settings, parts=parts).run(asyncio.Event())
        await fetcher.close()
        letters = await frontier.dead(crawl.id, DeadFilter(), limit=10)
        items = {item.key async for item in store.items(ItemFilter(spider="visitor"))}
        return {letter.task.url: letter.reason for letter in letters}, items


async def test_a_name_that_moves_into_the_operators_network_is_refused(tmp_path: Path) -> None:
    names = NameServer()
    async with both_sites() as (site, inside):
        site.pages = {
            "/first": answer(b"<a href=/last>on</a>"),
            "/last": answer(b"<a href=/stolen>on</a>"),
        }
        base = f"http://rebinding.test:{site.port}"
        dead, items = await crawl(tmp_path / "shoal.db", [f"{base}/first"], names)
    assert items == {f"{base}/first", f"{base}/last"}
    assert list(dead) == [f"{base}/stolen"]
    assert dead[f"{base}/stolen"].startswith("refused_address: rebinding.test is at 127.0.0.1, a loopback address")
    assert names.asked == ["rebinding.test"] * 2
    assert inside.requests == []


async def test_of_several_addresses_only_the_allowed_one_is_connected_to(tmp_path: Path) -> None:
    names = NameServer()
    async with both_sites() as (site, inside):
        url = f"http://mixed.test:{site.port}/ok"
        dead, items = await crawl(tmp_path / "shoal.db", [url], names)
    assert (dead, items) == ({}, {url})
    assert (len(site.requests), inside.requests) == (1, [])
