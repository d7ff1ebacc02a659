"""How an answer changes its lane's pace; the frontier applies each change once for the whole fleet."""

from __future__ import annotations

from typing import Final

import msgspec

from shoal.model import LaneUpdate
from shoal.policy.retries import Verdict
from shoal.text.errors import several

# Start slots are a hundredth further apart than the rate allows: a busy machine or network delays some starts, and the
# next start then comes too close.
MARGIN: Final = 1.01
SLOWEST_INTERVAL: Final = 60.0
FIRST_SLOW_INTERVAL: Final = 0.1  # the first interval of a lane without one that slows down
TROUBLE: Final = 0.25  # share of refusals from which the host counts as troubled, not just some pages
TROUBLED_RUN: Final = 3  # or this many refusals in a row
SHARE_WEIGHT: Final = 0.05  # of one answer in the moving average: about the last twenty count
SHARE_PRIOR: Final = 0.25  # a lane begins as if some answers had been good: one refusal alone is no trouble
SLOW_DOWN: Final = 1.5
EASE_OFF: Final = 1.25
YIELD: Final = 1.1  # the slow-down after a lone refusal
YIELD_AT_MOST: Final = 1.11  # all of these together, unless the host says that it is asked too often
SPEED_UP: Final = 0.06  # by how much the interval shrinks per second of good answers
SPEED_UP_AT_MOST: Final = 0.75
SLOW_RATIO: Final = 3.0  # an answer this many times slower than usual slows the lane
SLOW_FLOOR: Final = 1.0  # only above this many seconds
AVERAGE_WEIGHT: Final = 0.1
SLOW_ANSWERS: Final = "its answers take much longer than usual"


def lent_interval(allowed: float) -> float:
    """The interval between start slots, so that starts keep the allowed interval."""
    return MARGIN * allowed


def allowed_interval(lent: float) -> float:
    """The interval that people asked for, from the interval between start slots."""
    return lent / MARGIN


class LaneHealth(msgspec.Struct):
    """One worker's view of a lane: its usual latency, the refusals in a row, and the share of refusals.

    `refused` of `seen` is that share, both as moving averages."""

    latency: float = 0.0
    run: int = 0
    refused: float = 0.0
    seen: float = SHARE_PRIOR

    @property
    def is_troubled(self) -> bool:
        """Whether the host itself has trouble, not just single pages."""
        return self.run >= TROUBLED_RUN or self.refused >= TROUBLE * self.seen

    def note(self, *, refused: bool) -> None:
        self.run = self.run + 1 if refused else 0
        self.refused += SHARE_WEIGHT * (refused - self.refused)
        self.seen += SHARE_WEIGHT * (1.0 - self.seen)


def after_response(
    health: LaneHealth, verdict: Verdict, *, latency: float, interval: float, base_interval: float
) -> LaneUpdate | None:
    """The lane's new interval, if this answer changes it, and its latency noted in `health`, which knows the verdict
    already. Speeding up is one step per interval."""
    if verdict.slows:
        why = f"backing off after {several(health.run, 'failure')} in a row, the last one {verdict.outcome}"
        return _changed(interval, _after_refusal(health, verdict, interval, base_interval), why=why)
    usual = health.latency
    health.latency = usual + AVERAGE_WEIGHT * (latency - usual) if usual else latency
    if latency > SLOW_FLOOR and usual and latency > SLOW_RATIO * usual:
        return _changed(interval, _slower(interval, EASE_OFF, base_interval), why=SLOW_ANSWERS)
    if interval <= base_interval:
        return None
    # A lane with a long interval has few answers: each counts for more time.
    faster = max(interval * (1 - min(SPEED_UP * max(interval, 1.0), SPEED_UP_AT_MOST)), base_interval)
    # Multiplying would never reach a base interval of 0.
    return _changed(interval, faster if faster >= 0.01 else base_interval)


def _after_refusal(health: LaneHealth, verdict: Verdict, interval: float, base_interval: float) -> float:
    if health.is_troubled:
        health.refused /= 2
        return _slower(interval, SLOW_DOWN, base_interval)
    if verdict.too_often:
        return _slower(interval, YIELD, base_interval)
    # A host that answers other pages may refuse these at any pace: they must not slow down its lane for ever.
    if verdict.free:
        return max(interval, min(_slower(interval, YIELD, base_interval), YIELD_AT_MOST * base_interval))
    return interval


def _slower(interval: float, times: float, base_interval: float) -> float:
    slower = times * interval if interval else FIRST_SLOW_INTERVAL
    return min(slower, max(SLOWEST_INTERVAL, base_interval))


def _changed(interval: float, new: float, *, why: str = "") -> LaneUpdate | None:
    return LaneUpdate(interval=new, if_interval=interval, why=why) if new != interval else None
