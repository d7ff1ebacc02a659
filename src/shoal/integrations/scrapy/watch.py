"""The spider middleware that tells when the start is fed, and which answers reach the spider."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from scrapy.crawler import Crawler
from scrapy.http import Response

from shoal.integrations.scrapy.bridge import Bridge, bridge_of


class SpiderWatch:
    """Comes last before the spider: an answer that another middleware keeps back does not get here."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> SpiderWatch:
        """The middleware of one spider's run."""
        return cls(bridge_of(crawler))

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Pass the start on, and note its end. One that breaks off was not fed to its end."""
        async for output in start:
            yield output
        self._bridge.inflow.has_fed = True

    def process_spider_input(self, response: Response) -> None:
        """Note that the answer reaches the spider."""
        visit = self._bridge.visits.of(response.request) if response.request is not None else None
        if visit is not None:
            visit.reached_spider = True
