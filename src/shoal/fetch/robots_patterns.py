"""The patterns of a robots.txt, compiled for matching: which of them fits a path, and how long it is as written.

No number of patterns is too large: plain ones are found by bisection, and those with wildcards by four letters that a
path must contain. Each pattern costs at most one pass over the path, whatever its wildcards. Of a file that
would still take long the strictest meaning holds: what there is no time to try forbids, and allows nothing.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable
from typing import Final, NamedTuple

_GRAM: Final = 4
_FEW: Final = 40  # up to so many fragments are looked for one by one
# Letters of paths that the wildcards of one file are tried on: 2,000 patterns on the longest path, all of any real file
# on a usual one. It takes some 20 ms.
_MOST_TRIED: Final = 4_000_000

_UNRESERVED: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
# Compared as they are. The other reserved characters cannot stand in a path or query ([ ]), or mean something in a
# pattern (* $): both spellings of those are one.
_PLAIN: Final = _UNRESERVED + "/:?#@!&'()+,;="
_ODD: Final = re.compile(f"%[0-9A-Fa-f]{{2}}|[^{re.escape(_PLAIN)}]")
_SPELLED: Final = {f"%{byte:02X}": chr(byte) if chr(byte) in _UNRESERVED else f"%{byte:02X}" for byte in range(256)}


def comparable(text: str) -> str:
    """A path as RFC 9309 compares it: unreserved characters plain, reserved ones as written, all others escaped."""
    if not _ODD.search(text):
        return text
    if not text.isascii():
        text = text.encode("utf-8", "surrogateescape").decode("latin-1")
    return _ODD.sub(_spelled, text)


class Patterns:
    """The patterns of all Allow lines, or of all Disallow lines, of a group.

    `fits_in_doubt`: whether a pattern that a hostile file leaves no time to try counts as fitting."""

    def __init__(self, written: Iterable[str], *, fits_in_doubt: bool) -> None:
        self._fits_in_doubt = fits_in_doubt
        prefixes: dict[str, int] = {}
        wilds: list[_Wild] = []
        self._wholes: dict[str, int] = {}
        for pattern in set(written):
            length = len(pattern.encode("utf-8", "surrogateescape"))
            parts, has_end = _taken_apart(pattern)
            if len(parts) > 1:
                wilds.append(_wild(parts, length=length, has_end=has_end))
            else:
                _raise(self._wholes if has_end else prefixes, parts[0], length)
        self._prefixes = _Prefixes(prefixes)
        self._wilds = sorted(wilds, key=lambda wild: -wild.length)
        self._fragments = tuple({wild.fragment for wild in wilds})
        self._by_gram = _indexed(self._wilds) if len(self._fragments) > _FEW else None
        self.count = len(prefixes) + len(self._wholes) + len(wilds)
        heads = (*prefixes, *self._wholes)
        is_short = len(heads) + len(self._fragments) <= _FEW and not any(
            "%" in text for text in heads + self._fragments
        )
        self._heads = heads if is_short else None

    def may_fit(self, path: str) -> bool:
        """Whether a pattern may fit this path of a canonical URL. False is certain, and quick."""
        # Without an escape on either side, the path and its comparable form agree wherever a pattern could fit.
        if self._heads is None or "%" in path:
            return True
        return path.startswith(self._heads) or any(map(path.__contains__, self._fragments))

    def longest(self, path: str) -> int:
        """The length, as written, of the longest pattern that fits this comparable path; -1 if none does."""
        found = max(self._prefixes.longest(path), self._wholes.get(path, -1))
        most = _MOST_TRIED // len(path)
        for number, wild in enumerate(self._candidates(path)):
            if wild.length <= found:
                break
            if number >= most:
                return wild.length if self._fits_in_doubt else found
            if _fits(wild, path):
                return wild.length
        return found

    def _candidates(self, path: str) -> Iterable[_Wild]:
        """The wildcard patterns that may fit, the longest first."""
        if self._by_gram is None:
            return self._wilds if any(map(path.__contains__, self._fragments)) else ()
        grams = {path[start : start + _GRAM] for start in range(len(path) - _GRAM + 1)}
        hits = set(self._by_gram[""]).union(*(self._by_gram[gram] for gram in self._by_gram.keys() & grams))
        return (self._wilds[index] for index in sorted(hits))


class _Prefixes:
    """Finds the patterns that a path begins with: the last one that is not after it in order, or prefixes of that."""

    def __init__(self, lengths: dict[str, int]) -> None:
        self._sorted = sorted(lengths)
        self._parents: list[int] = []
        self._longest: list[int] = []
        open_ones: list[int] = []
        for index, prefix in enumerate(self._sorted):
            while open_ones and not prefix.startswith(self._sorted[open_ones[-1]]):
                open_ones.pop()
            parent = open_ones[-1] if open_ones else -1
            self._parents.append(parent)
            # What fits a prefix fits with all prefixes of that, too.
            self._longest.append(max(lengths[prefix], self._longest[parent] if open_ones else -1))
            open_ones.append(index)

    def longest(self, path: str) -> int:
        index = bisect_right(self._sorted, path) - 1
        while index >= 0:
            if path.startswith(self._sorted[index]):
                return self._longest[index]
            index = self._parents[index]
        return -1


class _Wild(NamedTuple):
    """A pattern with wildcards. A path fits that has its parts in this order, `fragment` is the longest of them."""

    length: int
    head: str
    middle: tuple[str, ...]
    tail: str | None  # what the path must end with, after a $
    fragment: str


def _wild(parts: list[str], *, length: int, has_end: bool) -> _Wild:
    middle = parts[1:-1] if has_end else parts[1:]
    return _Wild(
        length=length,
        head=parts[0],
        middle=tuple(part for part in middle if part),
        tail=parts[-1] if has_end else None,
        fragment=max(parts, key=len),
    )


def _fits(wild: _Wild, path: str) -> bool:
    if not path.startswith(wild.head):
        return False
    at = len(wild.head)
    for part in wild.middle:
        at = path.find(part, at)
        if at < 0:
            return False
        at += len(part)
    return wild.tail is None or (path.endswith(wild.tail) and len(path) - len(wild.tail) >= at)


def _taken_apart(pattern: str) -> tuple[list[str], bool]:
    """The texts between the wildcards, comparable, and whether the path must end with the last one."""
    if pattern[:1] not in ("/", "*"):
        pattern = "/" + pattern
    has_end = pattern.endswith("$")
    pattern = pattern.removesuffix("$")
    if pattern.endswith("*"):
        has_end = False
        pattern = pattern.rstrip("*")
    return [comparable(part) for part in pattern.split("*")], has_end


def _indexed(wilds: list[_Wild]) -> dict[str, list[int]]:
    """The indexes of patterns by the first letters of their fragments; "" for those whose fragment is too short."""
    by_gram: dict[str, list[int]] = {"": []}
    for index, wild in enumerate(wilds):
        gram = wild.fragment[:_GRAM] if len(wild.fragment) >= _GRAM else ""
        by_gram.setdefault(gram, []).append(index)
    return by_gram


def _raise(lengths: dict[str, int], text: str, length: int) -> None:
    lengths[text] = max(length, lengths.get(text, -1))


def _spelled(found: re.Match[str]) -> str:
    text = found[0]
    return _SPELLED[text.upper()] if len(text) == 3 else f"%{ord(text):02X}"
