"""The deadline of a spider's own code: an alarm that interrupts it, even in a tight loop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractContextManager
from typing import Any, Protocol

# How long a handler may clean up after its deadline before it is interrupted again.
AGAIN_SECONDS = 1.0


class Witness(Protocol):
    """Is told which page's handler runs, for those who find the process dead or silent."""

    def begin(self, token: int, handler: str, url: str) -> None:
        """The code of a handler runs, until `rest`, `wait` or `finish`."""

    def wait(self, token: int, handler: str, url: str) -> int:
        """The handler waits for something; gives the slot that it has until `finish`."""

    def resume(self, slot: int) -> None:
        """The code of a handler with a slot runs again."""

    def rest(self) -> None:
        """No handler's code runs."""

    def finish(self, slot: int, token: int) -> None:
        """A handler with a slot has ended."""


class NoWitness:
    """Stands where nobody watches."""

    def begin(self, token: int, handler: str, url: str) -> None:
        """Nothing is kept."""

    def wait(self, token: int, handler: str, url: str) -> int:
        """No slot."""
        return 0

    def resume(self, slot: int) -> None:
        """Nothing is kept."""

    def rest(self) -> None:
        """Nothing is kept."""

    def finish(self, slot: int, token: int) -> None:
        """Nothing is kept."""


class HandlerTimeout(Exception):  # noqa: N818 -- reads as what happened
    """A handler took longer than `handler_seconds`."""


class HandlerOverrun(BaseException):
    """The same, for a handler that caught HandlerTimeout and went on: `except Exception` does not catch this one."""


class Alarm:
    """Raises HandlerTimeout inside a plain function that runs too long, even in a tight loop or a slow regex. To one
    that goes on all the same it rings again, every second, with HandlerOverrun.

    The timer keeps running from page to page and is set again only after it rang: setting and clearing it at every
    page took 3 % of a worker's time. Signals reach the main thread only: in other threads there is no alarm."""

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
        if left > 0:
            self._wind(left)
            return
        self._wind(AGAIN_SECONDS)
        has_rung, self._has_rung = self._has_rung, True
        if has_rung:
            raise HandlerOverrun(f"the handler caught its deadline of {self._seconds:g} s and went on")
        raise HandlerTimeout(f"the handler took longer than {self._seconds:g} s")


class Stepwise:
    """Awaits a coroutine with the alarm set while its own code runs: no deadline of asyncio interrupts a tight loop.

    A coroutine that catches its cancellation and waits for something else is given a moment to clean up, then it is
    abandoned: the one who cancelled it does not wait for ever."""

    def __init__(
        self,
        work: Coroutine[Any, Any, None],
        *,
        alarm: AbstractContextManager[None],
        witness: Witness | None = None,
        slot: int = 0,
    ) -> None:
        self._work = work
        self._alarm = alarm
        self._witness = witness or NoWitness()
        self._slot = slot
        self._task: asyncio.Task[Any] | None = None
        self._insisting: asyncio.TimerHandle | None = None
        self._has_insisted = False

    def __await__(self) -> Generator[Any, Any, None]:
        step: Callable[[Any], Any] = self._work.send
        value: Any = None
        alarm, witness, slot = self._alarm, self._witness, self._slot
        while True:
            witness.resume(slot)
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
                witness.rest()
            try:
                value = yield waited_for
                step = self._work.send
            except BaseException as error:
                if isinstance(error, asyncio.CancelledError):
                    self._cancel_or_abandon()
                value, step = error, self._work.throw

    def _cancel_or_abandon(self) -> None:
        """The first cancellation is passed on. At the second one, the coroutine is abandoned."""
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
        """Drive the coroutine no further. Only the first cancellation counts: who asked for it takes it back."""
        if self._has_insisted and self._task is not None:
            self._task.uncancel()
        # One that catches this as well raises RuntimeError.
        with contextlib.suppress(BaseException), self._alarm:
            self._work.close()
