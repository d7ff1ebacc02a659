"""Duties of the whole frontier: one holder at a time has each of them."""

from __future__ import annotations

import enum
from typing import NamedTuple

from shoal.frontier.rules.constants import CLOCK_SECONDS


def is_held(since: float, until: float, *, now: float) -> bool:
    """Whether a duty that was taken at one time, until another one, is still held.

    A clock that was set back makes it free: else a holder that is gone would have it until the clock has caught up."""
    return since - CLOCK_SECONDS <= now < until


class HeldDuty(NamedTuple):
    """A duty as it is stored: its latest holder, since and until when, and the number of that holder's term."""

    holder: str = ""
    since: float = 0.0
    until: float = 0.0
    term: int = 0


class DutyCall(NamedTuple):
    """What a holder asks of a duty: see `Frontier.hold_duty`."""

    holder: str
    seconds: float
    notes: bytes | None
    term: int | None


class Step(enum.Enum):
    """What a call of `hold_duty` does."""

    REFUSED = enum.auto()
    LOOKED = enum.auto()
    HELD = enum.auto()


def step_of(held: HeldDuty, call: DutyCall, *, now: float) -> tuple[Step, int]:
    """What a call does, and the number of the term afterwards."""
    is_another = held.holder != call.holder
    if (is_another and is_held(held.since, held.until, now=now)) or call.term not in (None, held.term):
        return Step.REFUSED, held.term
    # A look is no term: whoever has paused for longer than the duty lasts may go on, if nobody took it meanwhile.
    if is_another and not call.seconds and call.notes is None:
        return Step.LOOKED, held.term
    return Step.HELD, held.term + is_another
