"""A few pages are measured and stand for all: their parsing, and the spider's own code."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from shoal import Item, Page, Request, Spider
from shoal.journey.cpu_shares import FIRST_PAGES, HANDLER, PAGES_PER_SAMPLE, TAKING_IN, CpuShares, WatchedPage
from shoal.journey.handlers import Handlers
from shoal.journey.intake import Intake
from shoal.settings.table import Settings
from shoal.testing.clock import FakeClock
from shoal.testing.fakes import respond, task_for
from shoal.urls.canonical import UrlRules

URL = "https://a.test/"


class Plain(Spider):
    """Takes three seconds by the clock of the test."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock

    def parse(self, page: Page) -> Iterator[Any]:
        self.clock.advance(2.0)
        yield Item(title=page.text("h1"))
        self.clock.advance(1.0)
        yield Request("/next")
        yield page.follow("a")

    async def slow(self, page: Page) -> Any:
        self.clock.advance(2.0)
        await asyncio.sleep(0)
        self.clock.advance(1.0)
        return Item(title=page.text("h1"))

    def fails(self, page: Page) -> None:
        self.clock.advance(3.0)
        raise ValueError(page.url)


async def run(shares: CpuShares, handler: str, *, clock: FakeClock) -> Any:
    settings = Settings()
    rules = UrlRules(settings, start_hosts=["a.test"])
    handlers = Handlers(Plain(clock), intake=Intake(rules, settings), item_key="", seconds=5.0)
    watch = shares.next()
    assert watch is not None
    page = WatchedPage(
        respond(URL, "<h1>x</h1><a href=/1>y</a>"), task=task_for(URL, handler=handler), resolver=rules, watch=watch
    )
    try:
        return await handlers.run(page)
    finally:
        handlers.close()


async def test_the_time_of_a_handler_is_measured_without_what_shoal_does_for_it() -> None:
    clock = FakeClock()
    shares = CpuShares(clock=clock)
    harvest = await run(shares, "parse", clock=clock)
    assert (len(harvest.items), sorted(task.url for task in harvest.found.tasks.values())) == (
        1,
        ["https://a.test/1", "https://a.test/next"],
    )
    assert (shares.parse, shares.handler) == (0.0, 3.0)


async def test_the_steps_of_an_async_handler_are_measured_and_its_waits_are_not() -> None:
    clock = FakeClock()
    shares = CpuShares(clock=clock)

    async def others() -> None:
        clock.advance(100.0)

    harvest, _ = await asyncio.gather(run(shares, "slow", clock=clock), others())
    assert len(harvest.items) == 1
    assert shares.handler == 3.0


async def test_a_handler_that_fails_is_measured_as_well() -> None:
    clock = FakeClock()
    shares = CpuShares(clock=clock)
    with pytest.raises(ValueError, match=URL):
        await run(shares, "fails", clock=clock)
    assert shares.handler == 3.0


def test_parsing_inside_other_work_is_charged_to_parsing_alone() -> None:
    clock = FakeClock()
    shares = CpuShares(clock=clock)
    watch = shares.next()
    assert watch is not None

    class Slow(WatchedPage):
        def _utf8(self) -> bytes:
            clock.advance(5.0)
            return super()._utf8()

    page = Slow(respond(URL, "<p>x"), task=task_for(URL), resolver=UrlRules(Settings()), watch=watch)
    watch.switch(HANDLER)
    clock.advance(1.0)
    former = watch.switch(TAKING_IN)
    page.parsed()
    page.parsed()
    watch.switch(former)
    clock.advance(1.0)
    watch.switch(None)
    clock.advance(9.0)
    assert (shares.parse, shares.handler) == (5.0, 2.0)


def test_the_first_pages_are_measured_then_a_few_that_stand_for_the_others() -> None:
    clock = FakeClock()
    shares = CpuShares(clock=clock)
    measured = 0
    pages = 100 * PAGES_PER_SAMPLE
    for number in range(pages):
        watch = shares.next()
        assert watch is not None or number >= FIRST_PAGES
        if watch is not None:
            measured += 1
            watch.switch(HANDLER)
            clock.advance(1.0)
            watch.switch(None)
    assert measured < pages / 8
    assert shares.handler == pytest.approx(pages, abs=2 * PAGES_PER_SAMPLE)
