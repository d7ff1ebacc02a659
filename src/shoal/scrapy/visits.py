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

from shoal.frontier.clock import slack_of
from shoal.journey.harvest import KeyedItem
from shoal.model import Lease, Task
from shoal.scrapy.exits import LeasedExit
from shoal.scrapy.requests import page_of

# Beside what the worker allows itself: a reactor is late by a few milliseconds all the time.
ENGINE_SLACK = 2
# A visit that misses its start slots for so long begins without one. Pages of its own lane do not keep the reactor busy
# that long: while none of them begins, none lands. Other pages of this process may.
LATE_SECONDS = 60.0
LANES_REMEMBERED = 10_000
REDIRECTED, SENT_AGAIN = "redirected", "sent_again"


@dataclass(eq=False, kw_only=True)
class Visit:
    """One leased request. `give` takes the visit when it is over: it may not be changed any more. `offered`: when it
    was due, `first_offered`: for the first time. `exit`: what its requests leave through, None: they leave directly.
    `requests` are those that the found tasks were made of. `errback_passed_on`: the errback raised the failure that it
    was given. `is_turned_back`: its task goes back to the frontier as it is."""

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
        """Note the first thing that went wrong: the page becomes a dead letter."""
        if not self.problem:
            self.problem, self.detail = problem, detail

    def page_key(self) -> str:
        """The page's name; the second and later items without a key get a number, or they would replace each other."""
        self.keyless += 1
        page = page_of(self.lease.task)
        return page if self.keyless == 1 else f"{page}#{self.keyless}"

    @property
    def is_sent_on(self) -> bool:
        """Whether the downloader has answered with a request, which goes on with this page."""
        return self.outcome in (REDIRECTED, SENT_AGAIN)

    @property
    def missed(self) -> float:
        """By how many seconds the engine takes the request too late; 0: it is on time."""
        waited = time.monotonic() - self.offered
        return waited if waited > ENGINE_SLACK * slack_of(self.lease.interval) else 0.0


# The visit whose download, callback, errback or pipelines run now. What runs later in its context, such as a task of
# asyncio, may outlive it: then it is over.
CURRENT: ContextVar[Visit | None] = ContextVar("shoal_visit", default=None)


class Visits:
    """The visits of one process: those that wait for the engine, and those that are in it."""

    def __init__(self, wake: Callable[[], None], later: Callable[[Callable[[], None]], Any]) -> None:
        self._wake = wake
        self._later = later
        self._waiting: deque[Visit] = deque()
        self._under_way: dict[Request, Visit] = {}
        self._last_starts: dict[str, float] = {}  # by lane
        self._parents: WeakKeyDictionary[Request, Visit] = WeakKeyDictionary()
        # Requests of other parts, such as a pipeline for images, by the page that they are sent for.
        self._beside: WeakKeyDictionary[Request, Visit] = WeakKeyDictionary()
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
        """The visit that waits longest. One whose start slot was missed, as a callback has kept the reactor busy, is
        given back for another slot: all that became due meanwhile would start at once."""
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
        """The visit of a request that the engine has in hand."""
        return self._under_way.get(request)

    def note_beside(self, request: Request) -> None:
        """A request that is no task is about to be sent. It leaves as the page does whose download, callback or
        pipelines send it."""
        visit = CURRENT.get()
        if visit is not None and visit.exit is not None:
            self._beside[request] = visit

    def sender(self, request: Request) -> Visit | None:
        """The visit that a request is sent for: its own, or that of the page which needs it."""
        return self._under_way.get(request) or self._beside.get(request)

    def finder(self, request: Request) -> Visit | None:
        """The visit that this new request was found by: that the downloader answered with this request, or of the
        callback that runs."""
        # In this order: a redirect may arrive in the context of another page's callback, which opened the connection.
        visit = self._parents.pop(request, None) or CURRENT.get()
        return visit if visit is not None and not visit.is_over else None

    def landed(self, visit: Visit, result: Any) -> None:
        """The downloader is done. A request in place of an answer, such as a redirect, is scheduled by the engine right
        after this."""
        visit.elapsed = time.monotonic() - visit.began
        visit.land()
        if isinstance(result, Request):
            is_retry = visit.request is not None and result.url == visit.request.url
            visit.retries = int(result.meta.get("retry_times", 1)) if is_retry else 0
            visit.outcome = SENT_AGAIN if is_retry else REDIRECTED
            self._parents[result] = visit
            self._later(lambda: self.end(visit))

    def scraped(self, visit: Visit, result: Response | Failure) -> None:
        """Callback or errback have run, and the items have left the pipelines."""
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

    def _may_be_late(self, visit: Visit) -> bool:
        """Whether a visit begins though its slot was missed. The starts of this process keep their distance even then;
        those of others are not known here."""
        now = time.monotonic()
        if now - visit.first_offered < LATE_SECONDS:
            return False
        return now - self._last_starts.get(visit.lease.task.lane, 0.0) >= visit.lease.interval


def _kind(failure: Failure) -> str:
    return f"download_{failure.type.__name__}" if failure.type is not None else "download"


def _line(failure: Failure) -> str:
    return " ".join(failure.getErrorMessage().split())[:300]
