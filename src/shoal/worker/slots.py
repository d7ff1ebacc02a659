"""A worker's slots, for requests that wait for their start or are in flight; when it leases, and how many tasks."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence, Sized
from contextlib import AbstractContextManager

from shoal.model import Lease, LeaseBatch
from shoal.worker.heartbeat import Heartbeats
from shoal.worker.process import SharedSlots

# Pages handled in one round of the event loop, a few milliseconds. If hundreds that landed together were handled at
# once, no request could start meanwhile, and the next answers would come together as well.
PAGES_PER_ROUND = 8
# With more waiting pages than this, fewer are handled per round: requests and answers go first, so that the next pages
# come spread out. Not always: a round of the event loop costs a tenth of a page.
CROWD = 128
PAGES_IN_A_CROWD = 2


class RoundLimiter:
    """Lets a few pages per round of the event loop be handled, in the order in which they landed."""

    def __init__(self) -> None:
        self._left = PAGES_PER_ROUND
        self._waiting: deque[asyncio.Future[None]] = deque()

    def next(self) -> asyncio.Future[None] | None:
        """What a page awaits before it is handled; None: nothing."""
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
    """`size` requests at once, and at most twice as many pages in hand: landed pages wait in memory until they are
    handled and written. The slots are part of `common`, which the crawls of the process share."""

    def __init__(self, size: int, *, in_hand: Sized, crawl: str = "", common: SharedSlots | None = None) -> None:
        self.size = size
        self._common = common or SharedSlots()
        self._holder = self._common.join(crawl, size=size, wake=self.wake)
        # Landed requests that the frontier does not know of yet.
        self.landed: dict[int, Lease] = {}
        self._in_hand = in_hand
        self._taken: set[int] = set()
        self._most = 0
        self._is_free = asyncio.Event()
        self._enough = 1

    @property
    def free(self) -> int:
        """How many more requests this crawl may have."""
        return min(self.size - len(self._taken), 2 * self.size - len(self._in_hand))

    @property
    def taken(self) -> int:
        return len(self._taken)

    @property
    def is_full(self) -> bool:
        """Whether more slots would start more requests."""
        return len(self._taken) >= self.size or self._common.wants(self._holder)

    def room(self) -> int:
        """How many of the free slots it gets now; other crawls of the process get the others."""
        return self._common.room(self._holder, self.free)

    def withdraw(self) -> None:
        """It wants no more slots for now."""
        self._common.withdraw(self._holder)

    def asking(self, number: int) -> AbstractContextManager[None]:
        """Reserve the slots for `number` leases during a lease call."""
        return self._common.asking(self._holder, number)

    def quit(self) -> None:
        """The worker has ended."""
        self._common.quit(self._holder)

    def take(self, lease: Lease) -> None:
        self._taken.add(lease.token)
        self._common.start(self._holder)
        if len(self._taken) > self._most:
            self._most = len(self._taken)

    def most_since(self) -> int:
        """The most slots taken at once since the last call."""
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
        self._common.hold(self._holder, -1)

    def forget(self, tokens: Iterable[int]) -> None:
        """The frontier knows that these have landed, or their leases have ended."""
        for token in tokens:
            self.landed.pop(token, None)

    def wake(self) -> None:
        """End `until_free`."""
        self._is_free.set()

    async def until_free(self, seconds: float, *, enough: int = 1) -> None:
        """Wait until about `enough` slots are free, at most this long. May end early."""
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
# This many free slots, or a quarter of all, are enough: more requests would start together and be answered together.
ENOUGH_SLOTS = 32
# After a call that returned too few leases, caps may bind: for this long the calls name the landed requests.
CAPPED_SECONDS = 1.0


class LeaseCalls:
    """The times and sizes of one worker's lease calls.

    Where caps bind, the first worker to ask gets the place that a landed request frees: usually the worker whose
    request it was. So a worker that holds more than its share leases only a part of these places again."""

    def __init__(self, slots: Slots, *, signs: Heartbeats, monotonic: Callable[[], float]) -> None:
        self._slots = slots
        self._signs = signs
        self._monotonic = monotonic
        self._enough = max(1, min(ENOUGH_SLOTS, slots.size // 4))
        self._ask_at = self._capped_until = -math.inf
        self._names_landed = False
        # Whether tasks wait for the places that landed requests free, by the last answer.
        self.landings_pay = False
        self._places = 0.0

    async def is_time(self, free: int) -> bool:
        """Whether to lease for `free` slots now. If not, returns after a wait."""
        pause = self._ask_at - self._monotonic()
        if free < self._enough and pause > 0:
            await self._slots.until_free(pause, enough=self._enough)
            return False
        return True

    def landed(self) -> list[Lease]:
        """The landed requests to name in the next call."""
        self._names_landed = self._monotonic() < self._capped_until
        return list(self._slots.landed.values()) if self._names_landed else []

    def limit(self, free: int, landed: Sequence[Lease]) -> int:
        """How many leases to ask for, in a call that names these landed requests."""
        share = self._signs.share
        if share is None or not self._names_landed:
            return free
        portion = self._signs.portion
        self._places = min(self._places + len(landed) * portion, self._slots.size)
        # One more, unless others have less: otherwise it would never see that there is more work.
        limit = max(share - self._slots.taken, int(self._places)) + (portion == 1.0)
        return max(0, min(free, limit))

    def answered(self, batch: LeaseBatch, *, free: int, limit: int, landed: Sequence[Lease]) -> None:
        """Learn from the answer to a call."""
        now = self._monotonic()
        self._ask_at = now + ASK_SECONDS
        if len(batch.leases) < free:
            self._capped_until = now + CAPPED_SECONDS
        self._places = max(0.0, self._places - len(batch.leases))
        self._slots.forget(lease.token for lease in landed)
        if not self._names_landed:
            # Unknown until a call names landings: make the next one soon.
            self.landings_pay = True
        elif limit:
            freed = {lease.task.lane for lease in landed}
            has_more = len(batch.leases) == limit
            self.landings_pay = has_more or any(lease.task.lane in freed for lease in batch.leases)

    async def until_more(self, has_settled: asyncio.Event, seconds: float) -> None:
        """There was too little to lease: wait for the next settle or, where a cap binds, the next landed request."""
        until = self._monotonic() + seconds
        while not has_settled.is_set() and (left := until - self._monotonic()) > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(left, ASK_SECONDS) if self.landings_pay else left):
                    await has_settled.wait()
            if self.landings_pay and self._slots.landed:
                return
