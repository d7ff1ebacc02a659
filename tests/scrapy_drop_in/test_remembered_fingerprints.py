"""Fingerprints that are remembered by URL are those that Scrapy computes."""

from __future__ import annotations

from typing import Any

import pytest
import scrapy
from hypothesis import given
from hypothesis import strategies as st
from scrapy.http import FormRequest, JsonRequest
from scrapy.utils.request import fingerprint
from scrapy.utils.test import get_crawler

from shoal.scrapy.fingerprints import RememberedFingerprints, fingerprint_of

PATHS = ["/", "/a", "/a?x=1&y=2", "/a?y=2&x=1", "/a?x=1&y=2#top", "/a%2fb", "/a b", "/ä", "/a?x=", "/a?"]
REQUESTS = st.builds(
    scrapy.Request,
    st.sampled_from([f"{host}{path}" for host in ("http://a.test", "https://A.test:443") for path in PATHS]),
    method=st.sampled_from(["GET", "get", "HEAD", "POST"]),
    body=st.sampled_from([b"", b"x=1", b"\xff"]),
    headers=st.sampled_from([{}, {"Accept": "text/html"}]),
    cookies=st.sampled_from([{}, {"visitor": "7"}]),
    meta=st.sampled_from(
        [{}, {"depth": 1}, {"verbatim_url": True}, {"verbatim_url": False}, {"proxy": "http://p.test"}]
    ),
)


class Counted:
    """Scrapy's own fingerprint; notes for which URLs it was asked."""

    def __init__(self) -> None:
        self.urls: list[str] = []

    def __call__(self, request: scrapy.Request) -> bytes:
        self.urls.append(request.url)
        return fingerprint(request)


@given(st.lists(REQUESTS, max_size=40))
def test_a_remembered_fingerprint_is_the_one_that_scrapy_computes(requests: list[scrapy.Request]) -> None:
    remembered = RememberedFingerprints(fingerprint, limit=5)
    assert [remembered(request) for request in requests] == [fingerprint(request.copy()) for request in requests]


@pytest.mark.parametrize(
    "request_",
    [FormRequest("http://a.test/", formdata={"q": "1"}), JsonRequest("http://a.test/", data={"q": 1})],
    ids=["form", "json"],
)
def test_a_request_with_a_body_is_not_taken_for_the_plain_one(request_: scrapy.Request) -> None:
    remembered = RememberedFingerprints(fingerprint)
    plain = remembered(scrapy.Request("http://a.test/"))
    assert remembered(request_) == fingerprint(request_) != plain


def test_a_url_is_looked_at_once() -> None:
    computed = Counted()
    remembered = RememberedFingerprints(computed)
    for _ in range(3):
        remembered(scrapy.Request("http://a.test/"))
    assert computed.urls == ["http://a.test/"]


def test_urls_that_come_again_are_kept_and_others_forgotten() -> None:
    computed = Counted()
    remembered = RememberedFingerprints(computed, limit=10)
    for number in range(1000):
        remembered(scrapy.Request(f"http://a.test/{number}"))
        remembered(scrapy.Request("http://a.test/home"))
    assert computed.urls.count("http://a.test/home") == 1
    assert len(remembered) <= 20


class Noting(dict[str, Any]):
    """Notes which of its keys are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: set[str] = set()

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.add(key)
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        self.asked.add(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self.asked.add(str(key))
        return super().__contains__(key)


def test_scrapy_makes_a_fingerprint_of_nothing_else() -> None:
    read: set[str] = set()

    class Watched(scrapy.Request):
        def __getattribute__(self, name: str) -> Any:
            read.add(name)
            return super().__getattribute__(name)

    request, meta = Watched("http://a.test/"), Noting()
    request._meta = meta
    read.clear()
    fingerprint(request)
    # Older releases of Scrapy do not look at the meta.
    assert {name for name in read if not name.startswith("_")} - {"meta"} == {"url", "method", "body"}
    assert meta.asked <= {"verbatim_url"}


class Own:
    """A project's own fingerprinter: also by a header."""

    def fingerprint(self, request: scrapy.Request) -> bytes:
        return request.headers.get("X-Shop", b"none").ljust(20) or b""


def test_the_fingerprints_of_a_project_are_asked_for_each_time() -> None:
    crawler = get_crawler(settings_dict={"REQUEST_FINGERPRINTER_CLASS": Own})
    by_project = fingerprint_of(crawler)
    shops = [by_project(scrapy.Request("http://a.test/", headers={"X-Shop": shop})) for shop in ("one", "two")]
    assert shops == [b"one".ljust(20), b"two".ljust(20)]


def test_the_fingerprints_of_scrapy_are_remembered_by_default() -> None:
    assert isinstance(fingerprint_of(get_crawler()), RememberedFingerprints)
