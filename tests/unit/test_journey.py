"""The journey of one leased task: rules, redirects, retries, and how each answer ends its lease."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from shoal import Item, Page, Spider
from shoal.fetch.base import FaultKind
from shoal.handlers import Handlers
from shoal.intake import Intake
from shoal.journey import Journey
from shoal.lane_rules import MOST_FAILURES, LaneRules
from shoal.model import Crawl, Dead, Done, LaneUpdate, Lease, Released, Retry, Task
from shoal.politeness import lent_interval
from shoal.settings import Settings
from shoal.testing.fakes import Answer, ScriptedFetcher, fault, lease_for, respond
from shoal.testing.memory_frontier import MemoryFrontier
from shoal.urls import UrlRules
from shoal.writer import Finished

URL = "https://a.test/page"
NOW = 1_700_000_000.0


class Plain(Spider):
    def parse(self, page: Page) -> Any:
        yield Item(key=page.url, status=page.status)
        yield page.follow("a")

    def broken(self, page: Page) -> Any:
        yield Item(key="good", price=1.5)
        yield Item(key="bad", price=float("nan"))
        yield page.follow("a")

    def failing(self, page: Page) -> Any:
        return {"price": page.css("h1")[0].text()}


class Trip:
    """A journey over scripted answers."""

    def __init__(self, script: dict[str, Answer] | None = None, *, needs_rules: bool = False, **settings: Any) -> None:
        self.settings = Settings(**{"pace": "fixed", **settings})
        self.fetcher = ScriptedFetcher(script)
        self.frontier = MemoryFrontier(clock=time.time)
        intake = Intake(UrlRules(self.settings, start_hosts=["a.test"]), self.settings)
        self.rules = LaneRules(frontier=self.frontier, fetcher=self.fetcher, settings=self.settings)
        self.journey = Journey(
            spider_name="plain",
            worker="w",
            settings=self.settings,
            needs_rules=needs_rules,
            fetcher=self.fetcher,
            handlers=Handlers(Plain(), intake=intake, item_key="", seconds=5.0),
            intake=intake,
            lane_rules=self.rules,
            clock=lambda: NOW,
            rng=random.Random(1),
        )

    async def with_rules(self, text: bytes, seconds: float = 60.0) -> Trip:
        await self.frontier.open_crawl(Crawl(id="c", spider="plain", needs_rules=True))
        update = LaneUpdate(rules=text, rules_seconds=seconds)
        await self.frontier.update_lane("c", "a.test", update)
        return self

    async def take(self, lease: Lease) -> Finished:
        return await self.journey.take(lease)


async def take(answer: Answer, *, url: str = URL, lease: dict[str, Any] | None = None, **settings: Any) -> Finished:
    return await Trip({url: answer}, **settings).take(lease_for(url, **(lease or {})))


def redirect(location: str, status: int = 302, url: str = URL) -> Answer:
    return respond(url, status=status, headers={"location": location})


async def hop(location: str, status: int = 302, **task: Any) -> Task:
    """The task that a redirect leads to."""
    finished = await take(redirect(location, status), lease={"task": task})
    assert isinstance(finished.result, Done)
    [found] = finished.result.found
    return found


async def test_a_good_page_gives_items_links_and_a_log_line() -> None:
    finished = await take(respond(URL, "<a href=/next>x</a>"), lease={"attempt": 2})
    assert isinstance(finished.result, Done)
    assert (finished.result.outcome, [task.url for task in finished.result.found]) == ("ok", ["https://a.test/next"])
    [item] = finished.items
    assert (item.spider, item.key, item.crawl, item.token, item.at) == ("plain", URL, "c", 7, NOW)
    row = finished.fetch
    assert row is not None
    assert (row.outcome, row.status, row.attempt, row.worker, row.size) == ("ok", 200, 2, "w", 19)


async def test_what_robots_txt_forbids_is_not_fetched() -> None:
    trip = await Trip(needs_rules=True).with_rules(b"user-agent:*\ndisallow:/page")
    finished = await trip.take(lease_for(URL))
    assert isinstance(finished.result, Done)
    assert (finished.result.outcome, finished.result.rejected) == ("robots", {"robots": 1})
    assert finished.result.samples == [("robots", URL)]
    assert finished.fetch is not None
    assert finished.fetch.outcome == "robots"
    assert trip.fetcher.requests == []


async def test_links_that_robots_txt_forbids_never_become_tasks() -> None:
    body = "<a href=/private/1></a><a href=/open></a>"
    trip = await Trip({URL: respond(URL, body)}, needs_rules=True).with_rules(b"user-agent:*\ndisallow:/private")
    finished = await trip.take(lease_for(URL))
    assert isinstance(finished.result, Done)
    assert [task.url for task in finished.result.found] == ["https://a.test/open"]
    assert finished.result.rejected == {"robots": 1}


async def test_a_lease_whose_rules_ran_out_is_handed_back_not_fetched() -> None:
    trip = await Trip({URL: respond(URL)}, needs_rules=True).with_rules(b"user-agent:*\ndisallow:/", seconds=0.0)
    finished = await trip.take(lease_for(URL))
    assert isinstance(finished.result, Released)
    assert trip.fetcher.requests == []


async def test_rules_made_to_be_slow_do_not_stop_the_worker_over_a_page_of_many_links() -> None:
    links = "".join(f"<a href=/{'a' * 1500}{number}>x</a>" for number in range(2000))
    slow = b"".join(b"disallow:/%s%d$\n" % (b"*a" * 200, number) for number in range(3000, 3500))
    trip = await Trip({URL: respond(URL, links)}, needs_rules=True).with_rules(
        b"user-agent:*\nallow:/page\ndisallow:/\n" + slow
    )
    result = (await trip.take(lease_for(URL, rules_version=1))).result
    assert isinstance(result, Done)
    assert 0 < result.rejected["robots"] < 2000
    # They are all forbidden; what was not held against the rules here meets them when it is leased.
    assert len(result.found) == 2000 - result.rejected["robots"]


async def test_a_page_of_a_kind_with_nothing_new_is_given_up_and_its_links_with_it() -> None:
    urls = [f"https://a.test/p/{number}" for number in range(20)]
    script: dict[str, Answer] = {url: respond(url, "<p>sold out<a href=/p/999>more</a>") for url in urls}
    trip = Trip(script, max_equal_pages=5)
    shape = UrlRules(trip.settings).resolve(urls[0]).shape
    keys = {url: UrlRules(trip.settings).resolve(url).key for url in urls}
    ends = [await trip.take(lease_for(url, task={"parent": 1, "shape": shape, "key": keys[url]})) for url in urls]
    given_up = [end for end in ends if isinstance(end.result, Dead)]
    assert 5 <= len(ends) - len(given_up) == len(trip.fetcher.requests) < 15
    assert all(end.result.reason.startswith("equal_pages: ") for end in given_up if isinstance(end.result, Dead))
    last = ends[len(trip.fetcher.requests) - 1].result
    assert isinstance(last, Done)
    assert (last.found, last.rejected, last.samples) == (
        [],
        {"equal_pages": 1},
        [("equal_pages", "https://a.test/p/999")],
    )


async def test_a_page_that_is_asked_for_again_and_again_is_never_given_up() -> None:
    trip = Trip({URL: respond(URL, "<p>no news")}, max_equal_pages=5)
    ends = [await trip.take(lease_for(URL, task={"parent": 1, "shape": 1, "key": number})) for number in range(20)]
    assert all(isinstance(end.result, Done) for end in ends)


async def test_opening_a_lane_fetches_robots_txt_and_hands_the_page_back() -> None:
    robots = respond("https://a.test/robots.txt", "User-agent: *\nDisallow: /x\nCrawl-delay: 9", kind="text/plain")
    trip = Trip({"https://a.test/robots.txt": robots}, needs_rules=True)
    finished = await trip.take(lease_for(URL, opens_lane=True, interval=1.0))
    assert isinstance(finished.result, Released)
    update = finished.result.lane
    assert update is not None
    assert update.rules is not None
    assert b"disallow:/x" in update.rules
    assert (update.interval, update.base_interval, update.rules_seconds) == (
        lent_interval(9.0),
        lent_interval(9.0),
        86_400.0,
    )
    assert [request.url for request in trip.fetcher.requests] == ["https://a.test/robots.txt"]
    assert (finished.items, finished.fetch) == ((), None)


async def test_a_robots_txt_that_cannot_be_had_rests_the_lane_and_is_asked_for_again() -> None:
    trip = Trip({"https://a.test/robots.txt": respond(URL, status=503)}, needs_rules=True)
    finished = await trip.take(lease_for(URL, opens_lane=True))
    assert isinstance(finished.result, Retry)
    assert (finished.result.free, finished.result.reason) == (True, "robots.txt: http_503")
    assert finished.result.lane is not None
    assert (finished.result.lane.rules, finished.result.lane.rest_seconds) == (None, finished.result.delay)


async def opened_by_redirect(trip: Trip) -> Released | Retry:
    finished = await trip.take(lease_for(URL, opens_lane=True))
    assert isinstance(finished.result, Released | Retry)
    return finished.result


def trip_with_robots_txt_elsewhere() -> Trip:
    moved = redirect("https://slow.test/robots.txt", url="https://a.test/robots.txt")
    return Trip({"https://a.test/robots.txt": moved}, needs_rules=True)


async def test_a_robots_txt_at_a_host_with_no_slot_soon_is_not_waited_for() -> None:
    trip = await trip_with_robots_txt_elsewhere().with_rules(b"")
    await trip.frontier.update_lane("c", "slow.test", LaneUpdate(interval=300.0, base_interval=300.0))
    await trip.frontier.reserve("c", "slow.test")
    result = await opened_by_redirect(trip)
    assert isinstance(result, Retry)
    assert (result.free, result.reason) == (True, "robots.txt: redirects to a busy host")
    assert 200 < result.delay <= 300
    assert [request.url for request in trip.fetcher.requests] == ["https://a.test/robots.txt"]


async def test_a_robots_txt_at_a_host_whose_rules_are_known_is_not_asked_for_again() -> None:
    trip = await trip_with_robots_txt_elsewhere().with_rules(b"")
    known = LaneUpdate(rules=b"user-agent:*\ndisallow:/x\ncrawl-delay:7", rules_seconds=60.0, interval=300.0)
    await trip.frontier.update_lane("c", "slow.test", known)
    result = await opened_by_redirect(trip)
    assert isinstance(result, Released)
    assert result.lane is not None
    assert (result.lane.rules, result.lane.interval) == (known.rules, lent_interval(7.0))
    assert len(trip.fetcher.requests) == 1


async def test_of_long_rules_on_many_hosts_only_some_are_kept_in_memory() -> None:
    trip = Trip(needs_rules=True)
    await trip.frontier.open_crawl(Crawl(id="c", spider="plain", needs_rules=True))
    rules = b"user-agent:*\n" + b"".join(b"disallow:/%d/%s\n" % (number, b"x" * 80) for number in range(2_000))
    urls = [f"https://h{number}.test/" for number in range(80)]
    for url in urls:
        await trip.frontier.update_lane("c", url[8:-1], LaneUpdate(rules=rules, rules_seconds=60.0))
        await trip.take(lease_for(url, rules_version=1))
    kept = [url for url in urls if trip.rules.cached(url[8:-1]) is not None]
    assert 10 < len(kept) < 70
    assert kept == urls[-len(kept) :]


async def test_a_robots_txt_that_can_never_be_had_closes_the_lane() -> None:
    trip = Trip({"https://a.test/robots.txt": respond(URL, status=503)}, needs_rules=True)
    finished = await trip.take(lease_for(URL, opens_lane=True, free_retries=MOST_FAILURES))
    assert isinstance(finished.result, Released)
    assert finished.result.lane is not None
    assert finished.result.lane.rules is not None
    closed = await Trip({URL: respond(URL)}, needs_rules=True).with_rules(finished.result.lane.rules)
    ended = await closed.take(lease_for(URL))
    assert isinstance(ended.result, Done)
    assert (ended.result.outcome, closed.fetcher.requests) == ("robots_unavailable", [])


async def test_a_crawl_delay_faster_than_the_pace_changes_nothing() -> None:
    robots = respond(URL, "User-agent: *\nCrawl-delay: 1", kind="text/plain")
    trip = Trip({"https://a.test/robots.txt": robots}, needs_rules=True)
    finished = await trip.take(lease_for(URL, opens_lane=True, interval=5.0))
    assert finished.result.lane is not None
    assert finished.result.lane.interval is None


async def test_a_redirect_is_a_task_of_its_own_with_everything_but_its_key() -> None:
    found = await hop("/other?x=1", depth=2, handler="item", meta={"a": 1}, priority=3, max_attempts=9, hops=1)
    assert (found.url, found.lane, found.depth, found.hops) == ("https://a.test/other?x=1", "a.test", 2, 2)
    assert (found.handler, found.meta, found.priority, found.max_attempts) == ("item", {"a": 1}, 3, 9)


async def test_a_redirect_is_logged_with_where_it_led() -> None:
    finished = await take(redirect("/other"))
    assert isinstance(finished.result, Done)
    assert finished.result.outcome == "redirected"
    assert finished.fetch is not None
    assert (finished.fetch.outcome, finished.fetch.final_url) == ("redirected", "https://a.test/other")


@pytest.mark.parametrize(
    ("status", "method", "expected"),
    [
        (301, "POST", "GET"),
        (302, "POST", "GET"),
        (303, "PUT", "GET"),
        (303, "HEAD", "HEAD"),
        (307, "POST", "POST"),
        (308, "PUT", "PUT"),
    ],
)
async def test_the_method_after_a_redirect_is_that_of_browsers(status: int, method: str, expected: str) -> None:
    headers = {"Content-Type": "application/json", "X-A": "b"}
    found = await hop("/x", status, method=method, body=b"{}", headers=headers)
    keeps = expected == method and method != "HEAD"
    assert found.method == expected
    assert found.body == (b"{}" if keeps or method == "HEAD" else None)
    assert found.headers == (headers if expected == method else {"X-A": "b"})


@pytest.mark.parametrize(
    ("location", "keeps"),
    [
        ("/x", True),
        ("https://a.test/x", True),
        ("https://a.test:443/x", True),
        ("http://a.test/x", False),
        ("https://a.test:8443/x", False),
        ("https://b.test/x", False),
        ("//b.test/x", False),
        ("/\\b.test/x", False),
        ("\\\\b.test/x", False),
        ("https://a.test.evil.test/x", False),
    ],
)
async def test_secrets_do_not_follow_to_another_origin(location: str, keeps: bool) -> None:
    secrets = {"Authorization": "s", "COOKIE": "s", "X-Plain": "p"}
    found = await hop(location, headers=secrets)
    assert found.headers == (secrets if keeps else {"X-Plain": "p"})


async def test_a_start_url_may_lead_anywhere_other_pages_only_within_scope() -> None:
    assert (await hop("https://www.a.test/")).lane == "www.a.test"
    finished = await take(redirect("https://other.test/"), lease={"task": {"depth": 1}})
    assert isinstance(finished.result, Done)
    assert (finished.result.found, finished.result.rejected) == ([], {"out_of_scope": 1})
    assert finished.result.outcome == "redirected"


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("javascript:alert(1)", "scheme"),
        ("file:///etc/passwd", "scheme"),
        ("http://[bad", "invalid_url"),
        ("/" + "x" * 5000, "url_too_long"),
        ("/a/a/a/a/a", "path_repeats"),
        ("https://a.test@evil.test/x", "credentials"),
        ("https://user:hunter2@a.test/x", "credentials"),
    ],
)
async def test_a_redirect_to_what_no_rule_allows_is_named(location: str, reason: str) -> None:
    finished = await take(redirect(location))
    assert isinstance(finished.result, Done)
    assert (finished.result.found, finished.result.rejected) == ([], {reason: 1})
    assert "hunter2" not in repr((finished.result.samples, finished.fetch))
    assert finished.fetch is not None
    assert len(finished.fetch.final_url) <= 2048


async def test_redirects_that_never_end_are_dead() -> None:
    for location in (URL, "page", f"{URL}#part", "?utm_source=x"):
        finished = await take(redirect(location))
        assert isinstance(finished.result, Dead)
        assert finished.result.reason == "redirect_loop: the page redirects to itself"
    finished = await take(redirect("/x"), lease={"task": {"hops": 10}})
    assert isinstance(finished.result, Dead)
    assert finished.result.reason.startswith("redirect_loop: more than 10")
    assert finished.fetch is not None
    assert finished.fetch.outcome == "redirect_loop"


async def test_a_redirect_to_nowhere_is_skipped() -> None:
    finished = await take(respond(URL, status=302))
    assert isinstance(finished.result, Done)
    assert finished.result.outcome == "http_302"


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
    assert 0 <= finished.result.delay <= 4
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
    finished = await take(respond(URL), lease={"attempt": 4, "task": {"handler": "missing"}})
    assert isinstance(finished.result, Dead)
    assert finished.result.reason == "handler: LookupError: Plain has no handler 'missing'"


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
