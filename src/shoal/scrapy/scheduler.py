"""Scrapy's scheduler over a shoal frontier."""

from __future__ import annotations

import logging
import sys
from weakref import WeakSet

from scrapy import Request, Spider, signals
from scrapy.core.scheduler import BaseScheduler
from scrapy.core.scheduler import Scheduler as InMemory
from scrapy.crawler import Crawler
from scrapy.utils.request import referer_str
from twisted.internet.defer import Deferred

from shoal.crawl.record import record_of
from shoal.errors import ShoalError
from shoal.scrapy.bridge import bridge_of, spider_of, stats_of
from shoal.scrapy.crawl import JoinedCrawl
from shoal.scrapy.engine import (
    attach,
    calls_from_threads,
    close_spider,
    hide_tracebacks,
    leave_pace_to_lanes,
    leave_through_exits,
    wake,
    watch_start,
)
from shoal.scrapy.fingerprints import fingerprint_of, fingerprint_of_crawl
from shoal.scrapy.requests import ENTRY, CarriedCookies, StoredRequests, UnfitRequest
from shoal.scrapy.settings import is_crawl_command, is_page_command, scrapy_crawl_of
from shoal.scrapy.visits import CURRENT, Visit
from shoal.scrapy.worker_thread import UNFINISHED, Reports, WorkerThread
from shoal.text.secrets import masked
from shoal.worker.machine import spare_existing_objects

log = logging.getLogger("shoal")
# The logger of Scrapy's own filter.
duplicates = logging.getLogger("scrapy.dupefilters")
FIRST_DUPLICATE = (
    "Filtered duplicate request: %s - no more duplicates will be shown (see DUPEFILTER_DEBUG to show all duplicates)"
)


class Scheduler(BaseScheduler):
    """Gives leased requests to the engine, and found requests to the frontier. A lease ends when the callback's output
    was consumed and its items have passed the pipelines; the requests that it found are put with the settle."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._bridge = bridge_of(crawler)
        self._inflow = self._bridge.inflow
        self._stats = stats_of(crawler)
        # Read once: a page has many duplicates, and Scrapy's stats wrap their methods at each access.
        self._add_to_stat = self._stats.inc_value
        self._logs_all_duplicates = crawler.settings.getbool("DUPEFILTER_DEBUG")
        self._has_logged_duplicate = False
        self._thread: WorkerThread | None = None
        self._opening: Deferred[None] = Deferred()
        self._closing: Deferred[None] = Deferred()
        # Not by their meta, which copies inherit.
        self._starts: WeakSet[Request] = WeakSet()
        self._finished_after = UNFINISHED
        self._has_ended = False

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> BaseScheduler:  # type: ignore[override]  # Scrapy's own, for page commands
        """The scheduler of one spider's run. Commands that try a page, such as `scrapy shell`, get Scrapy's own
        scheduler: they must not take part in the crawl."""
        return InMemory.from_crawler(crawler) if is_page_command(sys.orig_argv) else cls(crawler)

    def open(self, spider: Spider) -> Deferred[None]:
        """Join the spider's crawl, or begin it."""
        self._cookies = CarriedCookies(self._crawler)
        # An error from here on ends the process with return code 1; CloseSpider would end it as a success.
        try:
            wanted = scrapy_crawl_of(self._crawler, say=self._say)
        except ShoalError as error:
            self._refuse_run(error)
            raise
        self._bridge.shown_frontier, self._bridge.settings = masked(wanted.places.frontier), wanted.settings
        self._pools = wanted.pools
        if self._pools.has_exits:
            leave_through_exits(self._crawler, self._bridge.visits)
        attach(self._crawler, self._bridge.visits)
        watch_start(self._crawler, starts=self._starts.add, ended=self._fed)
        leave_pace_to_lanes(self._crawler, self._bridge.visits, wanted.requests_at_once)
        reports = Reports(
            joined=self._joined,
            offered=self._bridge.visits.offer,
            dropped=self._dropped,
            finished=self._finished,
            ended=self._ended,
            say=self._say,
        )
        self._thread = WorkerThread(wanted, inflow=self._inflow, reports=reports, call=calls_from_threads())
        self._thread.start()
        return self._opening

    def close(self, reason: str) -> Deferred[None] | None:
        """Write and settle finished pages, release the rest. The queue stays."""
        if self._thread is None or self._has_ended:
            return None
        self._bridge.visits.close()
        self._thread.stop()
        return self._closing

    def has_pending_requests(self) -> bool:
        """Whether any process of the crawl has work, or this one holds requests."""
        return self._finished_after != self._inflow.given or len(self._bridge.visits) > 0

    def enqueue_request(self, request: Request) -> bool:
        """Take a found request. False: it is known already, or it cannot leave this process."""
        visit = self._bridge.visits.finder(request)
        if visit is not None and visit.is_turned_back and request is visit.request:
            # Its task goes back to the frontier and is leased again with another exit.
            return True
        is_start, entry = request in self._starts, request.meta.pop(ENTRY, "")
        key = self._requests.key_of(request, is_start=is_start, entry=entry)
        if key in self._inflow.known or (visit is not None and key in visit.found):
            self._filtered(request)
            return False
        parent = None if visit is None else visit.lease.task
        before = parent if visit is not None and visit.is_sent_on else None
        more = self._requests.page_name(request, key, is_start=is_start, before=before) | self._cookies.of(request)
        try:
            pool = self._pools.of(request, parent=parent, goes_on=before is not None)
            task = self._requests.task_of(request, key, parent=parent, more=more, pool=pool)
        except UnfitRequest as error:
            self._refuse(request, key, why=str(error), visit=visit, entry=entry)
            return False
        if visit is not None:
            visit.found[key], visit.requests[key] = task, request
        else:
            self._inflow.give(task)
        self._count("enqueued")
        return True

    def next_request(self) -> Request | None:
        """A request that is due; None if there is none."""
        # The engine may be called from a page's callback: its next request does not belong to that page.
        CURRENT.set(None)
        while (visit := self._bridge.visits.next()) is not None:
            try:
                request = self._requests.request_of(visit.lease.task)
            except UnfitRequest as error:
                visit.fail(f"unfit: {error}")
                self._bridge.visits.end(visit)
                continue
            self._cookies.bring(visit.lease.task, request)
            self._bridge.visits.begin(visit, request)
            self._count("dequeued")
            return request
        return None

    def _filtered(self, request: Request) -> None:
        self._add_to_stat("dupefilter/filtered")
        if self._has_logged_duplicate and not self._logs_all_duplicates:
            return
        self._has_logged_duplicate = True
        extra = {"spider": self._crawler.spider}
        if self._logs_all_duplicates:
            duplicates.debug("Filtered duplicate request: %s (referer: %s)", request, referer_str(request), extra=extra)
        else:
            duplicates.debug(FIRST_DUPLICATE, request, extra=extra)

    def _dropped(self, requests: list[Request]) -> None:
        """The frontier knew these requests, from another process or an earlier run."""
        for request in requests:
            self._filtered(request)
            self._count("enqueued", -1)
            self._crawler.signals.send_catch_log(signals.request_dropped, request=request, spider=self._crawler.spider)

    def _refuse(self, request: Request, key: int, *, why: str, visit: Visit | None, entry: str) -> None:
        """Log the error; the page that yielded the request becomes a dead letter, or the request itself if there is no
        page; an entry of Redis is set aside. Nothing is lost in silence."""
        log.error("%s", why, extra={"spider": self._crawler.spider})
        self._stats.inc_value("scheduler/unserializable")
        if visit is not None:
            visit.fail(f"unfit: {why}")
        elif entry:
            self._inflow.refused[entry] = why
        else:
            self._inflow.letters.append((self._requests.letter_of(request, key), f"unfit: {why}"))

    def _refuse_run(self, error: ShoalError) -> None:
        """Log why the spider does not run, without tracebacks of Scrapy."""
        log.error("%s", error, extra={"spider": self._crawler.spider})
        if is_crawl_command(sys.orig_argv):
            hide_tracebacks()

    def _joined(self, joined: JoinedCrawl) -> None:
        form, own = record_of(joined.crawl).fingerprints, fingerprint_of(self._crawler)
        self._requests = StoredRequests(spider_of(self._crawler), fingerprint_of_crawl(form, own=own))
        begun = "begun" if joined.is_new else "joined"
        self._say(f"{begun} {joined.crawl.id} at {self._bridge.shown_frontier}")
        self._bridge.crawl = joined.crawl.id
        self._stats.set_value("shoal/crawl", joined.crawl.id)
        spare_existing_objects()
        self._opening.callback(None)

    def _fed(self, is_whole: bool) -> None:
        self._inflow.has_fed, self._inflow.has_broken_off = is_whole, not is_whole

    def _finished(self, after: int) -> None:
        self._finished_after = after
        wake(self._crawler)

    def _ended(self, error: ShoalError | None) -> None:
        self._has_ended = True
        self._bridge.visits.close()
        if not self._opening.called:
            refusal = error or ShoalError("stopped")
            self._refuse_run(refusal)
            self._opening.errback(refusal)
            return
        self._closing.callback(None)
        if error is not None:
            log.error("%s", error, extra={"spider": self._crawler.spider})
            # Else the spider would seem to be done.
            close_spider(self._crawler, reason=f"shoal: {error}")

    def _say(self, line: str) -> None:
        log.info("%s", line, extra={"spider": self._crawler.spider})

    def _count(self, verb: str, number: int = 1) -> None:
        self._add_to_stat(f"scheduler/{verb}/shoal", number)
        self._add_to_stat(f"scheduler/{verb}", number)
