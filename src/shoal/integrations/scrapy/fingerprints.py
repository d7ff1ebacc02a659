"""The fingerprints that a crawl's keys are made of: the project's own, or those that scrapy-redis has made. A hash
cannot be turned back, so a crawl that has taken over a filter goes on with the form that the filter was made with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

from scrapy import Request
from scrapy.utils.python import to_bytes, to_unicode
from scrapy.utils.request import fingerprint as scrapy_fingerprint
from w3lib.url import canonicalize_url

from shoal.errors import UsageError

Fingerprint = Callable[[Request], bytes]

PROJECT = "project"
NEWEST = "scrapy-redis-0.8"
KEY_BYTES = 8


def of_newer_scrapy_redis(request: Request) -> bytes:
    """As scrapy-redis makes them from 0.8 on: without headers."""
    fields = {
        "method": to_unicode(request.method),
        "url": canonicalize_url(request.url),
        "body": request.body.hex(),
    }
    return _sha1(json.dumps(fields, sort_keys=True).encode())


def of_older_scrapy_redis(request: Request) -> bytes:
    """As scrapy-redis made them before 0.8, with a function of Scrapy that is gone."""
    return _sha1(to_bytes(request.method) + to_bytes(canonicalize_url(request.url)) + request.body)


# By the names that `shoal import` and the records of crawls have for them. Of a project the default form: its own
# fingerprinter is known where the spider runs.
FORMS: dict[str, Fingerprint] = {
    NEWEST: of_newer_scrapy_redis,
    "scrapy-redis-0.6": of_older_scrapy_redis,
    PROJECT: scrapy_fingerprint,
}


def fingerprint_of_crawl(name: str, *, own: Fingerprint) -> Fingerprint:
    """The form that a crawl's record names; `own` is the project's."""
    check_form(name)
    return own if name in ("", PROJECT) else FORMS[name]


def check_form(name: str) -> None:
    """Refuse the record of a newer shoal: with other keys, every page would be fetched again."""
    if name and name not in FORMS:
        raise UsageError(
            f"the crawl makes its keys of fingerprints called {name!r}, which this shoal lacks: upgrade it"
        )


def key_of(fingerprint: bytes) -> int:
    """The key that a fingerprint stands for."""
    return int.from_bytes(fingerprint[:KEY_BYTES], "big", signed=True)


def _sha1(text: bytes) -> bytes:
    return hashlib.sha1(text, usedforsecurity=False).digest()
