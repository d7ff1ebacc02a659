"""A handler that raises StopCrawl stops the crawl: its page is done with what it gave, nothing more is fetched."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from worker_in_memory import HOST, Bench

from shoal import Item, Page, Spider, StopCrawl
from shoal.model import CrawlState, Done
from shoal.testing.memory_frontier import MemoryFrontier

PAGES = [f"/{number}" for number in range(20)]


class Stopping(Spider):
    frontier: MemoryFrontier

    def __init__(self, form: str) -> None:
        self.form = form

    def parse(self, page: Page) -> Any:
        return getattr(self, self.form)(page)

    def yielding(self, page: Page) -> Any:
        yield Item(key=page.url)
        yield page.follow("a")
        if page.url.endswith("/3"):
            raise StopCrawl("three\nis enough")
        yield Item(key=f"{page.url}#after")

    async def streaming(self, page: Page) -> Any:
        for part in self.yielding(page):
            await asyncio.sleep(0)
            yield part

    async def pausing(self, page: Page) -> Any:
        await self.frontier.set_state("c", CrawlState.PAUSED)
        raise StopCrawl("enough")


async def stopped(form: str, **settings: Any) -> Bench:
    bench = Bench({**dict.fromkeys(PAGES, ""), "/3": "/found"}, **settings)
    Stopping.frontier = bench.memory
    bench.spider = Stopping(form)  # type: ignore[assignment]  # another spider on the same bench
    await bench.begin(*PAGES)
    await bench.run()
    return bench


@pytest.mark.parametrize("form", ["yielding", "streaming"])
async def test_keeps_what_the_page_gave_and_leaves_the_rest(form: str) -> None:
    bench = await stopped(form, concurrency=1)
    progress = await bench.memory.progress("c")
    assert (progress.state, progress.reason) == (CrawlState.STOPPED, "spider: three is enough")
    assert (progress.leased, progress.dead) == (0, 0)
    assert progress.queued
    assert progress.known > len(PAGES)  # the links that it had yielded
    keys = {key for _, key in bench.store.rows}
    assert f"{HOST}/3" in keys
    assert f"{HOST}/3#after" not in keys


async def test_the_crawl_is_stopped_before_the_page_is_settled() -> None:
    bench = await stopped("yielding", concurrency=1)
    order = [
        name
        for name, given in bench.calls
        if name == "set_state"
        or (name == "settle" and any(isinstance(one, Done) and one.lease.task.url.endswith("/3") for one in given))
    ]
    assert order == ["set_state", "settle"]


async def test_a_crawl_that_was_paused_meanwhile_is_stopped_as_well() -> None:
    progress = await (await stopped("pausing", concurrency=1)).memory.progress("c")
    assert (progress.state, progress.reason) == (CrawlState.STOPPED, "spider: enough")


async def test_bytes_are_counted_where_a_limit_needs_them() -> None:
    bench = await stopped("yielding", max_bytes=1_000_000)
    notes = (await bench.memory.progress("c")).notes
    assert notes["bytes"] == sum(line.size for line in bench.store.log.values()) > 0
    assert "bytes" not in (await (await stopped("yielding")).memory.progress("c")).notes
