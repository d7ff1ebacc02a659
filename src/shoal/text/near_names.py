"""Finds the known name nearest to a misspelt one. Pure functions."""

from __future__ import annotations

import difflib
import operator
import re
from collections.abc import Iterable
from typing import Final

SHORTEST_EDITED: Final = 7
ALMOST_EQUAL: Final = 0.9


def nearest(name: str, known: Iterable[str]) -> str:
    """The most similar known name; empty if none is similar."""
    return next(iter(difflib.get_close_matches(name, known, n=1)), "")


def did_you_mean(name: str, known: Iterable[str], *, otherwise: str = "") -> str:
    """ "did you mean …?" with the nearest name, for the end of a message; else `otherwise`."""
    near = nearest(name, known)
    return f"did you mean {near!r}?" if near else otherwise


def is_slip(name: str, meant: str) -> bool:
    """Whether `name` is `meant` with a typing error. Similar short names are other words: rate, date."""
    if name.lower() == meant:
        return True
    if len(meant) < SHORTEST_EDITED:
        return _is_swapped(name, meant) or _without_doubles(name) == _without_doubles(meant)
    return _is_one_edit(name, meant) or difflib.SequenceMatcher(None, name, meant).ratio() >= ALMOST_EQUAL


def _is_one_edit(name: str, meant: str) -> bool:
    if len(name) == len(meant):
        return sum(map(operator.ne, name, meant)) == 1 or _is_swapped(name, meant)
    short, long = sorted((name, meant), key=len)
    return len(long) == len(short) + 1 and any(long[:at] + long[at + 1 :] == short for at in range(len(long)))


def _is_swapped(name: str, meant: str) -> bool:
    wrong = [at for at, (one, other) in enumerate(zip(name, meant, strict=False)) if one != other]
    return sorted(name) == sorted(meant) and len(wrong) == 2 and wrong[1] == wrong[0] + 1


def _without_doubles(text: str) -> str:
    return re.sub(r"(.)\1+", r"\1", text)
