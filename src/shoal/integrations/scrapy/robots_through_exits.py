"""robots.txt through exits: what a failing exit does not bring is asked for again, not taken for "all is allowed"."""

from __future__ import annotations

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.robotstxt import RobotsTxtMiddleware
from scrapy.utils.httpobj import urlparse_cached

from shoal.exits.refusals import HELD_AGAINST, ExitRefusal
from shoal.integrations.scrapy.leased_exits import LeasedExit

FILE = "/robots.txt"


class RobotsThroughExits:
    """The hosts whose robots.txt could not be read because of an exit. Scrapy's middleware remembers such a host as one
    without rules; it is made to forget that."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._unread: set[str] = set()

    def is_asked_by(self, request: Request) -> bool:
        """Whether Scrapy asks for robots.txt with this request."""
        return urlparse_cached(request).path == FILE and bool(request.meta.get("dont_obey_robotstxt"))

    def is_refused(self, request: Request, leased: LeasedExit, refusal: ExitRefusal) -> bool:
        """Note that the exit did not bring robots.txt, and whether another exit is to ask. What is forbidden to exit
        after exit has a meaning, which Scrapy knows."""
        if refusal.kind == "blocked" and leased.lease.free_retries >= HELD_AGAINST:
            return False
        self._unread.add(urlparse_cached(request).netloc)
        return True

    def ask(self, request: Request) -> None:
        """Scrapy asks anew: what comes of that counts."""
        self._unread.discard(urlparse_cached(request).netloc)

    def is_unread(self, request: Request) -> bool:
        """Whether this page's rules are not known because of an exit."""
        host = urlparse_cached(request).netloc
        if host not in self._unread or request.meta.get("dont_obey_robotstxt"):
            return False
        middleware = self._crawler.get_downloader_middleware(RobotsTxtMiddleware)
        parsers = {} if middleware is None else middleware._parsers
        if host in parsers and parsers[host] is None:
            del parsers[host]
        return True
