"""Feeds a crawl its start, under a name and for a time of its own: several processes may feed one crawl at once.

Keeps crawls open for what comes from outside: while one process says that it stays, a crawl is not finished.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from shoal.crawl.record import is_unfinished, record_of
from shoal.crawl.sources import feed, requests_of
from shoal.errors import ServerUnreachable, ShoalError, StorageError, UsageError
from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import FEEDER_SECONDS, STAYER
from shoal.journey.intake import Intake
from shoal.model import Crawl
from shoal.spider.spider import Spider, Stdin
from shoal.worker.outages import until_reachable

STAY_RENEW_SECONDS: Final = 3.0
STAY_ANSWER_SECONDS: Final = 3.0


def staying(crawls: Iterable[Crawl]) -> list[str]:
    """Those of these crawls that are to stay open."""
    return [crawl.id for crawl in crawls if crawl.settings and is_unfinished(crawl.state) and record_of(crawl).stays]


class Stayer:
    """Keeps crawls open, under a name and for a time of its own. One that is killed is not missed for long."""

    def __init__(
        self, frontier: Frontier, *, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = f"{STAYER}{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}"
        self._frontier = frontier
        self._say = say
        self._clock = clock
        self._held: dict[str, float] = {}

    async def hold(self, crawls: Sequence[str], *, now: bool = False) -> None:
        """Keep these crawls open, and no other ones. `now`: say so also if it was said a moment ago."""
        for crawl in [held for held in self._held if held not in crawls]:
            await self._say_seconds(crawl, 0)
            del self._held[crawl]
        for crawl in crawls:
            if now or self._clock() - self._held.get(crawl, -STAY_RENEW_SECONDS) >= STAY_RENEW_SECONDS:
                await self._say_seconds(crawl, FEEDER_SECONDS)
                self._held[crawl] = self._clock()

    async def hold_also(self, crawl: str) -> None:
        """Keep this one open, too, from now on."""
        await self.hold([*self._held, crawl])

    async def stay(self, crawl: str) -> None:
        """Keep one crawl open until cancelled."""
        while True:
            await self.hold([crawl])
            await asyncio.sleep(STAY_RENEW_SECONDS)

    async def leave(self) -> None:
        """Let the crawls end. Not for long: the frontier may be away, and nobody waits for one that is gone."""
        with contextlib.suppress(ShoalError, TimeoutError):
            async with asyncio.timeout(STAY_ANSWER_SECONDS):
                for crawl in list(self._held):
                    await self._frontier.set_feeding(crawl, self._name, seconds=0)
        self._held.clear()

    async def _say_seconds(self, crawl: str, seconds: float) -> None:
        # One that was deleted meanwhile has nobody to wait for.
        with contextlib.suppress(UsageError):
            call = partial(self._frontier.set_feeding, crawl, self._name, seconds=seconds)
            await until_reachable(call, say=self._say)


REVIVER = "run again"  # the feeder of a crawl that goes on, until the run's own one begins
RENEW_SECONDS = 0.1
# One that was silent for so long when another began was dead, as far as anybody can tell. At most as long as the other
# one had been a process by then: a killed run that is begun again at once was silent for no longer. At least as long as
# one that lives may be silent.
SILENT_SECONDS = 0.3
# So long after its begin a feeder has heard from every other one that is still there.
HEARD_SECONDS = 3.0
OVER_AT_ONCE = 0.001
LAST_ANSWER_SECONDS = 3.0


class Feeder:
    """Feeds one crawl. `has_ended`: everything is fed."""

    def __init__(self, crawl: str, *, frontier: Frontier, say: Callable[[str], None]) -> None:
        self._crawl = crawl
        # No other feeder has this name, also when the system gives a process id again.
        self._name = f"{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}"
        self._frontier = frontier
        self._say = say
        self._began = 0.0
        self._silent = SILENT_SECONDS
        self.has_ended = False

    async def begin(self) -> None:
        """Say that the start is fed from its beginning: the crawl is not finished before this feeder is done, and what
        was lost with earlier feeders is made up for."""
        await self._say_seconds(FEEDER_SECONDS, makes_up=0.0)
        self._began = asyncio.get_running_loop().time()
        self._silent = max(RENEW_SECONDS, min(SILENT_SECONDS, time.process_time()))
        await until_reachable(lambda: self._frontier.set_feeding(self._crawl, REVIVER, seconds=0), say=self._say)

    async def make_up(self) -> None:
        """Make up for feeders that were killed before this one began, and have given no sign since then. Nobody waits
        for them until their time is over."""
        await asyncio.sleep(self._began + HEARD_SECONDS - asyncio.get_running_loop().time())
        since = asyncio.get_running_loop().time() - self._began
        makes_up = max(0.0, FEEDER_SECONDS - self._silent - since)
        await self._say_seconds(0 if self.has_ended else FEEDER_SECONDS, makes_up=makes_up)

    async def feed(self, spider: Spider, *, intake: Intake) -> None:
        """Put the spider's start, and say again and again that there is more."""
        renewing = asyncio.create_task(self._renew())
        try:
            if not (isinstance(spider.start, Stdin) and sys.stdin.isatty()):
                await feed(
                    self._frontier,
                    self._crawl,
                    requests_of(spider),
                    intake=intake,
                    max_pending=intake.settings.max_pending,
                    say=self._say,
                )
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)
        await self.end()

    async def end(self) -> None:
        """Say that everything is fed."""
        await self._say_seconds(0)
        self.has_ended = True

    async def go_on(self) -> None:
        """Say that there is more. A crawl that was finished meanwhile, since this process stood still, runs again."""
        await self._say_seconds(FEEDER_SECONDS)

    async def give_up(self) -> None:
        """Let nobody wait for this feeder, which has not fed everything. Not for long: the frontier may be away."""
        with contextlib.suppress(ShoalError, TimeoutError):
            async with asyncio.timeout(LAST_ANSWER_SECONDS):
                await self._frontier.set_feeding(self._crawl, self._name, seconds=OVER_AT_ONCE)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            # What the frontier does not take for long ends the feeding itself, with the same error.
            with contextlib.suppress(ServerUnreachable, StorageError):
                await self.go_on()

    async def _say_seconds(self, seconds: float, *, makes_up: float | None = None) -> None:
        await until_reachable(
            lambda: self._frontier.set_feeding(self._crawl, self._name, seconds=seconds, makes_up=makes_up),
            say=self._say,
        )
