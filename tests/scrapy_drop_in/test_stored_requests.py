"""Scrapy's requests as tasks, and back."""

from __future__ import annotations

from collections import OrderedDict
from enum import IntEnum
from types import MappingProxyType
from typing import Any

import pytest
import scrapy
from scrapy.http import FormRequest, HtmlResponse, JsonRequest
from scrapy.linkextractors import LinkExtractor
from scrapy.utils.request import fingerprint

from shoal.scrapy.requests import StoredRequests, UnfitRequest


class Shop(scrapy.Spider):
    name = "shop"

    def book(self, response: Any) -> None: ...

    def failed(self, failure: Any) -> None: ...


def stored() -> StoredRequests:
    return StoredRequests(Shop(), fingerprint)


def there_and_back(request: scrapy.Request) -> scrapy.Request:
    requests = stored()
    return requests.request_of(requests.task_of(request, requests.key_of(request, is_start=False)))


def test_a_request_comes_back_whole() -> None:
    spider = Shop()
    requests = StoredRequests(spider, fingerprint)
    request = scrapy.Request(
        "https://a.test/b?c=é",
        callback=spider.book,
        errback=spider.failed,
        method="POST",
        headers={"X-Two": ["1", "2"], "Accept": "text/html"},
        body="naïve",
        cookies={"visitor": "7"},
        meta={"depth": 3, "cookiejar": 1, "nested": {"list": [1, None, True, 2.5]}},
        encoding="latin-1",
        priority=-4,
        dont_filter=True,
        flags=["mine"],
        cb_kwargs={"page": 2},
    )
    task = requests.task_of(request, requests.key_of(request, is_start=False))
    assert (task.lane, task.handler, task.depth, task.priority, task.method) == ("a.test", "book", 3, -4, "POST")
    assert requests.request_of(task).to_dict(spider=spider) == request.to_dict(spider=spider)


@pytest.mark.parametrize(
    "request_",
    [
        FormRequest("https://a.test/login", formdata={"user": "me", "word": "söme"}),
        JsonRequest("https://a.test/api", data={"ids": [1, 2]}),
    ],
    ids=["form", "json"],
)
def test_requests_of_other_classes_come_back_as_such(request_: scrapy.Request) -> None:
    back = there_and_back(request_)
    assert type(back) is type(request_)
    assert (back.method, back.body, back.headers) == (request_.method, request_.body, request_.headers)


def test_what_a_selector_gives_may_be_in_meta() -> None:
    link = LinkExtractor().extract_links(HtmlResponse("https://a.test/", body=b"<a href=/b>next</a>"))[0]
    assert type(link.text) is not str
    back = there_and_back(scrapy.Request(link.url, meta={"link_text": link.text, "of": {link.text: [link.text]}}))
    assert back.meta == {"link_text": "next", "of": {"next": ["next"]}}


class Text(str):
    __slots__ = ()


class Number(IntEnum):
    SEVEN = 7


def test_values_of_derived_classes_come_back_as_plain_ones() -> None:
    meta = {
        "link_text": Text("more"),
        Text("n"): Number.SEVEN,
        "map": MappingProxyType({"a": OrderedDict(b=Text("c"))}),
    }
    back = there_and_back(scrapy.Request("https://a.test/", meta=meta)).meta
    assert back == {"link_text": "more", "n": 7, "map": {"a": {"b": "c"}}}
    assert {type(back["link_text"]), type(back["n"])} == {str, int}


def test_the_key_is_the_fingerprint_of_the_project() -> None:
    requests = stored()
    one, same = scrapy.Request("https://a.test/?a=1&b=2"), scrapy.Request("https://a.test/?b=2&a=1")
    assert requests.key_of(one, is_start=False) == requests.key_of(same, is_start=False)
    own = StoredRequests(Shop(), lambda request: request.url[-8:].encode())
    assert own.key_of(one, is_start=False) != own.key_of(same, is_start=False)


def test_a_request_that_must_not_be_filtered_has_a_key_of_its_own() -> None:
    requests, request = stored(), scrapy.Request("https://a.test/", dont_filter=True)
    assert requests.key_of(request, is_start=False) != requests.key_of(request, is_start=False)


def test_the_start_is_the_same_in_every_process_but_its_copies_are_sent_again() -> None:
    requests = stored()
    start = scrapy.Request("https://a.test/", dont_filter=True, meta={"is_start_request": True})
    assert requests.key_of(start, is_start=True) == requests.key_of(start.copy(), is_start=True)
    assert requests.key_of(start.copy(), is_start=False) != requests.key_of(start, is_start=True)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (
            {"callback": lambda response: None},
            r"the callback '<lambda>' \(.*test_stored_requests.py:\d+\) is not a method",
        ),
        ({"errback": print}, "the errback 'print' is not a method of the spider 'shop'"),
        ({"callback": Shop().book}, "the callback 'book' .* is not a method of the spider 'shop'"),
        (
            {"meta": {"loader": {"of": object()}}},
            r"meta\['loader'\]\['of'\] is an object: what leaves the process must be",
        ),
        ({"cb_kwargs": {"when": [1, b"x"]}}, r"cb_kwargs\['when'\]\[1\] is a bytes"),
        ({"meta": {"n": {1: 2}}}, r"meta\['n'\] has the key 1, which is no text"),
        ({"meta": {"n": float("nan")}}, r"meta\['n'\] is nan"),
    ],
)
def test_what_cannot_leave_the_process_is_named(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(UnfitRequest, match=why):
        there_and_back(scrapy.Request("https://a.test/", **arguments))


def test_a_task_whose_method_is_gone_says_so() -> None:
    request = scrapy.Request("https://a.test/", callback=(spider := Shop()).book)
    task = StoredRequests(spider, fingerprint).task_of(request, 1)
    with pytest.raises(UnfitRequest, match="Method 'book' not found"):
        StoredRequests(scrapy.Spider("shop"), fingerprint).request_of(task)


def test_a_task_from_outside_is_a_plain_request() -> None:
    requests = stored()
    task = requests.task_of(scrapy.Request("https://a.test/"), 1)
    plain = type(task)(url=task.url, key=1, lane=task.lane)
    assert requests.request_of(plain).to_dict(spider=Shop()) == scrapy.Request("https://a.test/").to_dict(spider=Shop())
