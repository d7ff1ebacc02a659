"""A worker whose handler fails on each of its first pages pauses the crawl instead of failing all its pages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from worker_in_memory import HOST, Bench

from shoal import Item, Page, Spider
from shoal.model import CrawlState, DeadFilter, Released
from shoal.policy.failures import is_stopped
from shoal.testing.fakes import task_for
from shoal.testing.waiting import eventually

PAGES = [f"/{number}" for number in range(150)]


class Broken(Spider):
    """Fails on every page until it is mended."""

    def __init__(self) -> None:
        self.is_mended = False

    async def parse(self, page: Page) -> Any:
        await asyncio.sleep(0)
        return Item(key=page.url, price=1 if self.is_mended else {}["price"])


class Unstorable(Spider):
    def parse(self, page: Page) -> Any:
        yield Item(key="k\0" if page.url else "", url=page.url)


async def begun(bench: Bench, pages: Sequence[str] = PAGES) -> None:
    """Every page has one attempt: what fails is a dead letter at once."""
    await bench.memory.open_crawl(bench.crawl)
    await bench.memory.put("c", [task_for(HOST + path, max_attempts=1) for path in pages])


async def paused(bench: Bench) -> tuple[asyncio.Task[int], Any]:
    """The running worker, and the crawl's counters once nothing is in its hands."""
    running = asyncio.create_task(bench.run())

    async def idle() -> Any:
        progress = await bench.memory.progress("c")
        return progress if progress.state is CrawlState.PAUSED and not progress.leased else None

    return running, await eventually(idle)


async def ended(bench: Bench, running: asyncio.Task[int]) -> None:
    bench.stop.set()
    await running


async def test_a_handler_that_always_fails_pauses_the_crawl_with_its_reason() -> None:
    bench = Bench(dict.fromkeys(PAGES, ""), stop_after_failures=50, concurrency=32)
    bench.spider = Broken()  # type: ignore[assignment]  # another spider on the same bench
    await begun(bench)
    running, progress = await paused(bench)
    line = Broken.parse.__code__.co_firstlineno + 2
    what = f"KeyError: 'price' at test_worker_failing.py:{line}"
    assert progress.reason == f"parse failed on its first 50 pages: {what}"
    assert is_stopped(progress)
    assert progress.dead == 50
    assert progress.queued == len(PAGES) - 50
    assert progress.notes == {
        f"raised KeyError test_worker_failing.py:{line}": 50,
        "start failed handler": 50,
    }
    assert f"paused: {progress.reason}" in bench.said
    handed = [result for name, given in bench.calls if name == "settle" for result in given]
    assert any(isinstance(result, Released) for result in handed)
    await ended(bench, running)


async def test_a_crawl_that_is_resumed_after_the_handler_was_mended_goes_on() -> None:
    bench = Bench(dict.fromkeys(PAGES, ""), stop_after_failures=50)
    spider = Broken()
    bench.spider = spider  # type: ignore[assignment]  # another spider on the same bench
    await begun(bench)
    running, _ = await paused(bench)
    spider.is_mended = True
    await bench.memory.requeue_dead("c", DeadFilter())
    await bench.memory.set_state("c", CrawlState.RUNNING)
    await running
    progress = await bench.memory.progress("c")
    assert (progress.done, progress.dead, progress.reason) == (len(PAGES), 0, "")


async def test_a_resumed_crawl_whose_handler_still_fails_is_counted_afresh() -> None:
    bench = Bench(dict.fromkeys(PAGES, ""), stop_after_failures=50)
    bench.spider = Broken()  # type: ignore[assignment]  # another spider on the same bench
    await begun(bench)
    running, _ = await paused(bench)
    await bench.memory.set_state("c", CrawlState.RUNNING)

    async def stopped_again() -> bool:
        progress = await bench.memory.progress("c")
        return progress.state is CrawlState.PAUSED and not progress.leased

    await eventually(stopped_again)
    assert (await bench.memory.progress("c")).dead == 100
    await ended(bench, running)


async def test_a_spider_whose_every_item_is_unstorable_is_stopped_as_well() -> None:
    bench = Bench(dict.fromkeys(PAGES, ""), stop_after_failures=20, concurrency=8, flush_pages=4)
    bench.spider = Unstorable()  # type: ignore[assignment]  # another spider on the same bench
    await begun(bench)
    running, progress = await paused(bench)
    assert progress.reason.startswith("parse failed on its first ")
    assert "unstorable: item" in progress.reason
    assert 20 <= progress.dead < 100
    assert progress.outcomes == {"unstorable": progress.dead}
    await ended(bench, running)


async def test_failures_among_pages_that_succeed_stop_nothing() -> None:
    class Half(Spider):
        def parse(self, page: Page) -> Any:
            if page.url != f"{HOST}/0":
                raise ValueError("odd page")

    pages = PAGES[:30]
    bench = Bench(dict.fromkeys(pages, ""), stop_after_failures=5, concurrency=1)
    bench.spider = Half()  # type: ignore[assignment]  # another spider on the same bench
    await begun(bench, pages)
    await bench.run()
    progress = await bench.memory.progress("c")
    assert (progress.done, progress.dead) == (1, len(pages) - 1)


async def test_a_crawl_that_was_cancelled_meanwhile_stays_cancelled() -> None:
    bench = Bench(dict.fromkeys(PAGES, ""), stop_after_failures=5)

    class Cancelling(Spider):
        async def parse(self, page: Page) -> Any:
            await bench.memory.set_state("c", CrawlState.CANCELLED)
            raise ValueError("no price")

    bench.spider = Cancelling()  # type: ignore[assignment]  # another spider on the same bench
    await begun(bench)
    await bench.run()
    progress = await bench.memory.progress("c")
    assert (progress.state, progress.queued, progress.leased) == (CrawlState.CANCELLED, 0, 0)
