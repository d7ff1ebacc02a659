"""The journey of one leased task: rules, fetch, judge, handle. Gives how the lease ends and what to store."""

from __future__ import annotations

import random
import time
from collections.abc import Awaitable, Callable

import msgspec

from shoal.errors import StorageError, UsageError
from shoal.exits.passage import Passage, Passages
from shoal.exits.refusals import Refused, unused
from shoal.exits.troubles import Shortage, wait_out
from shoal.fetch.base import Fault, FaultKind, Response
from shoal.fetch.robots import Robots
from shoal.journey.conditional import (
    NOT_MODIFIED,
    UNCHANGED,
    Asked,
    FormerPages,
    LastVisits,
    as_archived,
    asks_log,
    carried_over,
    conditions,
    request_for,
)
from shoal.journey.cookie_walls import WALL_STATUSES, CookieWalls, beside, hop_of
from shoal.journey.cpu_shares import CpuShares, WatchedPage
from shoal.journey.handlers import Handlers
from shoal.journey.intake import Found, Intake
from shoal.journey.notes import LONGEST_TEXT, FailingHandlers, StartNotes
from shoal.journey.repeats import Repeats
from shoal.journey.results import Finished, Keeping, Records, unstorable_item, weighed
from shoal.journey.revisits import RevisitRule, Revisits, fingerprint, is_visited
from shoal.journey.robots import LaneRules
from shoal.journey.stages import Body, Stages, handed_over, is_staged
from shoal.model import Dead, Done, LaneUpdate, Lease, Released, Retry, Task
from shoal.policy.limits import SPIDER
from shoal.policy.pace import Moods
from shoal.policy.retries import Verdict, backoff, judge, plan
from shoal.policy.verdicts import RAISED, NoteNames
from shoal.settings.table import Settings
from shoal.spider.markup import MarkupLimits, UnfitMarkup
from shoal.spider.page import Page, TurnedAway
from shoal.store.base import FetchRow, all_item_keys
from shoal.text.errors import kind_of, line_of, reason_of, several, traceback_of
from shoal.urls.canonical import spelling_turn

LINKS_CHECKED_SECONDS = 0.25
# The page is not there: its items are not, either. Other refusals say nothing of them.
GONE_STATUSES = frozenset({404, 410})
HANDED_OVER = "handed_over"  # the outcome of pages that workers of another kind handle
_AS_ARCHIVED = Verdict(NOT_MODIFIED, "handle")

Landed = Callable[[Lease], Awaitable[None] | None]


def _nobody(_: Lease) -> None:
    """Nobody wants to know that a page is there."""


async def _at_once(step: Callable[[], Awaitable[Body]]) -> Body:
    return await step()


class Journey:
    """Takes leases from start to finish, one at a time each, with everything a worker knows.

    `stop` says why a handler wants the crawl to be stopped; empty: none does."""

    def __init__(
        self,
        *,
        spider_name: str,
        worker: str,
        settings: Settings,
        needs_rules: bool,
        handlers: Handlers,
        intake: Intake,
        lane_rules: LaneRules,
        passages: Passages,
        keeping: Keeping = "nothing",
        stages: Stages | None = None,
        shares: CpuShares | None = None,
        last_visits: LastVisits | None = None,
        former_pages: FormerPages | None = None,
        clock: Callable[[], float] = time.time,
        rng: random.Random | None = None,
    ) -> None:
        self._settings = settings
        self._needs_rules = needs_rules
        self._handlers = handlers
        self._intake = intake
        self._lane_rules = lane_rules
        self._passages = passages
        self._stages = stages or Stages(reach=_at_once)
        self._walls = CookieWalls(intake=intake, lane_rules=lane_rules, settings=settings, needs_rules=needs_rules)
        self._revisits = Revisits(RevisitRule.of(settings), clock=clock)
        self._last_visits = last_visits
        self._former_pages = former_pages
        self._records = Records(
            spider_name=spider_name,
            worker=worker,
            keeping=keeping,
            clock=clock,
            is_revisited=self._revisits.concern,
        )
        self._limits = MarkupLimits(settings.max_tags, settings.max_nesting)
        self._repeats = Repeats(settings.max_equal_pages)
        self._moods = Moods.of(settings)
        self.stop = ""
        self._counts_bytes = settings.max_bytes > 0
        self.failing = FailingHandlers(settings.stop_after_failures)
        self._starts = StartNotes(handle_statuses=settings.handle_statuses)
        self._raised = NoteNames(RAISED)
        self._shares = shares or CpuShares()
        self._clock = clock
        self._rng = rng or random.Random()  # noqa: S311 -- jitter, not secrets

    def take(self, lease: Lease, landed: Landed = _nobody) -> Awaitable[Finished]:
        """Work on the lease. Never raises, whatever a site or a handler does. `landed` is called as soon as the page is
        there, and no request for it will follow; not where it never comes. The page is handled after what it gives."""
        # No step between the worker and the page unless it is needed: it would cost every page half a µs.
        if self._revisits.concern(lease.task):
            return self._take_visit(lease, landed)
        return self._take(lease, landed) if lease.task.depth else self._take_start(lease, landed)

    async def prepare(self, lease: Lease) -> None:
        """Do what takes time before the start slot of the lease comes: what is done after it makes the request late."""
        if self._needs_rules and not lease.opens_lane and not is_staged(lease.task):
            await self._lane_rules.of(lease)
        if self._last_visits is not None and asks_log(lease.task) and not is_staged(lease.task):
            await self._last_visits.ask(lease)
        if self._former_pages is not None and self._former_pages.concern(lease) and not is_staged(lease.task):
            await self._former_pages.ask(lease)

    async def _take_start(self, lease: Lease, landed: Landed) -> Finished:
        return self._starts.added(await self._take(lease, landed))

    async def _take_visit(self, lease: Lease, landed: Landed) -> Finished:
        """One visit of a page that is visited more than once. What counts for start URLs is said at the first one."""
        finished = await self._take(lease, landed)
        if not lease.task.depth and not is_visited(lease.task):
            finished = self._starts.added(finished)
        return self._revisits.after(finished)

    async def _take(self, lease: Lease, landed: Landed) -> Finished:
        if self.failing.reason:
            return Finished(Released(lease=lease, exit=unused(lease)))
        if is_staged(lease.task):
            return await self._take_stage(lease, landed)
        passage = self._passages.open(lease)
        if passage is None:
            return Finished(await self._passages.hand_back(lease))
        if lease.opens_lane:
            opened = await self._lane_rules.open(lease, passage)
            return await self._short(lease, passage, opened) if isinstance(opened, Shortage) else Finished(opened)
        if self._needs_rules:
            robots = self._lane_rules.at_hand(lease) or await self._lane_rules.of(lease)
            if robots is None or not robots.allows(lease.task.url):
                return self._kept_out(lease, robots)
        if not is_visited(lease.task) and self._repeats.exhausted(lease.task) and self._is_plain(lease.task):
            return self._given_up(lease)
        finished = await self._visit(lease, passage, landed)
        return weighed(finished) if self._counts_bytes else finished

    async def _visit(self, lease: Lease, passage: Passage, landed: Landed) -> Finished:
        """Fetch, judge, handle. A page that is refused because of its exit does not change the lane's pace."""
        task, former = lease.task, self._former_pages
        if former is not None and former.concern(lease):
            asked = await former.fetch(lease, passage, lane_rules=self._lane_rules)
        else:
            last = await self._last_visits.of(lease) if self._last_visits is not None and asks_log(task) else None
            headers = None if last is None else conditions(task, last)
            asked = Asked(await passage.fetch(request_for(lease, headers)), None if headers is None else last)
        answer = asked.answer
        if isinstance(answer, Refused):
            return self._unreached(answer.result, answer.outcome, None)
        if isinstance(answer, Response) and answer.status in WALL_STATUSES:
            answer = await self._walls.behind(lease, passage, answer)
        if isinstance(answer, Fault) and answer.kind is FaultKind.SHORTAGE:
            return await self._short(lease, passage, Shortage(answer.message))
        if (turn := landed(lease)) is not None:
            await turn
        verdict = _AS_ARCHIVED if asked.is_archived else judge(answer, handle_statuses=self._settings.handle_statuses)
        refused = passage.refused_by_answer(answer, verdict)
        if refused is not None:
            return self._unreached(refused.result, refused.outcome, answer)
        delay = self._crawl_delay(lease) if self._moods.search else 0.0
        update = self._moods.after(lease, verdict, passage.host_latency(answer), crawl_delay=delay)
        if verdict.action == "retry" or isinstance(answer, Fault):
            return _reported(self._failed(lease, verdict, answer, update), passage)
        if answer.status == UNCHANGED and asked.last is not None:
            return _reported(self._not_modified(lease, asked.last, answer, update), passage)
        ended = await self._ended(lease, passage, answer, verdict, update)
        if isinstance(ended, Refused):
            return self._records.failed(ended.result, ended.outcome, answer)
        finished = self._records.with_page(ended, answer, headers=passage.kept_headers(answer))
        return _reported(as_archived(finished) if asked.is_archived else finished, passage)

    def _crawl_delay(self, lease: Lease) -> float | None:
        """The seconds between requests that the host's rules ask for; None: this worker does not know the rules."""
        if not self._needs_rules:
            return 0.0
        robots = self._lane_rules.cached(lease.task.lane)
        return None if robots is None else robots.crawl_delay or 0.0

    def _not_modified(self, lease: Lease, last: FetchRow, response: Response, update: LaneUpdate | None) -> Finished:
        """The page is as it was at its last visit: no handler runs, and its items are there."""
        row = carried_over(self._records.fetch_row(lease, NOT_MODIFIED, response), last, response)
        look = self._records.look(all_item_keys(last) or (), lease=lease, url=response.url)
        harvest = lease.task.visit.harvest if lease.task.visit is not None else 0
        return Finished(Done(lease=lease, outcome=NOT_MODIFIED, lane=update), fetch=row, harvest=harvest, look=look)

    async def _take_stage(self, lease: Lease, landed: Landed) -> Finished:
        """Handle a page that another worker has fetched and archived. No request is sent."""
        try:
            task, response, fetched = await self._stages.page_of(lease.task)
        except StorageError as error:
            reason = f"archive: {reason_of(str(error), secrets=[])}"
            delay = backoff(lease.attempt, self._settings, self._rng)
            last = lease.attempt >= lease.task.max_attempts
            result = Dead(lease=lease, reason=reason) if last else Retry(lease=lease, reason=reason, delay=delay)
            return self._records.failed(result, "archive", None)
        if (turn := landed(lease)) is not None:
            await turn
        lease = msgspec.structs.replace(lease, task=task)
        passage = self._passages.open(lease)
        if passage is None:
            return Finished(await self._passages.hand_back(lease))
        verdict = judge(response, handle_statuses=self._settings.handle_statuses)
        ended = await self._run_handler(lease, passage, response, verdict.outcome, None)
        if isinstance(ended, Refused):
            return self._records.failed(ended.result, ended.outcome, response)
        row = ended.fetch and msgspec.structs.replace(ended.fetch, archived=fetched.archived)
        return msgspec.structs.replace(ended, fetch=row)

    def _handed_over(
        self, lease: Lease, kind: str, passage: Passage, response: Response, update: LaneUpdate | None
    ) -> Finished:
        """The page is archived, and goes on with the workers of this kind."""
        handed = handed_over(lease, kind, response, headers=passage.kept_headers(response), update=update)
        return self._records.finished(handed, HANDED_OVER, response)

    async def _ended(
        self, lease: Lease, passage: Passage, response: Response, verdict: Verdict, update: LaneUpdate | None
    ) -> Finished | Refused:
        """How the lease of a page that was answered for good ends."""
        if verdict.action == "redirect":
            return self._redirected(lease, response, update)
        if verdict.action == "handle":
            return await self._handled(lease, passage, response, verdict.outcome, update)
        done = self._records.finished(
            Done(lease=lease, outcome=verdict.outcome, lane=update), verdict.outcome, response
        )
        if response.status in GONE_STATUSES:
            return msgspec.structs.replace(done, look=self._records.look((), lease=lease, url=response.url))
        return done

    async def _short(self, lease: Lease, passage: Passage, shortage: Shortage) -> Finished:
        """Give the task back untouched: what this machine lacks costs it neither an attempt nor a rest."""
        await wait_out(shortage, troubles=self._passages.troubles, rng=self._rng)
        return _reported(Finished(Released(lease=lease)), passage)

    def _kept_out(self, lease: Lease, robots: Robots | None) -> Finished:
        """How the lease of a page ends that robots.txt forbids, or whose rules have expired since it was lent."""
        if robots is None:
            return Finished(Released(lease=lease, exit=unused(lease)))
        url = lease.task.url
        reason = "robots_unavailable" if robots.are_unavailable else "robots"
        rejected = Done(lease=lease, outcome=reason, rejected={reason: 1}, samples=[(reason, url)], exit=unused(lease))
        return self._records.finished(rejected, reason)

    def _is_plain(self, task: Task) -> bool:
        """Whether the task's key comes from its URL. One with a key of its own is fetched on purpose, even often."""
        key = self._intake.rules.key_of(task.url, method=task.method, body=task.body)
        return spelling_turn(task.key, key=key, url=task.url) is not None

    def _given_up(self, lease: Lease) -> Finished:
        reason = (
            f"equal_pages: the last {several(self._settings.max_equal_pages, 'page')} like it said nothing new;"
            " if it does, requeue the dead letters of this reason and run again with --set max_equal_pages=0"
        )
        return self._records.finished(Dead(lease=lease, reason=reason, exit=unused(lease)), "equal_pages")

    def _failed(self, lease: Lease, verdict: Verdict, answer: Response | Fault, update: LaneUpdate | None) -> Finished:
        result = plan(lease, verdict, answer, settings=self._settings, rng=self._rng, now=self._clock())
        lane = self._moods.resting(lease, update, result.lane)
        if lane is not result.lane:
            result = msgspec.structs.replace(result, lane=lane)
        return self._unreached(result, verdict.outcome, answer)

    def _unreached(self, result: Retry | Dead, outcome: str, answer: Response | Fault | None) -> Finished:
        """The page could not be fetched. One that was reached before is visited again."""
        return self._revisits.spared(self._records.failed(result, outcome, answer))

    async def _handled(
        self, lease: Lease, passage: Passage, response: Response, outcome: str, update: LaneUpdate | None
    ) -> Finished | Refused:
        if self.failing.reason:
            return Finished(Released(lease=lease, lane=update))
        if (kind := self._stages.kind_of(lease.task)) is not None:
            return self._handed_over(lease, kind, passage, response, update)
        return await self._run_handler(lease, passage, response, outcome, update)

    async def _run_handler(
        self, lease: Lease, passage: Passage, response: Response, outcome: str, update: LaneUpdate | None
    ) -> Finished | Refused:
        watch, rules = self._shares.next(), self._intake.rules
        if watch is None:
            page = Page(response, task=lease.task, resolver=rules, limits=self._limits)
        else:
            page = WatchedPage(response, task=lease.task, resolver=rules, limits=self._limits, watch=watch)
        try:
            harvest = await self._handlers.run(page, token=lease.token)
        except UnfitMarkup as error:
            dead = Dead(lease=lease, reason=f"too_complex: {error}", lane=update)
            return self._records.finished(dead, "too_complex", response)
        except Exception as error:
            refused = passage.refused_by_handler(error)
            return refused or self._handler_failed(lease, response, error, update, secrets=passage.secrets())
        if harvest.stop and not self.stop:
            self.stop = f"{SPIDER}{harvest.stop}"
        if not is_visited(lease.task) and self._repeats.note(page):
            harvest.found.reject_all("equal_pages")
        given = fingerprint(harvest) if self._revisits.concern(lease.task) else 0
        self._drop_disallowed(lease.task.lane, harvest.found)
        items = self._records.item_rows(harvest.items, lease=lease, url=response.url)
        row = self._records.fetch_row(lease, outcome, response, error=harvest.problem, items=harvest.items)
        reason = unstorable_item(*harvest.unstorable[0]) if harvest.unstorable else ""
        if reason:
            self.failing.failed(lease.task, reason)
        else:
            self.failing.handled(lease.task)
        done = _done(lease, outcome, harvest.found, update, notes=harvest.notes)
        look = None
        if not reason and not harvest.problem:
            look = self._records.look([item.key for item in harvest.items], lease=lease, url=response.url)
        return Finished(done, items, row, reason, harvest=given, look=look)

    def _handler_failed(
        self, lease: Lease, response: Response, error: Exception, update: LaneUpdate | None, *, secrets: list[str]
    ) -> Finished:
        said = isinstance(error, TurnedAway)
        reason = reason_of(str(error), secrets=secrets) if said else f"handler: {line_of(error, secrets=secrets)}"
        outcome = reason.partition(":")[0]
        if self.failing.reason and not said:
            return Finished(Released(lease=lease, lane=update))
        line = "" if said else self._handlers.code_line_of(error)
        if not said:
            self.failing.failed(lease.task, _at(reason.removeprefix("handler: "), line))
        # A slip in the spider is the same at each attempt.
        if lease.attempt >= lease.task.max_attempts or isinstance(error, UsageError):
            notes = {} if said else {self._raised.of(f"{kind_of(error)} {line}".rstrip()): 1}
            detail = traceback_of(error, secrets=secrets)
            dead = Dead(lease=lease, reason=reason, detail=detail, lane=update, notes=notes)
            return self._records.finished(dead, outcome, response)
        delay = backoff(lease.attempt, self._settings, self._rng)
        return self._records.finished(Retry(lease=lease, reason=reason, delay=delay, lane=update), outcome, response)

    def _redirected(self, lease: Lease, response: Response, update: LaneUpdate | None) -> Finished:
        """Every hop is a task of its own: it waits in its host's lane and is known by its key, so loops end."""
        task = lease.task
        if task.hops >= self._settings.max_redirects:
            dead = Dead(lease=lease, reason=f"redirect_loop: more than {task.hops} redirects in a row", lane=update)
            return self._records.finished(dead, "redirect_loop", response)
        found = Found()
        hop = hop_of(task, response, intake=self._intake, into=found)
        if hop.task is not None:
            following = beside(task, hop.task)
            if following is None:
                dead = Dead(lease=lease, reason="redirect_loop: the page redirects to itself", lane=update)
                return self._records.finished(dead, "redirect_loop", response)
            self._intake.add(following, found)
        row = msgspec.structs.replace(self._records.fetch_row(lease, "redirected", response), final_url=hop.url)
        look = self._records.look((), lease=lease, url=response.url)
        return Finished(_done(lease, "redirected", found, update), fetch=row, look=look)

    def _drop_disallowed(self, lane: str, found: Found) -> None:
        """Drop links to this host that its rules forbid. Links to other hosts are checked when they are leased."""
        robots = self._lane_rules.cached(lane) if self._needs_rules else None
        if robots is None or robots.allows_all:
            return
        until = time.perf_counter() + LINKS_CHECKED_SECONDS
        for key, task in list(found.tasks.items()):
            if time.perf_counter() > until:
                # Slow rules on thousands of links would stop the worker: the rest are checked when they are leased.
                return
            if task.lane == lane and not robots.allows(task.url):
                del found.tasks[key]
                found.reject("robots", task.url)


def _at(text: str, line: str) -> str:
    """An error in one short line, with the line of the spider at the end."""
    return f"{text[: LONGEST_TEXT - len(line) - 4]} at {line}" if line else text


def _reported(finished: Finished, passage: Passage) -> Finished:
    result = passage.reported(finished.result)
    return finished if result is finished.result else msgspec.structs.replace(finished, result=result)


def _done(
    lease: Lease, outcome: str, found: Found, update: LaneUpdate | None, *, notes: dict[str, int] | None = None
) -> Done:
    return Done(
        lease=lease,
        outcome=outcome,
        found=list(found.tasks.values()),
        rejected=found.rejected,
        samples=found.samples,
        lane=update,
        notes=notes or {},
    )
