"""How fast a count grows, and how much CPU a process needs: readings, one after the other."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

WINDOW_SECONDS = 60.0


def cpu_seconds_needed() -> float:
    """How long this process has used the CPU or, where the system tells, its main thread has waited for its turn: on a
    busy machine a process that needs a whole core gets less than one."""
    try:
        with open("/proc/self/schedstat", encoding="ascii") as file:
            return time.process_time() + int(file.read().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return time.process_time()


class RecentRate:
    """The rate at which a count grows: per second, over the last minute at most."""

    def __init__(self) -> None:
        self._readings: deque[tuple[float, int]] = deque()

    def __bool__(self) -> bool:
        """Whether anything was read yet."""
        return bool(self._readings)

    def read(self, now: float, count: int) -> float:
        """Take in one reading."""
        self._readings.append((now, count))
        while len(self._readings) > 2 and now - self._readings[0][0] > WINDOW_SECONDS:
            self._readings.popleft()
        then, before = self._readings[0]
        return (count - before) / (now - then) if now > then else 0.0


class CpuLoad:
    """The share of the time between two readings in which this process needed the CPU; 1.0 is one core."""

    def __init__(
        self, *, needed: Callable[[], float] = cpu_seconds_needed, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._needed = needed
        self._clock = clock
        self._last = (clock(), needed())

    def read(self) -> float:
        """Take in one reading."""
        (then, before), (now, needed) = self._last, (self._clock(), self._needed())
        self._last = (now, needed)
        return (needed - before) / (now - then) if now > then else 0.0
