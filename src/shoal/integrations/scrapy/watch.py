"""The spider middleware that tells which answers reach the spider."""

from __future__ import annotations

from scrapy.http import Response

from shoal.integrations.scrapy.visits import CURRENT


class SpiderWatch:
    """Comes last before the spider: an answer that another middleware keeps back does not get here."""

    def process_spider_input(self, response: Response) -> None:
        """Note that the answer reaches the spider."""
        # Not by the answer's request: a middleware may have put another one in its place.
        visit = CURRENT.get()
        if visit is not None:
            visit.reached_spider = True
