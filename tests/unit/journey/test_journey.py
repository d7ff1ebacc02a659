"""The journey of one leased task: how each answer and each handler ends its lease."""

from __future__ import annotations

import pytest
from scripted_journey import NOW, URL, ScriptedJourney, take

from shoal.fetch.base import FaultKind
from shoal.model import Dead, Done, Retry
from shoal.testing.fakes import Answer, fault, lease_for, respond
from shoal.urls.canonical import UrlRules


async def test_a_good_page_gives_items_links_and_a_log_line() -> None:
    finished = await take(respond(URL, "<a href=/next>x</a>"), lease={"attempt": 2})
    assert isinstance(finished.result, Done)
    assert (finished.result.outcome, [task.url for task in finished.result.found]) == ("ok", ["https://a.test/next"])
    [item] = finished.items
    assert (item.spider, item.key, item.crawl, item.token, item.at) == ("plain", URL, "c", 7, NOW)
    row = finished.fetch
    assert row is not None
    assert (row.outcome, row.status, row.attempt, row.worker, row.size) == ("ok", 200, 2, "w", 19)


async def test_a_page_of_a_kind_with_nothing_new_is_given_up_and_its_links_with_it() -> None:
    urls = [f"https://a.test/p/{number}" for number in range(20)]
    script: dict[str, Answer] = {url: respond(url, "<p>sold out<a href=/p/999>more</a>") for url in urls}
    scripted = ScriptedJourney(script, max_equal_pages=5)
    shape = UrlRules(scripted.settings).resolve(urls[0]).shape
    keys = {url: UrlRules(scripted.settings).resolve(url).key for url in urls}
    ends = [await scripted.take(lease_for(url, task={"parent": 1, "shape": shape, "key": keys[url]})) for url in urls]
    given_up = [end for end in ends if isinstance(end.result, Dead)]
    assert 5 <= len(ends) - len(given_up) == len(scripted.fetcher.requests) < 15
    assert all(end.result.reason.startswith("equal_pages: ") for end in given_up if isinstance(end.result, Dead))
    last = ends[len(scripted.fetcher.requests) - 1].result
    assert isinstance(last, Done)
    assert (last.found, last.rejected, last.samples) == (
        [],
        {"equal_pages": 1},
        [("equal_pages", "https://a.test/p/999")],
    )


async def test_a_page_that_is_asked_for_again_and_again_is_never_given_up() -> None:
    scripted = ScriptedJourney({URL: respond(URL, "<p>no news")}, max_equal_pages=5)
    ends = [await scripted.take(lease_for(URL, task={"parent": 1, "shape": 1, "key": number})) for number in range(20)]
    assert all(isinstance(end.result, Done) for end in ends)


async def test_a_bad_inbox_entry_that_an_older_crawl_holds_as_a_task_is_not_fetched() -> None:
    scripted = ScriptedJourney({URL: respond(URL, "<p>a page")})
    entry = lease_for(URL, task={"handler": "@inbox", "meta": {"reason": "not a request: it has no url"}})
    finished = await scripted.take(entry)
    assert isinstance(finished.result, Dead)
    assert finished.result.reason == "inbox: not a request: it has no url"
    assert scripted.fetcher.requests == []


async def test_a_missing_page_is_done_under_its_status() -> None:
    finished = await take(respond(URL, "<a href=/x>", status=404))
    assert isinstance(finished.result, Done)
    assert (finished.result.outcome, finished.result.found, finished.items) == ("http_404", [], ())


async def test_a_status_that_the_spider_wants_to_see_is_handled() -> None:
    finished = await take(respond(URL, "<a href=/x>", status=404), handle_statuses=[404])
    assert isinstance(finished.result, Done)
    assert (finished.result.outcome, len(finished.result.found), len(finished.items)) == ("http_404", 1, 1)


async def test_a_server_error_is_retried_with_backoff_and_then_dead() -> None:
    finished = await take(respond(URL, status=500), lease={"attempt": 2})
    assert isinstance(finished.result, Retry)
    assert (finished.result.reason, finished.result.free) == ("http_500", False)
    assert 0 < finished.result.delay <= 4
    assert finished.fetch is not None
    assert finished.fetch.outcome == "retry:http_500"
    finished = await take(respond(URL, status=500), lease={"attempt": 4})
    assert isinstance(finished.result, Dead)
    assert finished.fetch is not None
    assert (finished.result.reason, finished.fetch.outcome) == ("http_500", "http_500")


async def test_a_fault_names_itself_and_some_are_dead_at_once() -> None:
    finished = await take(fault(FaultKind.TIMEOUT_IDLE, "silent for 15 s"))
    assert isinstance(finished.result, Retry)
    assert finished.result.reason == "timeout_idle: silent for 15 s"
    for kind in (FaultKind.TOO_LARGE, FaultKind.BOMB, FaultKind.REFUSED_ADDRESS, FaultKind.BAD_URL):
        finished = await take(fault(kind))
        assert isinstance(finished.result, Dead)
        assert finished.result.reason.startswith(f"{kind}: ")


@pytest.mark.parametrize("pace", ["fixed", "adaptive"])
async def test_a_retry_after_rests_the_lane_and_is_free(pace: str) -> None:
    limited = respond(URL, status=429, headers={"retry-after": "120"})
    finished = await take(limited, lease={"attempt": 4, "interval": 1.0, "base_interval": 1.0}, pace=pace)
    assert isinstance(finished.result, Retry)
    assert finished.result.free
    assert finished.result.delay >= 120
    assert finished.result.lane is not None
    assert finished.result.lane.rest_seconds == 120.0
    assert (finished.result.lane.interval is not None) == (pace == "adaptive")
    long = respond(URL, status=503, headers={"retry-after": "999999"})
    finished = await take(long, max_rest_seconds=60.0)
    assert finished.result.lane is not None
    assert finished.result.lane.rest_seconds == 60.0


async def test_a_handler_that_raises_is_retried_and_then_dead_with_its_traceback() -> None:
    for attempt, kind in ((1, Retry), (3, Retry), (4, Dead)):
        finished = await take(respond(URL, "<p>"), lease={"attempt": attempt, "task": {"handler": "failing"}})
        assert isinstance(finished.result, kind)
        assert finished.result.reason == "handler: IndexError: list index out of range"
        assert finished.items == ()
        assert finished.fetch is not None
        assert (finished.fetch.outcome, finished.fetch.status) == ("handler", 200)
    assert isinstance(finished.result, Dead)
    assert "in failing" in finished.result.detail


async def test_a_handler_that_is_not_there_is_dead_with_its_name() -> None:
    finished = await take(respond(URL), lease={"attempt": 1, "task": {"handler": "missing"}})
    assert isinstance(finished.result, Dead)
    assert finished.result.reason == "handler: UsageError: Plain has no handler 'missing': write one, or name another"


async def test_a_slip_of_the_spider_is_dead_at_the_first_attempt() -> None:
    finished = await take(respond(URL, "<a href=/2>"), lease={"task": {"handler": "slip"}})
    assert isinstance(finished.result, Dead)
    assert finished.result.reason == (
        "handler: UsageError: page.follow('/2'): that is a URL, write page.follow(url='/2')"
    )
    assert 'yield page.follow(page.attr("a", "href"))' in finished.result.detail


async def test_a_field_without_a_meaning_in_json_makes_a_dead_letter_that_names_it() -> None:
    finished = await take(respond(URL, "<h1>x</h1><a href=/2>"), lease={"task": {"handler": "element"}})
    assert isinstance(finished.result, Done)
    assert finished.unstorable == (
        f"unstorable: item {URL!r}: field price is an Element: did you mean page.text(…) or element.text()?"
    )
    assert [task.url for task in finished.result.found] == ["https://a.test/2"]


async def test_markup_made_to_choke_on_is_dead_at_once() -> None:
    finished = await take(respond(URL, b"<div>" * 50_000))
    assert isinstance(finished.result, Dead)
    assert finished.result.reason == "too_complex: elements lie more than 1,000 deep in each other"
    finished = await take(respond(URL, b"<div>" * 9_000), max_nesting=10_000)
    assert isinstance(finished.result, Done)


async def test_an_item_that_is_no_json_ends_its_page_and_keeps_the_rest() -> None:
    finished = await take(respond(URL, "<a href=/next></a>"), lease={"task": {"handler": "broken"}})
    assert isinstance(finished.result, Done)
    assert [task.url for task in finished.result.found] == ["https://a.test/next"]
    assert [item.key for item in finished.items] == ["good"]
    assert finished.unstorable == "unstorable: item 'bad': a number that is not finite in price"
