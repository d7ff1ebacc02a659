"""Renews the leases of a worker, also while a handler blocks its event loop: then from a thread."""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial

from shoal.frontier.base import Frontier
from shoal.model import Lease
from shoal.worker.black_box import Reading, WorkerBox
from shoal.worker.deaths import Pulse, longest_silence

# The event loop renews after a third of a lease. After this share of it the thread renews, if the loop is blocked.
OVERDUE = 0.45
# How often the thread looks: as a share of a lease, and at least every second.
LOOKS = 1 / 6
LONGEST_LOOK_SECONDS = 1.0
# An event loop that shows no turn for so long, as a share of a lease, is blocked. It shows twice as many.
BLOCKED = 1 / 6
LAST_RENEWAL_SECONDS = 2.0

Reach = Callable[[Callable[[], Awaitable[list[Lease]]]], Awaitable[list[Lease]]]
OpenFrontier = Callable[[], AbstractAsyncContextManager[Frontier]]


class Renewals:
    """Renews the leases in `held` until cancelled, each for `seconds`; `lost` gets those that are lost.

    `beside` opens a second connection to the frontier, for the thread; without it only the event loop renews.

    What an answer lends that a blocked event loop has not read is in nobody's hand: nobody renews it. The thread gives
    it back, if `asks` says that a lease call is open; see `gave_back_since`.

    The thread does nothing while the event loop turns. An event loop that waits for a frontier without an answer is not
    blocked: the thread would get none either, and what it asks to give back would be lent long before it is done."""

    def __init__(
        self,
        held: Mapping[int, Lease],
        *,
        frontier: Frontier,
        seconds: float,
        box: WorkerBox,
        asks: Callable[[], bool] = bool,
        beside: OpenFrontier | None = None,
    ) -> None:
        self._held = held
        self._frontier = frontier
        self._seconds = seconds
        self._box = box
        self._asks = asks
        self._beside = beside
        self._gave_back = -math.inf
        self._renewed = self._turned = time.monotonic()
        self._is_over = threading.Event()

    async def run(self, reach: Reach, lost: Callable[[Lease], None]) -> None:
        """Renew in time. `reach` repeats a step until the frontier can be reached."""
        thread = threading.Thread(target=self._watch, name="shoal-renewals", daemon=True)
        if self._beside is not None:
            thread.start()
        turning = asyncio.create_task(self._turn())
        try:
            while True:
                await asyncio.sleep(self._seconds / 3)
                held = list(self._held.values())
                for lease in await reach(partial(self._frontier.extend, held, seconds=self._seconds)):
                    lost(lease)
                self._renewed = time.monotonic()
        finally:
            turning.cancel()
            self._is_over.set()
            if thread.is_alive():
                thread.join(LAST_RENEWAL_SECONDS)

    def gave_back_since(self, asked: float) -> bool:
        """Whether the thread may give back, or may have given back, what a lease call has lent that began then."""
        return self._gave_back >= asked

    async def _turn(self) -> None:
        """Let the thread see that the event loop turns."""
        while True:
            self._turned = time.monotonic()
            await asyncio.sleep(self._seconds * BLOCKED / 2)

    def _watch(self) -> None:
        """In a thread: renew when the event loop does not, for as long as a handler may block it. After that nobody
        works on these leases."""
        pulse, before = Pulse(), time.monotonic()
        while not self._is_over.wait(min(self._seconds * LOOKS, LONGEST_LOOK_SECONDS)):
            now, reading = time.monotonic(), self._box.box.read()
            pulse.look(reading, elapsed=now - before)
            before = now
            is_overdue = now - self._renewed > OVERDUE * self._seconds
            is_blocked = now - self._turned > BLOCKED * self._seconds
            is_needed = is_overdue and is_blocked and (self._held or self._asks())
            if is_needed and self.may_renew(pulse.silent, reading):
                # A frontier that cannot be reached is asked again at the next look.
                with contextlib.suppress(Exception):
                    asyncio.run(self._renew_beside())

    def may_renew(self, silent: float, reading: Reading) -> bool:
        """Whether somebody still works on the leases, though the event loop has been silent for so long."""
        limit = longest_silence(reading)
        return limit is None or silent < limit

    async def _renew_beside(self) -> None:
        if self._beside is None:
            return
        async with asyncio.timeout(self._seconds), self._beside() as frontier:
            await frontier.extend(list(self._held.values()), seconds=self._seconds)
            self._renewed = time.monotonic()
            if self._asks():
                await self._give_back(frontier)

    async def _give_back(self, frontier: Frontier) -> None:
        # Until the frontier has answered, it may take away also what a call lends that begins only now.
        self._gave_back = math.inf
        try:
            await frontier.evict(self._box.name, known=list(self._held))
        finally:
            self._gave_back = time.monotonic()
