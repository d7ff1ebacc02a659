"""The journey of one leased task: rules, fetch, judge, handle. Gives how the lease ends and what to store."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from shoal.archive.base import Capture, RawPage, packed
from shoal.error_text import line_of, reason_of, traceback_of
from shoal.exits.passage import Passage, Passages
from shoal.exits.refusals import ExitRefusal, refusal_of, unused
from shoal.fetch.base import Fault, Fetch, Fetcher, Response
from shoal.journey.handlers import Handlers
from shoal.journey.intake import Found, Intake
from shoal.journey.lane_rules import LaneRules
from shoal.journey.repeats import Repeats
from shoal.journey.results import Finished, unstorable_item
from shoal.markup import MarkupLimits, UnfitMarkup
from shoal.model import DIRECT, Dead, Done, LaneUpdate, Lease, Released, Result, Retry, Task
from shoal.page import Page, TurnedAway
from shoal.policy.politeness import Moods
from shoal.policy.retries import Verdict, backoff, judge, plan
from shoal.secrecy import secrets_in, without_secrets
from shoal.settings import Settings
from shoal.spider import Request
from shoal.store.base import FetchRow, ItemRow
from shoal.urls import origin_of

GET_AFTER = frozenset({301, 302, 303})
LINKS_CHECKED_SECONDS = 0.25

# What becomes of a page's bytes beside the handler: nothing, their hash in the fetch log, or that and the archive.
Keeping = Literal["nothing", "hash", "page"]


class Journey:
    """Takes leases from start to finish, one at a time each, with everything a worker knows."""

    def __init__(  # noqa: PLR0913 -- the parts of a worker, put together in one place
        self,
        *,
        spider_name: str,
        worker: str,
        settings: Settings,
        needs_rules: bool,
        fetcher: Fetcher,
        handlers: Handlers,
        intake: Intake,
        lane_rules: LaneRules,
        passages: Passages | None = None,
        keeping: Keeping = "nothing",
        clock: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        self._spider_name = spider_name
        self._worker = worker
        self._settings = settings
        self._needs_rules = needs_rules
        self._fetcher = fetcher
        self._handlers = handlers
        self._intake = intake
        self._lane_rules = lane_rules
        self._keeping = keeping
        self._passages = passages
        self._limits = MarkupLimits(settings.max_tags, settings.max_nesting)
        self._repeats = Repeats(settings.max_equal_pages)
        self._moods = Moods(adaptive=settings.pace == "adaptive")
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 -- jitter, not secrets

    async def take(self, lease: Lease) -> Finished:
        """Work on the lease. Never raises for what a site or a handler does."""
        if lease.exit != DIRECT and self._passages is not None and not self._passages.knows(lease):
            return Finished(await self._passages.hand_back(lease))
        if lease.opens_lane:
            return Finished(await self._lane_rules.open(lease))
        task = lease.task
        if self._needs_rules and (refused := await self._refused(lease)):
            return refused
        if self._repeats.exhausted(task) and self._is_plain(task):
            return self._given_up(lease)
        request = Fetch(url=task.url, method=task.method, headers=task.headers, body=task.body, exit=lease.exit)
        if lease.exit != DIRECT and self._passages is not None:
            return await self._through_exit(lease, request, self._passages)
        answer = await self._fetcher.fetch(request)
        verdict = judge(answer, handle_statuses=self._settings.handle_statuses)
        update = self._moods.after(lease, verdict, answer.elapsed)
        return await self._end(lease, answer, verdict, update)

    async def _through_exit(self, lease: Lease, request: Fetch, passages: Passages) -> Finished:
        """Fetch and judge; what is the exit's doing ends here, and says nothing about the lane."""
        passage, refusal = await passages.open(lease)
        if refusal is not None:
            return self._turned_away(passage, refusal, lease)
        answer = await passage.fetch(request)
        verdict = judge(answer, handle_statuses=self._settings.handle_statuses)
        refusal = refusal_of(answer, verdict)
        if refusal is not None:
            return self._turned_away(passage, refusal, lease, answer)
        # How fast an answer was tells of its exit as much as of the host.
        update = self._moods.after(lease, verdict, 0.0)
        try:
            finished = await self._end(lease, answer, verdict, update)
        except TurnedAway as error:
            return self._turned_away(passage, passage.refusal_of(error), lease, answer)
        return msgspec.structs.replace(finished, result=passage.reported(finished.result))

    def _turned_away(
        self, passage: Passage, refusal: ExitRefusal, lease: Lease, answer: Response | Fault | None = None
    ) -> Finished:
        result = passage.turned_away(refusal)
        outcome = refusal.outcome if isinstance(result, Dead) else f"retry:{refusal.outcome}"
        return Finished(result, fetch=self._row(lease, outcome, answer, error=result.reason))

    async def _end(
        self, lease: Lease, answer: Response | Fault, verdict: Verdict, update: LaneUpdate | None
    ) -> Finished:
        if verdict.action == "retry" or isinstance(answer, Fault):
            return self._failed(lease, verdict, answer, update)
        finished = await self._judged(lease, answer, verdict, update)
        return finished if self._keeping != "page" else self._with_page(finished, lease, answer)

    async def _judged(self, lease: Lease, response: Response, verdict: Verdict, update: LaneUpdate | None) -> Finished:
        if verdict.action == "redirect":
            return self._redirected(lease, response, update)
        if verdict.action == "handle":
            return await self._handled(lease, response, verdict.outcome, update)
        return Finished(
            Done(lease=lease, outcome=verdict.outcome, lane=update), fetch=self._row(lease, verdict.outcome, response)
        )

    def _with_page(self, finished: Finished, lease: Lease, response: Response) -> Finished:
        """The page goes to the archive, too: also one whose handler failed, which is the one to be replayed."""
        row, task = finished.fetch, lease.task
        if row is None:
            return finished
        capture = Capture(
            crawl=lease.crawl,
            url=task.url,
            final_url=response.url,
            key=task.key,
            status=response.status,
            headers=self._kept_headers(lease, response),
            at=row.at,
            token=lease.token,
            content_hash=row.content_hash,
            size=len(response.body),
            method=task.method,
            attempt=lease.attempt,
            worker=self._worker,
            handler=task.handler,
            depth=task.depth,
            priority=task.priority,
            **packed(task.meta),
        )
        return msgspec.structs.replace(finished, page=RawPage(capture, response.body))

    def _kept_headers(self, lease: Lease, response: Response) -> dict[str, str]:
        """As they came, but for the cookies of an account: whoever has them is logged in."""
        if self._passages is None or not self._passages.is_account(lease):
            return response.headers
        return {name: text for name, text in response.headers.items() if name != "set-cookie"}

    async def _refused(self, lease: Lease) -> Finished | None:
        robots, url = await self._lane_rules.of(lease), lease.task.url
        if robots is None:
            return Finished(Released(lease=lease, exit=unused(lease)))
        if robots.allows(url):
            return None
        reason = "robots_unavailable" if robots.are_unavailable else "robots"
        rejected = Done(lease=lease, outcome=reason, rejected={reason: 1}, samples=[(reason, url)], exit=unused(lease))
        return Finished(rejected, fetch=self._row(lease, reason))

    def _is_plain(self, task: Task) -> bool:
        """Known by its URL alone: one with a key of its own is asked for on purpose, perhaps again and again."""
        return task.key == self._intake.rules.key_of(task.url, method=task.method, body=task.body)

    def _given_up(self, lease: Lease) -> Finished:
        reason = (
            f"equal_pages: the last {self._settings.max_equal_pages} pages like it said nothing new;"
            f" if it does, run again with --set max_equal_pages=0 after `shoal dead requeue {lease.crawl}"
            " --reason equal_pages`"
        )
        dead = Dead(lease=lease, reason=reason, exit=unused(lease))
        return Finished(dead, fetch=self._row(lease, "equal_pages", error=reason))

    def _failed(self, lease: Lease, verdict: Verdict, answer: Response | Fault, update: LaneUpdate | None) -> Finished:
        result = plan(lease, verdict, answer, settings=self._settings, rng=self._rng, now=self._clock())
        if update is not None:
            result = msgspec.structs.replace(result, lane=_merged(update, result.lane))
        outcome = verdict.outcome if isinstance(result, Dead) else f"retry:{verdict.outcome}"
        return Finished(result, fetch=self._row(lease, outcome, answer, error=result.reason))

    async def _handled(self, lease: Lease, response: Response, outcome: str, update: LaneUpdate | None) -> Finished:
        page = Page(response, task=lease.task, resolver=self._intake.rules, limits=self._limits)
        try:
            harvest = await self._handlers.run(page)
        except UnfitMarkup as error:
            dead = Dead(lease=lease, reason=f"too_complex: {error}", lane=update)
            return Finished(dead, fetch=self._row(lease, "too_complex", response, error=dead.reason))
        except Exception as error:
            if isinstance(error, TurnedAway) and lease.exit != DIRECT:
                raise
            return self._handler_failed(lease, response, error, update)
        if self._repeats.note(page):
            harvest.found.reject_all("equal_pages")
        self._drop_disallowed(lease.task.lane, harvest.found)
        at = self._clock()
        items = [
            ItemRow(
                spider=self._spider_name,
                key=item.key,
                crawl=lease.crawl,
                url=response.url,
                data=item.data,
                token=lease.token,
                at=at,
            )
            for item in harvest.items
        ]
        row = self._row(lease, outcome, response)
        reason = unstorable_item(*harvest.unstorable[0]) if harvest.unstorable else ""
        return Finished(self._done(lease, outcome, harvest.found, update), items, row, reason)

    def _handler_failed(
        self, lease: Lease, response: Response, error: Exception, update: LaneUpdate | None
    ) -> Finished:
        is_away = isinstance(error, TurnedAway)
        secrets = secrets_in(lease.task.headers) if self._passages is None else self._passages.secrets(lease)
        reason = reason_of(str(error), secrets=secrets) if is_away else f"handler: {line_of(error, secrets=secrets)}"
        row = self._row(lease, reason.partition(":")[0], response, error=reason)
        if lease.attempt >= lease.task.max_attempts:
            detail = traceback_of(error, secrets=secrets)
            return Finished(Dead(lease=lease, reason=reason, detail=detail, lane=update), fetch=row)
        delay = backoff(lease.attempt, self._settings, self._rng)
        return Finished(Retry(lease=lease, reason=reason, delay=delay, lane=update), fetch=row)

    def _redirected(self, lease: Lease, response: Response, update: LaneUpdate | None) -> Finished:
        """Every hop is a task of its own: it waits in its host's lane and is known by its key, so loops end."""
        task, location = lease.task, response.headers["location"]
        if task.hops >= self._settings.max_redirects:
            dead = Dead(lease=lease, reason=f"redirect_loop: more than {task.hops} redirects in a row", lane=update)
            return Finished(dead, fetch=self._row(lease, "redirect_loop", response, error=dead.reason))
        found = Found()
        # A start URL may lead anywhere: people type example.com and mean where it takes them.
        link = self._intake.rules.resolve(location, response.url)
        # What no rule can use is shown cut short, and without its password: as it came it is refused by its name.
        is_usable = link.lane and link.rejected != "credentials"
        request = _next_request(task, response, link.url if is_usable else location)
        self._intake.request(request, found, parent=task, base=response.url, scoped=task.depth > 0)
        hops = {key: msgspec.structs.replace(hop, hops=task.hops + 1) for key, hop in found.tasks.items()}
        if task.key in hops:
            dead = Dead(lease=lease, reason="redirect_loop: the page redirects to itself", lane=update)
            return Finished(dead, fetch=self._row(lease, "redirect_loop", response, error=dead.reason))
        found.tasks = hops
        row = self._row(lease, "redirected", response)
        row = msgspec.structs.replace(row, final_url=next((hop.url for hop in hops.values()), link.url))
        return Finished(self._done(lease, "redirected", found, update), fetch=row)

    def _done(self, lease: Lease, outcome: str, found: Found, update: LaneUpdate | None) -> Result:
        return Done(
            lease=lease,
            outcome=outcome,
            found=list(found.tasks.values()),
            rejected=found.rejected,
            samples=found.samples,
            lane=update,
        )

    def _drop_disallowed(self, lane: str, found: Found) -> None:
        """Links of this host that its rules forbid never become tasks; other hosts' rules are met when leased."""
        robots = self._lane_rules.cached(lane) if self._needs_rules else None
        if robots is None or robots.allows_all:
            return
        until = time.perf_counter() + LINKS_CHECKED_SECONDS
        for key, task in list(found.tasks.items()):
            if time.perf_counter() > until:
                # Rules made to be slow, on thousands of links, would stop the worker: the rest meet them when leased.
                return
            if task.lane == lane and not robots.allows(task.url):
                del found.tasks[key]
                found.reject("robots", task.url)

    def _row(self, lease: Lease, outcome: str, answer: Response | Fault | None = None, *, error: str = "") -> FetchRow:
        task = lease.task
        status, size, content_hash = 0, 0, ""
        if isinstance(answer, Response):
            status, size = answer.status, len(answer.body)
            content_hash = "" if self._keeping == "nothing" else hashlib.sha256(answer.body).hexdigest()
        return FetchRow(
            crawl=lease.crawl,
            key=task.key,
            url=task.url,
            outcome=outcome,
            token=lease.token,
            attempt=lease.attempt,
            at=self._clock(),
            status=status,
            worker=self._worker,
            exit=lease.exit,
            size=size,
            elapsed=answer.elapsed if answer is not None else 0.0,
            error=error,
            parent=task.parent,
            content_hash=content_hash,
        )


def _next_request(task: Task, response: Response, target: str) -> Request:
    """The request of the next hop: as the browsers do it, and without secrets for another origin."""
    becomes_get = response.status in GET_AFTER and task.method not in ("GET", "HEAD")
    headers = task.headers
    # Compared after resolving: //other.example/ and /\\other.example/ look local and are not.
    if headers and not target.startswith(origin_of(response.url) + "/"):
        headers = without_secrets(headers)
    if headers and becomes_get:
        headers = {name: value for name, value in headers.items() if not name.lower().startswith("content-")}
    return Request(
        target,
        handler=task.handler,
        method="GET" if becomes_get else task.method,
        headers=headers,
        body=None if becomes_get else task.body,
        meta=task.meta,
        priority=task.priority,
        depth=task.depth,
        max_attempts=task.max_attempts,
        pool=task.pool,
    )


def _merged(first: LaneUpdate, second: LaneUpdate | None) -> LaneUpdate:
    """Both updates in one; the second's rest counts."""
    if second is None:
        return first
    return msgspec.structs.replace(first, rest_seconds=second.rest_seconds)
