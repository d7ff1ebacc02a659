"""The deadline of a spider's own code: an alarm that interrupts it, even in a tight loop."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from typing import Any


class HandlerTimeout(Exception):  # noqa: N818 -- reads as what happened
    """A handler took longer than `handler_seconds`."""


class Alarm:
    """Raises HandlerTimeout inside a plain function that runs too long, even in a tight loop or a slow regex.

    The timer keeps running from page to page and is set again only after it rang: setting and clearing it at every
    page took 3 % of a worker's time. Signals reach the main thread only: in other threads there is no alarm."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._is_set = bool(seconds) and threading.current_thread() is threading.main_thread()
        self._until: float | None = None
        self._is_ticking = False

    def __enter__(self) -> None:
        if self._is_set:
            self._until = time.monotonic() + self._seconds
            if not self._is_ticking:
                self._wind(self._seconds)

    def __exit__(self, *_: object) -> None:
        self._until = None

    def stop(self) -> None:
        """Stop the timer: a signal without a listener would end the process."""
        if self._is_ticking:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self._is_ticking = False

    def _wind(self, seconds: float) -> None:
        former = getattr(signal.signal(signal.SIGALRM, self._ring), "__self__", None)
        if isinstance(former, Alarm):
            # A process has one timer: an alarm that loses it to this one has to set it again for itself.
            former._is_ticking = False
        signal.setitimer(signal.ITIMER_REAL, seconds)
        self._is_ticking = True

    def _ring(self, *_: object) -> None:
        self._is_ticking = False
        if self._until is None:
            return
        left = self._until - time.monotonic()
        if left <= 0:
            raise HandlerTimeout(f"the handler took longer than {self._seconds:g} s")
        self._wind(left)


class Stepwise:
    """Awaits a coroutine with the alarm set while its own code runs: no deadline of asyncio interrupts a tight loop."""

    def __init__(self, work: Coroutine[Any, Any, None], *, alarm: Alarm) -> None:
        self._work = work
        self._alarm = alarm

    def __await__(self) -> Generator[Any, Any, None]:
        step: Callable[[Any], Any] = self._work.send
        value: Any = None
        while True:
            try:
                with self._alarm:
                    waited_for = step(value)
            except StopIteration:
                return
            try:
                value = yield waited_for
                step = self._work.send
            except BaseException as error:
                value, step = error, self._work.throw
