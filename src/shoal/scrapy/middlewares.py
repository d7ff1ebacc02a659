"""Scrapy middlewares: ExitJudge returns pages that failed because of their exit, SpiderWatch notes which responses
reach the spider, GuardMiddleware refuses private and other special addresses.

A failing exit must not make Scrapy treat a missing robots.txt as "all is allowed": RobotsThroughExits has it fetched
again."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import time
from pathlib import Path
from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware
from scrapy.exceptions import IgnoreRequest, NotConfigured
from scrapy.http import Response
from scrapy.utils.defer import maybe_deferred_to_future
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.reactor import is_reactor_installed
from twisted.internet.defer import Deferred

from shoal.errors import ShoalError
from shoal.exits.passage import Failures
from shoal.exits.refusals import HELD_AGAINST, ExitRefusal, refusal_of
from shoal.fetch.base import Fault
from shoal.fetch.base import Response as Answer
from shoal.fetch.guard import refusal, refusal_unless
from shoal.fetch.proxies import proxy_answer
from shoal.model import Dead
from shoal.policy.retries import judge
from shoal.scrapy.bridge import bridge_of, stats_of
from shoal.scrapy.exits import LeasedExit, proxied_fault
from shoal.scrapy.journey import answer_of
from shoal.scrapy.pools import exits_file
from shoal.scrapy.settings import shoal_settings
from shoal.scrapy.visits import CURRENT, Visit
from shoal.settings.table import CONFIG_FILE


class SpiderWatch:
    """Must be last before the spider: a response that another middleware drops does not get here."""

    def process_spider_input(self, response: Response) -> None:
        """Note that the response reaches the spider."""
        # Not by the response's request: a middleware may have replaced it.
        visit = CURRENT.get()
        if visit is not None:
            visit.reached_spider = True


GUARDED = frozenset({"http", "https", "ftp"})


class GuardMiddleware:
    """Must be last before the downloader. It resolves the name with the resolver that the downloader uses next, which
    caches its answers, and then checks the address that has answered."""

    def __init__(self, crawler: Crawler) -> None:
        try:
            settings = shoal_settings(crawler.settings)
        except ShoalError as error:
            raise NotConfigured(str(error)) from None  # the scheduler refuses to run
        self._visits = bridge_of(crawler).visits
        self._exempt = [ipaddress.ip_network(network) for network in settings.allow_addresses]

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> GuardMiddleware:
        """The middleware of one spider's run."""
        return cls(crawler)

    async def process_request(self, request: Request) -> None:
        """Refuse a request whose host has a forbidden address. An unresolved name passes: the downloader reports it, or
        a proxy knows it."""
        parts = urlparse_cached(request)
        if parts.scheme not in GUARDED or not parts.hostname:
            return
        addresses = await _addresses(parts.hostname)
        refused = {address: why for address in addresses if (why := refusal_unless(address, self._exempt))}
        if refused:
            address, why = next(iter(refused.items()))
            self._refuse(request, f"{parts.hostname} is at {address}, a {why} address (SHOAL_ALLOW_PRIVATE is off)")

    def process_response(self, request: Request, response: Response) -> Response:
        """Drop the response of a forbidden address."""
        address = getattr(response, "ip_address", None)
        if address is None or self._is_proxied(request):
            return response
        if why := refusal_unless(str(address), self._exempt):
            self._refuse(request, f"{address} has answered, a {why} address (SHOAL_ALLOW_PRIVATE is off)")
        return response

    def _is_proxied(self, request: Request) -> bool:
        """Whether the address that has answered is a proxy: the project's own, or the exit of the lease."""
        visit = self._visits.sender(request)
        return "proxy" in request.meta or (visit is not None and visit.exit is not None)

    def _refuse(self, request: Request, why: str) -> None:
        visit = self._visits.of(request)
        if visit is not None:
            visit.fail(f"refused_address: {why}")
        raise IgnoreRequest(why)


async def _addresses(host: str) -> list[str]:
    """The addresses of a host that the downloader may connect to; none if the name cannot be resolved."""
    if refusal(host) != "not an address":
        return [host]
    if not is_reactor_installed():
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, None)
        except OSError:
            return []
        return [str(address[4][0]) for address in found]
    from twisted.internet import reactor

    receiver = _Addresses()
    reactor.nameResolver.resolveHostName(receiver, host)
    return await maybe_deferred_to_future(receiver.resolved)


class _Addresses:
    """Collects the results of the reactor's resolver, as Twisted's IResolutionReceiver; empty if the lookup fails."""

    def __init__(self) -> None:
        self.resolved: Deferred[list[str]] = Deferred()
        self._found: list[str] = []

    def resolutionBegan(self, resolution: Any) -> None: ...  # noqa: N802 -- Twisted's name

    def addressResolved(self, address: Any) -> None:  # noqa: N802 -- Twisted's name
        self._found.append(str(address.host))

    def resolutionComplete(self) -> None:  # noqa: N802 -- Twisted's name
        self.resolved.callback(self._found)


FILE = "/robots.txt"


class RobotsThroughExits:
    """The hosts whose robots.txt could not be read because of an exit. Scrapy caches such a host as one without rules;
    this removes it from the cache."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._unread: set[str] = set()

    def is_asked_by(self, request: Request) -> bool:
        """Whether this is a request of Scrapy for robots.txt."""
        return urlparse_cached(request).path == FILE and bool(request.meta.get("dont_obey_robotstxt"))

    def is_refused(self, request: Request, leased: LeasedExit, refusal: ExitRefusal) -> bool:
        """Note that the exit failed to fetch robots.txt; returns whether another exit should try. A robots.txt that
        exit after exit is refused has a meaning, which Scrapy knows."""
        if refusal.kind == "blocked" and leased.lease.free_retries >= HELD_AGAINST:
            return False
        self._unread.add(urlparse_cached(request).netloc)
        return True

    def ask(self, request: Request) -> None:
        """Scrapy asks again: its next result counts."""
        self._unread.discard(urlparse_cached(request).netloc)

    def is_unread(self, request: Request) -> bool:
        """Whether this page's rules are unknown because of an exit."""
        host = urlparse_cached(request).netloc
        if host not in self._unread or request.meta.get("dont_obey_robotstxt"):
            return False
        middleware = self._crawler.get_downloader_middleware(RobotsTxtMiddleware)
        parsers = {} if middleware is None else middleware._parsers
        if host in parsers and parsers[host] is None:
            del parsers[host]
        return True


log = logging.getLogger("shoal")


class GivenUp(IgnoreRequest):
    """No exit could fetch the page: it is a dead letter. The request's errback gets this exception."""


class ExitJudge:
    """Returns a page that failed because of its exit to the frontier, which leases it again with another exit. Order
    585: after the middleware that decompresses, because block pages are known by their text, and before the retry
    middleware, because the page loses no attempt."""

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
        """The judge of one spider's run. Not configured where no pool can exist: it would cost every page a little."""
        settings = crawler.settings
        if not settings.get("SHOAL_PROXIES") and not exits_file(settings) and not Path(CONFIG_FILE).exists():
            raise NotConfigured
        return cls(crawler)

    def process_request(self, request: Request) -> Request | None:
        """Send no page whose robots.txt is unread because of an exit."""
        if self._robots.is_asked_by(request):
            self._robots.ask(request)
            return None
        visit = self._visits.of(request)
        if visit is None or not self._robots.is_unread(request):
            return None
        leased = visit.exit
        if leased is not None and leased.refusal is not None:
            return self._turned_back(visit, leased, leased.refusal, leased.answer)
        # The exit of another page failed; this page asks for robots.txt when it is leased again.
        visit.is_released = visit.is_turned_back = True
        return request

    def process_response(self, request: Request, response: Response) -> Request | Response:
        """The response, unless the exit is to blame for it."""
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
        """The request again if the exit is to blame for the exception, else None."""
        visit = self._visits.sender(request)
        if visit is None or visit.exit is None or isinstance(exception, IgnoreRequest):
            return None
        elapsed = time.monotonic() - visit.began
        fault = proxied_fault(visit.exit.config, exception, secure=request.url.startswith("https:"), elapsed=elapsed)
        return self._judged(request, visit, visit.exit, fault)

    def _judged(self, request: Request, visit: Visit, leased: LeasedExit, answer: Answer | Fault) -> Request | None:
        """The request, to be returned, if the exit is to blame; else None."""
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
            # Not a retry through this exit, as Scrapy's own middleware would do.
            raise IgnoreRequest(f"robots.txt: {refusal.reason}")
        return None

    def _turned_back(
        self, visit: Visit, leased: LeasedExit, refusal: ExitRefusal, answer: Answer | Fault | None
    ) -> Request | None:
        """End the lease of the page with this refusal. Its request is not sent, unless the page is given up."""
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
        """Whether the spider accepts this status, by the rules of Scrapy's HttpErrorMiddleware."""
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
