"""Duties of the whole frontier: one holder at a time has each of them."""

from __future__ import annotations

from shoal.frontier.rules.constants import CLOCK_SECONDS


def is_held(since: float, until: float, *, now: float) -> bool:
    """Whether a duty that was taken at one time, until another one, is still held.

    A clock that was set back makes it free: else a holder that is gone would have it until the clock has caught up."""
    return since - CLOCK_SECONDS <= now < until
