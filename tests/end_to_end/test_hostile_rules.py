"""Hosts that misbehave by their robots.txt, beside a good one that is crawled whole all the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hostile_crawl import GOOD, LIMITS, NASTY

from shoal import Item, Page, Spider
from shoal.crawl.beginning import begin
from shoal.crawl.opening import Places, opened
from shoal.crawl.sources import feed, requests_of
from shoal.frontier.base import Frontier
from shoal.insight.why import fate_of
from shoal.journey.robots import LONGEST_CRAWL_DELAY
from shoal.model import Crawl, LaneUpdate, TaskState
from shoal.policy.politeness import lent_interval
from shoal.run.building import worker_for
from shoal.run.intakes import intake_of, settings_of
from shoal.store.base import ItemFilter, Store
from shoal.testing.fakes import store_for_all
from shoal.testing.sites.hostile import HostileSite, answer
from shoal.testing.sites.site import CatalogueSite
from shoal.testing.waiting import eventually
from shoal.urls.canonical import lane_of

pytestmark = pytest.mark.full

SECONDS = 120.0
SLOTS = 4
EVERYTHING = b"User-agent: *\n"


def rules(*lines: bytes) -> bytes:
    return answer(EVERYTHING + b"\n".join(lines), headers="Content-Type: text/plain\r\n")


def moved(to: str) -> bytes:
    return answer(status="302 Found", headers=f"Location: {to}\r\n")


# What /robots.txt answers, and what becomes of the host's page. SLOW is a host with one start in five minutes.
ROBOTS = {
    "as large as a page may be": (rules(*[b"Disallow: /x"] * 300_000), "done: ok"),
    "a hundred thousand rules": (rules(*(b"Disallow: /x%d" % number for number in range(100_000))), "done: ok"),
    "wildcards": (rules(*(b"Disallow: /%b*b%d" % (b"*a" * 900, number) for number in range(500))), "done: ok"),
    "a delay of a year": (rules(b"Crawl-delay: 31536000"), "queued: "),
    "a delay that is none": (rules(b"Crawl-delay: nan", b"Crawl-delay: -1", b"Crawl-delay: 1e999"), "done: ok"),
    "without end": (moved("/endless"), "delayed: robots.txt: t"),  # too_large, or a time-out on a busy machine
    "never": (moved("/slow-headers"), "delayed: robots.txt: timeout"),
    "one byte at a time": (moved("/drip"), "delayed: robots.txt: timeout"),
    "a bomb": (moved("/bomb/stacked"), "delayed: robots.txt: bomb"),
    "noise": (moved("/garbage"), "delayed: robots.txt: protocol"),
    "an error": (moved("/503"), "delayed: robots.txt: http_503"),
    "redirects without end": (moved("/redirects/0"), "done: ok"),
    "a redirect to a file": (moved("file:///etc/passwd"), "done: ok"),
    "a redirect into the network": (moved("http://10.0.0.1/robots.txt"), "done: ok"),
    **{
        f"a redirect to a slow host, {number}": (moved("SLOW"), "delayed: robots.txt: redirects to a busy host")
        for number in range(2 * SLOTS)
    },
}


class Everything(Spider):
    name = "everything"

    def parse(self, page: Page) -> Iterator[Any]:
        yield Item(key=page.url)
        yield page.follow()


@dataclass
class Watched:
    """A crawl that is under way, and what was seen of it last."""

    crawl: Crawl
    frontier: Frontier
    store: Store
    said: list[str] = field(default_factory=list)
    fates: dict[str, str] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)
    intervals: list[float] = field(default_factory=list)

    async def look(self, start: dict[str, str], expected: set[str]) -> None:
        """Ask for the fate of each URL, and which of the expected pages are not there."""
        self.missing = expected - {item.key async for item in self.store.items(ItemFilter(spider="everything"))}
        for name, url in start.items():
            fate = await fate_of(url, [self.crawl], frontier=self.frontier, store_of=store_for_all(self.store))
            is_done = fate.state is TaskState.DONE and fate.fetch is not None
            self.fates[name] = f"{fate.state}: {fate.fetch.outcome if is_done and fate.fetch else fate.task.reason}"
        self.intervals = [lane.interval for lane in await self.frontier.lanes(self.crawl.id, limit=1000)]

    @property
    def is_as_it_should_be(self) -> bool:
        return not self.missing and all(self.fates[name].startswith(end) for name, (_, end) in ROBOTS.items())


@asynccontextmanager
async def working(db: str, start: list[str], *, slow_lane: str) -> AsyncIterator[Watched]:
    """A worker with few slots on its way through these."""
    spider = Everything()
    spider.start = start  # type: ignore[misc]  # an instance may have a start of its own
    deadlines = {"first_byte_seconds": 1.5, "idle_seconds": 1.5, "total_seconds": 3.0}
    limits = {**LIMITS, **deadlines, "obey_robots": True, "concurrency": SLOTS}
    settings = settings_of(Everything, limits).values
    async with opened(Places(frontier=db, store=db)) as (frontier, store):
        crawl, _ = await begin(frontier, spider, settings=settings, reference="none")
        watched = Watched(crawl, frontier, store)
        await feed(frontier, crawl.id, requests_of(spider), intake=intake_of(crawl), max_pending=10**6, say=print)
        await frontier.set_feeding(crawl.id, "feeder", seconds=0)
        await frontier.update_lane(crawl.id, slow_lane, LaneUpdate(interval=300.0, base_interval=300.0))
        await frontier.reserve(crawl.id, slow_lane)
        stop = asyncio.Event()
        async with worker_for(crawl, spider, frontier=frontier, store=store, say=watched.said.append) as worker:
            running = asyncio.create_task(worker.run(stop))
            yield watched
            stop.set()
            await running


async def crawl_beside_a_good_host(folder: Path) -> Watched:
    async with AsyncExitStack() as stack:
        slow = await stack.enter_async_context(HostileSite(host=f"{NASTY}250"))
        shop = await stack.enter_async_context(CatalogueSite(hosts=GOOD, products=30, flaky=0))
        start = {}
        for number, (name, (robots, _)) in enumerate(ROBOTS.items(), start=1):
            site = await stack.enter_async_context(HostileSite(pause=0.2, host=f"{NASTY}{number}"))
            site.pages["/robots.txt"] = robots.replace(b"SLOW", slow.url("/elsewhere.txt").encode())
            start[name] = site.url("/ok")
        urls = [*start.values(), shop.url]
        async with working(str(folder / "shoal.db"), urls, slow_lane=lane_of(slow.url("/"))) as watched:

            async def is_as_it_should_be() -> bool:
                await watched.look(start, set(shop.expected_urls()))
                return watched.is_as_it_should_be

            with suppress(TimeoutError):  # the tests then say which host is not
                await eventually(is_as_it_should_be, seconds=SECONDS, pause=0.2)
            return watched


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Watched:
    return asyncio.run(crawl_beside_a_good_host(tmp_path_factory.mktemp("rules")))


@pytest.mark.parametrize("name", ROBOTS)
def test_a_nasty_robots_txt_has_its_name_in_the_fate_of_the_page(watched: Watched, name: str) -> None:
    assert watched.fates[name].startswith(ROBOTS[name][1])


def test_the_good_host_is_crawled_whole(watched: Watched) -> None:
    assert not watched.missing


def test_no_host_gets_a_pace_slower_than_the_longest_delay(watched: Watched) -> None:
    assert 0 < max(watched.intervals) <= lent_interval(LONGEST_CRAWL_DELAY)
