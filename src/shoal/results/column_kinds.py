"""What kinds of values a column holds, and the type of a Parquet column that keeps every one of them."""

from __future__ import annotations

from typing import Any

MAX_DEPTH = 8  # lists in lists; deeper ones are JSON text

# As bits: a column's type follows from all of its values.
_BOOL, _INT, _LONG, _FLOAT, _TEXT, _LIST, _OTHER = 1, 2, 4, 8, 16, 32, 64
_BY_TYPE: dict[type, int] = {type(None): 0, str: _TEXT, bool: _BOOL, float: _FLOAT}


class ColumnKind:
    """The kinds of all values of one column so far; for lists also those of their elements."""

    __slots__ = ("_bits", "_depth", "_element")

    def __init__(self, depth: int = 0) -> None:
        self._bits = 0
        self._depth = depth
        self._element: ColumnKind | None = None

    def add(self, value: Any) -> None:
        """Take the next value, as JSON has it."""
        bits = _BY_TYPE.get(type(value))
        if bits is not None:
            self._bits |= bits
        elif isinstance(value, int):
            self._bits |= _kind_of_int(value)
        elif isinstance(value, list) and self._depth < MAX_DEPTH:
            self._bits |= _LIST
            if self._element is None:
                self._element = ColumnKind(self._depth + 1)
            self._element._add_all(value)
        else:
            self._bits |= _OTHER

    def arrow_type(self, arrow: Any) -> Any:
        """The narrowest type that keeps every value; None when only text that spells the value out does."""
        bits = self._bits
        if bits == _LIST and self._element is not None:
            element = self._element.arrow_type(arrow)
            return None if element is None else arrow.list_(element)
        if bits in (0, _TEXT):
            return arrow.string()
        if bits == _BOOL:
            return arrow.bool_()
        if not bits & ~(_INT | _LONG):
            return arrow.int64()
        # Whole numbers beyond 2**53 would lose digits as floats.
        return arrow.float64() if not bits & ~(_INT | _FLOAT) else None

    def _add_all(self, values: list[Any]) -> None:
        # By type, since lists may be long: most kinds need no look at each value.
        for kind in set(map(type, values)):
            bits = _BY_TYPE.get(kind)
            if bits is not None:
                self._bits |= bits
            else:
                for value in values:
                    if type(value) is kind:
                        self.add(value)


def _kind_of_int(value: int) -> int:
    if -(2**53) <= value <= 2**53:
        return _INT
    return _LONG if -(2**63) <= value < 2**63 else _OTHER
