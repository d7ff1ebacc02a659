"""Carries out the deeds of a plan, in their order, while a crawl runs."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

from shoal.frontier.base import Frontier
from shoal.model import Crawl, Progress
from shoal.testing.chaos.diary import until
from shoal.testing.chaos.plan import Deed, Event
from shoal.testing.chaos.reserve import Reserve

# After the page count that an event waits for: so that kills do not always follow a settle.
LONGEST_DELAY_SECONDS = 0.3
# These take seconds; other deeds go on meanwhile.
ASIDE = frozenset({Deed.FREEZE, Deed.STRAGGLE, Deed.FEED})

Act = Callable[[], Awaitable[None]]


class Mischief:
    """Does what the schedule says, each deed by its act. Sets `enough` when it is told to stop, `calm` after its last
    deed."""

    def __init__(
        self,
        crawl: Crawl,
        *,
        frontier: Frontier,
        acts: Mapping[Deed, Act],
        reserve: Reserve,
        rng: random.Random,
        enough: asyncio.Event,
    ) -> None:
        self._crawl = crawl
        self._frontier = frontier
        self._acts = acts
        self._reserve = reserve
        self._rng = rng
        self._enough = enough
        self.calm = asyncio.Event()
        self._asides: list[asyncio.Future[None]] = []

    async def run(self, events: Sequence[Event]) -> None:
        """Carry out the events in order. Only a crawl that stands still, or has lost its workers, ends before the last
        one: the reserve keeps any other one from its end."""
        try:
            for event in events:
                progress = await until(partial(self._frontier.progress, self._crawl.id), partial(self._is_due, event))
                if progress.left == 0:
                    await self._reserve.give_some()
                await asyncio.sleep(self._rng.uniform(0, LONGEST_DELAY_SECONDS))
                if self._enough.is_set():
                    break
                act = self._acts[event.deed]
                if event.deed in ASIDE:
                    self._asides.append(asyncio.ensure_future(act()))
                else:
                    await act()
            await self._finish_asides()
        finally:
            for aside in self._asides:
                aside.cancel()
            await asyncio.gather(*self._asides, return_exceptions=True)
            self.calm.set()

    def stop(self) -> None:
        """Begin no further event; finish those that were begun."""
        self._enough.set()

    async def _finish_asides(self) -> None:
        """Wait for deeds that take long. One that still looks for a worker which has done pages gets pages for it."""
        waiting = asyncio.gather(*self._asides)
        await until(
            partial(self._frontier.progress, self._crawl.id), lambda progress: waiting.done() or progress.left == 0
        )
        await self._reserve.give_all()
        await waiting

    def _is_due(self, event: Event, progress: Progress) -> bool:
        """Also when all pages but the reserve are done: they are fewer than planned where some became dead letters."""
        return self._enough.is_set() or progress.done >= event.at or progress.left == 0
