"""The downloader middleware that tells whose fault a bad answer through an exit is."""

from __future__ import annotations

import logging
import time
from pathlib import Path

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.exceptions import IgnoreRequest, NotConfigured
from scrapy.http import Response

from shoal.exits.passage import Failures
from shoal.exits.refusals import ExitRefusal, refusal_of
from shoal.fetch.base import Fault
from shoal.fetch.base import Response as Answer
from shoal.fetch.proxies import proxy_answer
from shoal.integrations.scrapy.bridge import bridge_of, stats_of
from shoal.integrations.scrapy.downloaded import answer_of, proxied_fault
from shoal.integrations.scrapy.leased_exits import LeasedExit
from shoal.integrations.scrapy.project_pools import exits_file
from shoal.integrations.scrapy.robots_through_exits import RobotsThroughExits
from shoal.integrations.scrapy.visits import Visit
from shoal.model import Dead
from shoal.policy.retries import judge
from shoal.settings.table import CONFIG_FILE

log = logging.getLogger("shoal")


class GivenUp(IgnoreRequest):
    """No exit could fetch the page: it is a dead letter. The request's errback gets this."""


class ExitJudge:
    """A page that was refused because of its exit goes back to the frontier, which lends it with another one. Its
    place, 585, is behind the middleware that decompresses: block pages are known by their text. It comes before the
    one that sends requests again: this costs the page none of its tries."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._bridge = bridge_of(crawler)
        self._bridge.has_judge = True
        self._visits = self._bridge.visits
        self._stats = stats_of(crawler)
        self._failures = Failures()
        self._robots = RobotsThroughExits(crawler)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> ExitJudge:
        """The judge of one spider's run. There is none where no pool can be: it would cost every page a little."""
        settings = crawler.settings
        if not settings.get("SHOAL_PROXIES") and not exits_file(settings) and not Path(CONFIG_FILE).exists():
            raise NotConfigured
        return cls(crawler)

    def process_request(self, request: Request) -> Request | None:
        """Let no page be asked for whose robots.txt an exit has failed to bring."""
        if self._robots.is_asked_by(request):
            self._robots.ask(request)
            return None
        visit = self._visits.of(request)
        if visit is None or not self._robots.is_unread(request):
            return None
        leased = visit.exit
        if leased is not None and leased.refusal is not None:
            return self._turned_back(visit, leased, leased.refusal, leased.answer)
        # Another page's exit has failed; this one asks for itself when it is lent again.
        visit.is_released = visit.is_turned_back = True
        return request

    def process_response(self, request: Request, response: Response) -> Request | Response:
        """The answer, unless the exit is to blame for it."""
        visit = self._visits.sender(request)
        if visit is None or visit.exit is None or "cached" in response.flags:
            return response
        answer = proxy_answer(
            visit.exit.config,
            answer_of(response, elapsed=time.monotonic() - visit.began),
            secure=request.url.startswith("https:"),
        )
        return self._judged(request, visit, visit.exit, answer) or response

    def process_exception(self, request: Request, exception: Exception) -> Request | None:
        """Whose fault it is that there is no answer; None: not the exit's."""
        visit = self._visits.sender(request)
        if visit is None or visit.exit is None or isinstance(exception, IgnoreRequest):
            return None
        elapsed = time.monotonic() - visit.began
        fault = proxied_fault(visit.exit.config, exception, secure=request.url.startswith("https:"), elapsed=elapsed)
        return self._judged(request, visit, visit.exit, fault)

    def _judged(self, request: Request, visit: Visit, leased: LeasedExit, answer: Answer | Fault) -> Request | None:
        """The request, to be given back, where the exit is to blame; None: as ever."""
        wanted = isinstance(answer, Answer) and self._is_for_spider(request, answer.status)
        statuses = (answer.status,) if isinstance(answer, Answer) and wanted else self._bridge.settings.handle_statuses
        refusal = refusal_of(answer, judge(answer, handle_statuses=statuses))
        if self._visits.of(request) is visit:
            return None if refusal is None else self._turned_back(visit, leased, refusal, answer)
        if (
            refusal is not None
            and self._robots.is_asked_by(request)
            and self._robots.is_refused(request, leased, refusal)
        ):
            leased.refusal, leased.answer = refusal, answer
            # Not again through this exit, which Scrapy's own middleware would try.
            raise IgnoreRequest(f"robots.txt: {refusal.reason}")
        return None

    def _turned_back(
        self, visit: Visit, leased: LeasedExit, refusal: ExitRefusal, answer: Answer | Fault | None
    ) -> Request | None:
        """Let the page's lease end with this refusal. Its request goes no further, unless the page is given up."""
        refused = leased.refuse(
            refusal, answer, max_tries=self._bridge.settings.max_exit_tries, failures=self._failures
        )
        self._stats.inc_value(f"shoal/exits/{refusal.kind}")
        if isinstance(refused.result, Dead):
            raise GivenUp(refused.result.reason)
        log.debug(
            "%s is tried again through another exit: %s: %s",
            visit.request, leased.config.name, refusal.reason, extra={"spider": self._crawler.spider},
        )  # fmt: skip
        visit.is_turned_back = True
        return visit.request

    def _is_for_spider(self, request: Request, status: int) -> bool:
        """Whether the spider wants to see this status, by the rules of Scrapy's HttpErrorMiddleware."""
        if request.meta.get("handle_httpstatus_all"):
            return True
        settings = self._crawler.settings
        statuses = request.meta.get("handle_httpstatus_list")
        if statuses is None:
            if settings.getbool("HTTPERROR_ALLOW_ALL"):
                return True
            usual = settings.getlist("HTTPERROR_ALLOWED_CODES")
            statuses = getattr(self._crawler.spider, "handle_httpstatus_list", usual)
        return status in map(int, statuses)
