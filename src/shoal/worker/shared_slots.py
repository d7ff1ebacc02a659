"""The slots that the crawls of one worker process have in common. When they are scarce, priority decides.

How the crawls of one worker process share its slots while there are too few for all. Pure; decision 60 says why.

A page that was lent alone has its whole process to itself, also where workers of several crawls share one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, NamedTuple

from shoal.model import Lease
from shoal.worker.retirement import Retirement

# Of so many slots one is for the crawls of lower priority, all together; where a process has fewer slots, of so many
# starts one.
LOWER_PART: Final = 10


class Claim(NamedTuple):
    """What one crawl has of the slots: how many it holds, and when it last got one. `wants` more than it holds, and may
    have `most` at once."""

    crawl: str
    priority: int
    held: int
    served: int
    wants: bool
    most: int


def grants(claims: Sequence[Claim], *, size: int, since_lower: int) -> dict[str, int]:
    """How many of `size` slots each crawl that wants more gets now, beside those that it holds.

    The crawls of the highest priority share nine tenths, or as many as they may have, the others take turns at the
    rest; who wants no more keeps what it has. `since_lower`: starts of the highest since the last one of the others."""
    free = size - sum(claim.held for claim in claims)
    left = size - sum(claim.held for claim in claims if not claim.wants)
    wanting = sorted((claim for claim in claims if claim.wants), key=lambda claim: claim.served)
    top = max((claim.priority for claim in wanting), default=0)
    highest = [claim for claim in wanting if claim.priority == top]
    lower = [claim for claim in wanting if claim.priority < top]
    part = max(_part_of_lower(left, since_lower), left - sum(claim.most for claim in highest))
    part = min(part, sum(claim.most for claim in lower))
    given = _given(lower, part, free=free)
    most = free - sum(given.values())
    if lower and left < LOWER_PART and not any(claim.held for claim in lower):
        # Their next start is due after so many of the highest. While a page of theirs is on its way, however slow it
        # is, nobody waits for that start.
        most = min(most, LOWER_PART - 1 - since_lower)
    return given | _given(highest, left - part, free=most)


def _part_of_lower(slots: int, since_lower: int) -> int:
    if slots >= LOWER_PART:
        return slots // LOWER_PART
    return min(slots, int(since_lower >= LOWER_PART - 1))


def _given(claims: Sequence[Claim], slots: int, *, free: int) -> dict[str, int]:
    """What these, who share so many slots, get of those that are free."""
    free = max(0, min(free, slots - sum(claim.held for claim in claims)))
    shares = _shares(claims, max(0, slots))
    given = {}
    for claim in claims:
        given[claim.crawl] = min(free, max(0, shares[claim.crawl] - claim.held))
        free -= given[claim.crawl]
    return given


def _shares(claims: Sequence[Claim], slots: int) -> dict[str, int]:
    """The same number of slots for each, or as many as it may have: the others share the rest. What is left over goes
    to those that were served longest ago."""
    shares: dict[str, int] = {}
    while claims and (small := [claim for claim in claims if claim.most <= slots // len(claims)]):
        shares |= {claim.crawl: claim.most for claim in small}
        slots -= sum(claim.most for claim in small)
        claims = [claim for claim in claims if claim.crawl not in shares]
    each, more = divmod(slots, len(claims) or 1)
    return shares | {claim.crawl: each + (index < more) for index, claim in enumerate(claims)}


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


class Solitude:
    """What the workers of one process hold, and which of them has a page that must be alone.

    A worker takes no leases while `is_free` is not set."""

    def __init__(self) -> None:
        self.is_free = asyncio.Event()
        self.is_free.set()
        self._holdings: list[Mapping[int, Lease]] = []
        self._asking = 0
        self._owner: Lease | None = None

    def join(self, held: Mapping[int, Lease]) -> None:
        """A worker begins in this process; its leases are in `held`."""
        self._holdings.append(held)

    def quit(self, held: Mapping[int, Lease]) -> None:
        """The worker with these leases has ended."""
        # By identity: what two workers hold may be equal.
        self._holdings = [one for one in self._holdings if one is not held]

    @property
    def in_hand(self) -> int:
        """How many leases the workers of this process hold."""
        return sum(len(held) for held in self._holdings)

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """A worker asks for leases, which it does not hold yet."""
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1

    def claims(self, lease: Lease) -> bool:
        """Whether this page may begin: no other page is in hand. From the first call on until `leave`, no worker takes
        a lease, and no other page that must be alone begins."""
        if self._owner is None:
            self._owner = lease
            self.is_free.clear()
        # Another page that must be alone has not begun as long as this one is the owner's.
        in_company = any(not one.alone for held in self._holdings for one in held.values())
        return self._owner is lease and not self._asking and not in_company

    def leave(self, lease: Lease) -> None:
        """This page is settled, or will not begin."""
        if self._owner is lease:
            self._owner = None
            self.is_free.set()
