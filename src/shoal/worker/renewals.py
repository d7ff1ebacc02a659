"""Renews the leases of a worker; from a thread while a handler blocks the event loop."""

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

# Shares of a lease. The event loop renews after a third; after this share the thread renews, if the loop is blocked.
OVERDUE = 0.45
# How often the thread checks, and at least every second.
LOOKS = 1 / 6
LONGEST_LOOK_SECONDS = 1.0
# Without a sign from the event loop for this long, it is blocked. It gives a sign twice as often.
BLOCKED = 1 / 6
LAST_RENEWAL_SECONDS = 2.0

Reach = Callable[[Callable[[], Awaitable[list[Lease]]]], Awaitable[list[Lease]]]
OpenFrontier = Callable[[], AbstractAsyncContextManager[Frontier]]


class Renewals:
    """Renews the leases in `held`, each for `seconds`, until cancelled.

    `open_frontier` opens a second connection to the frontier for the thread; without it only the event loop renews.
    The thread does nothing while the event loop runs, also if the loop waits for a frontier that does not answer.

    Leases in an answer that a blocked event loop has not read are not in `held`: if `asks` says that a lease call is
    open, the thread gives them back; see `gave_back_since`."""

    def __init__(
        self,
        held: Mapping[int, Lease],
        *,
        frontier: Frontier,
        seconds: float,
        box: WorkerBox,
        asks: Callable[[], bool] = bool,
        open_frontier: OpenFrontier | None = None,
    ) -> None:
        self._held = held
        self._frontier = frontier
        self._seconds = seconds
        self._box = box
        self._asks = asks
        self._open_frontier = open_frontier
        self._gave_back = -math.inf
        self._renewed = self._turned = time.monotonic()
        self._is_over = threading.Event()

    async def run(self, reach: Reach, lost: Callable[[Lease], None]) -> None:
        """Renew in time. `reach` repeats a call until the frontier can be reached; `lost` gets the lost leases."""
        thread = threading.Thread(target=self._watch, name="shoal-renewals", daemon=True)
        if self._open_frontier is not None:
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
        """Whether the thread may have given back the leases of a call that began at `asked`, or may still do so."""
        return self._gave_back >= asked

    async def _turn(self) -> None:
        """Show the thread that the event loop runs."""
        while True:
            self._turned = time.monotonic()
            await asyncio.sleep(self._seconds * BLOCKED / 2)

    def _watch(self) -> None:
        """In a thread: renew while the event loop is blocked, as long as a handler may block it."""
        pulse, before = Pulse(), time.monotonic()
        while not self._is_over.wait(min(self._seconds * LOOKS, LONGEST_LOOK_SECONDS)):
            now, reading = time.monotonic(), self._box.box.read()
            pulse.add(reading, elapsed=now - before)
            before = now
            is_overdue = now - self._renewed > OVERDUE * self._seconds
            is_blocked = now - self._turned > BLOCKED * self._seconds
            is_needed = is_overdue and is_blocked and (self._held or self._asks())
            if is_needed and self.may_renew(pulse.silent, reading):
                # The next check tries again.
                with contextlib.suppress(Exception):
                    asyncio.run(self._renew_beside())

    def may_renew(self, silent: float, reading: Reading) -> bool:
        """Whether the process may still be working after `silent` seconds without a sign, and not hung."""
        limit = longest_silence(reading)
        return limit is None or silent < limit

    async def _renew_beside(self) -> None:
        if self._open_frontier is None:
            return
        async with asyncio.timeout(self._seconds), self._open_frontier() as frontier:
            await frontier.extend(list(self._held.values()), seconds=self._seconds)
            self._renewed = time.monotonic()
            if self._asks():
                await self._give_back(frontier)

    async def _give_back(self, frontier: Frontier) -> None:
        # Until the frontier has answered, it may also take back leases of a call that begins only now.
        self._gave_back = math.inf
        try:
            await frontier.evict(self._box.name, known=list(self._held))
        finally:
            self._gave_back = time.monotonic()
