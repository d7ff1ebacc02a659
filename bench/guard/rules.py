"""The rules of the guard: what a page costs by the counts, and what that says beside the baseline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

ALLOWED = 0.10
RENEW = "make guard-renew"
Unit = Literal["instructions", "calls"]


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """What counts depend on besides shoal's own code: only counts of equal conditions can be compared."""

    python: str
    platform: str
    sqlite: str
    constraints: str


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """What a page cost when the baseline was renewed, by part."""

    conditions: Conditions
    instructions: dict[str, float]
    calls: dict[str, float]


class Verdict(NamedTuple):
    """One line per thing to say, and whether a change made a page too dear."""

    lines: list[str]
    is_dearer: bool


def per_page(counts: Mapping[str, Sequence[int]], *, small: int, large: int) -> dict[str, float]:
    """What a page costs by part. `counts` are those of a crawl of the small site and of one of the large site: their
    difference leaves out what a crawl costs however many pages it has."""
    return {part: round((more - less) / (large - small), 1) for part, (less, more) in counts.items()}


def incomparable(baseline: Baseline, *, conditions: Conditions) -> Verdict | None:
    """What is said where counts would say nothing, because the baseline is of other conditions; None: compare them."""
    pairs = [
        (name, getattr(baseline.conditions, name), getattr(conditions, name)) for name in conditions.__struct_fields__
    ]
    differing = ", ".join(f"{name} was {former!r} and is {here!r}" for name, former, here in pairs if former != here)
    if not differing:
        return None
    return Verdict([f"guard: cannot compare with the baseline: {differing}; to renew it here: {RENEW}"], False)


def compare(found: Mapping[str, float], baseline: Baseline, *, unit: Unit) -> Verdict:
    """What the counts say beside the baseline's."""
    known = baseline.instructions if unit == "instructions" else baseline.calls
    new = [part for part in found if part not in known]
    if new:
        return Verdict([f"guard: the baseline does not know {', '.join(new)}; renew it: {RENEW}"], True)
    lines = [_line(part, count, known[part], unit) for part, count in found.items()]
    return Verdict(lines, any(is_dearer(count, known[part]) for part, count in found.items()))


def is_dearer(count: float, known: float) -> bool:
    """Whether a page costs more than is allowed."""
    return count > known * (1 + ALLOWED)


def _line(part: str, count: float, known: float, unit: Unit) -> str:
    change = count / known - 1
    said = f"guard: a page with {part} takes {count:,.0f} {unit}, {change:+.1%} against the baseline of {known:,.0f}"
    if is_dearer(count, known):
        return f"{said}: more than {ALLOWED:.0%} dearer; if that is meant, renew the baseline: {RENEW}"
    if change < -ALLOWED:
        return f"{said}: renew the baseline, so that the gain is kept: {RENEW}"
    return said
