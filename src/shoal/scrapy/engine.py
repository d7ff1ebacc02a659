"""Hooks into Scrapy's engine: how visits follow their requests. All code that depends on the engine's internals is
here.

Under a Twisted reactor other than asyncio's, Scrapy consumes a callback's output in calls of the reactor, which keep no
context: `keep_context` restores it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, TypeVar

from scrapy import Request, signals
from scrapy.core.scraper import Scraper
from scrapy.crawler import Crawler
from scrapy.exceptions import NotSupported
from scrapy.http import Response
from scrapy.utils.asyncio import is_asyncio_available
from scrapy.utils.defer import deferred_from_coro
from scrapy.utils.httpobj import urlparse_cached
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from shoal.scrapy.pools import LOCAL, PROXIED
from shoal.scrapy.visits import CURRENT, Visit, Visits
from shoal.text.errors import line_of, traceback_of

T = TypeVar("T")


def keep_context(scraper: Scraper) -> None:
    """Run the rest of a callback, its requests, items and errors with its visit as context."""
    consume, process = scraper.handle_spider_output_async, scraper._process_spidermw_output
    fail = scraper.handle_spider_error
    visits: dict[int, Visit] = {}  # by the answer or failure whose output is being consumed

    async def consumed(result: Any, request: Request, response: Response | Failure) -> None:
        visit = CURRENT.get()
        if visit is None:
            await consume(result, request, response)
            return
        kind = _AsyncOutput if isinstance(result, AsyncIterator) else _Output
        visits[id(response)] = visit
        try:
            await consume(kind(result, visit), request, response)
        finally:
            del visits[id(response)]

    def processed(output: Any, response: Response | Failure) -> Any:
        return _within(visits.get(id(response)), process, output, response)

    def failed(failure: Failure, request: Request, response: Response | Failure) -> None:
        _within(visits.get(id(response)), fail, failure, request, response)

    vars(scraper)["handle_spider_output_async"] = consumed
    vars(scraper)["_process_spidermw_output"] = processed
    vars(scraper)["handle_spider_error"] = failed


def _within(visit: Visit | None, step: Callable[..., T], *args: Any) -> T:
    if visit is None:
        return step(*args)
    token = CURRENT.set(visit)
    try:
        return step(*args)
    finally:
        CURRENT.reset(token)


class _Output:
    """A callback's output. Not a generator: Scrapy asks for more after an error."""

    def __init__(self, result: Iterable[Any], visit: Visit) -> None:
        self._result, self._visit = iter(result), visit

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return _within(self._visit, next, self._result)


class _AsyncOutput:
    """The same for an asynchronous generator. Each step has a context of its own, which Twisted copies."""

    def __init__(self, result: AsyncIterator[Any], visit: Visit) -> None:
        self._result, self._visit = aiter(result), visit

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        token = CURRENT.set(self._visit)
        try:
            return await anext(self._result)
        finally:
            CURRENT.reset(token)


LEASED_SLOT = "shoal "


def attach(crawler: Crawler, visits: Visits) -> None:
    """Follow every leased request to the downloader, to the spider, and through the pipelines; the code there has the
    visit as context."""
    engine = crawler.engine
    fetch, scrape = engine.downloader.fetch, engine.scraper.enqueue_scrape

    def fetched(request: Request, *args: Any) -> Deferred[Any]:
        visit = visits.of(request)
        if visit is None:
            visits.note_beside(request)
            return fetch(request, *args)
        token = CURRENT.set(visit)
        try:
            answering = fetch(request, *args)
        finally:
            CURRENT.reset(token)

        def landed(result: Any) -> Any:
            visits.landed(visit, result)
            return result

        return answering.addBoth(landed)

    def scraped(result: Response | Failure, request: Request, *args: Any) -> Deferred[Any]:
        visit = visits.of(request)
        if visit is None:
            return scrape(result, request, *args)
        # The engine starts callback and pipelines inside this call: they inherit its context.
        token = CURRENT.set(visit)
        try:
            scraping = scrape(result, request, *args)
        finally:
            CURRENT.reset(token)

        def ended(outcome: Any) -> Any:
            visits.scraped(visit, result)
            return outcome

        return scraping.addBoth(ended)

    # Set on these objects, not on their classes: other crawlers of this process stay unchanged.
    vars(engine.downloader)["fetch"] = fetched
    vars(engine.scraper)["enqueue_scrape"] = scraped
    _follow_errbacks(engine.scraper, visits)
    if not is_asyncio_available():
        keep_context(engine.scraper)
    crawler.signals.connect(_spider_failed, signals.spider_error)
    crawler.signals.connect(_pipeline_failed, signals.item_error)


def _follow_errbacks(scraper: Any, visits: Visits) -> None:
    """Note which errbacks raise the failure that they got: then it is not handled."""
    call_spider = scraper.call_spider_async

    async def called(result: Response | Failure, request: Request) -> Any:
        try:
            return await call_spider(result, request)
        except Exception as error:
            visit = visits.of(request)
            if visit is not None and isinstance(result, Failure) and error is result.value:
                visit.errback_passed_on = True
            raise

    vars(scraper)["call_spider_async"] = called


def leave_through_exits(crawler: Crawler, visits: Visits) -> None:
    """Send requests through the exits of their leases. This wraps the download handler, behind all middlewares: none
    can redirect a request, and none sees a proxy's password."""
    handlers = crawler.engine.downloader.handlers
    download = handlers.download_request_async

    async def downloaded(request: Request) -> Response:
        visit = visits.sender(request)
        leased = None if visit is None else visit.exit
        if visit is None or leased is None:
            return await download(request)
        scheme = urlparse_cached(request).scheme
        if scheme in LOCAL:
            return await download(request)
        if scheme not in PROXIED:
            raise NotSupported(f"{request} cannot leave through the exit {leased.config.name}: it is no http or https")
        began, size = time.monotonic(), 0
        with leased.carries(request):
            try:
                response = await download(request)
                size = len(response.body)
            finally:
                if not visit.is_over:
                    leased.was_used, leased.size = True, leased.size + size
                    leased.elapsed += time.monotonic() - began
        return response

    vars(handlers)["download_request_async"] = downloaded


def watch_start(crawler: Crawler, *, starts: Callable[[Request], None], ended: Callable[[bool], None]) -> None:
    """Report the start requests after the last spider middleware, before they are scheduled; then whether the start
    ended normally or by an error."""
    engine = crawler.engine
    start = engine._start
    if start is None:
        return

    async def watched() -> AsyncIterator[Any]:
        try:
            async for output in start:
                if isinstance(output, Request):
                    starts(output)
                yield output
        except Exception:
            ended(False)
            raise
        ended(True)

    engine._start = watched()


def wake(crawler: Crawler) -> None:
    """Let the engine ask for requests now; by itself it asks every five seconds."""
    slot = getattr(crawler.engine, "_slot", None)
    if slot is not None:
        slot.nextcall.schedule()


def later(step: Callable[[], None]) -> None:
    """Run a step after the running code, with or without a reactor."""
    if is_asyncio_available():
        asyncio.get_running_loop().call_soon(step)
        return
    from twisted.internet import reactor

    reactor.callLater(0.0, step)  # type: ignore[arg-type]  # the interface is declared without self


def calls_from_threads() -> Callable[..., Any]:
    """A function with which another thread calls a function in this thread."""
    if is_asyncio_available():
        return asyncio.get_running_loop().call_soon_threadsafe
    from twisted.internet import reactor

    call: Callable[..., Any] = reactor.callFromThread
    return call


def close_spider(crawler: Crawler, *, reason: str) -> None:
    """End the run early; the reason is in its stats."""
    engine = crawler.engine
    if engine is not None and engine.spider is not None:
        deferred_from_coro(engine.close_spider_async(reason=reason))


def hide_tracebacks() -> None:
    """Drop log records with tracebacks from now on: a refused spider ends the process, and the half-opened engine fails
    while it is closed."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(lambda record: record.exc_info is None and "Unhandled error" not in record.getMessage())


def leave_pace_to_lanes(crawler: Crawler, visits: Visits, concurrency: int) -> None:
    """The downloader starts leased requests at once: they are due. Other requests, such as those of a files pipeline,
    wait in Scrapy's slots with Scrapy's delay."""
    downloader = crawler.engine.downloader
    slot_of = downloader.get_slot_key

    def slot_key(request: Request) -> str:
        key = slot_of(request).removeprefix(LEASED_SLOT)  # a copied meta may have the prefix
        return f"{LEASED_SLOT}{key}" if visits.of(request) is not None else key

    vars(downloader)["get_slot_key"] = slot_key
    downloader.per_slot_settings = _SlotLimits(downloader.per_slot_settings, concurrency)


class _SlotLimits(dict[str, Any]):
    """Limits that never bind for slots of leased requests; the project's own limits for the others."""

    def __init__(self, own: dict[str, Any], concurrency: int) -> None:
        super().__init__(own)
        self._unlimited = {"concurrency": max(concurrency, 1), "delay": 0.0, "jitter": 0.0}

    def get(self, key: str, default: Any = None) -> Any:
        """The limits of one slot."""
        return self._unlimited if key.startswith(LEASED_SLOT) else super().get(key, default)


def _spider_failed(failure: Failure, **_: Any) -> None:
    visit = CURRENT.get()
    if visit is not None and isinstance(failure.value, Exception):
        visit.fail(f"handler: {line_of(failure.value)}", traceback_of(failure.value))


def _pipeline_failed(failure: Failure, **_: Any) -> None:
    visit = CURRENT.get()
    if visit is not None and isinstance(failure.value, Exception):
        visit.fail(f"pipeline: {line_of(failure.value)}", traceback_of(failure.value))
