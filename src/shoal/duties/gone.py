"""Marks items as gone that have been missing from their pages for long enough."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from shoal.crawl.record import record_of
from shoal.journey.revisits import RevisitRule
from shoal.model import Crawl
from shoal.store.base import Store
from shoal.text.errors import several

GONE_SECONDS: Final = 60.0


class GoneMarker:
    """Marks the missing items of one crawl every `every` seconds; 0: never, the crawl does not revisit pages.

    An item is gone when it has been missing for the longest time between two visits of a page: until then it may have
    moved to a page that was not visited again yet."""

    def __init__(self, crawl: Crawl, *, say: Callable[[str], None], clock: Callable[[], float] = time.time) -> None:
        rule = RevisitRule.of(record_of(crawl).settings)
        self._patience = rule.longest or rule.seconds
        self._spider = crawl.spider
        self._say = say
        self._clock = clock
        self.every = min(self._patience, GONE_SECONDS)

    async def mark(self, store: Store) -> None:
        """Mark the items that are gone now. Several processes may call it: each item is marked once."""
        now = self._clock()
        gone = await store.mark_gone(self._spider, at=now, missing_before=now - self._patience)
        if gone:
            self._say(f"{several(gone, 'item')} of {self._spider} gone from the site: `shoal diff` shows them")
