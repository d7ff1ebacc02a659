"""One moving deadline for one piece of work, safe with awaitables that swallow a cancellation."""

from __future__ import annotations

import asyncio
from types import TracebackType


class Deadline:
    """Inside `with`, the current task gets a TimeoutError once `at` (the loop's time) has passed.

    Setting `at` costs nothing: the only timer fires at `checked_at`, which must not be later than any `at`, and then
    again if `at` was moved. When the task is cancelled just as the HTTP client has its answer, the client gives the
    answer instead of the CancelledError; so code that works in a loop also calls `check`."""

    __slots__ = ("_before", "_loop", "_task", "_timer", "at", "is_over")

    def __init__(self, at: float, *, checked_at: float) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a deadline needs a task")
        self.at = at
        self.is_over = False
        self._task = task
        self._before = task.cancelling()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_at(checked_at, self._check)

    def __enter__(self) -> Deadline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        cancelling = self._task.uncancel() if self.is_over else self._task.cancelling()
        if cancelling > self._before:
            # The task was also cancelled from outside, and that must not get lost.
            if kind is not asyncio.CancelledError:
                raise asyncio.CancelledError
        elif kind is asyncio.CancelledError and self.is_over:
            raise TimeoutError from error

    def check(self) -> None:
        """Raise if the time is up."""
        if self.is_over:
            raise TimeoutError

    def _check(self) -> None:
        if self.at > self._loop.time():
            self._timer = self._loop.call_at(self.at, self._check)
        else:
            self.is_over = True
            self._task.cancel()
