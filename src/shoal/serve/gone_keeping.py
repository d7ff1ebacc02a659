"""Items that are gone, marked by a serving process while it has the duty: workers alone do not."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import uuid
from collections.abc import Callable
from typing import Final

from shoal.crawl.record import is_readable
from shoal.duties.gone import GoneMarker
from shoal.errors import ShoalError, StorageBroken, StorageError
from shoal.model import Crawl, CrawlState
from shoal.serve.answers import Refusal
from shoal.serve.parts import Parts
from shoal.worker.workers import SILENT_SECONDS, is_at_work

DUTY: Final = "gone"
# How long a process that died keeps the others from its duty.
DUTY_SECONDS: Final = 30.0
LOOK_SECONDS: Final = 5.0
# What is not marked within it is marked at the next look: a store marks in steps.
MARKING_SECONDS: Final = 20.0


class GoneKeeping:
    """Marks items as gone in the stores of the running crawls that visit pages again."""

    def __init__(
        self,
        parts: Parts,
        *,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parts = parts
        self._say = say
        self._clock = clock
        self._steady = steady
        self._holder = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._next: dict[str, float] = {}
        self._troubles: dict[str, str] = {}

    async def look(self) -> None:
        """Mark what is due now, if the duty is ours."""
        async with self._parts.frontier.asking() as frontier:
            held = await frontier.hold_duty(DUTY, self._holder, seconds=DUTY_SECONDS)
            if not held.is_ours:
                return
            crawls = await self._parts.board.crawls(frontier)
            workers = await frontier.workers(within=SILENT_SECONDS)
        # While nobody works no page is visited: an item may have moved to one that nobody has seen yet.
        worked_on = {beat.crawl for beat in workers if is_at_work(beat)}
        for crawl in crawls:
            if crawl.id in worked_on and crawl.state is CrawlState.RUNNING and is_readable(crawl):
                await self._look_at(crawl)

    async def finish(self) -> None:
        """Leave the duty to others."""
        async with self._parts.frontier.asking() as frontier:
            await frontier.hold_duty(DUTY, self._holder, seconds=0.0)

    async def _look_at(self, crawl: Crawl) -> None:
        marker, now = GoneMarker(crawl, say=self._say, clock=self._clock), self._steady()
        if not marker.every or now < self._next.get(crawl.id, now):
            return
        self._next[crawl.id] = now + marker.every
        trouble = ""
        try:
            trouble = await self._mark(crawl, marker)
        except (ShoalError, Refusal, OSError) as error:
            trouble = str(error)
        if trouble and trouble != self._troubles.get(crawl.id):
            self._say(f"items of {crawl.id} that are gone cannot be marked: {trouble}; trying again")
        self._troubles[crawl.id] = trouble

    async def _mark(self, crawl: Crawl, marker: GoneMarker) -> str:
        """Mark once; gives why the store refused."""
        async with self._parts.store_of(crawl).asking(seconds=MARKING_SECONDS) as store:
            try:
                await marker.mark(store)
            except StorageBroken:
                raise
            except StorageError as error:
                # Such as a role that may not change items. Who reads them is not to be told that the store is away.
                return str(error)
        return ""


async def mark_gone(parts: Parts, *, say: Callable[[str], None]) -> None:
    """Mark items as gone until cancelled. Of several processes that do, one marks."""
    if not parts.marks_gone:
        return
    keeping = GoneKeeping(parts, say=say)
    try:
        while True:
            # What cannot be reached is noted where it is asked for.
            with contextlib.suppress(ShoalError, OSError):
                await keeping.look()
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        with contextlib.suppress(ShoalError, OSError):
            await keeping.finish()
