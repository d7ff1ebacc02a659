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

# After the page count that an event waits for: so that kills do not always follow a settle.
LONGEST_DELAY_SECONDS = 0.3
# These take seconds; other deeds go on meanwhile.
ASIDE = frozenset({Deed.FREEZE, Deed.STRAGGLE, Deed.FEED})

Act = Callable[[], Awaitable[None]]


class Mischief:
    """Does what the schedule says, each deed by its act. Sets `enough` when it is told to stop."""

    def __init__(
        self,
        crawl: Crawl,
        *,
        frontier: Frontier,
        acts: Mapping[Deed, Act],
        rng: random.Random,
        enough: asyncio.Event,
    ) -> None:
        self._crawl = crawl
        self._frontier = frontier
        self._acts = acts
        self._rng = rng
        self._enough = enough
        self._asides: list[asyncio.Future[None]] = []

    async def run(self, events: Sequence[Event]) -> None:
        """Carry out the events in order; those that are not due before the crawl ends are left out."""
        try:
            for event in events:
                await until(partial(self._frontier.progress, self._crawl.id), partial(self._is_due, event))
                await asyncio.sleep(self._rng.uniform(0, LONGEST_DELAY_SECONDS))
                if self._enough.is_set():
                    break
                act = self._acts[event.deed]
                if event.deed in ASIDE:
                    self._asides.append(asyncio.ensure_future(act()))
                else:
                    await act()
            await asyncio.gather(*self._asides)
        finally:
            for aside in self._asides:
                aside.cancel()
            await asyncio.gather(*self._asides, return_exceptions=True)

    def stop(self) -> None:
        """Begin no further event; finish those that were begun."""
        self._enough.set()

    def _is_due(self, event: Event, progress: Progress) -> bool:
        return self._enough.is_set() or progress.done >= event.at
