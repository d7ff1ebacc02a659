"""CPU time of pages by part (parsing, the spider's handlers, shoal's intake), estimated from a sample of the pages."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

from selectolax.lexbor import LexborHTMLParser

from shoal.fetch.base import Response
from shoal.journey.harvest import Harvest
from shoal.spider.follow import Iteration
from shoal.spider.page import Page
from shoal.spider.spider import Request

# The first pages are all measured, then one in so many: reading the clock takes up to 1 % of a page's time.
FIRST_PAGES = 16
PAGES_PER_SAMPLE = 16

PARSE: Final = 0
HANDLER: Final = 1
TAKING_IN: Final = 2  # shoal's own work on the output of handlers


class CpuShares:
    """The estimated CPU seconds of one worker's pages, by part."""

    def __init__(self, *, clock: Callable[[], float] = time.thread_time) -> None:
        self.clock = clock
        self.seconds = [0.0, 0.0, 0.0]
        self._first = FIRST_PAGES
        self._gap = self._left = 1
        # Random, as pages of one kind may come at regular intervals; seeded, so that runs can be compared.
        self._rng = random.Random(0)  # noqa: S311 -- samples, not secrets

    @property
    def parse(self) -> float:
        return self.seconds[PARSE]

    @property
    def handler(self) -> float:
        return self.seconds[HANDLER]

    def next(self) -> PageWatch | None:
        """The stopwatch for the next page; None: do not measure it."""
        self._left -= 1
        if self._left:
            return None
        watch = PageWatch(self, weight=self._gap)
        self._first -= 1
        self._gap = self._left = 1 if self._first > 0 else self._rng.randrange(1, 2 * PAGES_PER_SAMPLE)
        return watch


class PageWatch:
    """The stopwatch of one page. `weight`: how many pages it stands for."""

    __slots__ = ("_part", "_shares", "_since", "_weight")

    def __init__(self, shares: CpuShares, *, weight: int) -> None:
        self._shares = shares
        self._weight = weight
        self._part: int | None = None
        self._since = 0.0

    def switch(self, part: int | None) -> int | None:
        """Count the time from now on for this part (None: for none); returns the former part."""
        now, former = self._shares.clock(), self._part
        if former is not None:
            self._shares.seconds[former] += (now - self._since) * self._weight
        self._part, self._since = part, now
        return former

    def beside(self, alarm: AbstractContextManager[None]) -> AbstractContextManager[None]:
        """The alarm, and the time under it counted as the handler's."""
        return _Measured(alarm, self)


class _Measured:
    def __init__(self, alarm: AbstractContextManager[None], watch: PageWatch) -> None:
        self._alarm = alarm
        self._watch = watch

    def __enter__(self) -> None:
        self._alarm.__enter__()
        self._watch.switch(HANDLER)

    def __exit__(self, *error: Any) -> None:
        self._watch.switch(None)
        self._alarm.__exit__(*error)


class WatchedPage(Page):
    """A page whose parsing time is measured."""

    __slots__ = ("watch",)

    def __init__(self, response: Response, *, watch: PageWatch, **options: Any) -> None:
        super().__init__(response, **options)
        self.watch = watch

    def parsed(self) -> LexborHTMLParser:
        if self._tree is not None:
            return self._tree
        former = self.watch.switch(PARSE)
        try:
            return super().parsed()
        finally:
            self.watch.switch(former)


class WatchedHarvest(Harvest):
    """Collects the output of a measured page. Plain requests count as the handler's time: keeping one takes less than
    reading the clock."""

    __slots__ = ("_watch",)

    def __init__(self, page: WatchedPage, **options: Any) -> None:
        super().__init__(page, **options)
        self._watch = page.watch

    def add(self, output: Any) -> None:
        if type(output) is Request:
            super().add(output)
            return
        former = self._watch.switch(TAKING_IN)
        try:
            super().add(output)
        finally:
            self._watch.switch(former)

    def add_whole(self, iteration: Iteration) -> bool:
        former = self._watch.switch(TAKING_IN)
        try:
            return super().add_whole(iteration)
        finally:
            self._watch.switch(former)

    def take_in(self) -> None:
        former = self._watch.switch(TAKING_IN)
        try:
            super().take_in()
        finally:
            self._watch.switch(former)
