"""A clock that moves when told to."""

from __future__ import annotations


class FakeClock:
    """Call it for the time in seconds; `advance` lets time pass."""

    def __init__(self, now: float = 1_000_000_000.0) -> None:
        self._now = now

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds
