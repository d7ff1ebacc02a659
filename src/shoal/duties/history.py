"""Keeps the history of a crawl: points made from its counters and its workers' heartbeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from shoal.frontier.base import Frontier
from shoal.insight.survey import added
from shoal.model import Heartbeat, Point, Progress
from shoal.worker.workers import SILENT_SECONDS, is_at_work

OUTCOMES_KEPT = 20
OTHER = "other"


class Historian:
    """Adds points to the history of one crawl. Several processes may: points have totals, so nothing counts twice."""

    def __init__(self, frontier: Frontier, crawl: str) -> None:
        self._frontier = frontier
        self._crawl = crawl

    async def keep(self) -> bool:
        """Add a point of now; False: it replaced a point of the same 10 s."""
        progress = await self._frontier.progress(self._crawl)
        alive = await self._frontier.workers(within=SILENT_SECONDS)
        mine = [beat for beat in alive if beat.crawl == self._crawl]
        # Also all live workers: of a large fleet the crawl keeps only the latest ones.
        latest = {beat.worker: beat for beat in [*mine, *await self._frontier.workers_of(self._crawl)]}
        at_work = sum(map(is_at_work, mine))
        return await self._frontier.keep_point(self._crawl, point_of(progress, list(latest.values()), workers=at_work))


def point_of(progress: Progress, beats: Sequence[Heartbeat], *, workers: int) -> Point:
    """The point from a crawl's counters and its workers' last heartbeats."""
    return Point(
        queued=progress.queued,
        delayed=progress.delayed,
        leased=progress.leased,
        done=progress.done,
        dead=progress.dead,
        retried=progress.retried,
        lost=progress.lost,
        outcomes=commonest(progress.outcomes, most=OUTCOMES_KEPT),
        fetch_times=added(beat.figures.fetch_times for beat in beats),
        received_bytes=sum(beat.figures.received_bytes for beat in beats),
        workers=workers,
        cost=progress.cost,
    )


def commonest(counts: Mapping[str, int], *, most: int) -> dict[str, int]:
    """The `most` largest counts; all others are summed as "other". Sites choose some of the names: their number must be
    bounded."""
    counted = Counter(counts)
    kept = dict(counted.most_common(most))
    rest = counted.total() - sum(kept.values())
    return {**kept, OTHER: kept.get(OTHER, 0) + rest} if rest else kept
