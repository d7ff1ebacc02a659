"""Every deed of a chaos run is done before the crawl is finished, however soon its pages are."""

from __future__ import annotations

import asyncio
import random

from shoal.crawl.beginning import begin
from shoal.model import Crawl, CrawlState, Done
from shoal.settings.table import Settings
from shoal.testing.chaos.graph_spider import Graph
from shoal.testing.chaos.mischief import Act, Mischief
from shoal.testing.chaos.plan import Deed, Event
from shoal.testing.chaos.reserve import Reserve
from shoal.testing.clock import FakeClock
from shoal.testing.memory_frontier import MemoryFrontier

NEVER = 10**6
URLS = [f"http://shop.test/{number}" for number in range(10)]
FAR_AHEAD = 1e6  # the pace is not what is tested here


class Run:
    """A crawl of nothing but its reserve, by a worker that is quicker than every deed."""

    def __init__(self, crawl: Crawl, frontier: MemoryFrontier, *, deeds: int) -> None:
        self.crawl = crawl
        self.frontier = frontier
        self.reserve = Reserve(crawl, URLS, frontier=frontier, deeds=deeds)
        self.seen: list[tuple[CrawlState, int]] = []

    @classmethod
    async def begun(cls, *, deeds: int) -> Run:
        clock = FakeClock()
        frontier = MemoryFrontier(clock=clock, monotonic=clock.steady)
        spider = Graph()
        spider.start = [URLS[0]]  # type: ignore[misc]  # an instance may have a start of its own
        crawl, _ = await begin(frontier, spider, settings=Settings(), reference="shoal.testing.chaos.graph_spider")
        await frontier.set_feeding(crawl.id, "feeder", seconds=0)
        return cls(crawl, frontier, deeds=deeds)

    async def attack(self, events: list[Event], *, act: Act | None = None) -> None:
        acts = {event.deed: act or self._see for event in events}
        rng, enough = random.Random(1), asyncio.Event()
        mischief = Mischief(self.crawl, frontier=self.frontier, acts=acts, reserve=self.reserve, rng=rng, enough=enough)
        await self.reserve.hold()
        await asyncio.gather(mischief.run(events), self.reserve.run(mischief.calm), self._work())

    async def _see(self) -> None:
        progress = await self.frontier.progress(self.crawl.id)
        self.seen.append((progress.state, progress.known))

    async def _work(self) -> None:
        while True:
            batch = await self.frontier.lease([self.crawl.id], 100, worker="w", seconds=60.0, horizon=FAR_AHEAD)
            await self.frontier.settle([Done(lease=lease) for lease in batch.leases])
            if batch.finished:
                return
            await asyncio.sleep(0.001)


async def test_deeds_that_no_page_count_makes_due_are_done_while_the_crawl_runs() -> None:
    run = await Run.begun(deeds=4)
    await run.attack([Event(NEVER, Deed.RESET)] * 4)
    assert [state for state, _ in run.seen] == [CrawlState.RUNNING] * 4
    assert (await run.frontier.progress(run.crawl.id)).done == len(URLS)


async def test_each_deed_gets_some_pages_of_the_reserve_and_the_last_ones_stay() -> None:
    run = await Run.begun(deeds=4)
    await run.attack([Event(NEVER, Deed.RESET)] * 4)
    assert [known for _, known in run.seen] == [2, 4, 6, 8]


async def test_more_deeds_than_pages_are_done_as_well() -> None:
    run = await Run.begun(deeds=15)
    await run.attack([Event(NEVER, Deed.RESET)] * 15)
    assert len(run.seen) == 15
    assert run.seen[-1] == (CrawlState.RUNNING, len(URLS) - 1)


async def test_a_deed_that_needs_a_worker_with_pages_gets_the_last_ones() -> None:
    run = await Run.begun(deeds=1)
    met = asyncio.Event()

    async def freeze() -> None:
        while (await run.frontier.progress(run.crawl.id)).done < len(URLS):  # noqa: ASYNC110 -- as the deed does
            await asyncio.sleep(0.01)
        met.set()

    await run.attack([Event(NEVER, Deed.FREEZE)], act=freeze)
    assert met.is_set()
