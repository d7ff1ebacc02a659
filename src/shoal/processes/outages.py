"""Steps that may be repeated, repeated while their server or file cannot be reached."""

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


async def until_reachable(
    step: Callable[[], Awaitable[T]], *, say: Callable[[str], None], stop: asyncio.Event | None = None
) -> T:
    """Repeat `step` until it works: without limit while a server cannot be reached, for 10 s while a file refuses.
    Says once that it waits.

    Once `stop` is set the error is raised instead."""
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
    """Passes lines on. When many parts wait for one server, only the first line is passed on, once a minute.

    Lines are about the same server when they are equal up to their first colon."""

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
