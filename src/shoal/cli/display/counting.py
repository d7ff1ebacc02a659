"""A count shown while it grows: in place on a terminal, else as a line every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Self

from rich.live import Live
from rich.text import Text

from shoal.cli.display.lines import shown
from shoal.cli.display.screen import Screen

LINE_SECONDS = 5.0
PICTURE_SECONDS = 0.2


class Counting:
    """Shows a text that changes, as often as people can read it."""

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

    def show(self, text: Callable[[], str]) -> None:
        """Show the text if it is time to; only then is it made."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + self._seconds
        if self._live is not None:
            self._live.update(Text(shown(text())), refresh=True)
        else:
            self._screen.say(text())
