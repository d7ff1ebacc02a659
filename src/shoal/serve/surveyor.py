"""Surveys of all crawls, taken at most every five seconds, whoever asks; two of one crawl make advice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Container, Mapping, Sequence

from shoal.crawl.inbox import Inbox
from shoal.crawl.inbox_readers import pushed_by_crawl
from shoal.crawl.record import with_refusals
from shoal.frontier.base import Frontier
from shoal.insight.advice import Advice, advise, shared, with_parts
from shoal.insight.survey import Survey, surveyed
from shoal.model import Crawl, CrawlState

SURVEY_SECONDS = 5.0
OLDEST_SECONDS = 600.0
ENDED_SHOWN = 20
LIVE = (CrawlState.RUNNING, CrawlState.PAUSED)


class Surveyor:
    """Surveys the crawls of one frontier: those at work, and the newest of those that ended."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._taken = float("-inf")
        self._lock = asyncio.Lock()
        self.surveys: list[Survey] = []
        self.advice: dict[str, Advice] = {}

    async def look(self, frontier: Frontier, inbox: Inbox) -> None:
        """Take new surveys, unless there are some of a moment ago."""
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
        """The crawl as it is now. One that ended, and did not run again since, does not change."""
        if before is not None and crawl.state not in LIVE:
            is_same = before.progress.state is crawl.state and before.crawl.finished == crawl.finished
            if is_same and before.pushed == pushed:
                return before
        return await surveyed(crawl, frontier=frontier, pushed=pushed, clock=self._clock)

    def _former(self, one: Survey, before: Mapping[str, Survey]) -> Survey:
        """The survey that this one is compared with; itself if there is none that is fresh enough."""
        former = before.get(one.crawl.id, one)
        return former if one.at - former.at <= OLDEST_SECONDS else one


def usable(crawls: Sequence[Crawl]) -> list[Crawl]:
    """The crawls whose records can be read."""
    return [crawl for crawl in with_refusals(crawls) if not crawl.refusal]


def shown(crawls: Sequence[Crawl], pushed: Container[str] = ()) -> list[Crawl]:
    """The crawls that are surveyed: those at work, those into which URLs were pushed, and the newest that ended."""
    live = [crawl for crawl in crawls if crawl.state in LIVE or crawl.id in pushed]
    ended = [crawl for crawl in crawls if crawl.state not in LIVE and crawl.id not in pushed]
    return live + ended[:ENDED_SHOWN]
