"""The slots of a worker: requests that wait for their start or are on their way. A page that has landed holds none."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sized
from contextlib import AbstractContextManager

from shoal.model import Lease
from shoal.processes.common_slots import CommonSlots


class Slots:
    """`size` requests at once, and at most twice as many pages in hand: those that have landed wait in memory until
    they are handled and written.

    They are taken from those that the crawls of the process have in `common`."""

    def __init__(self, size: int, *, in_hand: Sized, crawl: str = "", common: CommonSlots | None = None) -> None:
        self.size = size
        self._common = common or CommonSlots()
        self._place = self._common.join(crawl, size=size, wake=self.wake)
        # The leases whose requests have landed, unless the frontier was told or has them settled.
        self.landed: dict[int, Lease] = {}
        self._in_hand = in_hand
        self._taken: set[int] = set()
        self._most = 0
        self._is_free = asyncio.Event()
        self._enough = 1

    @property
    def free(self) -> int:
        """How many requests more this crawl may have."""
        return min(self.size - len(self._taken), 2 * self.size - len(self._in_hand))

    @property
    def taken(self) -> int:
        return len(self._taken)

    @property
    def is_full(self) -> bool:
        """Whether it could start more requests if it had more slots."""
        return len(self._taken) >= self.size or self._common.wants(self._place)

    def room(self) -> int:
        """How many of the free slots it gets now; the others are for other crawls of the process."""
        return self._common.room(self._place, self.free)

    def content(self) -> None:
        """It wants no more slots for now."""
        self._common.content(self._place)

    def asking(self, number: int) -> AbstractContextManager[None]:
        """It asks for so many leases: meanwhile the slots for them are not given to others."""
        return self._common.asking(self._place, number)

    def quit(self) -> None:
        """The worker has ended."""
        self._common.quit(self._place)

    def take(self, lease: Lease) -> None:
        self._taken.add(lease.token)
        self._common.start(self._place)
        if len(self._taken) > self._most:
            self._most = len(self._taken)

    def most_since(self) -> int:
        """How many slots were taken at once since the last such question."""
        most, self._most = self._most, len(self._taken)
        return most

    def land(self, lease: Lease) -> None:
        """The request was answered, or will not be sent."""
        token = lease.token
        if token in self._taken:
            self._give_back(token)
            self.landed[token] = lease
            if self.size - len(self._taken) >= self._enough:
                self._is_free.set()

    def leave(self, token: int) -> None:
        """The page is no longer in hand: it waits to be written, or its lease was lost or released."""
        if token in self._taken:
            self._give_back(token)
        self._is_free.set()

    def _give_back(self, token: int) -> None:
        self._taken.remove(token)
        self._common.hold(self._place, -1)

    def forget(self, tokens: Iterable[int]) -> None:
        """The frontier knows that these have landed, or their leases are over."""
        for token in tokens:
            self.landed.pop(token, None)

    def wake(self) -> None:
        """Let the one who waits look again."""
        self._is_free.set()

    async def until_free(self, seconds: float, *, enough: int = 1) -> None:
        """Wait until so many slots may be free, at most this long. Also ends early: look again."""
        self._enough = enough
        self._is_free.clear()
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._is_free.wait()
        finally:
            self._enough = 1
