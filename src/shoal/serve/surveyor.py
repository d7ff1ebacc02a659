"""Surveys of all crawls, taken at most every five seconds, whoever asks; two of one crawl make advice."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from shoal.frontier.base import Frontier
from shoal.model import Crawl, CrawlState
from shoal.processes.advice import Advice, advise
from shoal.processes.crawl_record import with_refusals
from shoal.processes.crawl_survey import Survey, surveyed

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

    async def look(self, frontier: Frontier) -> None:
        """Take new surveys, unless there are some of a moment ago."""
        async with self._lock:
            crawls = shown(await frontier.crawls())
            if self._clock() - self._taken < SURVEY_SECONDS:
                return
            before = {survey.crawl.id: survey for survey in self.surveys}
            self.surveys = [await self._survey(crawl, before.get(crawl.id), frontier) for crawl in crawls]
            self._taken = self._clock()
            self.advice = {one.crawl.id: advise(self._former(one, before), one) for one in self.surveys}

    async def _survey(self, crawl: Crawl, before: Survey | None, frontier: Frontier) -> Survey:
        """The crawl as it is now. One that ended does not change."""
        if before is not None and crawl.state not in LIVE and before.progress.state is crawl.state:
            return before
        return await surveyed(crawl, frontier=frontier, clock=self._clock)

    def _former(self, one: Survey, before: Mapping[str, Survey]) -> Survey:
        """The survey that this one is compared with; itself if there is none that is fresh enough."""
        former = before.get(one.crawl.id, one)
        return former if one.at - former.at <= OLDEST_SECONDS else one


def shown(crawls: Sequence[Crawl]) -> list[Crawl]:
    """The crawls that are surveyed."""
    usable = [crawl for crawl in with_refusals(crawls) if not crawl.refusal]
    ended = [crawl for crawl in usable if crawl.state not in LIVE]
    return [crawl for crawl in usable if crawl.state in LIVE] + ended[:ENDED_SHOWN]
