"""The journey of one leased task over scripted answers, for the tests of its parts."""

from __future__ import annotations

import random
import time
from typing import Any

from shoal import Item, Page, Spider
from shoal.fetch.base import Fetcher
from shoal.journey.conditional import FormerPages, LastVisits
from shoal.journey.handlers import Handlers
from shoal.journey.intake import Intake
from shoal.journey.journey import Journey
from shoal.journey.recent_keys import RecentKeys
from shoal.journey.results import Finished, Keeping
from shoal.journey.robots import LaneRules
from shoal.model import Crawl, LaneUpdate, Lease
from shoal.settings.table import Settings
from shoal.testing.fakes import Answer, ScriptedFetcher, lease_for, passages_for, respond
from shoal.testing.memory_frontier import MemoryFrontier
from shoal.urls.canonical import UrlRules

URL = "https://a.test/page"
NOW = 1_700_000_000.0


class Plain(Spider):
    def parse(self, page: Page) -> Any:
        yield Item(key=page.url, status=page.status)
        yield page.follow("a")

    def broken(self, page: Page) -> Any:
        yield Item(key="good", price=1.5)
        yield Item(key="bad", price=float("nan"))
        yield page.follow("a")

    def slip(self, page: Page) -> Any:
        yield page.follow(page.attr("a", "href"))

    def element(self, page: Page) -> Any:
        yield {"price": page.css("h1")[0]}
        yield page.follow("a")

    def failing(self, page: Page) -> Any:
        return {"price": page.css("h1")[0].text()}


class ScriptedJourney:
    """A journey whose pages are answered from a script."""

    def __init__(
        self,
        script: dict[str, Answer] | None = None,
        *,
        needs_rules: bool = False,
        last_visits: LastVisits | None = None,
        former_pages: FormerPages | None = None,
        fetcher: Fetcher | None = None,
        keeping: Keeping = "nothing",
        **settings: Any,
    ) -> None:
        self.settings = Settings(**{"pace": "fixed", **settings})
        self.fetcher = ScriptedFetcher(script)
        self.frontier = MemoryFrontier(clock=time.time)
        self.known = RecentKeys()
        intake = Intake(UrlRules(self.settings, start_hosts=["a.test"]), self.settings, known=self.known)
        self.rules = LaneRules(frontier=self.frontier, settings=self.settings)
        self.journey = Journey(
            spider_name="plain",
            worker="w",
            settings=self.settings,
            needs_rules=needs_rules,
            handlers=Handlers(Plain(), intake=intake, item_key="", seconds=5.0),
            intake=intake,
            lane_rules=self.rules,
            passages=passages_for(fetcher or self.fetcher, settings=self.settings),
            last_visits=last_visits,
            former_pages=former_pages,
            keeping=keeping,
            clock=lambda: NOW,
            rng=random.Random(1),
        )

    async def with_rules(self, text: bytes, seconds: float = 60.0) -> ScriptedJourney:
        await self.frontier.open_crawl(Crawl(id="c", spider="plain", needs_rules=True))
        update = LaneUpdate(rules=text, rules_seconds=seconds)
        await self.frontier.update_lane("c", "a.test", update)
        return self

    async def take(self, lease: Lease) -> Finished:
        return await self.journey.take(lease)


async def take(answer: Answer, *, url: str = URL, lease: dict[str, Any] | None = None, **settings: Any) -> Finished:
    return await ScriptedJourney({url: answer}, **settings).take(lease_for(url, **(lease or {})))


def redirect(location: str, status: int = 302, url: str = URL) -> Answer:
    return respond(url, status=status, headers={"location": location})
