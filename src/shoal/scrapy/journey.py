"""How a worker's leases travel when Scrapy does the work: each becomes a visit, and what came of it ends the lease.

What Scrapy's downloader gave, as shoal's policies read it: an answer, or a fault in place of one.
"""

from __future__ import annotations

import asyncio
import random
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import NamedTuple

import msgspec
from scrapy import Request, http
from scrapy.exceptions import (
    CannotResolveHostError,
    DownloadCancelledError,
    DownloadConnectionRefusedError,
    DownloadFailedError,
    DownloadTimeoutError,
    ResponseDataLossError,
    UnsupportedURLSchemeError,
)
from twisted.internet.error import ConnectError, ConnectionClosed
from twisted.internet.error import TimeoutError as ConnectTimeout
from twisted.python.failure import Failure

from shoal.exits.refusals import Refused
from shoal.fetch.base import Fault, FaultKind, Response
from shoal.fetch.exits import ExitConfig
from shoal.fetch.faults import SHORTAGES, one_line
from shoal.fetch.proxies import fault_of
from shoal.frontier.clock import wait_for_slot
from shoal.journey.notes import FailingHandlers
from shoal.journey.results import Finished, Records
from shoal.model import DIRECT, Dead, Done, LaneUpdate, Lease, Released, Result, SettleReport, Task
from shoal.policy.failures import ITEMS
from shoal.policy.pace import Pacer
from shoal.policy.retries import Verdict, backoff, judge, retry_after
from shoal.scrapy.exits import LeasedExit, LeasedExits
from shoal.scrapy.visits import Visit
from shoal.settings.table import Settings
from shoal.worker.tally import Tally

# What the handlers say of a connection that could not be made. Through a proxy it is the one to the proxy.
_NOT_CONNECTED = (DownloadConnectionRefusedError, CannotResolveHostError, ConnectError)
_STATUS = re.compile(r"\b(\d{3})\b")
_TUNNEL_STATUS = re.compile(r"'status': (\d{3})")
_KINDS: tuple[tuple[type[Exception], FaultKind], ...] = (
    (DownloadTimeoutError, FaultKind.TIMEOUT_TOTAL),
    (ResponseDataLossError, FaultKind.TRUNCATED),
    (DownloadCancelledError, FaultKind.TOO_LARGE),
    (UnsupportedURLSchemeError, FaultKind.BAD_URL),
)


def answer_of(response: http.Response, *, elapsed: float) -> Response:
    """Scrapy's response."""
    headers = {
        name.decode("latin-1").lower(): b",".join(values).decode("latin-1") for name, values in response.headers.items()
    }
    return Response(
        url=response.url,
        status=response.status,
        headers=headers,
        body=response.body,
        wire_size=len(response.body),
        elapsed=elapsed,
    )


def proxied_fault(config: ExitConfig, error: Exception, *, secure: bool, elapsed: float = 0.0) -> Fault:
    """The fault that an exception stands for, of a request through a proxy: the proxy's, or the target's as it would be
    without one. `secure`: the target is reached by https, through a tunnel. No text has the proxy's URL."""
    fault = _fault(config, error, secure=secure)
    return Fault(kind=fault.kind, message=fault.message, is_certain=fault.is_certain, elapsed=elapsed)


def _fault(config: ExitConfig, error: Exception, *, secure: bool) -> Fault:
    causes = list(_causes(error))
    if any(getattr(cause, "osError", None) in SHORTAGES or _errno(cause) in SHORTAGES for cause in causes):
        return Fault(kind=FaultKind.SHORTAGE, message=one_line(str(causes[-1])))
    if type(error).__name__ == "TunnelError":
        # By its name: its module loads Twisted's HTTP client, which a project may do without.
        return _tunnel(config, str(error))
    if isinstance(error, _NOT_CONNECTED):
        return _not_connected(config, error, causes)
    if isinstance(error, DownloadTimeoutError) and any(isinstance(cause, ConnectTimeout) for cause in causes):
        return fault_of(config, "no connection in time")
    for kind, fault in _KINDS:
        if isinstance(error, kind):
            return Fault(kind=fault, message=_message(error))
    if isinstance(error, DownloadFailedError | ConnectionClosed):
        return _broken(config, causes, secure=secure)
    return Fault(kind=FaultKind.LOCAL, message=_message(error))


def _tunnel(config: ExitConfig, text: str) -> Fault:
    found = _TUNNEL_STATUS.search(text)
    status = int(found[1]) if found else 0
    if status == 407:
        return fault_of(config, "it wants other credentials (407)", is_certain=True)
    return fault_of(config, f"it refused to open a tunnel ({status})" if status else "it refused to open a tunnel")


def _not_connected(config: ExitConfig, error: Exception, causes: list[BaseException]) -> Fault:
    if isinstance(error, CannotResolveHostError):
        return fault_of(config, "its host cannot be found", is_certain=True)
    is_refused = any(_errno(cause) is not None or isinstance(cause, ConnectError) for cause in causes)
    if is_refused:
        return fault_of(config, "it cannot be connected to", is_certain=True)
    # Other handlers say the same of a tunnel that the proxy does not open.
    found = _STATUS.search(str(error))
    return fault_of(config, f"it refused to open a tunnel ({found[1]})" if found else "it cannot be connected to")


def _broken(config: ExitConfig, causes: list[BaseException], *, secure: bool) -> Fault:
    """A connection that was made, and gave no whole answer."""
    names = [type(cause).__name__ for cause in causes]
    if any(type(cause).__module__.startswith("OpenSSL") or "Certificate" in type(cause).__name__ for cause in causes):
        return Fault(kind=FaultKind.TLS, message=_message(causes[-1]))
    if any(name in ("ParseError", "BadHeaders", "BadResponseVersion") for name in names):
        return Fault(kind=FaultKind.PROTOCOL, message=_message(causes[-1]))
    if "_DataLoss" in names or "PotentialDataLoss" in names:
        return Fault(kind=FaultKind.TRUNCATED, message=_message(causes[-1]))
    # With plain HTTP a proxy answers with an error page when the target fails; only its own failure ends like this.
    message = "the connection was closed without an answer"
    return Fault(kind=FaultKind.CONNECT, message=message) if secure else fault_of(config, message)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The exception, then what it was raised from, also where Twisted has put several into one."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        for reason in getattr(error, "reasons", ()):
            if isinstance(reason, Failure):
                yield from _causes(reason.value)
        error = error.__cause__ or error.__context__


def _errno(error: BaseException) -> int | None:
    return error.errno if isinstance(error, OSError) else None


def _message(error: BaseException) -> str:
    return one_line(str(error)) or type(error).__name__


Offer = Callable[[Visit], None]
Put = Callable[[str, list[Task]], Awaitable[object]]
Landed = Callable[[Lease], Awaitable[None] | None]


class Steps(NamedTuple):
    """What a journey lets others do."""

    offer: Offer
    drop: Callable[[list[Request]], None]
    put: Put
    reserve: Callable[..., Awaitable[float]]


class ScrapyJourney:
    """Keeps what a worker asks of a journey. `offer` hands a visit to the reactor's thread, and `drop` requests that
    are known already; `put` puts tasks and `reserve` takes another start slot, as soon as the frontier can be reached;
    `places` are the requests that Scrapy may have on their way: one with a start slot takes its place
    before that slot comes."""

    def __init__(
        self, steps: Steps, *, places: int, exits: LeasedExits, records: Records, settings: Settings, tally: Tally
    ) -> None:
        self._steps = steps
        self._tally = tally
        self._exits = exits
        self._records = records
        self._settings = settings
        self._places = asyncio.Semaphore(places)
        self._placed: set[int] = set()
        # The requests that were found with each lease which is not settled yet, by its token.
        self._found: dict[int, dict[int, Request]] = {}
        self._pacer = Pacer.of(settings)
        self._rng = random.Random()  # noqa: S311 -- jitter, not secrets
        self.failing = FailingHandlers(0)
        self.stop = ""

    async def prepare(self, lease: Lease) -> None:
        """Take a place in the engine before the start slot comes: the request then starts when it is due."""
        await self._places.acquire()
        self._placed.add(lease.token)

    async def take(self, lease: Lease, landed: Landed) -> Finished:
        """Let Scrapy do the page; gives how its lease ends."""
        loop = asyncio.get_running_loop()
        given: asyncio.Queue[Visit] = asyncio.Queue()

        def give(visit: Visit) -> None:
            loop.call_soon_threadsafe(given.put_nowait, visit)

        def land() -> None:
            loop.call_soon_threadsafe(self._land, lease, landed)

        if not self._exits.has(lease):
            self._free(lease)
            return Finished(await self._exits.hand_back(lease))
        visit = Visit(lease=lease, exit=self._exits.of(lease), give=give, land=land)
        try:
            await self._until_over(visit, given)
        except asyncio.CancelledError:
            # The lease is not ours any more: another process does the page.
            visit.is_withdrawn = True
            raise
        finally:
            self._free(lease)
        finished, found = self._finished(visit), list(visit.found.values())
        if visit.requests:
            self._found[lease.token] = visit.requests
        if isinstance(finished.result, Dead) and found:
            # As in Scrapy, what a callback yielded before it failed counts. A dead letter cannot bring tasks with it.
            await self._steps.put(lease.crawl, found)
        return finished

    def settled(self, results: list[Result], report: SettleReport) -> None:
        """Tell which requests the frontier knew already."""
        found = {
            token: requests for result in results if (requests := self._found.pop(token := result.lease.token, {}))
        }
        dropped = [found[token][key] for token, key in report.duplicates if key in found.get(token, {})]
        if dropped:
            self._steps.drop(dropped)

    async def _until_over(self, visit: Visit, given: asyncio.Queue[Visit]) -> None:
        """Offer the visit to the engine, with another start slot where the engine has missed the one before."""
        self._offer(visit)
        while (await given.get()).is_late:
            visit.is_late = False
            reserve = partial(self._steps.reserve, visit.lease)
            await wait_for_slot(visit.offered, interval=visit.lease.interval, reserve=reserve)
            self._offer(visit)

    def _offer(self, visit: Visit) -> None:
        # By the clock of this thread: the reactor's may be busy with a callback.
        visit.offered = time.monotonic()
        visit.first_offered = visit.first_offered or visit.offered
        self._steps.offer(visit)

    def _land(self, lease: Lease, landed: Landed) -> None:
        self._free(lease)
        landed(lease)

    def _free(self, lease: Lease) -> None:
        if lease.token in self._placed:
            self._placed.remove(lease.token)
            self._places.release()

    def _finished(self, visit: Visit) -> Finished:
        lease = visit.lease
        if visit.exit is not None and visit.exit.refused is not None:
            return self._refused(visit, visit.exit, visit.exit.refused)
        if visit.is_released:
            return self._reported(Finished(Released(lease=lease)), visit)
        answer = _response(visit)
        if answer is not None:
            self._tally.fetched(answer)
        verdict = None if answer is None else judge(answer)
        lane = None if answer is None or verdict is None else self._lane(lease, verdict, answer)
        problem = visit.problem or _ignored(visit, verdict)
        outcome = problem.partition(":")[0] or _outcome(visit, answer)
        yielded = visit.items if visit.items or not problem else None
        row = self._records.fetch_row(lease, outcome, answer, error=problem, items=yielded)
        items = self._records.item_rows(visit.items, lease=lease, url=answer.url if answer else lease.task.url)
        if problem:
            dead = Dead(lease=lease, reason=problem, detail=visit.detail, lane=lane)
            return self._reported(Finished(dead, items, row), visit)
        found = [self._delayed(task, visit) for task in visit.found.values()]
        notes = {ITEMS: len(items)} if items else {}
        done = Done(lease=lease, outcome=outcome, found=found, lane=lane, notes=notes)
        return self._reported(Finished(done, items, row, visit.unstorable), visit)

    def _refused(self, visit: Visit, leased: LeasedExit, refused: Refused) -> Finished:
        """How the lease of a page ends that its exit could not fetch. It does not change the lane's pace."""
        self._exits.refused(leased)
        if leased.answer is not None:
            self._tally.fetched(leased.answer)
        finished = self._records.failed(refused.result, refused.outcome, leased.answer)
        items = self._records.item_rows(visit.items, lease=visit.lease, url=visit.lease.task.url)
        return msgspec.structs.replace(finished, items=items)

    def _reported(self, finished: Finished, visit: Visit) -> Finished:
        if visit.exit is None:
            return finished
        return msgspec.structs.replace(finished, result=self._exits.reported(finished.result, visit.exit))

    def _lane(self, lease: Lease, verdict: Verdict, answer: Response) -> LaneUpdate | None:
        """What the answer does to the pace of its lane, for all workers."""
        # Through an exit, how long it took says more of the exit than of the host.
        update = self._pacer.after(lease, verdict, answer.elapsed if lease.exit == DIRECT else 0.0)
        asked = retry_after(answer.headers, time.time()) if verdict.slows else None
        if asked is None:
            return update
        return self._pacer.resting(lease, update, LaneUpdate(rest_seconds=min(asked, self._settings.max_rest_seconds)))

    def _delayed(self, task: Task, visit: Visit) -> Task:
        """A request that Scrapy sends again waits for a while, longer each time; Scrapy alone would send it at once."""
        if not visit.retries:
            return task
        return msgspec.structs.replace(task, delay=backoff(visit.retries, self._settings, self._rng))


def _response(visit: Visit) -> Response | None:
    """Scrapy's answer as shoal's policies read it."""
    return None if visit.answer is None else answer_of(visit.answer, elapsed=visit.elapsed)


def _ignored(visit: Visit, verdict: Verdict | None) -> str:
    """Why a page that never reached the spider is a dead letter: Scrapy has tried it again and given up."""
    if visit.reached_spider or verdict is None or visit.outcome == "errback":
        return ""
    return f"{verdict.outcome}: Scrapy gave up" if verdict.action == "retry" else ""


def _outcome(visit: Visit, answer: Response | None) -> str:
    if visit.outcome:
        return visit.outcome
    if answer is None or 200 <= answer.status < 300:
        return "ok"
    return f"http_{answer.status}"
