"""All crawls of a frontier for the page and the API: summaries read at most once a second, surveys and advice at most
every five seconds, for any number of readers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from shoal.crawl.code import others
from shoal.crawl.inbox import Inbox
from shoal.crawl.inbox_readers import pushed_by_crawl
from shoal.crawl.record import code_known, record_of, results_known, with_refusals
from shoal.errors import CrawlLost, UsageError
from shoal.frontier.base import Frontier
from shoal.insight.advice import Advice, advise, shared, with_parts
from shoal.insight.snapshots import SnapshotReader
from shoal.insight.stats import Snapshot, describe_interval, kinds_shown, seconds_left
from shoal.insight.survey import Survey, surveyed
from shoal.model import Crawl, CrawlState, Heartbeat, Progress
from shoal.serve.api.shapes import Counts, CrawlDetail, CrawlSummary, KindOfTasks, LastHost, ResultPlacesShown
from shoal.text.secrets import masked_text
from shoal.worker.workers import SILENT_SECONDS

SURVEY_SECONDS = 5.0
OLDEST_SECONDS = 600.0
ENDED_SHOWN = 20
LIVE = (CrawlState.RUNNING, CrawlState.PAUSED)
LOOK_SECONDS = 1.0
LOOKS_AT_ONCE = 8
ENDED_LOOK_SECONDS = 10.0
# A reading is fresh for at least so many times as long as it took: readers must not load the frontier.
LOOK_SHARE = 10.0


class Surveyor:
    """Surveys the crawls of one frontier: live ones, and the newest ended ones."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._taken = float("-inf")
        self._lock = asyncio.Lock()
        self.surveys: list[Survey] = []
        self.advice: dict[str, Advice] = {}

    async def look(self, frontier: Frontier, inbox: Inbox) -> None:
        """Take new surveys, unless the last ones are fresh enough."""
        async with self._lock:
            crawls = usable(await frontier.crawls())
            if self._clock() - self._taken < SURVEY_SECONDS:
                return
            pushed = await pushed_by_crawl(crawls, inbox=inbox)
            before = {survey.crawl.id: survey for survey in self.surveys}
            surveys = [
                await self._survey(crawl, before.get(crawl.id), frontier, pushed=pushed.get(crawl.id, 0))
                for crawl in shown(crawls, pushed)
            ]
            self.surveys = with_parts(surveys, before)
            self._taken = self._clock()
            advice = {one.crawl.id: advise(self._former(one, before), one) for one in self.surveys}
            self.advice = shared(advice, self.surveys)

    async def _survey(self, crawl: Crawl, before: Survey | None, frontier: Frontier, *, pushed: int) -> Survey:
        """Survey the crawl; a crawl that has ended keeps its last survey."""
        if before is not None and crawl.state not in LIVE:
            is_same = before.progress.state is crawl.state and before.crawl.finished == crawl.finished
            if is_same and before.pushed == pushed:
                return before
        return await surveyed(crawl, frontier=frontier, pushed=pushed, clock=self._clock)

    def _former(self, one: Survey, before: Mapping[str, Survey]) -> Survey:
        """The earlier survey to compare with; the same one if there is none that is fresh enough."""
        former = before.get(one.crawl.id, one)
        return former if one.at - former.at <= OLDEST_SECONDS else one


def usable(crawls: Sequence[Crawl]) -> list[Crawl]:
    """The crawls whose records this version can read."""
    return [crawl for crawl in with_refusals(crawls) if not crawl.refusal]


def shown(crawls: Sequence[Crawl], pushed: Container[str] = ()) -> list[Crawl]:
    """The crawls to survey: live ones, those with pushed URLs, and the newest ended ones."""
    live = [crawl for crawl in crawls if crawl.state in LIVE or crawl.id in pushed]
    ended = [crawl for crawl in crawls if crawl.state not in LIVE and crawl.id not in pushed]
    return live + ended[:ENDED_SHOWN]


class Seen(NamedTuple):
    """A snapshot, when it was read, and how long that took."""

    snapshot: Snapshot
    at: float
    took: float


class BoardEntry:
    """One crawl of the board: its reader, used by one caller at a time, and the last snapshot."""

    def __init__(self, looker: SnapshotReader) -> None:
        self.looker = looker
        self.lock = asyncio.Lock()
        self.seen: Seen | None = None


class Board:
    """The crawls of one frontier. Keeps the last readings: a rate needs two."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._entries: dict[str, BoardEntry] = {}

    async def crawls(self, frontier: Frontier) -> list[Crawl]:
        """All crawls, newest first; those that this version cannot use have a refusal."""
        found = with_refusals(await frontier.crawls())
        known = {crawl.id for crawl in found}
        for gone in self._entries.keys() - known:
            self.forget(gone)
        return found

    async def summaries(self, crawls: Sequence[Crawl], frontier: Frontier) -> list[CrawlSummary]:
        """Summaries of these crawls. Workers are read once for all, crawls a few at a time. A crawl that cannot be
        read, or is gone, gets a refusal."""
        now, few = self._clock(), asyncio.Semaphore(LOOKS_AT_ONCE)
        stale = [crawl for crawl in crawls if not crawl.refusal and not self._is_known(crawl, now=now)]
        workers = await frontier.workers(within=SILENT_SECONDS) if len(stale) > 1 else None

        async def one(crawl: Crawl) -> CrawlSummary:
            async with few:
                try:
                    return summary_of(crawl, await self._look(crawl, frontier, workers=workers))
                except (UsageError, CrawlLost) as error:
                    return summary_of(msgspec.structs.replace(crawl, refusal=str(error)), None)

        return list(await asyncio.gather(*map(one, crawls)))

    async def summary(self, crawl: Crawl, frontier: Frontier) -> CrawlSummary:
        """The summary of a crawl."""
        snapshot = await self._look(crawl, frontier)
        return summary_of(crawl, snapshot)

    async def detail(self, crawl: Crawl, frontier: Frontier) -> CrawlDetail:
        """The crawl with everything that is counted."""
        snapshot = await self._look(crawl, frontier)
        taken = None if crawl.refusal else (await frontier.size(crawl.id)).bytes
        return msgspec.structs.replace(detail_of(crawl, snapshot), bytes=taken)

    def forget(self, crawl: str) -> None:
        """Drop the readings of a removed crawl."""
        self._entries.pop(crawl, None)

    def expire(self, crawl: str) -> None:
        """The crawl was changed: the next call reads it again."""
        if crawl in self._entries:
            self._entries[crawl].seen = None

    def _is_known(self, crawl: Crawl, *, now: float) -> bool:
        entry = self._entries.get(crawl.id)
        return entry is not None and entry.seen is not None and _is_fresh(entry.seen, crawl, now=now)

    async def _look(
        self, crawl: Crawl, frontier: Frontier, *, workers: Sequence[Heartbeat] | None = None
    ) -> Snapshot | None:
        """The snapshot of the crawl; None if this version cannot use it."""
        if crawl.refusal:
            return None
        if crawl.id not in self._entries:
            self._entries[crawl.id] = BoardEntry(SnapshotReader(crawl, frontier=frontier))
        entry = self._entries[crawl.id]
        async with entry.lock:
            began = self._clock()
            if entry.seen is None or not _is_fresh(entry.seen, crawl, now=began):
                entry.looker.crawl, entry.looker.frontier = crawl, frontier
                snapshot = await entry.looker.look(workers=workers)
                ended = self._clock()
                entry.seen = Seen(snapshot, ended, ended - began)
            return entry.seen.snapshot


def _is_fresh(seen: Seen, crawl: Crawl, *, now: float) -> bool:
    return seen.snapshot.progress.state is crawl.state and now - seen.at < _freshness(seen)


def _freshness(seen: Seen) -> float:
    ended = seen.snapshot.progress.state in (CrawlState.FINISHED, CrawlState.CANCELLED, CrawlState.STOPPED)
    return max(ENDED_LOOK_SECONDS if ended else LOOK_SECONDS, LOOK_SHARE * seen.took)


def summary_of(crawl: Crawl, snapshot: Snapshot | None) -> CrawlSummary:
    """The API's summary of a snapshot."""
    return CrawlSummary(**_summary(crawl, snapshot))


def detail_of(crawl: Crawl, snapshot: Snapshot | None) -> CrawlDetail:
    """The API's details of a snapshot: the summary, more counts, arguments, settings and places."""
    progress = snapshot.progress if snapshot is not None else Progress(state=crawl.state)
    return CrawlDetail(
        **_summary(crawl, snapshot),
        outcomes=progress.outcomes,
        rejected=progress.rejected,
        notes=progress.notes,
        arguments=_arguments(crawl),
        settings=_settings(crawl),
        places=_places(crawl),
    )


def _summary(crawl: Crawl, snapshot: Snapshot | None) -> dict[str, Any]:
    if snapshot is None:
        return {
            "id": crawl.id,
            "spider": crawl.spider,
            "state": crawl.state,
            "priority": crawl.priority,
            "refusal": crawl.refusal,
            "created": crawl.created,
            "finished": crawl.finished,
        }
    progress = snapshot.progress
    return {
        "id": crawl.id,
        "spider": crawl.spider,
        "state": progress.state,
        "priority": crawl.priority,
        "reason": progress.reason,
        "created": crawl.created,
        "finished": crawl.finished,
        "counts": Counts(**{name: getattr(progress, name) for name in Counts.__struct_fields__}),
        "cost": progress.cost,
        "budget": crawl.budgets.cost or None,
        "rate": snapshot.rate,
        "eta_seconds": snapshot.eta_seconds if progress.state is CrawlState.RUNNING else None,
        "last_hosts": tuple(
            LastHost(
                host=lane.lane,
                waiting=lane.waiting,
                rate=describe_interval(lane.interval),
                seconds_left=seconds_left(lane),
            )
            for lane in snapshot.last_lanes
            if lane.waiting
        ),
        "bound": snapshot.bound,
        "workers": len(snapshot.workers),
        "other_code": len(others(snapshot.workers, code_known(crawl))),
        "errors": progress.dead + progress.retried,
        "kinds": tuple(KindOfTasks(**one._asdict()) for one in kinds_shown(progress, snapshot.workers)),
    }


def _arguments(crawl: Crawl) -> dict[str, str]:
    """The arguments of the crawl's spider."""
    if crawl.refusal or not crawl.settings:
        return {}
    return {name: masked_text(text) for name, text in record_of(crawl).arguments.items()}


def _settings(crawl: Crawl) -> dict[str, object]:
    """The settings of the crawl, without secrets."""
    if crawl.refusal or not crawl.settings:
        return {}
    values: dict[str, object] = msgspec.to_builtins(record_of(crawl).settings)
    return {name: masked_text(value) if isinstance(value, str) else value for name, value in values.items()}


def _places(crawl: Crawl) -> ResultPlacesShown:
    if crawl.refusal:
        return ResultPlacesShown()
    results = results_known(crawl)
    return ResultPlacesShown(
        store=results.store.shown if results.store else None,
        archive=results.archive.shown if results.archive else None,
        other_stores=results.other_stores,
        other_archives=results.other_archives,
    )
