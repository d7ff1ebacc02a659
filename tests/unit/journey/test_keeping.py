"""Which pages a journey hands over to the archive, and what it tells of them."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

from shoal import Item, Page, Spider
from shoal.fetch.base import FaultKind
from shoal.journey.handlers import Handlers
from shoal.journey.intake import Intake
from shoal.journey.journey import Journey
from shoal.journey.results import Finished, Keeping
from shoal.journey.robots import LaneRules
from shoal.settings.table import Settings
from shoal.store.base import all_item_keys
from shoal.testing.fakes import Answer, ScriptedFetcher, fault, lease_for, passages_for, respond
from shoal.testing.memory_frontier import MemoryFrontier
from shoal.urls.canonical import UrlRules

URL = "https://a.test/page"
BODY = b"<h1>A page</h1>"


class Plain(Spider):
    def parse(self, page: Page) -> Iterator[Item]:
        yield Item(key=page.url)

    def failing(self, page: Page) -> None:
        raise ValueError("no such price")


async def take(
    answer: Answer, *, keeping: Keeping = "page", task: dict[str, Any] | None = None, **changes: Any
) -> Finished:
    settings = Settings(pace="fixed", max_tags=100, **changes)
    fetcher = ScriptedFetcher({URL: answer})
    intake = Intake(UrlRules(settings, start_hosts=["a.test"]), settings)
    journey = Journey(
        spider_name="plain",
        worker="w",
        settings=settings,
        needs_rules=False,
        handlers=Handlers(Plain(), intake=intake, item_key="", seconds=5.0),
        intake=intake,
        lane_rules=LaneRules(frontier=MemoryFrontier(clock=time.time), settings=settings),
        passages=passages_for(fetcher, settings=settings),
        keeping=keeping,
    )
    return await journey.take(lease_for(URL, attempt=2, task={"handler": "parse", **(task or {})}))


async def test_a_handled_page_is_kept_with_all_that_is_known_of_it() -> None:
    headers = {"x-cache": "hit", "content-encoding": "br"}
    done = await take(respond(URL, BODY, headers=headers), task={"depth": 3, "priority": 5, "meta": {"id": 1}})
    assert done.page is not None
    assert done.fetch is not None
    capture = done.page.capture
    assert done.page.body == BODY
    assert capture.content_hash == done.fetch.content_hash == hashlib.sha256(BODY).hexdigest()
    assert (capture.crawl, capture.url, capture.final_url, capture.status) == ("c", URL, URL, 200)
    assert (capture.key, capture.token, capture.at) == (done.fetch.key, done.fetch.token, done.fetch.at)
    assert (capture.handler, capture.depth, capture.priority, capture.meta) == ("parse", 3, 5, {"id": 1})
    assert (capture.worker, capture.attempt, capture.size) == ("w", 2, len(BODY))
    assert headers.items() <= capture.headers.items()


@pytest.mark.parametrize(("cookies", "keeps"), [("worker", False), ("off", True)])
async def test_cookies_that_will_be_used_are_not_kept(cookies: str, keeps: bool) -> None:
    done = await take(respond(URL, BODY, headers={"set-cookie": "a=b", "x-cache": "hit"}), cookies=cookies)
    assert done.page is not None
    assert done.page.capture.headers.get("x-cache") == "hit"
    assert ("set-cookie" in done.page.capture.headers) is keeps


async def test_what_was_sent_is_not_kept_it_may_hold_passwords() -> None:
    secret = {"headers": {"authorization": "Bearer hush"}, "body": b"password=hush", "method": "POST"}
    done = await take(respond(URL, BODY), task=secret)
    assert done.page is not None
    assert done.page.capture.method == "POST"
    assert "hush" not in repr(done.page.capture)


@pytest.mark.parametrize(
    ("answer", "task"),
    [
        (respond(URL, b"gone", status=404), {}),
        (respond(URL, b"", status=204), {}),
        (respond(URL, b"moved", status=301, headers={"location": "/there"}), {}),
        (respond(URL, BODY), {"handler": "failing"}),
        (respond(URL, BODY), {"handler": "failing", "max_attempts": 2}),
        (respond(URL, b"<p>" * 1000), {"handler": "failing"}),
    ],
    ids=["missing", "empty", "redirect", "failed", "dead", "too complex"],
)
async def test_every_answer_that_is_no_reason_to_ask_again_is_kept(answer: Any, task: dict[str, Any]) -> None:
    done = await take(answer, task=task)
    assert done.page is not None
    assert (done.page.body, done.page.capture.status) == (answer.body, answer.status)


@pytest.mark.parametrize("answer", [respond(URL, b"later", status=503), fault(FaultKind.CONNECT)])
async def test_an_answer_that_asks_for_another_try_is_not_kept(answer: Answer) -> None:
    assert (await take(answer)).page is None


async def test_without_an_archive_nothing_is_hashed_or_kept_unless_the_log_wants_the_hash() -> None:
    plain = await take(respond(URL, BODY), keeping="nothing")
    assert plain.fetch is not None
    assert (plain.page, plain.fetch.content_hash) == (None, "")
    hashed = await take(respond(URL, BODY), keeping="hash")
    assert hashed.fetch is not None
    assert (hashed.page, hashed.fetch.content_hash) == (None, hashlib.sha256(BODY).hexdigest())


@pytest.mark.parametrize("handler", ["parse", "failing"])
async def test_the_log_line_keeps_the_validators_of_the_answer(handler: str) -> None:
    headers = {"etag": 'W/"1"', "last-modified": "Wed, 18 Nov 2026 09:00:00 GMT"}
    done = await take(respond(URL, BODY, headers=headers), keeping="nothing", task={"handler": handler})
    assert done.fetch is not None
    assert (done.fetch.etag, done.fetch.last_modified) == tuple(headers.values())
    assert all_item_keys(done.fetch) == ([URL] if handler == "parse" else None)


async def test_a_page_without_an_answer_has_no_validators() -> None:
    done = await take(fault(FaultKind.CONNECT), keeping="nothing")
    assert done.fetch is not None
    assert (done.fetch.etag, done.fetch.last_modified, done.fetch.item_keys) == ("", "", "")
