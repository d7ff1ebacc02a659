"""Leased requests on their way through Scrapy's engine: what came of each, told when it has left the engine.

Everything here runs in the thread of the reactor."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from scrapy import Request
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response
from twisted.python.failure import Failure

from shoal.journey.harvest import KeyedItem
from shoal.model import Lease, Task


@dataclass(eq=False, kw_only=True)
class Visit:
    """One leased request. `give` takes the visit when it is over: it may not be changed any more."""

    lease: Lease
    give: Callable[[Visit], None]
    land: Callable[[], None]
    request: Request | None = None
    found: dict[int, Task] = field(default_factory=dict)
    items: list[KeyedItem] = field(default_factory=list)
    answer: Response | None = None
    began: float = 0.0
    elapsed: float = 0.0
    outcome: str = ""
    retries: int = 0
    problem: str = ""
    detail: str = ""
    unstorable: str = ""
    reached_spider: bool = False
    is_released: bool = False
    is_over: bool = False

    def fail(self, problem: str, detail: str = "") -> None:
        """Note the first thing that went wrong: the page becomes a dead letter."""
        if not self.problem:
            self.problem, self.detail = problem, detail


# The visit whose callback, errback or pipelines run now.
CURRENT: ContextVar[Visit | None] = ContextVar("shoal_visit", default=None)


class Visits:
    """The visits of one process: those that wait for the engine, and those that are in it."""

    def __init__(self, wake: Callable[[], None], later: Callable[[Callable[[], None]], Any]) -> None:
        self._wake = wake
        self._later = later
        self._waiting: deque[Visit] = deque()
        self._under_way: dict[Request, Visit] = {}
        self._parents: WeakKeyDictionary[Request, Visit] = WeakKeyDictionary()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._waiting) + len(self._under_way)

    def offer(self, visit: Visit) -> None:
        """A visit that may begin now."""
        if self._is_closed:
            self.release(visit)
            return
        self._waiting.append(visit)
        self._wake()

    def next(self) -> Visit | None:
        """The visit that waits longest."""
        return self._waiting.popleft() if self._waiting else None

    def begin(self, visit: Visit, request: Request) -> None:
        """The engine takes the request."""
        visit.request, visit.began = request, time.monotonic()
        self._under_way[request] = visit

    def of(self, request: Request) -> Visit | None:
        """The visit of a request that the engine has in hand."""
        return self._under_way.get(request)

    def finder(self, request: Request) -> Visit | None:
        """The visit that this new request was found by: of the callback that runs, or that the downloader answered
        with this request."""
        visit = CURRENT.get() or self._parents.pop(request, None)
        return visit if visit is not None and not visit.is_over else None

    def landed(self, visit: Visit, result: Any) -> None:
        """The downloader is done. A request in place of an answer, such as a redirect, is scheduled by the engine right
        after this."""
        visit.elapsed = time.monotonic() - visit.began
        visit.land()
        if isinstance(result, Request):
            is_retry = visit.request is not None and result.url == visit.request.url
            visit.retries = int(result.meta.get("retry_times", 1)) if is_retry else 0
            visit.outcome = "sent_again" if is_retry else "redirected"
            self._parents[result] = visit
            self._later(lambda: self.end(visit))

    def scraped(self, visit: Visit, result: Response | Failure) -> None:
        """Callback or errback have run, and the items have left the pipelines."""
        has_errback = visit.request is not None and visit.request.errback is not None
        if isinstance(result, Response):
            visit.answer = result
            if not visit.reached_spider and has_errback:
                visit.outcome = "errback"
        elif isinstance(result.value, IgnoreRequest):
            visit.outcome = visit.outcome or "ignored"
        elif not has_errback:
            visit.fail(f"{_kind(result)}: {_line(result)}")
        else:
            visit.outcome = visit.outcome or "errback"
        self.end(visit)

    def end(self, visit: Visit) -> None:
        """Give the visit back, once."""
        if visit.request is not None:
            self._under_way.pop(visit.request, None)
        if not visit.is_over:
            visit.is_over = True
            visit.give(visit)

    def release(self, visit: Visit) -> None:
        """Give back a visit that has not begun."""
        visit.is_released = True
        self.end(visit)

    def close(self) -> None:
        """Give back what has not begun, now and later."""
        self._is_closed = True
        while self._waiting:
            self.release(self._waiting.popleft())


def _kind(failure: Failure) -> str:
    return f"download_{failure.type.__name__}" if failure.type is not None else "download"


def _line(failure: Failure) -> str:
    return " ".join(failure.getErrorMessage().split())[:300]
