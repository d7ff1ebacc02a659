"""Steps that may be repeated, done until the other side answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from shoal.errors import ServerUnreachable, StorageError

STORAGE_PATIENCE_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 5.0
QUIET_SECONDS = 60.0
WAITING = "; waiting"

T = TypeVar("T")


async def patiently(
    step: Callable[[], Awaitable[T]], *, say: Callable[[str], None], stop: asyncio.Event | None = None
) -> T:
    """Wait out a server that is gone, however long, and for a while a file that refuses. Says so once.

    Once `stop` is set there is nothing to wait for: the refusal is raised."""
    loop = asyncio.get_running_loop()
    began, pause, said = loop.time(), 0.1, False
    while True:
        try:
            return await step()
        except (StorageError, ServerUnreachable) as error:
            if isinstance(error, StorageError) and loop.time() - began > STORAGE_PATIENCE_SECONDS:
                raise
            if stop is not None and stop.is_set():
                raise
            if not said:
                say(f"{error}{WAITING}")
                said = True
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


class SaidOnce:
    """Passes lines on, but of the many parts that wait for one server only the first one's.

    What a line says after its first colon may differ from part to part; what it is about does not."""

    def __init__(self, say: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._said: dict[str, float] = {}

    def __call__(self, line: str) -> None:
        if line.endswith(WAITING):
            about, now = line.partition(": ")[0], self._clock()
            was, self._said[about] = self._said.get(about), now
            if was is not None and now - was < QUIET_SECONDS:
                return
        self._say(line)
