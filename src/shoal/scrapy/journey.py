"""The journey of a leased page when Scrapy fetches it: each lease becomes a visit, and the result of the visit ends the
lease."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
from scrapy import Request, http

from shoal.exits.refusals import Refused
from shoal.fetch.base import Response
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


def answer_of(response: http.Response, *, elapsed: float) -> Response:
    """Scrapy's response as shoal's policies read it."""
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


Landed = Callable[[Lease], Awaitable[None] | None]


class ScrapyJourney:
    """Implements what a worker needs of a journey. `offer` passes a visit to the reactor's thread, and `drop` requests
    that are known already; `put` puts tasks and `reserve` reserves another start slot, as soon as the frontier can be
    reached. `places` is the number of requests in Scrapy's engine: a request with a start slot takes its place before
    that slot comes."""

    def __init__(
        self,
        *,
        offer: Callable[[Visit], None],
        drop: Callable[[list[Request]], None],
        put: Callable[[str, list[Task]], Awaitable[object]],
        reserve: Callable[..., Awaitable[float]],
        places: int,
        exits: LeasedExits,
        records: Records,
        settings: Settings,
        tally: Tally,
    ) -> None:
        self._offer = offer
        self._drop = drop
        self._put = put
        self._reserve = reserve
        self._tally = tally
        self._exits = exits
        self._records = records
        self._settings = settings
        self._places = asyncio.Semaphore(places)
        self._placed: set[int] = set()
        # The requests found with each lease that is not settled yet, by token.
        self._found: dict[int, dict[int, Request]] = {}
        self._pacer = Pacer.of(settings)
        self._rng = random.Random()  # noqa: S311 -- jitter, not secrets
        self.failing = FailingHandlers(0)
        self.stop = ""

    async def prepare(self, lease: Lease) -> None:
        """Take a place in the engine before the start slot comes: the request then starts on time."""
        await self._places.acquire()
        self._placed.add(lease.token)

    async def take(self, lease: Lease, landed: Landed) -> Finished:
        """Let Scrapy fetch and handle the page; returns how its lease ends."""
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
            # The lease is lost: another process does the page.
            visit.is_withdrawn = True
            raise
        finally:
            self._free(lease)
        finished, found = self._finished(visit), list(visit.found.values())
        if visit.requests:
            self._found[lease.token] = visit.requests
        if isinstance(finished.result, Dead) and found:
            # As in Scrapy, requests yielded before a callback failed count. A dead letter cannot carry tasks.
            await self._put(lease.crawl, found)
        return finished

    def settled(self, results: list[Result], report: SettleReport) -> None:
        """Report the requests that the frontier knew already."""
        found = {
            token: requests for result in results if (requests := self._found.pop(token := result.lease.token, {}))
        }
        dropped = [found[token][key] for token, key in report.duplicates if key in found.get(token, {})]
        if dropped:
            self._drop(dropped)

    async def _until_over(self, visit: Visit, given: asyncio.Queue[Visit]) -> None:
        """Offer the visit to the engine; with another start slot each time the engine misses one."""
        self._offer_now(visit)
        while (await given.get()).is_late:
            visit.is_late = False
            reserve = partial(self._reserve, visit.lease)
            await wait_for_slot(visit.offered, interval=visit.lease.interval, reserve=reserve)
            self._offer_now(visit)

    def _offer_now(self, visit: Visit) -> None:
        # Read here: the reactor may be busy with a callback.
        visit.offered = time.monotonic()
        visit.first_offered = visit.first_offered or visit.offered
        self._offer(visit)

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
        answer = None if visit.answer is None else answer_of(visit.answer, elapsed=visit.elapsed)
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
        """The end of a lease whose exit could not fetch the page. It does not change the lane's pace."""
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
        """The change of the pace of the lane, for all workers."""
        # Through an exit, the elapsed time measures the exit, not the host.
        update = self._pacer.after(lease, verdict, answer.elapsed if lease.exit == DIRECT else 0.0)
        asked = retry_after(answer.headers, time.time()) if verdict.slows else None
        if asked is None:
            return update
        return self._pacer.resting(lease, update, LaneUpdate(rest_seconds=min(asked, self._settings.max_rest_seconds)))

    def _delayed(self, task: Task, visit: Visit) -> Task:
        """Delay a request that Scrapy retries, longer each time; Scrapy would send it at once."""
        if not visit.retries:
            return task
        return msgspec.structs.replace(task, delay=backoff(visit.retries, self._settings, self._rng))


def _ignored(visit: Visit, verdict: Verdict | None) -> str:
    """Why a page that never reached the spider is a dead letter: Scrapy retried it and gave up."""
    if visit.reached_spider or verdict is None or visit.outcome == "errback":
        return ""
    return f"{verdict.outcome}: Scrapy gave up" if verdict.action == "retry" else ""


def _outcome(visit: Visit, answer: Response | None) -> str:
    if visit.outcome:
        return visit.outcome
    if answer is None or 200 <= answer.status < 300:
        return "ok"
    return f"http_{answer.status}"
