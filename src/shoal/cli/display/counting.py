"""Shows a growing count: in place on a terminal, else a line every few seconds."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from rich.live import Live
from rich.text import Text

from shoal.cli.display.lines import shown
from shoal.cli.display.numbers import count, duration, several
from shoal.cli.display.screen import Screen

LINE_SECONDS = 5.0
PICTURE_SECONDS = 0.2

Result = TypeVar("Result")


class Counting:
    """Shows a changing text, as often as people can read it."""

    def __init__(self, screen: Screen, live: Live | None, *, clock: Callable[[], float]) -> None:
        self._screen = screen
        self._live = live
        self._clock = clock
        self._seconds = LINE_SECONDS if self._live is None else PICTURE_SECONDS
        self._next = clock() + self._seconds

    @classmethod
    @contextmanager
    def on(cls, screen: Screen, *, clock: Callable[[], float] = time.monotonic) -> Iterator[Self]:
        with screen.live(auto_refresh=False) as live:
            yield cls(screen, live, clock=clock)

    async def during(self, work: Coroutine[Any, Any, Result], text: str) -> Result:
        """Await work that cannot count, and show the text with the elapsed time."""
        began, task = self._clock(), asyncio.ensure_future(work)
        try:
            while not (await asyncio.wait([task], timeout=PICTURE_SECONDS))[0]:
                self.show(lambda: f"{text}, {duration(self._clock() - began)} so far")
            return await task
        finally:
            task.cancel()

    def show(self, text: Callable[[], str]) -> None:
        """Show the text if it is time; only then is `text` called."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + self._seconds
        if self._live is not None:
            self._live.update(Text(shown(text())), refresh=True)
        else:
            self._screen.say(text())


@contextmanager
def counting_export(screen: Screen, output: str, *, noun: str = "item") -> Iterator[Callable[[int, int], None] | None]:
    """The `show` callback of an export; None for standard output, where the items are seen."""
    if output == "-":
        yield None
        return

    def line(read: int, rows: int) -> str:
        return f"{count(rows)} of {several(read, noun)} written" if rows else f"{several(read, noun)} so far"

    with Counting.on(screen) as counting:
        yield lambda read, rows: counting.show(lambda: line(read, rows))
