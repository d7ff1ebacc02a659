"""Warns when a crawl will not be done by its deadline, and says what would help. Pure."""

from __future__ import annotations

import math
from typing import Final, Literal

from shoal.exits.figures import clock_time
from shoal.model import Crawl, CrawlState, LaneStatus
from shoal.policy.limits import deadline_of
from shoal.processes.advice_words import hours
from shoal.processes.stats import Snapshot, pool_of, seconds_left
from shoal.text.errors import several

# A rate that was measured for a shorter time says little.
MEASURED_SECONDS: Final = 10.0
# How much later than the deadline, or earlier, the end must be reckoned before it is said: the noise of a rate is less.
LATE, IN_TIME = 1.1, 0.9
# What would help is said anew when it is something else for so long.
CHANGED_SECONDS: Final = 60.0

Cure = Literal["", "pace", "workers", "other"]


class DeadlineWatch:
    """What is to be said of the deadline of one crawl: once, and when it changes."""

    def __init__(self) -> None:
        self._said: Cure = ""
        self._other_since: float | None = None

    def look(self, snapshot: Snapshot, *, now: float) -> str:
        """The line to say at this time of day; empty: nothing that was not said."""
        limit = deadline_of(snapshot.crawl)
        left = 0.0 if limit is None else limit.most - now
        is_running = snapshot.progress.state is CrawlState.RUNNING and snapshot.progress.left
        if limit is None or left <= 0 or not is_running or snapshot.elapsed < MEASURED_SECONDS:
            return ""
        needs = snapshot.eta_seconds
        if needs is None:
            return ""
        if needs <= IN_TIME * left and self._said:
            self._said, self._other_since = "", None
            return (
                f"the crawl will be done by its deadline ({clock_time(limit.most)}) now: it needs {hours(needs)} more"
            )
        if needs <= LATE * left or not self._is_news(_cure_of(snapshot, left), now=now):
            return ""
        tasks = several(snapshot.progress.left, "task")
        return (
            f"the crawl will not be done by its deadline ({clock_time(limit.most, now=now)}): {tasks} known now need"
            f" {hours(needs)}, {hours(left)} are left; {_help(snapshot, needs=needs, left=left)}"
        )

    def _is_news(self, cure: Cure, *, now: float) -> bool:
        """Whether this was not said yet: at once the first time, then when it holds for a while."""
        if cure == self._said:
            self._other_since = None
            return False
        if self._said:
            self._other_since = now if self._other_since is None else self._other_since
            if now - self._other_since < CHANGED_SECONDS:
                return False
        self._said, self._other_since = cure, None
        return True


def _cure_of(snapshot: Snapshot, left: float) -> Cure:
    if snapshot.last_lanes and seconds_left(snapshot.last_lanes[0]) > left:
        return "pace"
    if snapshot.bound.startswith(("politeness", "every ", "logins ", "the exits ")):
        return "other"
    return "workers"


def _rate_for(lane: LaneStatus, crawl: Crawl, left: float) -> str:
    """The pace at which a lane gets done in so many seconds; unknown where exits or other crawls share it."""
    if lane.held is not None or pool_of(lane, crawl) is not None:
        return "a higher rate"
    per_second = lane.waiting / left
    unit, seconds = next(((unit, at) for unit, at in (("s", 1), ("m", 60)) if per_second * at >= 1), ("h", 3600))
    return f"{math.ceil(per_second * seconds)}/{unit}"


def _help(snapshot: Snapshot, *, needs: float, left: float) -> str:
    cure = _cure_of(snapshot, left)
    if cure == "pace":
        lane = snapshot.last_lanes[0]
        soonest = hours(seconds_left(lane))
        return (
            f"at its pace {lane.lane} takes {soonest}, whatever is added: {_rate_for(lane, snapshot.crawl, left)} helps"
            " (--rate, or `shoal pace`), if the site bears it"
        )
    if cure == "other":
        return f"what bounds it is {snapshot.bound}"
    if not snapshot.workers:
        return "no worker is at work"
    wanted = math.ceil(len(snapshot.workers) * needs / left)
    at_work = several(len(snapshot.workers), "worker")
    return f"{at_work} at work, about {wanted} would do it if the sites bear it (bound by {snapshot.bound})"
