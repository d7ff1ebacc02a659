"""Leased requests on their way through Scrapy's engine, and their results when they leave it.

Everything here runs in the reactor's thread."""

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

from shoal.frontier.clock import slack_of
from shoal.journey.harvest import KeyedItem
from shoal.model import Lease, Task
from shoal.scrapy.exits import LeasedExit
from shoal.scrapy.requests import page_of

# Times the allowance of the worker: a reactor is always late by some milliseconds.
ENGINE_SLACK = 2
# A visit that misses its start slots for this long begins without a slot. Pages of its own lane cannot be what keeps
# the reactor busy that long: while none begins, none ends.
LATE_SECONDS = 60.0
LANES_REMEMBERED = 10_000
REDIRECTED, SENT_AGAIN = "redirected", "sent_again"


@dataclass(eq=False, kw_only=True)
class Visit:
    """One leased request. `give` receives the visit when it is over, and nothing may change it then. `offered`: when it
    became due, `first_offered`: for the first time. `exit`: the exit of its requests, None: direct. `requests` are the
    requests of the found tasks. `errback_passed_on`: the errback raised the failure that it got. `is_turned_back`: its
    task goes back to the frontier unchanged."""

    lease: Lease
    give: Callable[[Visit], None]
    land: Callable[[], None]
    exit: LeasedExit | None = None
    request: Request | None = None
    found: dict[int, Task] = field(default_factory=dict)
    requests: dict[int, Request] = field(default_factory=dict)
    items: list[KeyedItem] = field(default_factory=list)
    answer: Response | None = None
    began: float = 0.0
    elapsed: float = 0.0
    outcome: str = ""
    retries: int = 0
    keyless: int = 0
    offered: float = 0.0
    first_offered: float = 0.0
    problem: str = ""
    detail: str = ""
    unstorable: str = ""
    reached_spider: bool = False
    errback_passed_on: bool = False
    is_released: bool = False
    is_turned_back: bool = False
    is_late: bool = False
    is_withdrawn: bool = False
    is_over: bool = False

    def fail(self, problem: str, detail: str = "") -> None:
        """Note the first problem: the page becomes a dead letter."""
        if not self.problem:
            self.problem, self.detail = problem, detail

    def page_key(self) -> str:
        """The page's name; from the second item without a key on, with a number, so that items do not replace each
        other."""
        self.keyless += 1
        page = page_of(self.lease.task)
        return page if self.keyless == 1 else f"{page}#{self.keyless}"

    @property
    def is_sent_on(self) -> bool:
        """Whether the downloader answered with another request, which continues this page."""
        return self.outcome in (REDIRECTED, SENT_AGAIN)

    @property
    def missed(self) -> float:
        """How many seconds the engine is late for this request; 0: on time."""
        waited = time.monotonic() - self.offered
        return waited if waited > ENGINE_SLACK * slack_of(self.lease.interval) else 0.0


# The visit whose download, callback, errback or pipelines run now. Code that runs later in its context, such as an
# asyncio task, may outlive the visit: then it is over.
CURRENT: ContextVar[Visit | None] = ContextVar("shoal_visit", default=None)


class Visits:
    """The visits of one process: waiting for the engine, or in it."""

    def __init__(self, wake: Callable[[], None], later: Callable[[Callable[[], None]], Any]) -> None:
        self._wake = wake
        self._later = later
        self._waiting: deque[Visit] = deque()
        self._under_way: dict[Request, Visit] = {}
        self._last_starts: dict[str, float] = {}  # by lane
        self._parents: WeakKeyDictionary[Request, Visit] = WeakKeyDictionary()
        # Requests of other components, such as a pipeline for images, by the page that they are sent for.
        self._beside: WeakKeyDictionary[Request, Visit] = WeakKeyDictionary()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._waiting) + len(self._under_way)

    def offer(self, visit: Visit) -> None:
        """Add a visit that may begin now."""
        if self._is_closed:
            self.release(visit)
            return
        self._waiting.append(visit)
        self._wake()

    def next(self) -> Visit | None:
        """The visit that waits longest. A visit that missed its start slot, because a callback kept the reactor busy,
        is returned for another slot: else all visits that became due meanwhile would start at once."""
        while self._waiting:
            visit = self._waiting.popleft()
            if visit.is_withdrawn:
                continue
            if visit.missed and not self._may_be_late(visit):
                visit.is_late = True
                visit.give(visit)
                continue
            return visit
        return None

    def begin(self, visit: Visit, request: Request) -> None:
        """The engine takes the request."""
        visit.request, visit.began = request, time.monotonic()
        self._under_way[request] = visit
        if visit.lease.interval:
            if len(self._last_starts) >= LANES_REMEMBERED:
                self._last_starts.clear()
            self._last_starts[visit.lease.task.lane] = visit.began

    def of(self, request: Request) -> Visit | None:
        """The visit of a request that is in the engine."""
        return self._under_way.get(request)

    def note_beside(self, request: Request) -> None:
        """Note a request that is no task, before it is sent. It uses the exit of the page whose download, callback or
        pipelines send it."""
        visit = CURRENT.get()
        if visit is not None and visit.exit is not None:
            self._beside[request] = visit

    def sender(self, request: Request) -> Visit | None:
        """The visit that a request is sent for: its own, or the page that needs it."""
        return self._under_way.get(request) or self._beside.get(request)

    def finder(self, request: Request) -> Visit | None:
        """The visit that found this new request: the downloader answered with it, or the running callback yielded
        it."""
        # In this order: a redirect may arrive in the context of another page's callback, which opened the connection.
        visit = self._parents.pop(request, None) or CURRENT.get()
        return visit if visit is not None and not visit.is_over else None

    def landed(self, visit: Visit, result: Any) -> None:
        """The downloader is done. If it answered with a request, such as a redirect, the engine schedules that next."""
        visit.elapsed = time.monotonic() - visit.began
        visit.land()
        if isinstance(result, Request):
            is_retry = visit.request is not None and result.url == visit.request.url
            visit.retries = int(result.meta.get("retry_times", 1)) if is_retry else 0
            visit.outcome = SENT_AGAIN if is_retry else REDIRECTED
            self._parents[result] = visit
            self._later(lambda: self.end(visit))

    def scraped(self, visit: Visit, result: Response | Failure) -> None:
        """Callback or errback have run, and the items have passed the pipelines."""
        has_errback = visit.request is not None and visit.request.errback is not None
        is_handled = has_errback and not visit.errback_passed_on
        if isinstance(result, Response):
            visit.answer = result
            if not visit.reached_spider and is_handled:
                visit.outcome = "errback"
        elif isinstance(result.value, IgnoreRequest):
            visit.outcome = visit.outcome or "ignored"
        elif not is_handled:
            visit.fail(f"{_kind(result)}: {_line(result)}")
        else:
            visit.outcome = visit.outcome or "errback"
        self.end(visit)

    def end(self, visit: Visit) -> None:
        """Return the visit, once."""
        if visit.request is not None:
            self._under_way.pop(visit.request, None)
        if not visit.is_over:
            visit.is_over = True
            visit.give(visit)

    def release(self, visit: Visit) -> None:
        """Return a visit that has not begun."""
        visit.is_released = True
        self.end(visit)

    def close(self) -> None:
        """Return all visits that have not begun, now and later."""
        self._is_closed = True
        while self._waiting:
            self.release(self._waiting.popleft())

    def _may_be_late(self, visit: Visit) -> bool:
        """Whether a visit begins without its slot. Starts of this process keep their distance even then; starts of
        other processes are not known here."""
        now = time.monotonic()
        if now - visit.first_offered < LATE_SECONDS:
            return False
        return now - self._last_starts.get(visit.lease.task.lane, 0.0) >= visit.lease.interval


def _kind(failure: Failure) -> str:
    return f"download_{failure.type.__name__}" if failure.type is not None else "download"


def _line(failure: Failure) -> str:
    return " ".join(failure.getErrorMessage().split())[:300]
