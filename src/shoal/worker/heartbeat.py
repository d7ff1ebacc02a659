"""The signs of life of one worker, and what it learns from those of the others: its share of the work.

How scarce work is shared: how much of it a worker leaves to the others. Pure.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from shoal.errors import ServerUnreachable, StorageError
from shoal.exits.offered import told
from shoal.exits.troubles import MOST_LINES
from shoal.insight.stats import CpuLoad, RecentRate
from shoal.model import WorkerBeat
from shoal.version import __version__
from shoal.worker.machine import this_machine, usable_cores
from shoal.worker.parts import WorkerParts
from shoal.worker.retirement import resident_bytes


def share_of(mine: int, others: Iterable[WorkerBeat]) -> int | None:
    """The requests that workers with room for more have on their way, divided by these workers; None: no other has it.

    `mine` is how many this worker had at once lately: at a single moment most of a fast host's may have landed. One
    that has none may always ask: the share is at least one."""
    with_room = [most for beat in others if (most := max(beat.busy, beat.most)) < beat.slots]
    if not with_room:
        return None
    return max(1, (mine + sum(with_room)) // (1 + len(with_room)))


def portion_of(mine: int, share: int | None) -> float:
    """The part of the places freed by its own landed requests that a worker takes again, where caps bind: less than
    all of them while it holds more than its share."""
    return 1.0 if share is None or mine <= share else share / mine


BEAT_SECONDS = 1.0
LAST_BEAT_SECONDS = 2.0
OTHERS_SECONDS = 5.0
OTHERS_PER_BEAT = 10

Reach = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]


class Doing(NamedTuple):
    """What a worker does right now: pages in hand, requests on their way at once since the last look, pages done, what
    hinders it, and how many requests it may have on their way."""

    busy: int
    most: int
    pages: int
    troubles: tuple[str, ...]
    slots: int


class Identity(NamedTuple):
    """What all signs of life of a worker say."""

    worker: str
    crawl: str
    pid: int


class SignsOfLife:
    """Sends them every second until cancelled. `look` says what the worker does; `reach` repeats a step until the
    frontier can be reached.

    `share` is how many leases the worker holds, while work is scarce, before it lets the others ask; None: no limit.
    `portion` is the part that it takes again of the places which its own landed requests free."""

    def __init__(self, who: Identity, *, parts: WorkerParts, reach: Reach, look: Callable[[], Doing]) -> None:
        self._who = who
        self._frontier = parts.frontier
        self._kinds = parts.kinds
        self._code = parts.code
        self._offers = told(parts.offers)
        self._clock = parts.clock
        self._monotonic = parts.monotonic
        self._reach = reach
        self._look = look
        self._started = parts.clock()
        self._tally = parts.tally
        self.share: int | None = None
        self.portion = 1.0

    async def run(self) -> None:
        """Send one after the other, and look at those of the others now and then."""
        rate, load = RecentRate(), CpuLoad()
        looks_in = 0
        while True:
            doing = self._look()
            beat = self._beat(doing, rate.read(self._monotonic(), doing.pages), load.read())
            await self._reach(partial(self._frontier.beat, beat))
            if looks_in <= 0:
                looks_in = await self._look_at_others(doing.most)
            looks_in -= 1
            await asyncio.sleep(BEAT_SECONDS)

    async def leave(self) -> None:
        """Send the last one: all pages, and their rate from the start on. Not for long: the server may be away, and a
        worker that is silent counts as gone."""
        left, doing = self._clock(), self._look()
        rate = doing.pages / (left - self._started) if left > self._started else 0.0
        with contextlib.suppress(TimeoutError, ServerUnreachable, StorageError):
            async with asyncio.timeout(LAST_BEAT_SECONDS):
                await self._frontier.beat(self._beat(doing, rate, 0.0, left=left))

    async def _look_at_others(self, mine: int) -> int:
        """Learn this worker's share of the work in hand; gives after how many beats to look again: the more workers
        there are, the more a look costs."""
        beats = await self._reach(partial(self._frontier.workers, within=OTHERS_SECONDS))
        others = [
            beat
            for beat in beats
            # Work that they cannot do is not shared with them.
            if beat.crawl == self._who.crawl and beat.worker != self._who.worker and {*beat.kinds} & {*self._kinds}
        ]
        self.share = share_of(mine, others)
        self.portion = portion_of(mine, self.share)
        return 1 + len(beats) // OTHERS_PER_BEAT

    def _beat(self, doing: Doing, rate: float, load: float, *, left: float = 0.0) -> WorkerBeat:
        return WorkerBeat(
            worker=self._who.worker,
            crawl=self._who.crawl,
            host=socket.gethostname(),
            pid=self._who.pid,
            version=__version__,
            slots=doing.slots,
            busy=doing.busy,
            pages=doing.pages,
            pages_per_second=rate,
            memory_bytes=resident_bytes(),
            started=self._started,
            machine=this_machine(),
            troubles=doing.troubles[:MOST_LINES],
            load=load,
            left=left,
            most=doing.most,
            figures=self._tally.figures(),
            cores=usable_cores(),
            kinds=self._kinds,
            code=self._code,
            offers=self._offers,
        )
