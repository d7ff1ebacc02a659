"""A worker's memory of keys that the frontier has confirmed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Key = TypeVar("Key", int, int | None)


class RecentKeys:
    """Keys that the frontier has confirmed: links to them need not be sent. Bounded: the older half goes first."""

    def __init__(self, limit: int = 100_000) -> None:
        self._half = max(1, limit // 2)
        self._young: set[int] = set()
        self._old: set[int] = set()

    def __contains__(self, key: int) -> bool:
        return key in self._young or key in self._old

    def unknown(self, keys: Iterable[Key]) -> set[Key]:
        """The keys among these that are not remembered. None is no key, and never remembered."""
        # One set after the other: given two sets at once, `difference` walks through the whole second set.
        return set(keys).difference(self._young).difference(self._old)

    def add(self, key: int) -> None:
        """Remember a key."""
        self._young.add(key)
        if len(self._young) >= self._half:
            self._old, self._young = self._young, set()

    def clear(self) -> None:
        """Forget every key."""
        self._young.clear()
        self._old.clear()
