"""A visit's context for its callback's output under a reactor of Twisted other than asyncio's. There Scrapy consumes
the output by calls of the reactor, which keep no context."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any, TypeVar

from scrapy import Request
from scrapy.core.scraper import Scraper
from scrapy.http import Response
from twisted.python.failure import Failure

from shoal.integrations.scrapy.visits import CURRENT, Visit

T = TypeVar("T")


def keep_context(scraper: Scraper) -> None:
    """Let the rest of a callback, its requests and items, and its error run with the callback's visit as context."""
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
    """What a callback gives out. No generator: after an error Scrapy asks for more."""

    def __init__(self, result: Iterable[Any], visit: Visit) -> None:
        self._result, self._visit = iter(result), visit

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        return _within(self._visit, next, self._result)


class _AsyncOutput:
    """The same of an asynchronous generator. Each step has a context of its own, which Twisted copies."""

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
