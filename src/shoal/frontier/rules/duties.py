"""Duties of the whole frontier, each with one holder at a time."""

from __future__ import annotations

import enum
from typing import NamedTuple

from shoal.frontier.rules.constants import CLOCK_SECONDS


def is_held(since: float, until: float, *, now: float) -> bool:
    """Whether a duty that was taken at `since` for the time until `until` is still held.

    A clock that was set back frees the duty: else an exited holder would keep it until the clock has caught up."""
    return since - CLOCK_SECONDS <= now < until


class HeldDuty(NamedTuple):
    """A stored duty: its latest holder, since and until when, and the number of that holder's term."""

    holder: str = ""
    since: float = 0.0
    until: float = 0.0
    term: int = 0


class Step(enum.Enum):
    """The effect of a call of `hold_duty`."""

    REFUSED = enum.auto()
    LOOKED = enum.auto()
    HELD = enum.auto()


def step_of(stored: HeldDuty, holder: str, *, is_look: bool, term: int | None, now: float) -> tuple[Step, int]:
    """The effect of this holder's call, and the number of the term after it. `is_look`: the call asks for no time and
    writes no notes."""
    is_another = stored.holder != holder
    if (is_another and is_held(stored.since, stored.until, now=now)) or term not in (None, stored.term):
        return Step.REFUSED, stored.term
    # A look begins no term: the former holder may continue after a pause, if nobody took the duty meanwhile.
    if is_another and is_look:
        return Step.LOOKED, stored.term
    return Step.HELD, stored.term + is_another
