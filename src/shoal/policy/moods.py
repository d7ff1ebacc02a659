"""What a worker remembers of the lanes it serves, and how their answers change their pace."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgspec

from shoal.frontier.rules.constants import SAME_INTERVAL, SHORT_REST
from shoal.frontier.rules.tasks import lent_at
from shoal.model import LaneUpdate, Lease
from shoal.policy.pace_search import LaneSearch, SearchBounds, is_searched
from shoal.policy.politeness import LaneMood, after_response, lent_interval
from shoal.policy.retries import Verdict
from shoal.settings.table import Settings
from shoal.settings.values import parse_rate

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
