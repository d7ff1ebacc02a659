"""Waiting for a condition, with a deadline: how tests let time pass."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import IO, Any, TypeVar, overload

# Longer than any step takes on a busy machine. Only a test that fails waits this long.
SECONDS = 120.0
PAUSE_SECONDS = 0.01

T = TypeVar("T")


def wait_until(read: Callable[[], T], *, otherwise: str, seconds: float = SECONDS, pause: float = PAUSE_SECONDS) -> T:
    """What `read` gives, once that is true; after `seconds` a RuntimeError that says what did not happen."""
    deadline = time.monotonic() + seconds
    while not (found := read()):
        if time.monotonic() > deadline:
            raise RuntimeError(otherwise)
        time.sleep(pause)
    return found


def wait_for_line(stream: IO[str] | None, words: str) -> None:
    """Read what a process writes until these words are in a line of it."""
    assert stream is not None
    while words not in (line := stream.readline()):
        if not line:
            raise RuntimeError(f"the process ended without a line that has {words!r}")


@overload
async def eventually(read: Callable[[], Awaitable[T]], *, seconds: float = ..., pause: float = ...) -> T: ...
@overload
async def eventually(read: Callable[[], T], *, seconds: float = ..., pause: float = ...) -> T: ...
async def eventually(read: Callable[[], Any], *, seconds: float = SECONDS, pause: float = PAUSE_SECONDS) -> Any:
    """What `read` gives, once that is true; `read` may be a coroutine function. TimeoutError after `seconds`."""
    async with asyncio.timeout(seconds):
        while True:
            found = read()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(pause)


async def loop_turns(count: int = 50) -> None:
    """Let every task run that can run now; no time passes. For showing that something does not happen."""
    for _ in range(count):
        await asyncio.sleep(0)
