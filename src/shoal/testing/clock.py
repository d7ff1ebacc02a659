"""A clock that moves when told to."""

from __future__ import annotations


class FakeClock:
    """Call it for the time in seconds; `advance` lets time pass."""

    def __init__(self, now: float = 1_000_000_000.0) -> None:
        self._now = now
        self._steady = 0.0

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds
        self._steady += seconds

    def step(self, seconds: float) -> None:
        """Set the clock forward, or back when `seconds` is negative: no time passes."""
        self._now += seconds

    def steady(self) -> float:
        """The clock that no step moves."""
        return self._steady
