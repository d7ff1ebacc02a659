"""Steps that may be repeated, done until the other side answers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from shoal.errors import ServerUnreachable, StorageError

STORAGE_PATIENCE_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 5.0

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
                say(f"{error}; waiting")
                said = True
        await asyncio.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
