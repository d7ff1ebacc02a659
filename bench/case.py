"""What a case of the benchmark gives: a table, bars for the chart, and the figures that were to be reached."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec


class Plan(NamedTuple):
    """How a case is run. `quick`: in a few seconds, to see that it works and what changed; its figures are rough."""

    quick: bool
    rounds: int


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure that was to be reached: `value` beside `wanted`, of which it must be `sense`.

    `bound_by`: where the case knows it, what keeps the value where it is; shown when it is not reached."""

    what: str
    value: float
    wanted: float
    sense: Literal["at least", "at most"]
    unit: str = ""
    bound_by: str = ""

    @property
    def is_reached(self) -> bool:
        return self.value >= self.wanted if self.sense == "at least" else self.value <= self.wanted


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One bar of the chart."""

    label: str
    value: float


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One case, measured.

    - `how`: sentences that say what was done, with which settings and versions
    - `columns`, `rows`: the table, ready to be shown; the first column names the system
    - `bars`, `bar_unit`: what the chart shows, longer is better; none: the case is not on it
    - `notes`: what a reader must know of these figures, such as that the server was the limit
    """

    letter: str
    title: str
    how: list[str]
    columns: list[str]
    rows: list[list[str]]
    figures: list[Figure] = msgspec.field(default_factory=list)
    bars: list[Bar] = msgspec.field(default_factory=list)
    bar_unit: str = "pages/s"
    notes: list[str] = msgspec.field(default_factory=list)


class Spread(NamedTuple):
    """The median of some runs, and how far they lie apart."""

    median: float
    low: float
    high: float

    def shown(self, form: str = ",.0f") -> str:
        middle, low, high = (format(value, form) for value in self)
        return middle if low == high else f"{middle} ({low} to {high})"


def spread_of(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))
