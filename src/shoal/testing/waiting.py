"""Waiting for a condition, with a deadline."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import IO, Any, TypeVar, overload

# Longer than any step takes on a busy machine: only a failing test waits this long.
SECONDS = 120.0
PAUSE_SECONDS = 0.01

T = TypeVar("T")


def wait_until(read: Callable[[], T], *, otherwise: str, seconds: float = SECONDS, pause: float = PAUSE_SECONDS) -> T:
    """The result of `read`, once it is true; after `seconds` a RuntimeError that says what did not happen."""
    deadline = time.monotonic() + seconds
    while not (found := read()):
        if time.monotonic() > deadline:
            raise RuntimeError(otherwise)
        time.sleep(pause)
    return found


def wait_for_line(stream: IO[str] | None, words: str) -> None:
    """Read the output of a process until a line contains these words."""
    assert stream is not None
    while words not in (line := stream.readline()):
        if not line:
            raise RuntimeError(f"the process ended without a line that has {words!r}")


@overload
async def eventually(read: Callable[[], Awaitable[T]], *, seconds: float = ..., pause: float = ...) -> T: ...
@overload
async def eventually(read: Callable[[], T], *, seconds: float = ..., pause: float = ...) -> T: ...
async def eventually(read: Callable[[], Any], *, seconds: float = SECONDS, pause: float = PAUSE_SECONDS) -> Any:
    """The result of `read`, once it is true; `read` may be a coroutine function. TimeoutError after `seconds`."""
    async with asyncio.timeout(seconds):
        while True:
            found = read()
            if inspect.isawaitable(found):
                found = await found
            if found:
                return found
            await asyncio.sleep(pause)


async def loop_turns(count: int = 50) -> None:
    """Run every task that can run now; no time passes. For showing that something does not happen."""
    for _ in range(count):
        await asyncio.sleep(0)
