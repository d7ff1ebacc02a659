"""The slots that the crawls of one worker process have in common. When they are scarce, priority decides."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from shoal.processes.retirement import Retirement
from shoal.processes.slot_shares import Claim, grants

# A crawl that was refused slots, and has not asked again for so long, wants none.
WANTS_SECONDS: Final = 1.0
# Between two looks at who gets what was freed, unless a quarter of all slots is free: a look costs as much as a lease.
LOOK_SECONDS: Final = 0.01


class CommonSlots:
    """As many slots as the crawl with the most asks for: all crawls of the process together never have more."""

    def __init__(
        self, *, retirement: Retirement | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.size = 0
        self.held = 0
        self._retirement = retirement
        self._monotonic = monotonic
        self._places: dict[str, Place] = {}
        self._priorities: dict[str, int] = {}
        self._wanting: dict[Place, float] = {}
        self._asking = self._sequence = self._since_lower = 0
        self._looks_soon = False

    def prioritise(self, crawl: str, priority: int) -> None:
        """From now on the crawl has this priority."""
        self._priorities[crawl] = priority
        if (place := self._places.get(crawl)) is not None and place.priority != priority:
            place.priority = priority
            self._look_soon()

    def join(self, crawl: str, *, size: int, wake: Callable[[], None]) -> Place:
        """A worker begins on this crawl, with so many slots at most; `wake` lets it ask again."""
        place = Place(self, crawl, size=size, priority=self._priorities.get(crawl, 0), wake=wake)
        self._places[crawl] = place
        self._measure()
        return place

    def quit(self, place: Place) -> None:
        """The worker has ended."""
        self.held -= place.held
        place.held = 0
        # A worker that began anew on the crawl may have taken its place.
        if self._places.get(place.crawl) is place:
            del self._places[place.crawl]
        self._measure()
        self.content(place)

    def room(self, place: Place, wanted: int) -> int:
        """How many of the slots that a crawl wants it gets now. One that gets fewer is woken when there are more."""
        if self._retirement is not None:
            wanted = min(wanted, self._retirement.pages_left(asked=self._asking))
        if wanted <= 0:
            return 0
        if self._wanting:
            self._forget_silent()
        room = min(wanted, self.size - self.held)
        is_first = place not in self._wanting
        if len(self._wanting) > (not is_first):
            self._wanting[place] = self._monotonic() + WANTS_SECONDS
            room = min(room, grants(self._claims(), size=self.size, since_lower=self._since_lower)[place.crawl])
        if room < wanted:
            self._wanting[place] = self._monotonic() + WANTS_SECONDS
        elif is_first:
            self._wanting.pop(place, None)
        return max(0, room)

    def content(self, place: Place) -> None:
        """The crawl wants no more slots for now: the others may have them."""
        if self._wanting.pop(place, None) is not None:
            self._look_soon()

    def wants(self, place: Place) -> bool:
        """Whether the crawl was refused slots that it wants."""
        return place in self._wanting

    @contextmanager
    def asking(self, place: Place, number: int) -> Iterator[None]:
        """A crawl asks for so many leases: meanwhile nobody else takes the slots for them."""
        self._asking += number
        self.hold(place, number)
        try:
            yield
        finally:
            self._asking -= number
            self.hold(place, -number)

    def hold(self, place: Place, change: int) -> None:
        """The crawl holds so many slots more, or fewer."""
        place.held += change
        self.held += change
        if change < 0 and self._wanting:
            self._look_soon()

    def start(self, place: Place) -> None:
        """A request of the crawl takes a slot."""
        self.hold(place, 1)
        self._sequence += 1
        place.served = self._sequence
        if self._wanting:
            if any(other.priority > place.priority for other in self._wanting):
                self._since_lower = 0
            elif any(other.priority < place.priority for other in self._wanting):
                self._since_lower += 1

    def _measure(self) -> None:
        self.size = max((place.size for place in self._places.values()), default=0)

    def _claims(self) -> list[Claim]:
        return [
            Claim(place.crawl, place.priority, place.held, place.served, place in self._wanting, place.size)
            for place in self._places.values()
        ]

    def _forget_silent(self) -> None:
        now = self._monotonic()
        for place, until in list(self._wanting.items()):
            if until <= now:
                self.content(place)

    def _look_soon(self) -> None:
        if self._looks_soon or not self._wanting:
            return
        self._looks_soon = True
        is_urgent = 4 * (self.size - self.held) >= self.size
        asyncio.get_running_loop().call_later(0.0 if is_urgent else LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """Wake those who get slots now."""
        self._looks_soon = False
        self._forget_silent()
        given = grants(self._claims(), size=self.size, since_lower=self._since_lower)
        for place in self._wanting:
            if given.get(place.crawl):
                place.wake()


class Place:
    """One crawl among those of its process: how many of the common slots it holds, and when it last got one."""

    def __init__(self, common: CommonSlots, crawl: str, *, size: int, priority: int, wake: Callable[[], None]) -> None:
        self.common = common
        self.crawl = crawl
        self.size = size
        self.priority = priority
        self.wake = wake
        self.held = self.served = 0
