"""When a worker asks for leases, for how many, and which of its landed requests it names then.

Whose turn it is to be handled: between a few pages the event loop sends requests and takes answers.

The slots of a worker: requests that wait for their start or are on their way. A page that has landed holds none.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Sized
from contextlib import AbstractContextManager

from shoal.model import Lease, LeaseBatch
from shoal.worker.heartbeat import SignsOfLife
from shoal.worker.shared_slots import CommonSlots

# Handled in one round of the event loop: a few milliseconds. All at once, when hundreds have landed together, would let
# no request start meanwhile: the next answers would come together as well.
PAGES_PER_ROUND = 8
# More pages that wait are a crowd: answers and starts then go first, so that the next pages come spread out. Not
# always: a round of the event loop costs as much as a tenth of a page.
CROWD = 128
PAGES_IN_A_CROWD = 2


class Turns:
    """Pages in the order in which they have landed, a few per round of the event loop."""

    def __init__(self) -> None:
        self._left = PAGES_PER_ROUND
        self._waiting: deque[asyncio.Future[None]] = deque()

    def next(self) -> asyncio.Future[None] | None:
        """What a page waits for before it is handled; None: nothing."""
        if self._left == 0:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            return turn
        if self._left == PAGES_PER_ROUND:
            asyncio.get_running_loop().call_soon(self._begin_round)
        self._left -= 1
        return None

    def _begin_round(self) -> None:
        waiting = self._waiting
        begun, most = 0, PAGES_IN_A_CROWD if len(waiting) > CROWD else PAGES_PER_ROUND
        while waiting and begun < most:
            turn = waiting.popleft()
            # The page's lease may be lost or released by now.
            if not turn.done():
                turn.set_result(None)
                begun += 1
        self._left = most - begun if begun else PAGES_PER_ROUND
        if begun:
            asyncio.get_running_loop().call_soon(self._begin_round)


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


# Between two lease calls, unless enough slots are free: a call costs as much as several leases.
ASK_SECONDS = 0.01
# So many free slots are enough, or a quarter of a smaller number of slots: more would start together, and so would
# their answers come.
ENOUGH_SLOTS = 32
# After a call that gave too few leases, caps may bind: so long the frontier is told which requests have landed.
CAPPED_SECONDS = 1.0


class LeaseCalls:
    """The times and sizes of one worker's lease calls.

    Where caps bind, a place that a landed request frees goes to the one who asks first, and that is the worker whose
    request it was. A worker that holds more than its share therefore takes only a part of them again."""

    def __init__(self, slots: Slots, *, signs: SignsOfLife, monotonic: Callable[[], float]) -> None:
        self._slots = slots
        self._signs = signs
        self._monotonic = monotonic
        self._enough = max(1, min(ENOUGH_SLOTS, slots.size // 4))
        self._ask_at = self._capped_until = -math.inf
        self._names_landed = False
        # Whether tasks wait for the places that landed requests free, as far as is known.
        self.landings_pay = False
        self._places = 0.0

    async def is_time(self, free: int) -> bool:
        """Whether so many free slots are to be filled now; if not, after a wait until that may have changed."""
        pause = self._ask_at - self._monotonic()
        if free < self._enough and pause > 0:
            await self._slots.until_free(pause, enough=self._enough)
            return False
        return True

    def landed(self) -> list[Lease]:
        """The landed requests that the next call names."""
        self._names_landed = self._monotonic() < self._capped_until
        return list(self._slots.landed.values()) if self._names_landed else []

    def limit(self, free: int, landed: Sequence[Lease]) -> int:
        """How many leases to ask for with so many free slots, in a call that names these landed requests."""
        share = self._signs.share
        if share is None or not self._names_landed:
            return free
        portion = self._signs.portion
        self._places = min(self._places + len(landed) * portion, self._slots.size)
        # One more, unless others have less: who never asked for more would not see that there is more.
        limit = max(share - self._slots.taken, int(self._places)) + (portion == 1.0)
        return max(0, min(free, limit))

    def answered(self, batch: LeaseBatch, *, free: int, limit: int, landed: Sequence[Lease]) -> None:
        """A call with so many free slots, for so many leases, which named these landed requests, has given this."""
        now = self._monotonic()
        self._ask_at = now + ASK_SECONDS
        if len(batch.leases) < free:
            self._capped_until = now + CAPPED_SECONDS
        self._places = max(0.0, self._places - len(batch.leases))
        self._slots.forget(lease.token for lease in landed)
        if not self._names_landed:
            # Says nothing about landings: the next call does, and comes soon.
            self.landings_pay = True
        elif limit:
            freed = {lease.task.lane for lease in landed}
            has_more = len(batch.leases) == limit
            self.landings_pay = has_more or any(lease.task.lane in freed for lease in batch.leases)

    async def until_more(self, has_settled: asyncio.Event, seconds: float) -> None:
        """There was too little to lease: wait for what the next settles find and free, or, where a cap binds, for the
        next requests that land."""
        until = self._monotonic() + seconds
        while not has_settled.is_set() and (left := until - self._monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, ASK_SECONDS) if self.landings_pay else left):
                    await has_settled.wait()
            if self.landings_pay and self._slots.landed:
                return
