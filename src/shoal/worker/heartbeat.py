"""The heartbeats of a worker, and its share of scarce work, computed from the heartbeats of the other workers."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from shoal.errors import ServerUnreachable, StorageError
from shoal.exits.offered import offer_counts
from shoal.exits.troubles import MOST_LINES
from shoal.frontier.base import Frontier
from shoal.model import Heartbeat, Pool
from shoal.version import __version__
from shoal.worker.machine import resident_bytes, this_machine, usable_cores
from shoal.worker.tally import CpuLoad, RecentRate, Tally


def share_of(mine: int, others: Iterable[Heartbeat]) -> int | None:
    """The requests in flight of all workers with free slots, divided by the number of these workers; at least 1. None:
    no other worker has free slots.

    `mine` is the highest number of this worker lately: at a given moment most requests to a fast host may have
    landed."""
    with_room = [most for beat in others if (most := max(beat.busy, beat.most)) < beat.slots]
    if not with_room:
        return None
    return max(1, (mine + sum(with_room)) // (1 + len(with_room)))


def portion_of(mine: int, share: int | None) -> float:
    """The part of the places freed by its own landed requests that a worker leases again where caps bind: below 1 while
    it holds more than its share."""
    return 1.0 if share is None or mine <= share else share / mine


BEAT_SECONDS = 1.0
LAST_BEAT_SECONDS = 2.0
OTHERS_SECONDS = 5.0
OTHERS_PER_BEAT = 10

Reach = Callable[[Callable[[], Awaitable[Any]]], Awaitable[Any]]


class Doing(NamedTuple):
    """What a worker does now: pages in hand, most requests in flight since the last reading, pages done, its troubles,
    and its slots."""

    busy: int
    most: int
    pages: int
    troubles: tuple[str, ...]
    slots: int


class Heartbeats:
    """Sends heartbeats every second until cancelled. `reach` repeats a call until the frontier can be reached.

    `share` is how many leases the worker may hold while work is scarce; None: no limit. `portion` is the part of the
    places freed by its own landed requests that it leases again."""

    def __init__(
        self,
        worker: str,
        *,
        crawl: str,
        pid: int,
        frontier: Frontier,
        reach: Reach,
        doing: Callable[[], Doing],
        tally: Tally,
        kinds: tuple[str, ...],
        offers: tuple[Pool, ...] = (),
        code: str = "",
        clock: Callable[[], float],
        monotonic: Callable[[], float],
    ) -> None:
        self._worker = worker
        self._crawl = crawl
        self._pid = pid
        self._frontier = frontier
        self._reach = reach
        self._doing = doing
        self._tally = tally
        self._kinds = kinds
        self._offers = offer_counts(offers)
        self._code = code
        self._clock = clock
        self._monotonic = monotonic
        self._started = clock()
        self.share: int | None = None
        self.portion = 1.0

    async def run(self) -> None:
        """Send heartbeats, and read those of the other workers now and then."""
        rate, load = RecentRate(), CpuLoad()
        beats_to_reading = 0
        while True:
            doing = self._doing()
            beat = self._beat(doing, rate.read(self._monotonic(), doing.pages), load.read())
            await self._reach(partial(self._frontier.beat, beat))
            if beats_to_reading <= 0:
                beats_to_reading = await self._read_others(doing.most)
            beats_to_reading -= 1
            await asyncio.sleep(BEAT_SECONDS)

    async def leave(self) -> None:
        """Send the last heartbeat: all pages, and their rate since the start. Gives up soon: a silent worker counts as
        gone anyway."""
        left, doing = self._clock(), self._doing()
        rate = doing.pages / (left - self._started) if left > self._started else 0.0
        with contextlib.suppress(TimeoutError, ServerUnreachable, StorageError):
            async with asyncio.timeout(LAST_BEAT_SECONDS):
                await self._frontier.beat(self._beat(doing, rate, 0.0, left=left))

    async def _read_others(self, mine: int) -> int:
        """Compute this worker's share. Returns after how many beats to read again: more workers cost more to read."""
        beats = await self._reach(partial(self._frontier.workers, within=OTHERS_SECONDS))
        others = [
            beat
            for beat in beats
            # Only workers that do the same kinds of tasks share the work.
            if beat.crawl == self._crawl and beat.worker != self._worker and {*beat.kinds} & {*self._kinds}
        ]
        self.share = share_of(mine, others)
        self.portion = portion_of(mine, self.share)
        return 1 + len(beats) // OTHERS_PER_BEAT

    def _beat(self, doing: Doing, rate: float, load: float, *, left: float = 0.0) -> Heartbeat:
        return Heartbeat(
            worker=self._worker,
            crawl=self._crawl,
            host=socket.gethostname(),
            pid=self._pid,
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
