"""A clock that tests move."""

from __future__ import annotations


class FakeClock:
    """Returns the time in seconds when called; `advance` lets time pass."""

    def __init__(self, now: float = 1_000_000_000.0) -> None:
        self._now = now
        self._steady = 0.0

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds
        self._steady += seconds

    def step(self, seconds: float) -> None:
        """Set the clock forward, or back if `seconds` is negative; no time passes."""
        self._now += seconds

    def steady(self) -> float:
        """The monotonic clock, which steps do not change."""
        return self._steady
