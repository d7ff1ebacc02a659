"""Idle connections are closed while this process lacks file descriptors: they are what it can do without."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from shoal.fetch.descriptors import is_used_up

# Connections that are in use at one look are idle at the next, and are kept for hosts that may never come back.
LOOK_SECONDS: Final = 0.1
# Requests that met the shortage come back within this time.
WATCH_SECONDS: Final = 2.0
# A shortage of something else (ports, memory): closing connections more often would not help.
CLOSE_SECONDS: Final = 1.0


class Relief:
    """Closes idle connections when a request met a shortage, and goes on while all descriptors are in use."""

    def __init__(self, close_idle: Callable[[], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._close_idle = close_idle
        self._clock = clock
        self._closed = self._until = -WATCH_SECONDS
        self._watching: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """A request has met a shortage."""
        self._until = self._clock() + WATCH_SECONDS
        if self._clock() >= self._closed + CLOSE_SECONDS:
            self._close()
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())

    def end(self) -> None:
        """Stop looking."""
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self) -> None:
        while self._clock() < self._until:
            await asyncio.sleep(LOOK_SECONDS)
            if is_used_up():
                self._close()

    def _close(self) -> None:
        self._closed = self._clock()
        self._close_idle()
