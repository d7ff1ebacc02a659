"""A worker's memory of keys that the frontier has confirmed."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import TypeVar

Key = TypeVar("Key", int, int | None)


class RecentKeys:
    """Keys that the frontier has confirmed: links to them need not be sent.

    A table with at least twice as many places as `limit`. A key has one place, told by its last bits, and replaces the
    key that was there; keys are hashes, so that few meet. All its memory is taken at once, 8 bytes for each place: a
    set of as many keys would grow to ten times that while the crawl goes on."""

    def __init__(self, limit: int = 400_000) -> None:
        self._last = (1 << (2 * limit - 1).bit_length()) - 1
        self._keys = array("q")
        self.clear()

    def __contains__(self, key: int) -> bool:
        return self._keys[key & self._last] == key

    def unknown(self, keys: Iterable[Key]) -> set[Key]:
        """The keys among these that are not remembered. None is no key, and never remembered."""
        known, last = self._keys, self._last
        return {key for key in keys if key is None or known[key & last] != key}

    def add(self, key: int) -> None:
        """Remember a key."""
        self._keys[key & self._last] = key

    def clear(self) -> None:
        """Forget every key."""
        # No place holds a key of its own: the place of 0 is the first one, and 1 does not belong there.
        self._keys = array("q", [0]) * (self._last + 1)
        self._keys[0] = 1
