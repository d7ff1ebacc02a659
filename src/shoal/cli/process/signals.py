"""Ctrl-C and SIGTERM: the first signal stops gracefully, the second one at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from shoal.cli.display.lines import Say
from shoal.cli.main import INTERRUPTED
from shoal.worker.black_box import BlackBox

LAST_SECONDS = 3.0
CHECK_SECONDS = 0.5


class Stopping:
    """The first signal sets `stop`; the second one cancels the listening task. box: notes for
    the supervisor of this process that a signal was received."""

    def __init__(self, *, say: Say, grace_seconds: float, box: BlackBox | None = None) -> None:
        self._box = box
        self.stop = asyncio.Event()
        self._say = say
        self._grace = grace_seconds
        self._signals = 0
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handle both signals until the block ends."""
        # Not the event loop's signal handlers: they wait while a spider's handler blocks the loop.
        before = {number: signal.signal(number, self._take) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self._signals += 1
        if self._box is not None:
            self._box.take_stop()
        if self._signals == 1:
            self._loop.call_soon_threadsafe(self._ask)
        elif self._signals == 2:
            self._loop.call_soon_threadsafe(self._insist)
            # If the loop is blocked, it never runs `_insist`.
            last = threading.Timer(LAST_SECONDS, os._exit, [INTERRUPTED])
            last.daemon = True
            last.start()
        else:
            os._exit(INTERRUPTED)

    def _ask(self) -> None:
        self.stop.set()
        self._say(f"stopping: finishing pages in hand, up to {self._grace:g} s; Ctrl-C again to stop at once")

    def _insist(self) -> None:
        self._say("stopping at once")
        if self._task is not None:
            self._task.cancel()


async def stop_without(parent: object, stop: asyncio.Event) -> None:
    """Set `stop` when the parent process has ended. parent: None to wait for no process."""
    if parent is None:
        return
    while os.getppid() == parent:  # noqa: ASYNC110 -- the system does not report the end of a parent
        await asyncio.sleep(CHECK_SECONDS)
    stop.set()
