"""The last pages of a chaos run: kept back until every deed is done, however slow the machine is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

from shoal.crawl.sources import feed
from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import FEEDER_SECONDS
from shoal.model import Crawl
from shoal.run.intakes import intake_of
from shoal.spider.spider import Request
from shoal.testing.chaos.diary import unsaid
from shoal.worker.outages import until_reachable

RESERVE = "reserve"
# A feeder that begins again takes one that is silent for three seconds for dead.
RENEW_SECONDS = 0.5


class Reserve:
    """Feeds a few of its pages for each deed that comes when all other pages are done, and the rest at the end. Until
    the last deed is done the crawl is not finished. `is_empty`: no page will be fed any more."""

    def __init__(self, crawl: Crawl, urls: Sequence[str], *, frontier: Frontier, deeds: int) -> None:
        self._crawl = crawl
        self._urls = urls
        self._frontier = frontier
        self._step = max(1, len(urls) // (deeds + 1))
        self._given = 0
        self.is_empty = asyncio.Event()

    async def hold(self) -> None:
        """Keep the crawl from being finished. To be called before its workers start."""
        await self._say_seconds(FEEDER_SECONDS)

    async def run(self, calm: asyncio.Event) -> None:
        """Hold until `calm` is set, then feed the rest."""
        while not calm.is_set():
            await self.hold()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(RENEW_SECONDS):
                    await calm.wait()
        await self.give_all()
        await self._say_seconds(0)
        self.is_empty.set()

    async def give_some(self) -> None:
        """Feed a few pages, so that the next deed meets a crawl at work; never the last ones."""
        last = min(self._given + self._step, len(self._urls) - self._step)
        await self._put(self._urls[self._given : last])
        self._given = last

    async def give_all(self) -> None:
        """Feed every page, also those that were given: a server that was restarted may have forgotten them."""
        await self._put(self._urls)

    async def _put(self, urls: Sequence[str]) -> None:
        intake = intake_of(self._crawl)
        await feed(
            self._frontier,
            self._crawl.id,
            _requests(urls),
            intake=intake,
            max_pending=intake.settings.max_pending,
            say=unsaid,
        )

    async def _say_seconds(self, seconds: float) -> None:
        await until_reachable(lambda: self._frontier.set_feeding(self._crawl.id, RESERVE, seconds=seconds), say=unsaid)


async def _requests(urls: Sequence[str]) -> AsyncIterator[Request | None]:
    for url in urls:
        yield Request(url)
