"""A feeder says that it goes on as long as it feeds, and what became of it when it does not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from shoal import Pages, Request, Spider, Stdin, UrlFile
from shoal.crawl import feeder as module
from shoal.crawl.feeder import Feeder
from shoal.crawl.sources import start_mark
from shoal.errors import UsageError
from shoal.frontier.rules.constants import FEEDER_SECONDS
from shoal.journey.intake import Intake
from shoal.model import Crawl, CrawlState
from shoal.settings.table import Settings
from shoal.testing.clock import FakeClock
from shoal.testing.memory_frontier import MemoryFrontier
from shoal.testing.waiting import loop_turns
from shoal.urls.canonical import UrlRules


def spider_with(start: Any) -> Spider:
    return type("Fed", (Spider,), {"start": start, "parse": lambda self, page: None})()


@pytest.fixture
def intake() -> Intake:
    return Intake(UrlRules(Settings(), start_hosts=[]), Settings())


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def frontier(clock: FakeClock) -> MemoryFrontier:
    frontier = MemoryFrontier(clock=clock)
    await frontier.open_crawl(Crawl(id="c", spider="s", feeding=True))
    return frontier


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RENEW_SECONDS", 0.0)


async def is_finished(frontier: MemoryFrontier) -> bool:
    return bool((await frontier.lease(["c"], 0, worker="w", seconds=9.0, horizon=0.0)).finished)


@pytest.mark.usefixtures("often")
async def test_a_slow_source_keeps_the_crawl_from_ending(
    frontier: MemoryFrontier, clock: FakeClock, intake: Intake
) -> None:
    goes_on = asyncio.Event()

    async def start(_: Spider) -> AsyncIterator[str]:
        await goes_on.wait()
        yield "https://a.test/"

    feeder = Feeder("c", frontier=frontier, say=print)
    await feeder.begin()
    feeding = asyncio.create_task(feeder.feed(spider_with(start), intake=intake))
    for _ in range(3):
        clock.advance(FEEDER_SECONDS - 1)
        assert not await is_finished(frontier)
        await loop_turns()
    goes_on.set()
    await feeding
    assert feeder.has_ended
    progress = await frontier.progress("c")
    assert (progress.feeding, progress.feeders_lost, progress.queued) == (False, 0, 1)


async def test_a_feeder_that_gives_up_is_not_waited_for_and_counts_as_lost(
    frontier: MemoryFrontier, clock: FakeClock
) -> None:
    feeder = Feeder("c", frontier=frontier, say=print)
    await feeder.begin()
    await feeder.give_up()
    clock.advance(0.01)
    assert await is_finished(frontier)
    assert (await frontier.progress("c")).feeders_lost == 1
    await feeder.go_on()
    assert (await frontier.progress("c")).state is CrawlState.RUNNING


async def test_a_source_that_fails_is_not_the_end_of_the_start(frontier: MemoryFrontier, intake: Intake) -> None:
    def start(_: Spider) -> Any:
        yield "https://a.test/"
        raise UsageError("the list is gone")

    feeder = Feeder("c", frontier=frontier, say=print)
    await feeder.begin()
    with pytest.raises(UsageError, match="the list is gone"):
        await feeder.feed(spider_with(start), intake=intake)
    assert not feeder.has_ended
    assert (await frontier.progress("c")).feeding


@pytest.mark.parametrize(
    "other",
    [
        "https://a.test/2",
        ["https://a.test/", "https://a.test/"],
        [Request("https://a.test/", method="POST")],
        Pages("https://a.test/{}", last=3),
        Pages("https://a.test/{}", last=4),
        UrlFile("urls.txt"),
    ],
)
def test_another_start_has_another_mark(other: Any) -> None:
    mark = start_mark(spider_with("https://a.test/"))
    assert mark == start_mark(spider_with(["https://a.test/"])) != ""
    assert start_mark(spider_with(other)) not in ("", mark)


@pytest.mark.parametrize("start", [Stdin(), lambda _: ["https://a.test/"], ()])
def test_a_start_that_is_not_written_down_has_no_mark(start: Callable[..., Any]) -> None:
    assert start_mark(spider_with(start)) == ""
