"""A pace that searches upwards: a host is asked more often as long as its answers come as fast as before, and somewhat
less often than where they took longer or failed. Pure policy.

Every worker looks at its own answers, and proposes the next pace together with the pace that they were lent at. The
lane takes the first proposal and refuses the others, so there is one step for the whole fleet. What the others decided
is seen by the intervals of the leases that follow: a lane that became slower has found its knee, whoever found it.

What a worker remembers of the lanes it serves, and how their answers change their pace.
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
from shoal.policy.politeness import LaneMood, after_response, allowed_interval, lent_interval
from shoal.policy.retries import Verdict
from shoal.settings.table import Settings
from shoal.settings.values import parse_rate

Latency = Literal["level", "unclear", "risen"]

# A look at the answers of one pace.
LOOK_SECONDS: Final = 1.5  # since the first request at this pace, at least: a queue at the host takes a while to grow
LOOK_ANSWERS: Final = 24  # of the whole fleet; a worker needs its share of them,
FEWEST_ANSWERS: Final = 5  # but at least so many of its own
ENOUGH_ANSWERS: Final = 12  # and no more than so many
LATEST_ANSWERS: Final = 16  # of a worker, are looked at
FEWEST_FOR_RISE: Final = 8  # that show that they take longer
PACED_SHARE: Final = 0.75  # of the requests have waited for their start slots: else something else limits the host
USUAL_ANSWERS: Final = 48  # that make up what is usual
# Answers have risen when at most ranks they take so many times as long as usual, and so many seconds more.
RISEN: Final = 1.6
RISEN_OF_FEW: Final = 2.2  # where a worker has seen only few of them
RISEN_SECONDS: Final = 0.02
LEVEL: Final = 1.25
LEVEL_OF_FEW: Final = 1.6
LEVEL_SECONDS: Final = 0.01
FAILED_SHARE: Final = 0.3  # of the answers, above what is usual, is a knee, too
FEWEST_FAILED: Final = 4
# The steps.
COARSE: Final = 1.25  # where no knee is near
FINE: Final = 1.06  # near the knee
NEAR: Final = 0.9  # of the pace of the knee
BELOW: Final = 0.92  # of the fastest pace that went well: where a lane is held
EASE: Final = 1.12  # by how much a lane slows down that went well at no faster pace
EASE_AGAIN: Final = 1.25  # and if that did not help
MOST_EASED: Final = 4  # slow-downs in a row without effect: then it is not the pace that makes the answers slow
LONGEST_DRAIN: Final = 2.0  # seconds for which a lane rests until its host has answered what waits there
SETTLING_SECONDS: Final = 3.0  # after a slow-down, in which slow answers are those of what waited there
STALE_SECONDS: Final = 20.0  # in which no answers were as quick as usual, at any pace that was tried
# How long a lane is held below its knee: longer each time that the knee was found at about the same pace again.
FIRST_HOLD: Final = 5.0
LONGER: Final = 3.0
LONGEST_HOLD: Final = 300.0
SAME_KNEE: Final = (0.88, 1.25)
SAME_PACE: Final = 1e-6
MOST_ALLOWED: Final = "the most that it may be asked"


class SearchBounds(msgspec.Struct, frozen=True):
    """The intervals at which a search begins and at which it ends."""

    first: float
    fastest: float


class Answer(msgspec.Struct, frozen=True):
    """One answer. `has_waited`: for its start slot, so that the pace was what limited it."""

    seconds: float
    has_waited: bool
    has_failed: bool


class LaneSearch(msgspec.Struct):
    """One worker's view of a lane that is searched.

    `answers` are the latest at `interval`, of `count` since the request that started at `since` with a lease of the
    token `begun`; `first` are the seconds of the first ones. `usual` are the sorted seconds of answers at paces that
    the host bore, and `usual_failed` their share of failures. `good` is the fastest interval that went well before the
    present one, `knee` the one that did not; 0: none. The lane is held until `held_until`. `is_raised`: the present
    interval is faster than the one before; the answers were level at the count `level_at`."""

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
        """The lane's next pace, if this answer decides it. `fastest` is the shortest interval that it may have."""
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
        """Notice that the lane has another pace since this lease; False: the lease was lent at a former one."""
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
        """The first lease of this lane. One that is searched already is first watched for a while."""
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
        """Whether the requests have waited for their start slots: else something else limits how often it is asked."""
        return sum(answer.has_waited for answer in self.answers) >= PACED_SHARE * len(self.answers)

    @property
    def _is_behind(self) -> bool:
        """Whether the host answers fewer requests than the lane may start, seen without knowing how fast it usually is:
        answers take longer than the first ones at this pace, or as many as allowed are waited for."""
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
        """A latency that nothing which the fleet has done for a while has brought back is not usual any more."""
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
            # A pace that went well is judged again and again: once in a while that looks like a rise.
            return None
        if self.eased >= MOST_EASED:
            self.usual, self.eased = seconds, 0
            return None
        latest = sorted([answer.seconds for answer in self.answers][-FEWEST_ANSWERS:])
        more = 2 * (middle(latest) - middle(self.usual))
        return _drained(self._slower(lease, started=started, cause="its answers took longer there"), lease.wait, more)

    def _until_paced(self, lease: Lease, seconds: list[float], *, started: float) -> LaneUpdate | None:
        """Slower until the pace is what limits the lane. That the host is too slow for it is not certain: there may be
        too few tasks."""
        update = self._slower(lease, started=started, cause="it answers fewer than that")
        return _drained(update and msgspec.structs.replace(update, learnt=None), lease.wait, middle(seconds))

    def _slower(self, lease: Lease, *, started: float, cause: str) -> LaneUpdate | None:
        """Back below the knee, but no slower than where the search began."""
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
        """What was learnt of a host that bears the most that it may be asked; told once."""
        if self.has_told:
            return None
        self.has_told = True
        return LaneUpdate(learnt=interval)


def is_searched(lease: Lease, bounds: SearchBounds) -> bool:
    """Whether this lane's pace is searched: not one that people or robots.txt have set, nor one via a pool, whose
    answers are as fast as its exits."""
    return VIA not in lease.task.lane and math.isclose(lease.base_interval, bounds.first, rel_tol=SAME_PACE)


def _drained(update: LaneUpdate | None, lent: float, seconds: float) -> LaneUpdate | None:
    """The update with a rest of so many seconds, in which the host answers what waits there. It begins once the start
    slots are over that are lent already, about so far ahead."""
    return update and msgspec.structs.replace(update, rest_seconds=lent + min(max(seconds, 0.0), LONGEST_DRAIN))


def latency_of(now: Sequence[float], usual: Sequence[float]) -> Latency:
    """Whether these answers take as long as usual; both sorted. They are compared rank by rank, and most ranks decide:
    so neither a few slow answers nor a mixture of quick and slow pages looks like a rise."""
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
    """How many answers a worker needs that gets this share of the lane's."""
    return min(max(round(share * LOOK_ANSWERS), FEWEST_ANSWERS), ENOUGH_ANSWERS)


def rate_of(interval: float) -> str:
    """The pace of a lane as people write it."""
    return f"{1 / allowed_interval(interval):.3g}/s"


MAX_LANES: Final = 10_000


class Moods:
    """The moods of the lanes a worker serves, the least recently served forgotten first. `first` is the interval that
    the spider's `rate` asks for; `bounds` are those of a pace that is searched, None: it is not."""

    def __init__(
        self, *, adaptive: bool, first: float = 0.0, bounds: SearchBounds | None = None, size: int = MAX_LANES
    ) -> None:
        self._adaptive = adaptive
        self._first = first
        self._bounds = bounds
        self._size = size
        self._moods: OrderedDict[str, LaneMood] = OrderedDict()
        self._searches: dict[str, LaneSearch] = {}

    @staticmethod
    def of(settings: Settings) -> Moods:
        first, fastest = lent_interval(parse_rate(settings.rate)), fastest_interval(settings)
        bounds = SearchBounds(first=first, fastest=fastest) if fastest else None
        return Moods(adaptive=settings.pace != "fixed", first=first, bounds=bounds)

    @property
    def search(self) -> bool:
        """Whether paces are searched."""
        return self._bounds is not None

    def after(
        self, lease: Lease, verdict: Verdict, elapsed: float, *, crawl_delay: float | None = 0.0
    ) -> LaneUpdate | None:
        """How this response changes the pace of its lane; None: not at all, as always with a fixed pace. No search goes
        faster than the `crawl_delay` of its host's rules; None: they are not known here."""
        mood = self._of(lease.task.lane)
        mood.note(refused=verdict.slows)
        if self._bounds is not None and is_searched(lease, self._bounds):
            return self._searched(lease, verdict, elapsed, mood, self._fastest(self._bounds, lease, crawl_delay))
        if self._bounds is None and lease.interval < self._first - SAME_INTERVAL and self._first == lease.base_interval:
            # An earlier run of the crawl has searched: its pace is not one that was asked for.
            return LaneUpdate(interval=lease.base_interval, if_interval=lease.interval)
        return self._adapted(lease, verdict, elapsed, mood) if self._adaptive else None

    def resting(self, lease: Lease, update: LaneUpdate | None, rest: LaneUpdate | None) -> LaneUpdate | None:
        """The update of a refusal, with the rest that the host asks for. A short rest that a lone refusal asks for is
        that of its page: the host goes on to answer the others."""
        asked = None if rest is None else rest.rest_seconds
        if asked is None or (asked <= SHORT_REST and not self._of(lease.task.lane).is_troubled):
            return update
        why = "" if rest is None else rest.why
        return msgspec.structs.replace(update or LaneUpdate(), rest_seconds=asked, started=_started(lease), why=why)

    def _adapted(self, lease: Lease, verdict: Verdict, elapsed: float, mood: LaneMood) -> LaneUpdate | None:
        update = after_response(
            mood, verdict, latency=elapsed, interval=lease.interval, base_interval=lease.base_interval
        )
        if update is None or not verdict.slows:
            return update
        return msgspec.structs.replace(update, started=_started(lease))

    def _searched(
        self, lease: Lease, verdict: Verdict, elapsed: float, mood: LaneMood, fastest: float
    ) -> LaneUpdate | None:
        """A pace at which the search has begun, or a slower one, is adaptive as long as the host struggles."""
        search, started = self._search_of(lease.task.lane), _started(lease)
        is_slower = lease.interval > lease.base_interval + SAME_INTERVAL
        if is_slower or (verdict.slows and lease.interval > lease.base_interval - SAME_INTERVAL):
            search.notice(lease, started=started)
            return self._adapted(lease, verdict, elapsed, mood)
        update = search.after(
            lease, verdict, latency=elapsed, started=started, fastest=fastest, is_troubled=mood.is_troubled
        )
        if update is not None and verdict.slows:
            mood.refused /= 2
        return update

    def _fastest(self, bounds: SearchBounds, lease: Lease, crawl_delay: float | None) -> float:
        return lease.interval if crawl_delay is None else max(bounds.fastest, lent_interval(crawl_delay))

    def _of(self, lane: str) -> LaneMood:
        mood = self._moods.get(lane)
        if mood is None:
            mood = self._moods[lane] = LaneMood()
            if len(self._moods) > self._size:
                forgotten, _ = self._moods.popitem(last=False)
                self._searches.pop(forgotten, None)
        else:
            self._moods.move_to_end(lane)
        return mood

    def _search_of(self, lane: str) -> LaneSearch:
        search = self._searches.get(lane)
        if search is None:
            search = self._searches[lane] = LaneSearch()
        return search


def fastest_interval(settings: Settings) -> float:
    """The shortest interval to which a search brings a lane; 0: nothing is searched."""
    return lent_interval(parse_rate(settings.max_rate)) if settings.pace == "search" else 0.0


def _started(lease: Lease) -> float:
    """The start slot of the lease's request, on the frontier's clock."""
    return lent_at(lease.token) + lease.wait
