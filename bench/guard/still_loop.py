"""An event loop whose time stands still while it works: what runs on it runs in the same order every time."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from typing import Any

BEGAN = 1_700_000_000.0


class StillLoop(asyncio.SelectorEventLoop):
    """Time passes only when nothing is left to do, and then at once, up to the next timer. Threads are not used: what
    was meant for one runs where it is called."""

    def __init__(self) -> None:
        self._now = 1000.0
        super().__init__(_Skipping(self))

    def time(self) -> float:
        return self._now

    def wall(self) -> float:
        """The time of day for everything that runs on this loop."""
        return BEGAN + self._now

    def skip(self, seconds: float) -> None:
        self._now += seconds

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


class _Skipping(selectors.DefaultSelector):
    """Never waits: it moves the loop's time ahead instead."""

    def __init__(self, loop: StillLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("nothing is left to do, and nothing is waited for: the program would hang")
        found = super().select(0)
        if not found and timeout > 0:
            self._loop.skip(timeout)
        return found
