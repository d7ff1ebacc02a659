"""The deadline `handler_seconds`: a timer signal that interrupts a spider's code, even in a tight loop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractContextManager
from typing import Any, Protocol

# Time to clean up after the deadline, before the handler is interrupted again.
AGAIN_SECONDS = 1.0


class HandlerObserver(Protocol):
    """Records which page's handler runs, so that the supervisor can name it after a crash or a hang."""

    def begin(self, token: int, handler: str, url: str) -> None:
        """A handler's code starts to run, until `rest`, `wait` or `finish`."""

    def wait(self, token: int, handler: str, url: str) -> int:
        """An async handler starts to wait; returns its slot, which it keeps until `finish`."""

    def resume(self, slot: int) -> None:
        """The handler of this slot runs again."""

    def rest(self) -> None:
        """No handler's code runs."""

    def finish(self, slot: int, token: int) -> None:
        """The handler of this slot has ended."""


class NoObserver:
    """Records nothing: the default."""

    def begin(self, token: int, handler: str, url: str) -> None: ...

    def wait(self, token: int, handler: str, url: str) -> int:
        return 0

    def resume(self, slot: int) -> None: ...

    def rest(self) -> None: ...

    def finish(self, slot: int, token: int) -> None: ...


class HandlerTimeout(Exception):  # noqa: N818 -- reads as what happened
    """A handler took longer than `handler_seconds`."""


class HandlerOverrun(BaseException):
    """A handler caught HandlerTimeout and went on. Not an Exception, so that `except Exception` does not catch it."""


class Alarm:
    """Raises HandlerTimeout inside code that runs too long, then HandlerOverrun every second while it goes on.

    The timer keeps running from page to page and is set again only after it rang: setting and clearing it for every
    page took 3 % of a worker's time. Signals reach the main thread only: other threads have no alarm."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._is_set = bool(seconds) and threading.current_thread() is threading.main_thread()
        self._until: float | None = None
        self._has_rung = False
        self._is_ticking = False

    def __enter__(self) -> None:
        if self._is_set:
            self._until = time.monotonic() + self._seconds
            self._has_rung = False
            if not self._is_ticking:
                self._wind(self._seconds)

    def __exit__(self, *_: object) -> None:
        self._until = None

    def stop(self) -> None:
        """Stop the timer: a signal without a handler would end the process."""
        if self._is_ticking:
            signal.setitimer(signal.ITIMER_REAL, 0)
        self._is_ticking = False

    def _wind(self, seconds: float) -> None:
        former = getattr(signal.signal(signal.SIGALRM, self._ring), "__self__", None)
        if isinstance(former, Alarm):
            # A process has one timer: the alarm that had it must set it again for itself.
            former._is_ticking = False
        signal.setitimer(signal.ITIMER_REAL, seconds)
        self._is_ticking = True

    def _ring(self, *_: object) -> None:
        self._is_ticking = False
        if self._until is None:
            return
        left = self._until - time.monotonic()
        if left > 0:
            self._wind(left)
            return
        self._wind(AGAIN_SECONDS)
        has_rung, self._has_rung = self._has_rung, True
        if has_rung:
            raise HandlerOverrun(f"the handler caught its deadline of {self._seconds:g} s and went on")
        raise HandlerTimeout(f"the handler took longer than {self._seconds:g} s")


class Stepwise:
    """Awaits a coroutine with the alarm set at each of its steps: asyncio's timeouts cannot interrupt a tight loop.

    A coroutine that catches its cancellation gets AGAIN_SECONDS to clean up and is then abandoned."""

    def __init__(
        self,
        work: Coroutine[Any, Any, None],
        *,
        alarm: AbstractContextManager[None],
        observer: HandlerObserver | None = None,
        slot: int = 0,
    ) -> None:
        self._work = work
        self._alarm = alarm
        self._observer = observer or NoObserver()
        self._slot = slot
        self._task: asyncio.Task[Any] | None = None
        self._insisting: asyncio.TimerHandle | None = None
        self._has_insisted = False

    def __await__(self) -> Generator[Any, Any, None]:
        step: Callable[[Any], Any] = self._work.send
        value: Any = None
        alarm, observer, slot = self._alarm, self._observer, self._slot
        while True:
            observer.resume(slot)
            try:
                with alarm:
                    waited_for = step(value)
            except BaseException as error:
                if self._insisting is not None:
                    self._insisting.cancel()
                if isinstance(error, StopIteration):
                    return
                raise
            finally:
                observer.rest()
            try:
                value = yield waited_for
                step = self._work.send
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError):
                    self._cancel_or_abandon()
                value, step = error, self._work.throw

    def _cancel_or_abandon(self) -> None:
        """Pass the first cancellation on; at the second one, abandon the coroutine."""
        if self._insisting is None:
            self._task = asyncio.current_task()
            self._insisting = asyncio.get_running_loop().call_later(AGAIN_SECONDS, self._insist)
            return
        self._insisting.cancel()
        self._abandon()
        raise asyncio.CancelledError

    def _insist(self) -> None:
        if self._task is not None:
            self._has_insisted = self._task.cancel()

    def _abandon(self) -> None:
        """Close the coroutine. Our own second cancellation is taken back: the caller counts only the first one."""
        if self._has_insisted and self._task is not None:
            self._task.uncancel()
        # A coroutine that catches GeneratorExit, too, makes `close` raise RuntimeError.
        with contextlib.suppress(BaseException), self._alarm:
            self._work.close()
