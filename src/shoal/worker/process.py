"""What the workers of one process share: slots, by the priority of their crawls, and the isolation of suspect pages.

Nine of ten slots go to the highest priority and one to all other crawls together: strict priority would starve them.
Slots are counted, not starts: with one start in ten a lower crawl with slow pages would hold more and more slots.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from shoal.model import Lease
from shoal.worker.black_box import BlackBox
from shoal.worker.renewals import OpenFrontier
from shoal.worker.retirement import Retirement

# One slot in ten is for the crawls of lower priority together; one start in ten if the process has fewer slots.
LOWER_PART: Final = 10


class Claim(NamedTuple):
    """One crawl's slots: how many it holds, when it last got one (a sequence number), whether it wants more, and the
    most that it may have."""

    crawl: str
    priority: int
    held: int
    served: int
    wants: bool
    most: int


def grants(claims: Sequence[Claim], *, size: int, since_lower: int) -> dict[str, int]:
    """How many more of `size` slots each crawl that wants more gets now.

    The crawls of the highest priority share nine tenths, or as many as they may have; the others take turns at the
    rest. `since_lower`: starts of the highest priority since the last start of the others."""
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
        # Keep a slot for the next start of the lower crawls, unless they have a page in flight.
        most = min(most, LOWER_PART - 1 - since_lower)
    return given | _given(highest, left - part, free=most)


def _part_of_lower(slots: int, since_lower: int) -> int:
    if slots >= LOWER_PART:
        return slots // LOWER_PART
    return min(slots, int(since_lower >= LOWER_PART - 1))


def _given(claims: Sequence[Claim], slots: int, *, free: int) -> dict[str, int]:
    """The free slots that each of these crawls gets, which share `slots`."""
    free = max(0, min(free, slots - sum(claim.held for claim in claims)))
    shares = _shares(claims, max(0, slots))
    given = {}
    for claim in claims:
        given[claim.crawl] = min(free, max(0, shares[claim.crawl] - claim.held))
        free -= given[claim.crawl]
    return given


def _shares(claims: Sequence[Claim], slots: int) -> dict[str, int]:
    """An equal share of the slots for each crawl, up to its maximum; leftovers go to those served longest ago."""
    shares: dict[str, int] = {}
    while claims and (small := [claim for claim in claims if claim.most <= slots // len(claims)]):
        shares |= {claim.crawl: claim.most for claim in small}
        slots -= sum(claim.most for claim in small)
        claims = [claim for claim in claims if claim.crawl not in shares]
    each, more = divmod(slots, len(claims) or 1)
    return shares | {claim.crawl: each + (index < more) for index, claim in enumerate(claims)}


# A crawl that was refused slots and has not asked again for this long wants none.
WANTS_SECONDS: Final = 1.0
# Between two distributions of freed slots, unless a quarter of all is free: one costs as much as a lease.
DISTRIBUTE_SECONDS: Final = 0.01


class SharedSlots:
    """The slots that all crawls of the process share: as many as the crawl with the highest concurrency has."""

    def __init__(
        self, *, retirement: Retirement | None = None, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.size = 0
        self.held = 0
        self._retirement = retirement
        self._monotonic = monotonic
        self._holders: dict[str, SlotHolder] = {}
        self._priorities: dict[str, int] = {}
        self._wanting: dict[SlotHolder, float] = {}
        self._asking = self._sequence = self._since_lower = 0
        self._distributes_soon = False

    def prioritise(self, crawl: str, priority: int) -> None:
        """Set the priority of a crawl."""
        self._priorities[crawl] = priority
        if (holder := self._holders.get(crawl)) is not None and holder.priority != priority:
            holder.priority = priority
            self._distribute_soon()

    def join(self, crawl: str, *, size: int, wake: Callable[[], None]) -> SlotHolder:
        """A worker begins on this crawl, with at most `size` slots; `wake` makes it ask again."""
        holder = SlotHolder(self, crawl, size=size, priority=self._priorities.get(crawl, 0), wake=wake)
        self._holders[crawl] = holder
        self._measure()
        return holder

    def quit(self, holder: SlotHolder) -> None:
        """The worker has ended."""
        self.held -= holder.held
        holder.held = 0
        # A new worker may have joined on the same crawl.
        if self._holders.get(holder.crawl) is holder:
            del self._holders[holder.crawl]
        self._measure()
        self.withdraw(holder)

    def room(self, holder: SlotHolder, wanted: int) -> int:
        """How many of `wanted` slots a crawl gets now. If fewer, it is woken when there are more."""
        if self._retirement is not None:
            wanted = min(wanted, self._retirement.pages_left(asked=self._asking))
        if wanted <= 0:
            return 0
        if self._wanting:
            self._forget_silent()
        room = min(wanted, self.size - self.held)
        is_first = holder not in self._wanting
        if len(self._wanting) > (not is_first):
            self._wanting[holder] = self._monotonic() + WANTS_SECONDS
            room = min(room, grants(self._claims(), size=self.size, since_lower=self._since_lower)[holder.crawl])
        if room < wanted:
            self._wanting[holder] = self._monotonic() + WANTS_SECONDS
        elif is_first:
            self._wanting.pop(holder, None)
        return max(0, room)

    def withdraw(self, holder: SlotHolder) -> None:
        """The crawl wants no more slots for now: the others may have them."""
        if self._wanting.pop(holder, None) is not None:
            self._distribute_soon()

    def wants(self, holder: SlotHolder) -> bool:
        """Whether the crawl waits for slots that it was refused."""
        return holder in self._wanting

    @contextmanager
    def asking(self, holder: SlotHolder, number: int) -> Iterator[None]:
        """Reserve the slots for `number` leases during a lease call."""
        self._asking += number
        self.hold(holder, number)
        try:
            yield
        finally:
            self._asking -= number
            self.hold(holder, -number)

    def hold(self, holder: SlotHolder, change: int) -> None:
        """Change the number of slots that the crawl holds."""
        holder.held += change
        self.held += change
        if change < 0 and self._wanting:
            self._distribute_soon()

    def start(self, holder: SlotHolder) -> None:
        """A request of the crawl takes a slot."""
        self.hold(holder, 1)
        self._sequence += 1
        holder.served = self._sequence
        if self._wanting:
            if any(other.priority > holder.priority for other in self._wanting):
                self._since_lower = 0
            elif any(other.priority < holder.priority for other in self._wanting):
                self._since_lower += 1

    def _measure(self) -> None:
        self.size = max((holder.size for holder in self._holders.values()), default=0)

    def _claims(self) -> list[Claim]:
        return [
            Claim(holder.crawl, holder.priority, holder.held, holder.served, holder in self._wanting, holder.size)
            for holder in self._holders.values()
        ]

    def _forget_silent(self) -> None:
        now = self._monotonic()
        for holder, until in list(self._wanting.items()):
            if until <= now:
                self.withdraw(holder)

    def _distribute_soon(self) -> None:
        if self._distributes_soon or not self._wanting:
            return
        self._distributes_soon = True
        is_urgent = 4 * (self.size - self.held) >= self.size
        asyncio.get_running_loop().call_later(0.0 if is_urgent else DISTRIBUTE_SECONDS, self._distribute)

    def _distribute(self) -> None:
        """Wake the crawls that get slots now."""
        self._distributes_soon = False
        self._forget_silent()
        given = grants(self._claims(), size=self.size, since_lower=self._since_lower)
        for holder in self._wanting:
            if given.get(holder.crawl):
                holder.wake()


class SlotHolder:
    """One crawl of the process: how many of the shared slots it holds, and when it last got one."""

    def __init__(self, common: SharedSlots, crawl: str, *, size: int, priority: int, wake: Callable[[], None]) -> None:
        self.common = common
        self.crawl = crawl
        self.size = size
        self.priority = priority
        self.wake = wake
        self.held = self.served = 0


class Isolation:
    """Lets a page that was leased alone, because it may have killed a process, run with no other page in the process.

    A worker leases nothing while `is_free` is not set."""

    def __init__(self) -> None:
        self.is_free = asyncio.Event()
        self.is_free.set()
        self._holdings: list[Mapping[int, Lease]] = []
        self._asking = 0
        self._owner: Lease | None = None

    def join(self, held: Mapping[int, Lease]) -> None:
        """A worker begins; `held` are its leases, kept up to date by it."""
        self._holdings.append(held)

    def quit(self, held: Mapping[int, Lease]) -> None:
        """The worker with these leases has ended."""
        # By identity: the leases of two workers may be equal.
        self._holdings = [one for one in self._holdings if one is not held]

    @property
    def in_hand(self) -> int:
        """How many leases the workers of this process hold."""
        return sum(len(held) for held in self._holdings)

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        """A worker is in a lease call."""
        self._asking += 1
        try:
            yield
        finally:
            self._asking -= 1

    def claims(self, lease: Lease) -> bool:
        """Whether this page may begin: no other page is in hand. From the first call until `leave` no worker leases,
        and no other page that was leased alone begins."""
        if self._owner is None:
            self._owner = lease
            self.is_free.clear()
        # Another page leased alone waits while this one is the owner.
        in_company = any(not one.alone for held in self._holdings for one in held.values())
        return self._owner is lease and not self._asking and not in_company

    def leave(self, lease: Lease) -> None:
        """This page is settled, or will not begin."""
        if self._owner is lease:
            self._owner = None
            self.is_free.set()


@dataclass(frozen=True)
class ProcessContext:
    """What the workers of one process share. `open_frontier` opens a second connection, for renewals while a handler
    blocks the event loop; `code` is the digest of the spider's code."""

    box: BlackBox
    isolation: Isolation = field(default_factory=Isolation)
    open_frontier: OpenFrontier | None = None
    code: str = ""
    slots: SharedSlots | None = None
    retirement: Retirement | None = None
