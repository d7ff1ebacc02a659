"""Fingerprints of requests that were computed before. Most links of a page lead to where other links have led."""

from __future__ import annotations

from collections.abc import Callable

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.utils.request import RequestFingerprinter

from shoal.errors import ShoalError

URLS_REMEMBERED = 20_000  # twice as many at most, about 10 MB

Fingerprint = Callable[[Request], bytes]


def fingerprint_of(crawler: Crawler) -> Fingerprint:
    """The project's fingerprint of a request. Only that of Scrapy's own class is remembered: of another one it is not
    known what it looks at."""
    fingerprinter = crawler.request_fingerprinter
    if fingerprinter is None:
        raise ShoalError("the crawler has no fingerprinter: its settings were not applied")
    if type(fingerprinter) is not RequestFingerprinter:
        return fingerprinter.fingerprint
    return RememberedFingerprints(fingerprinter.fingerprint)


class RememberedFingerprints:
    """Scrapy's own fingerprint, which is made of URL, method and body, unless `verbatim_url` is in the meta. Requests
    that differ in nothing but their URL have it remembered; URLs that were not seen for long are forgotten."""

    def __init__(self, fingerprint: Fingerprint, *, limit: int = URLS_REMEMBERED) -> None:
        self._fingerprint = fingerprint
        self._limit = limit
        self._recent: dict[str, bytes] = {}
        self._before: dict[str, bytes] = {}

    def __call__(self, request: Request) -> bytes:
        """The fingerprint of a request."""
        if request.method != "GET" or request.body or "verbatim_url" in request.meta:
            return self._fingerprint(request)
        url = request.url
        found = self._recent.get(url)
        if found is None:
            found = self._before.get(url) or self._fingerprint(request)
            if len(self._recent) >= self._limit:
                self._before, self._recent = self._recent, {}
            self._recent[url] = found
        return found

    def __len__(self) -> int:
        return len(self._recent) + len(self._before)
