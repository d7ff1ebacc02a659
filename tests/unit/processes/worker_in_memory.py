"""A worker over a scripted site, its frontier and store in memory, for the tests of its loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from shoal import Item, Page, Spider
from shoal.fetch.base import Fetch, Response
from shoal.journey.handlers import Handlers
from shoal.journey.intake import Intake
from shoal.journey.journey import Journey
from shoal.journey.recent_keys import RecentKeys
from shoal.journey.robots import LaneRules
from shoal.model import Crawl
from shoal.settings.table import Settings
from shoal.testing.fakes import Answer, ScriptedFetcher, Watched, passages_for, respond, task_for
from shoal.testing.memory_frontier import MemoryFrontier
from shoal.testing.memory_store import MemoryStore
from shoal.testing.waiting import eventually
from shoal.urls.canonical import UrlRules
from shoal.worker.black_box import BlackBox
from shoal.worker.parts import WorkerParts
from shoal.worker.shared_slots import Solitude
from shoal.worker.tally import CountedFetcher, Tally
from shoal.worker.worker import Worker

HOST = "https://a.test"
FAST: dict[str, Any] = {"rate": "unlimited", "obey_robots": False, "flush_seconds": 0.01, "retry_seconds": 0.01}


class Links(Spider):
    """Every page gives one item and its links."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def parse(self, page: Page) -> Any:
        yield Item(key=page.url)
        yield page.follow("a")

    async def started(self) -> None:
        self.heard.append("started")

    async def finished(self) -> None:
        self.heard.append("finished")


class Bench:
    """A worker over a scripted site. `site` gives the links of each page."""

    def __init__(
        self,
        site: dict[str, str],
        *,
        interval: float = 0.0,
        feeding: bool = False,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        **settings: Any,
    ) -> None:
        self.settings = Settings(**{**FAST, **settings})
        self.crawl = Crawl(id="c", spider="links", interval=interval, cap=100, feeding=feeding)
        self.clock = clock
        self.monotonic = monotonic
        self.calls: list[tuple[str, Any]] = []
        self.said: list[str] = []
        self.memory = MemoryFrontier(clock=clock, monotonic=monotonic)
        self.frontier: Any = Watched(self.memory, self.calls)
        self.store = MemoryStore()
        self.watched_store: Any = Watched(self.store, self.calls)
        self.fetcher = ScriptedFetcher({HOST + path: page(HOST + path, links) for path, links in site.items()})
        self.spider = Links()
        self.known = RecentKeys()
        self.stop = asyncio.Event()
        self.solitude = Solitude()
        self.box = BlackBox.private()
        self.tally = Tally()

    def worker(self) -> Worker:
        intake = Intake(UrlRules(self.settings, start_hosts=["a.test"]), self.settings, known=self.known)
        journey = Journey(
            spider_name="links",
            worker="w",
            settings=self.settings,
            needs_rules=False,
            handlers=Handlers(self.spider, intake=intake, item_key="", seconds=5.0),
            intake=intake,
            lane_rules=LaneRules(frontier=self.frontier, settings=self.settings),
            passages=passages_for(
                CountedFetcher(self.fetcher, self.tally), settings=self.settings, pools=self.crawl.pools
            ),
            shares=self.tally.shares,
        )
        parts = WorkerParts(
            spider=self.spider,
            frontier=self.frontier,
            store=self.watched_store,
            journey=journey,
            known=self.known,
            say=self.said.append,
            solitude=self.solitude,
            box=self.box.worker("w", patience=30.0),
            tally=self.tally,
            clock=self.clock,
            monotonic=self.monotonic,
        )
        return Worker("c", name="w", settings=self.settings, parts=parts)

    async def begin(self, *paths: str) -> None:
        await self.memory.open_crawl(self.crawl)
        await self.memory.put("c", [task_for(HOST + path) for path in paths])

    async def run(self) -> int:
        async with asyncio.timeout(20):
            return await self.worker().run(self.stop)

    async def background(self) -> asyncio.Task[int]:
        """Start the worker with the fetcher's gate shut; returns when it has asked for its first page."""
        self.fetcher.gate.clear()
        running = asyncio.create_task(self.run())
        await eventually(lambda: self.fetcher.requests)
        return running

    def fetched(self) -> list[str]:
        return [request.url.removeprefix(HOST) for request in self.fetcher.requests]

    def count(self, verb: str) -> int:
        """How often the worker called this method of its frontier or store."""
        return [name for name, _ in self.calls].count(verb)


def page(url: str, links: str) -> Response:
    return respond(url, "".join(f"<a href={link}>x</a>" for link in links.split()))


class OneByOne(ScriptedFetcher):
    """Answers as many requests as it is told to."""

    def __init__(self) -> None:
        super().__init__(otherwise=respond(f"{HOST}/", ""))
        self.allowed = asyncio.Semaphore(0)

    async def fetch(self, request: Fetch) -> Answer:
        answer = await super().fetch(request)
        await self.allowed.acquire()
        return answer

    def let_go(self, number: int) -> None:
        for _ in range(number):
            self.allowed.release()
