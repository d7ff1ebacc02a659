"""How answers change the pace of their lanes; and `pace = "search"`: faster while answers come as quickly as before,
then slightly below the knee, the pace at which they took longer or failed.

Every worker judges its own answers, and proposes a pace together with the one that they were leased at. The lane takes
the first proposal and refuses the others: one step for the whole fleet. Workers see each other's steps in the intervals
of their leases: a lane that became slower has found its knee.

Answers are compared rank by rank: a few slow ones dominate a mean, and a median jumps if half of the pages are slow. At
a knee the lane also rests, until the host has answered its queue: that queue would look like another knee.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from shoal.frontier.rules.constants import SAME_INTERVAL, SHORT_REST
from shoal.frontier.rules.tasks import lent_at
from shoal.model import VIA, LaneUpdate, Lease
from shoal.policy.politeness import LaneHealth, after_response, allowed_interval, lent_interval
from shoal.policy.retries import Verdict
from shoal.settings.table import Settings
from shoal.settings.values import parse_rate

Latency = Literal["level", "unclear", "risen"]

# When the answers at one pace are judged.
LOOK_SECONDS: Final = 1.5  # at least, since the first request at this pace: a queue at the host needs time to grow
LOOK_ANSWERS: Final = 24  # needed by the whole fleet; a worker needs its share of them,
FEWEST_ANSWERS: Final = 5  # at least this many,
ENOUGH_ANSWERS: Final = 12  # at most this many
LATEST_ANSWERS: Final = 16  # a worker compares only its latest answers
FEWEST_FOR_RISE: Final = 8  # answers needed to show that they take longer
PACED_SHARE: Final = 0.75  # of the requests waited for their start slots; fewer: the pace is not what limits the host
USUAL_ANSWERS: Final = 48  # that define the usual latency
# The latency has risen when at most ranks it is this many times the usual one, and this many seconds more.
RISEN: Final = 1.6
RISEN_OF_FEW: Final = 2.2  # if a worker has seen few answers
RISEN_SECONDS: Final = 0.02
LEVEL: Final = 1.25
LEVEL_OF_FEW: Final = 1.6
LEVEL_SECONDS: Final = 0.01
FAILED_SHARE: Final = 0.3  # this share of failures above the usual share is a knee, too
FEWEST_FAILED: Final = 4
# The steps.
COARSE: Final = 1.25  # far from the knee
FINE: Final = 1.06  # near the knee
NEAR: Final = 0.9  # of the pace of the knee
BELOW: Final = 0.92  # of the fastest pace that went well: the lane is held here
EASE: Final = 1.12  # the slow-down of a lane for which no faster pace went well
EASE_AGAIN: Final = 1.25  # if the first slow-down did not help
MOST_EASED: Final = 4  # slow-downs in a row without effect: the pace is not the cause
LONGEST_DRAIN: Final = 2.0  # seconds of rest at most, until the host has answered its queue
SETTLING_SECONDS: Final = 3.0  # after a slow-down: slow answers still come from the queue
STALE_SECONDS: Final = 20.0  # without an answer as quick as usual, at any pace: then the usual latency is replaced
# How long a lane is held below its knee: longer each time the knee is found at about the same pace.
FIRST_HOLD: Final = 5.0
LONGER: Final = 3.0
LONGEST_HOLD: Final = 300.0
SAME_KNEE: Final = (0.88, 1.25)
SAME_PACE: Final = 1e-6
MOST_ALLOWED: Final = "the most that it may be asked"


class SearchBounds(msgspec.Struct, frozen=True):
    """The slowest and the fastest interval of a search: its begin and its end."""

    first: float
    fastest: float


class Answer(msgspec.Struct, frozen=True):
    """One answer. `has_waited`: the request waited for its start slot, so the pace limited it."""

    seconds: float
    has_waited: bool
    has_failed: bool


class LaneSearch(msgspec.Struct):
    """One worker's view of a lane whose pace is searched.

    - `answers`: the latest ones at `interval`; `count`: all at this interval, since the request that started at `since`
      with the lease token `begun`; `first`: the seconds of the first ones
    - `usual`: the sorted seconds of answers at paces that went well, `usual_failed`: their share of failures
    - `good`: the interval before this one that went well, `knee`: the one that did not; 0: none
    - `is_raised`: this interval is faster than the one before; `level_at`: the count when the latency was last level
    """

    interval: float = 0.0
    since: float = 0.0
    begun: int = 0
    count: int = 0
    untaken: int = 0
    first: list[float] = msgspec.field(default_factory=list)
    answers: deque[Answer] = msgspec.field(default_factory=lambda: deque(maxlen=LATEST_ANSWERS))
    usual: list[float] = msgspec.field(default_factory=list)
    usual_failed: float = 0.0
    usual_at: float = 0.0
    latest: deque[float] = msgspec.field(default_factory=lambda: deque(maxlen=ENOUGH_ANSWERS))
    good: float = 0.0
    knee: float = 0.0
    is_raised: bool = False
    level_at: int = 0
    step: float = COARSE
    hold: float = 0.0
    held_until: float = 0.0
    settled_at: float = 0.0
    eased: int = 0
    has_told: bool = False

    def after(
        self, lease: Lease, verdict: Verdict, *, latency: float, started: float, fastest: float, is_troubled: bool
    ) -> LaneUpdate | None:
        """The lane's next pace, if this answer decides it. `fastest`: the shortest allowed interval."""
        is_of_now = self.notice(lease, started=started)
        if verdict.too_often or (verdict.slows and is_troubled):
            return self._slower(lease, started=started, cause=f"it answered {verdict.outcome.removeprefix('http_')}")
        if not is_of_now:
            return None
        self._renew_usual(latency, started=started)
        self.count += 1
        self.untaken += 1
        self.answers.append(Answer(latency, lease.wait > 0, verdict.action == "retry"))
        if len(self.first) < FEWEST_FOR_RISE:
            self.first.append(latency)
        if lease.interval < fastest * (1 - SAME_PACE):
            return LaneUpdate(interval=fastest, if_interval=lease.interval, learnt=fastest)
        if not self._has_seen_enough(started):
            return None
        return self._decided(lease, started=started, fastest=fastest)

    def notice(self, lease: Lease, *, started: float) -> bool:
        """Notice a new pace of the lane. False: the lease is of a former pace."""
        if lease.token < self.begun:
            return False
        former = self.interval
        if abs(lease.interval - former) <= SAME_PACE * former:
            return True
        if not former:
            self._join(lease, started=started)
        elif lease.interval > former:
            self._has_slowed(former, started=started)
        else:
            self._has_risen(former)
        self.interval, self.since, self.begun, self.count = lease.interval, started, lease.token, 0
        self.untaken, self.level_at, self.has_told = 0, 0, False
        self.answers.clear()
        self.first.clear()
        return True

    def _join(self, lease: Lease, *, started: float) -> None:
        """The first lease of this lane. If others search it already, only watch for a while."""
        if lease.interval < lease.base_interval * (1 - SAME_PACE):
            self.step = FINE
            self.held_until = started + FIRST_HOLD
            self.settled_at = started + SETTLING_SECONDS

    def _has_slowed(self, former: float, *, started: float) -> None:
        least, most = SAME_KNEE
        is_same = self.is_raised and least <= self.knee / former <= most
        self.hold = min(LONGER * self.hold, LONGEST_HOLD) if is_same else FIRST_HOLD
        self.held_until = started + self.hold
        self.settled_at = started + SETTLING_SECONDS
        self.knee, self.is_raised = former, False
        self.step = FINE
        self.eased += 1

    def _has_risen(self, former: float) -> None:
        self.good, self.is_raised = former, True
        self.eased = max(self.eased - 1, 0)
        if self.knee and former < NEAR * self.knee:
            self.knee = 0.0
        if not self.knee:
            self.step = min(1 + 1.5 * (self.step - 1), COARSE)

    @property
    def _is_paced(self) -> bool:
        """Whether the requests have waited for their start slots: the pace is what limits the host."""
        return sum(answer.has_waited for answer in self.answers) >= PACED_SHARE * len(self.answers)

    @property
    def _is_behind(self) -> bool:
        """Whether the host answers fewer requests than the lane may start: answers take longer than the first ones at
        this pace, or requests in flight reach their limit."""
        latest = [answer.seconds for answer in self.answers][-FEWEST_FOR_RISE:]
        return not self._is_paced or latency_of(sorted(latest), sorted(self.first)) == "risen"

    def _has_seen_enough(self, started: float) -> bool:
        passed = started - self.since
        if passed < LOOK_SECONDS:
            return False
        times = 1 if self.usual else 2
        return self.count >= times * _needed(self.count * self.interval / passed)

    def _decided(self, lease: Lease, *, started: float, fastest: float) -> LaneUpdate | None:
        seconds = sorted(answer.seconds for answer in self.answers)
        failed = sum(answer.has_failed for answer in self.answers)
        if self.usual and failed >= FEWEST_FAILED and failed / len(seconds) > self.usual_failed + FAILED_SHARE:
            return self._slower(lease, started=started, cause="more of its answers failed")
        if not self.usual and lease.interval < lease.base_interval * (1 - SAME_PACE):
            if len(seconds) < LATEST_ANSWERS:
                return None
            if self._is_behind:
                return self._until_paced(lease, seconds, started=started)
            if started < self.settled_at:
                return None
        latency = latency_of(seconds, self.usual)
        if latency == "risen":
            return self._after_rise(lease, seconds, started=started)
        self.level_at = self.count
        if latency == "unclear":
            return None
        self._went_well(seconds, failed / len(seconds))
        return self._faster(lease, started=started, fastest=fastest)

    def _renew_usual(self, latency: float, *, started: float) -> None:
        """Replace the usual latency if no pace has brought it back for a while."""
        self.latest.append(latency)
        latest = sorted(self.latest)
        if not self.usual or len(latest) < FEWEST_FOR_RISE or latency_of(latest, self.usual) != "risen":
            self.usual_at = started
        elif started - self.usual_at > STALE_SECONDS:
            self.usual, self.usual_at = latest, started

    def _went_well(self, seconds: list[float], failed: float) -> None:
        self.eased = 0
        if latency_of(self.usual, seconds) == "risen":
            self.usual = seconds
        elif len(self.usual) < USUAL_ANSWERS:
            self.usual = sorted(self.usual + [answer.seconds for answer in self.answers][-self.untaken :])
            self.usual_failed = max(self.usual_failed, failed)
        self.untaken = 0

    def _after_rise(self, lease: Lease, seconds: list[float], *, started: float) -> LaneUpdate | None:
        if started < self.settled_at or len(seconds) < FEWEST_FOR_RISE:
            return None
        if not self.is_raised and self.count - self.level_at < LATEST_ANSWERS:
            # A pace that went well is judged many times: now and then that looks like a rise by chance.
            return None
        if self.eased >= MOST_EASED:
            self.usual, self.eased = seconds, 0
            return None
        latest = sorted([answer.seconds for answer in self.answers][-FEWEST_ANSWERS:])
        more = 2 * (middle(latest) - middle(self.usual))
        return _drained(self._slower(lease, started=started, cause="its answers took longer there"), lease.wait, more)

    def _until_paced(self, lease: Lease, seconds: list[float], *, started: float) -> LaneUpdate | None:
        """Slow down until the pace is what limits the lane. Nothing is learnt: perhaps there are just too few tasks."""
        update = self._slower(lease, started=started, cause="it answers fewer than that")
        return _drained(update and msgspec.structs.replace(update, learnt=None), lease.wait, middle(seconds))

    def _slower(self, lease: Lease, *, started: float, cause: str) -> LaneUpdate | None:
        """Back below the knee, but no slower than the first interval."""
        if lease.interval < self.good < lease.base_interval:
            slower = self.good / BELOW
        else:
            slower = lease.interval * (EASE_AGAIN if self.eased else EASE)
        slower = min(slower, lease.base_interval)
        if slower <= lease.interval:
            return None
        why = f"held below its knee near {rate_of(lease.interval)}: {cause}"
        return LaneUpdate(interval=slower, if_interval=lease.interval, started=started, learnt=slower, why=why)

    def _faster(self, lease: Lease, *, started: float, fastest: float) -> LaneUpdate | None:
        if lease.interval <= fastest * (1 + SAME_PACE):
            return self._told(lease.interval)
        if started < self.held_until or not self._is_paced:
            return None
        step = self.step
        if self.knee:
            step = COARSE if lease.interval > COARSE / NEAR * self.knee else FINE
        faster = max(lease.interval / step, fastest)
        why = f"knee near {rate_of(self.knee)}" if self.knee else ""
        why = MOST_ALLOWED if faster == fastest else why
        return LaneUpdate(interval=faster, if_interval=lease.interval, learnt=lease.interval, why=why)

    def _told(self, interval: float) -> LaneUpdate | None:
        """A host that bears the fastest allowed pace: note that once."""
        if self.has_told:
            return None
        self.has_told = True
        return LaneUpdate(learnt=interval)


def is_searched(lease: Lease, bounds: SearchBounds) -> bool:
    """Whether this lane's pace is searched. Not if people or robots.txt have set it, and not via a pool: the latency
    would be that of its exits."""
    return VIA not in lease.task.lane and math.isclose(lease.base_interval, bounds.first, rel_tol=SAME_PACE)


def _drained(update: LaneUpdate | None, lent: float, seconds: float) -> LaneUpdate | None:
    """The update with a rest in which the host answers its queue. It begins after the start slots that are already
    leased, about `lent` seconds ahead."""
    return update and msgspec.structs.replace(update, rest_seconds=lent + min(max(seconds, 0.0), LONGEST_DRAIN))


def latency_of(now: Sequence[float], usual: Sequence[float]) -> Latency:
    """Whether these answers take as long as usual; both sorted. The majority of ranks decides: neither a few slow
    answers nor a mixture of quick and slow pages looks like a rise."""
    if not usual:
        return "level"
    few = min(len(now), len(usual)) < ENOUGH_ANSWERS
    if _is_above(now, usual, times=RISEN_OF_FEW if few else RISEN, seconds=RISEN_SECONDS):
        return "risen"
    return "unclear" if _is_above(now, usual, times=LEVEL_OF_FEW if few else LEVEL, seconds=LEVEL_SECONDS) else "level"


def _is_above(now: Sequence[float], usual: Sequence[float], *, times: float, seconds: float) -> bool:
    ranks = min(len(now), LATEST_ANSWERS)
    above = sum(_at(now, rank / ranks) > times * _at(usual, rank / ranks) + seconds for rank in range(ranks))
    return 2 * above >= ranks


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[int(share * len(ordered))]


def middle(ordered: Sequence[float]) -> float:
    return ordered[len(ordered) // 2]


def _needed(share: float) -> int:
    """How many answers a worker needs that gets this share of the lane's answers."""
    return min(max(round(share * LOOK_ANSWERS), FEWEST_ANSWERS), ENOUGH_ANSWERS)


def rate_of(interval: float) -> str:
    """The pace of a lane as people write it."""
    return f"{1 / allowed_interval(interval):.3g}/s"


MAX_LANES: Final = 10_000


class Pacer:
    """How answers change the pace of a worker's lanes; beyond `size` lanes the least recently served are forgotten.
    `first`: the interval of the setting `rate`; `bounds`: of a search, None: paces are not searched."""

    def __init__(
        self, *, adaptive: bool, first: float = 0.0, bounds: SearchBounds | None = None, size: int = MAX_LANES
    ) -> None:
        self._adaptive = adaptive
        self._first = first
        self._bounds = bounds
        self._size = size
        self._health: OrderedDict[str, LaneHealth] = OrderedDict()
        self._searches: dict[str, LaneSearch] = {}

    @staticmethod
    def of(settings: Settings) -> Pacer:
        first, fastest = lent_interval(parse_rate(settings.rate)), fastest_interval(settings)
        bounds = SearchBounds(first=first, fastest=fastest) if fastest else None
        return Pacer(adaptive=settings.pace != "fixed", first=first, bounds=bounds)

    @property
    def search(self) -> bool:
        """Whether paces are searched."""
        return self._bounds is not None

    def after(
        self, lease: Lease, verdict: Verdict, elapsed: float, *, crawl_delay: float | None = 0.0
    ) -> LaneUpdate | None:
        """How this answer changes the pace of its lane; None: not at all. No search goes faster than `crawl_delay`, of
        the host's robots.txt; None: not known here."""
        health = self._of(lease.task.lane)
        health.note(refused=verdict.slows)
        if self._bounds is not None and is_searched(lease, self._bounds):
            return self._searched(lease, verdict, elapsed, health, self._fastest(self._bounds, lease, crawl_delay))
        if self._bounds is None and lease.interval < self._first - SAME_INTERVAL and self._first == lease.base_interval:
            # An earlier run of the crawl has searched, this one does not: back to the first pace.
            return LaneUpdate(interval=lease.base_interval, if_interval=lease.interval)
        return self._adapted(lease, verdict, elapsed, health) if self._adaptive else None

    def resting(self, lease: Lease, update: LaneUpdate | None, rest: LaneUpdate | None) -> LaneUpdate | None:
        """The update after a refusal, with the rest that the host asks for. Not with the short rest of a lone refusal:
        it is about that page, the host goes on to answer others."""
        asked = None if rest is None else rest.rest_seconds
        if asked is None or (asked <= SHORT_REST and not self._of(lease.task.lane).is_troubled):
            return update
        why = "" if rest is None else rest.why
        return msgspec.structs.replace(update or LaneUpdate(), rest_seconds=asked, started=_started(lease), why=why)

    def _adapted(self, lease: Lease, verdict: Verdict, elapsed: float, health: LaneHealth) -> LaneUpdate | None:
        update = after_response(
            health, verdict, latency=elapsed, interval=lease.interval, base_interval=lease.base_interval
        )
        if update is None or not verdict.slows:
            return update
        return msgspec.structs.replace(update, started=_started(lease))

    def _searched(
        self, lease: Lease, verdict: Verdict, elapsed: float, health: LaneHealth, fastest: float
    ) -> LaneUpdate | None:
        """Search the pace; adapt it as without a search while the host struggles at the first pace or a slower one."""
        search, started = self._search_of(lease.task.lane), _started(lease)
        is_slower = lease.interval > lease.base_interval + SAME_INTERVAL
        if is_slower or (verdict.slows and lease.interval > lease.base_interval - SAME_INTERVAL):
            search.notice(lease, started=started)
            return self._adapted(lease, verdict, elapsed, health)
        update = search.after(
            lease, verdict, latency=elapsed, started=started, fastest=fastest, is_troubled=health.is_troubled
        )
        if update is not None and verdict.slows:
            health.refused /= 2
        return update

    def _fastest(self, bounds: SearchBounds, lease: Lease, crawl_delay: float | None) -> float:
        return lease.interval if crawl_delay is None else max(bounds.fastest, lent_interval(crawl_delay))

    def _of(self, lane: str) -> LaneHealth:
        health = self._health.get(lane)
        if health is None:
            health = self._health[lane] = LaneHealth()
            if len(self._health) > self._size:
                forgotten, _ = self._health.popitem(last=False)
                self._searches.pop(forgotten, None)
        else:
            self._health.move_to_end(lane)
        return health

    def _search_of(self, lane: str) -> LaneSearch:
        search = self._searches.get(lane)
        if search is None:
            search = self._searches[lane] = LaneSearch()
        return search


def fastest_interval(settings: Settings) -> float:
    """The shortest interval of a search; 0: paces are not searched."""
    return lent_interval(parse_rate(settings.max_rate)) if settings.pace == "search" else 0.0


def _started(lease: Lease) -> float:
    """The start slot of the lease's request, on the frontier's clock."""
    return lent_at(lease.token) + lease.wait
