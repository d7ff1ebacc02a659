"""When a worker asks for leases, for how many, and which of its landed requests it names then."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Sequence

from shoal.model import Lease, LeaseBatch
from shoal.processes.signs_of_life import SignsOfLife
from shoal.processes.slots import Slots

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
