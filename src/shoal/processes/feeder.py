"""Feeds a crawl its start, under a name and for a time of its own: several processes may feed one crawl at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable

from shoal.errors import ServerUnreachable, ShoalError, StorageError
from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import FEEDER_SECONDS
from shoal.journey.intake import Intake
from shoal.processes.outages import until_reachable
from shoal.processes.sources import feed, requests_of
from shoal.spider.spider import Spider, Stdin

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
