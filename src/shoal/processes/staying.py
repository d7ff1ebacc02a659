"""Keeps crawls open for what comes from outside: while one process says that it stays, a crawl is not finished."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from shoal.errors import ShoalError, UsageError
from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import FEEDER_SECONDS, STAYER
from shoal.model import Crawl
from shoal.processes.crawl_record import is_unfinished, record_of
from shoal.processes.outages import until_reachable

RENEW_SECONDS: Final = 3.0
LAST_ANSWER_SECONDS: Final = 3.0


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
            if now or self._clock() - self._held.get(crawl, -RENEW_SECONDS) >= RENEW_SECONDS:
                await self._say_seconds(crawl, FEEDER_SECONDS)
                self._held[crawl] = self._clock()

    async def hold_also(self, crawl: str) -> None:
        """Keep this one open, too, from now on."""
        await self.hold([*self._held, crawl])

    async def stay(self, crawl: str) -> None:
        """Keep one crawl open until cancelled."""
        while True:
            await self.hold([crawl])
            await asyncio.sleep(RENEW_SECONDS)

    async def leave(self) -> None:
        """Let the crawls end. Not for long: the frontier may be away, and nobody waits for one that is gone."""
        with contextlib.suppress(ShoalError, TimeoutError):
            async with asyncio.timeout(LAST_ANSWER_SECONDS):
                for crawl in list(self._held):
                    await self._frontier.set_feeding(crawl, self._name, seconds=0)
        self._held.clear()

    async def _say_seconds(self, crawl: str, seconds: float) -> None:
        # One that was deleted meanwhile has nobody to wait for.
        with contextlib.suppress(UsageError):
            call = partial(self._frontier.set_feeding, crawl, self._name, seconds=seconds)
            await until_reachable(call, say=self._say)
