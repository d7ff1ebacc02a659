"""The keys that a worker knows to be confirmed by the frontier."""

from __future__ import annotations

from collections.abc import Iterable


class RecentKeys:
    """Keys the frontier has confirmed, so that most links never travel. Bounded: the older half goes first."""

    def __init__(self, limit: int = 400_000) -> None:
        self._half = max(1, limit // 2)
        self._young: set[int] = set()
        self._old: set[int] = set()

    def __contains__(self, key: int) -> bool:
        return key in self._young or key in self._old

    def unknown(self, keys: Iterable[int]) -> set[int]:
        """Those of the keys that are not here."""
        # One after the other: given both at once, Python walks through the whole of the second.
        return set(keys).difference(self._young).difference(self._old)

    def add(self, key: int) -> None:
        self._young.add(key)
        if len(self._young) >= self._half:
            self._old, self._young = self._young, set()

    def clear(self) -> None:
        self._young.clear()
        self._old.clear()
