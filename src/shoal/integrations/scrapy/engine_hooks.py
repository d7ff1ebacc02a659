"""How visits learn what Scrapy's engine does with their requests. All that depends on the engine's inside is here."""

from __future__ import annotations

from typing import Any

from scrapy import Request, signals
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.utils.defer import deferred_from_coro
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from shoal.error_text import line_of, traceback_of
from shoal.integrations.scrapy.visits import CURRENT, Visits


def attach(crawler: Crawler, visits: Visits) -> None:
    """Follow every leased request: to the downloader, to the spider, and out of the pipelines."""
    engine = crawler.engine
    fetch, scrape = engine.downloader.fetch, engine.scraper.enqueue_scrape

    def fetched(request: Request, *args: Any) -> Deferred[Any]:
        answering = fetch(request, *args)
        visit = visits.of(request)
        if visit is None:
            return answering

        def landed(result: Any) -> Any:
            visits.landed(visit, result)
            return result

        return answering.addBoth(landed)

    def scraped(result: Response | Failure, request: Request, *args: Any) -> Deferred[Any]:
        visit = visits.of(request)
        if visit is None:
            return scrape(result, request, *args)
        # The engine starts callback and pipelines inside this call: they keep its context.
        token = CURRENT.set(visit)
        try:
            scraping = scrape(result, request, *args)
        finally:
            CURRENT.reset(token)

        def ended(outcome: Any) -> Any:
            visits.scraped(visit, result)
            return outcome

        return scraping.addBoth(ended)

    # Set on these two objects, not on their classes: other crawlers of this process are left alone.
    vars(engine.downloader)["fetch"] = fetched
    vars(engine.scraper)["enqueue_scrape"] = scraped
    crawler.signals.connect(_spider_failed, signals.spider_error)
    crawler.signals.connect(_pipeline_failed, signals.item_error)


def wake(crawler: Crawler) -> None:
    """Let the engine ask for requests now; by itself it asks every five seconds."""
    slot = getattr(crawler.engine, "_slot", None)
    if slot is not None:
        slot.nextcall.schedule()


def close_spider(crawler: Crawler, *, reason: str) -> None:
    """End the run before its time; the reason is among its stats."""
    engine = crawler.engine
    if engine is not None and engine.spider is not None:
        deferred_from_coro(engine.close_spider_async(reason=reason))


class Unlimited(dict[str, Any]):
    """Limits of the downloader's slots that bind nowhere: the frontier's lanes are the limiter."""

    def __init__(self, concurrency: int) -> None:
        super().__init__()
        self._limits = {"concurrency": max(concurrency, 1), "delay": 0.0, "jitter": 0.0}

    def get(self, key: str, default: Any = None) -> dict[str, Any]:
        """The same for every slot."""
        return self._limits


def leave_pace_to_lanes(crawler: Crawler, concurrency: int) -> None:
    """The downloader starts requests as they come: what comes is due."""
    crawler.engine.downloader.per_slot_settings = Unlimited(concurrency)


def _spider_failed(failure: Failure, **_: Any) -> None:
    visit = CURRENT.get()
    if visit is not None and isinstance(failure.value, Exception):
        visit.fail(f"handler: {line_of(failure.value)}", traceback_of(failure.value))


def _pipeline_failed(failure: Failure, **_: Any) -> None:
    visit = CURRENT.get()
    if visit is not None and isinstance(failure.value, Exception):
        visit.fail(f"pipeline: {line_of(failure.value)}", traceback_of(failure.value))
