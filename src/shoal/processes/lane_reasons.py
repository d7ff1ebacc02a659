"""Why a lane rests, is slow, or has a pace of its own, in one line for people."""

from __future__ import annotations

import time
from typing import Final

from shoal.exits.figures import clock_time
from shoal.frontier.rules.constants import SAME_INTERVAL
from shoal.model import VIA, Crawl, LaneStatus
from shoal.processes.bounds import is_repaced
from shoal.processes.other_crawls import held_line
from shoal.processes.stats import describe_interval, exits_back

BLOCKED: Final = "blocked by an operator"
PACE_CHANGED: Final = "its pace was changed by an operator"
BOOSTED: Final = "boosted by an operator"
# A lane that starts later than so many seconds, and so many of its intervals, from now rests.
REST_SECONDS: Final = 2.0
REST_INTERVALS: Final = 2.0


def is_resting(lane: LaneStatus) -> bool:
    """Whether tasks wait and none of them may start soon."""
    soon = max(REST_SECONDS, REST_INTERVALS * lane.interval)
    rest = lane.held.seconds if lane.held is not None and lane.held.by == "rest" else 0.0
    return bool(lane.waiting) and (max(lane.rests_for, rest) > REST_SECONDS or lane.starts_in > soon)


def why_so(lane: LaneStatus, crawl: Crawl) -> str:
    """Why the lane rests or does not go at the pace of its crawl or its pool; empty: it does."""
    if lane.cap == 0:
        return BLOCKED
    if back := exits_back(lane):
        return f"every exit of {lane.lane.partition(VIA)[2]} rests until {back}"
    if lane.held is not None and lane.held.by == "rest":
        return held_line(lane.held)
    if lane.rests_for > 0:
        return f"{lane.why or 'its answers asked for a rest'}; rests until {clock_time(time.time() + lane.rests_for)}"
    if lane.held is not None and lane.held.by != "turn":
        return held_line(lane.held)
    if lane.waits_for_exit and is_resting(lane):
        return "its exits are in use, or wait for their turn"
    if lane.interval > lane.base_interval + SAME_INTERVAL:
        return f"slower than asked for: {lane.why or 'its answers call for that'}"
    if lane.interval < lane.base_interval - SAME_INTERVAL:
        held = f"; {held_line(lane.held)}" if lane.held is not None else ""
        return f"searching, {describe_interval(lane.interval)}{f', {lane.why}' if lane.why else ''}{held}"
    if is_repaced(lane, crawl):
        return lane.pace_why or "its pace was changed by an operator, or by its robots.txt"
    return held_line(lane.held) if lane.held is not None else ""
