"""Feeds a crawl its start, and keeps crawls open for URLs from outside (`--stay`). A crawl is not finished while a
feeder or a stayer renews its note in the frontier; several processes may feed one crawl."""

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
    """The ids of the crawls that stay open."""
    return [crawl.id for crawl in crawls if crawl.settings and is_unfinished(crawl.state) and record_of(crawl).stays]


class Stayer:
    """Keeps crawls open, by a note that expires soon after its process is killed."""

    def __init__(
        self, frontier: Frontier, *, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._name = f"{STAYER}{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}"
        self._frontier = frontier
        self._say = say
        self._clock = clock
        self._held: dict[str, float] = {}

    async def hold(self, crawls: Sequence[str], *, now: bool = False) -> None:
        """Keep these crawls open, and no others. `now`: renew also if that was done a moment ago."""
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
        """Let the crawls end. Gives up soon: the note expires anyway."""
        with contextlib.suppress(ShoalError, TimeoutError):
            async with asyncio.timeout(STAY_ANSWER_SECONDS):
                for crawl in list(self._held):
                    await self._frontier.set_feeding(crawl, self._name, seconds=0)
        self._held.clear()

    async def _say_seconds(self, crawl: str, seconds: float) -> None:
        # The crawl may have been deleted meanwhile.
        with contextlib.suppress(UsageError):
            call = partial(self._frontier.set_feeding, crawl, self._name, seconds=seconds)
            await until_reachable(call, say=self._say)


REVIVER = "run again"  # the feeder of a resumed crawl until the run's own feeder begins
RENEW_SECONDS = 0.1
# A feeder that was silent for this long when another began counts as dead. At most the age of the other's process: a
# killed run that is restarted at once was silent for no longer. At least the longest silence of a live feeder.
SILENT_SECONDS = 0.3
# Within this time after its begin a feeder has seen a note of every live feeder.
HEARD_SECONDS = 3.0
OVER_AT_ONCE = 0.001
LAST_ANSWER_SECONDS = 3.0


class Feeder:
    """Feeds one crawl. `has_ended`: everything is fed."""

    def __init__(self, crawl: str, *, frontier: Frontier, say: Callable[[str], None]) -> None:
        self._crawl = crawl
        # Unique, also when the system reuses a process id.
        self._name = f"{socket.gethostname()}:{os.getpid()}:{os.urandom(4).hex()}"
        self._frontier = frontier
        self._say = say
        self._began = 0.0
        self._silent = SILENT_SECONDS
        self.has_ended = False

    async def begin(self) -> None:
        """Note that the start is fed from its beginning: the crawl is not finished before this feeder is done, and this
        feeder replaces those that have expired."""
        await self._say_seconds(FEEDER_SECONDS, makes_up=0.0)
        self._began = asyncio.get_running_loop().time()
        self._silent = max(RENEW_SECONDS, min(SILENT_SECONDS, time.process_time()))
        await until_reachable(lambda: self._frontier.set_feeding(self._crawl, REVIVER, seconds=0), say=self._say)

    async def make_up(self) -> None:
        """Replace feeders that were killed before this one began, so that the crawl does not wait until they expire."""
        await asyncio.sleep(self._began + HEARD_SECONDS - asyncio.get_running_loop().time())
        since = asyncio.get_running_loop().time() - self._began
        makes_up = max(0.0, FEEDER_SECONDS - self._silent - since)
        await self._say_seconds(0 if self.has_ended else FEEDER_SECONDS, makes_up=makes_up)

    async def feed(self, spider: Spider, *, intake: Intake) -> None:
        """Put the spider's start, and renew the note meanwhile."""
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
        """Note that everything is fed."""
        await self._say_seconds(0)
        self.has_ended = True

    async def go_on(self) -> None:
        """Renew the note. A crawl that finished meanwhile, because this process stood still, runs again."""
        await self._say_seconds(FEEDER_SECONDS)

    async def give_up(self) -> None:
        """Make this feeder count as lost, since it has not fed everything. Gives up soon: the note expires anyway."""
        with contextlib.suppress(ShoalError, TimeoutError):
            async with asyncio.timeout(LAST_ANSWER_SECONDS):
                await self._frontier.set_feeding(self._crawl, self._name, seconds=OVER_AT_ONCE)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            # If the frontier stays away, feeding itself ends with the same error.
            with contextlib.suppress(ServerUnreachable, StorageError):
                await self.go_on()

    async def _say_seconds(self, seconds: float, *, makes_up: float | None = None) -> None:
        await until_reachable(
            lambda: self._frontier.set_feeding(self._crawl, self._name, seconds=seconds, makes_up=makes_up),
            say=self._say,
        )
