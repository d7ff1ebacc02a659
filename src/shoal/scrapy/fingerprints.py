"""The fingerprints that a crawl's keys are made of: the project's own, or those of scrapy-redis. A hash cannot be
turned back, so a crawl with an imported filter keeps the form of the filter.

Fingerprints are cached by URL: most links of a page repeat."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.utils.python import to_bytes, to_unicode
from scrapy.utils.request import RequestFingerprinter
from scrapy.utils.request import fingerprint as scrapy_fingerprint
from w3lib.url import canonicalize_url

from shoal.errors import ShoalError, UsageError

Fingerprint = Callable[[Request], bytes]

PROJECT = "project"
NEWEST = "scrapy-redis-0.8"
KEY_BYTES = 8


def of_newer_scrapy_redis(request: Request) -> bytes:
    """The form of scrapy-redis from 0.8 on: without headers."""
    fields = {
        "method": to_unicode(request.method),
        "url": canonicalize_url(request.url),
        "body": request.body.hex(),
    }
    return _sha1(json.dumps(fields, sort_keys=True).encode())


def of_older_scrapy_redis(request: Request) -> bytes:
    """The form of scrapy-redis before 0.8, made with a former function of Scrapy."""
    return _sha1(to_bytes(request.method) + to_bytes(canonicalize_url(request.url)) + request.body)


# By their names in `shoal import` and crawl records. PROJECT is the default form here: the project's own fingerprinter
# is known only where the spider runs.
FORMS: dict[str, Fingerprint] = {
    NEWEST: of_newer_scrapy_redis,
    "scrapy-redis-0.6": of_older_scrapy_redis,
    PROJECT: scrapy_fingerprint,
}


def fingerprint_of_crawl(name: str, *, own: Fingerprint) -> Fingerprint:
    """The form in a crawl's record; `own` is the project's."""
    check_form(name)
    return own if name in ("", PROJECT) else FORMS[name]


def check_form(name: str) -> None:
    """Refuse an unknown form in a record: with other keys, every page would be fetched again."""
    if name and name not in FORMS:
        raise UsageError(
            f"the crawl makes its keys of fingerprints called {name!r}, which this shoal lacks: upgrade it"
        )


def key_of(fingerprint: bytes) -> int:
    """The key of a fingerprint."""
    return int.from_bytes(fingerprint[:KEY_BYTES], "big", signed=True)


def _sha1(text: bytes) -> bytes:
    return hashlib.sha1(text, usedforsecurity=False).digest()


URLS_REMEMBERED = 20_000  # twice as many at most, about 10 MB


def fingerprint_of(crawler: Crawler) -> Fingerprint:
    """The project's fingerprint function. Only Scrapy's own class is cached: another one may depend on any part of the
    request."""
    fingerprinter = crawler.request_fingerprinter
    if fingerprinter is None:
        raise ShoalError("the crawler has no fingerprinter: its settings were not applied")
    if type(fingerprinter) is not RequestFingerprinter:
        return fingerprinter.fingerprint
    return RememberedFingerprints(fingerprinter.fingerprint)


class RememberedFingerprints:
    """Caches Scrapy's own fingerprints, which depend on URL, method and body, unless `verbatim_url` is in the meta.
    Only plain GETs are cached; URLs not seen for long are dropped."""

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
