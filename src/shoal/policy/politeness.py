"""How a response changes its lane's pace. Pure policy: the frontier applies it, once for the whole fleet."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgspec

from shoal.model import LaneUpdate, Lease
from shoal.policy.retries import Verdict

# Slots are lent a hundredth further apart than the rate allows: a busy machine or network delays some starts,
# and two starts then come closer together than they were lent.
MARGIN: Final = 1.01
SLOWEST_INTERVAL: Final = 60.0
FIRST_SLOW_INTERVAL: Final = 0.1  # where a lane without an interval starts to have one
GOOD_STREAK: Final = 10
SPEED_UP: Final = 0.8
TROUBLE: Final = 0.15  # two bad answers in about eight: a host struggles, and not just one of its pages
SLOW_DOWN: Final = 2.0
EASE_OFF: Final = 1.25
SLOW_RATIO: Final = 3.0  # an answer this many times slower than usual is a sign
SLOW_FLOOR: Final = 1.0  # but not below this many seconds
AVERAGE_WEIGHT: Final = 0.1
MAX_LANES: Final = 10_000


def lent_interval(allowed: float) -> float:
    """The interval at which a lane lends its slots, so that starts keep the allowed interval."""
    return MARGIN * allowed


def allowed_interval(lent: float) -> float:
    """The interval that people asked for, from the interval at which a lane lends."""
    return lent / MARGIN


class LaneMood(msgspec.Struct):
    """One worker's view of a lane: its usual latency, its good answers in a row, and the share of bad answers."""

    latency: float = 0.0
    streak: int = 0
    trouble: float = 0.0


def after_response(
    mood: LaneMood, verdict: Verdict, *, latency: float, interval: float, base_interval: float
) -> LaneUpdate | None:
    """The lane's new interval, if this response changes it. Notes the response in the mood.

    Guarded by the interval of the lease: many bad answers at the same time slow the lane once."""
    mood.trouble += AVERAGE_WEIGHT * (verdict.slows - mood.trouble)
    if verdict.slows:
        mood.streak = 0
        # A host that asks for it itself (429, Retry-After) is slowed down at once.
        if not verdict.free and mood.trouble < TROUBLE:
            return None
        return _changed(interval, _slower(interval, SLOW_DOWN, base_interval))
    usual = mood.latency
    mood.latency = usual + AVERAGE_WEIGHT * (latency - usual) if usual else latency
    if latency > SLOW_FLOOR and usual and latency > SLOW_RATIO * usual:
        mood.streak = 0
        return _changed(interval, _slower(interval, EASE_OFF, base_interval))
    mood.streak += 1
    if mood.streak < GOOD_STREAK or interval <= base_interval:
        return None
    mood.streak = 0
    faster = max(SPEED_UP * interval, base_interval)
    # A base interval of 0 would never be reached by multiplying.
    return _changed(interval, faster if faster >= 0.01 else base_interval)


def _slower(interval: float, times: float, base_interval: float) -> float:
    slower = times * interval if interval else FIRST_SLOW_INTERVAL
    return min(slower, max(SLOWEST_INTERVAL, base_interval))


def _changed(interval: float, new: float) -> LaneUpdate | None:
    return LaneUpdate(interval=new, if_interval=interval) if new != interval else None


class Moods:
    """The moods of the lanes a worker serves, the least recently served forgotten first."""

    def __init__(self, *, adaptive: bool, size: int = MAX_LANES) -> None:
        self._adaptive = adaptive
        self._size = size
        self._moods: OrderedDict[str, LaneMood] = OrderedDict()

    def after(self, lease: Lease, verdict: Verdict, elapsed: float) -> LaneUpdate | None:
        """How this response changes the pace of its lane; None: not at all, as always with a fixed pace."""
        if not self._adaptive:
            return None
        lane = lease.task.lane
        mood = self._moods.get(lane)
        if mood is None:
            mood = self._moods[lane] = LaneMood()
            if len(self._moods) > self._size:
                self._moods.popitem(last=False)
        else:
            self._moods.move_to_end(lane)
        return after_response(
            mood, verdict, latency=elapsed, interval=lease.interval, base_interval=lease.base_interval
        )
