"""Sites that let in only who brings their cookie back: what is asked again in the same lease, and what never is."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Any

import pytest

from shoal import Item, Page, Spider
from shoal.fetch.base import Fault, FaultKind, Fetch, Response
from shoal.journey.cookie_walls import MAX_FRUITLESS
from shoal.journey.handlers import Handlers
from shoal.journey.intake import Intake
from shoal.journey.journey import Journey
from shoal.journey.results import Finished
from shoal.journey.robots import LaneRules
from shoal.model import Crawl, Dead, Done, LaneUpdate, Lease, Pool, Retry
from shoal.settings.table import Settings
from shoal.testing.fakes import lease_for, passages_for, respond
from shoal.testing.memory_frontier import MemoryFrontier
from shoal.urls.canonical import UrlRules, key_of

URL = "https://a.test/page"
WALL = "https://a.test/consent"
COOKIE = "ok=1; Path=/"

Answers = Callable[[Fetch, str], Response | Fault]


class Plain(Spider):
    def parse(self, page: Page) -> Any:
        yield Item(key=page.url, status=page.status)

    def failing(self, page: Page) -> Any:
        raise ValueError(f"unexpected {page.headers['set-cookie']}")

    async def waiting(self, page: Page) -> Any:
        for _ in range(10):
            await asyncio.sleep(0)
        raise ValueError(f"unexpected {page.headers['set-cookie']}")

    def priceless(self, page: Page) -> Any:
        raise ValueError("no price in EUR, is it true?")


class Visitor:
    """A worker that visits a site, which answers by the request and its Cookie header."""

    def __init__(
        self, answers: Answers, *, needs_rules: bool = False, pools: list[Pool] | None = None, **settings: Any
    ):
        self.asked: list[tuple[str, str]] = []
        self._answers = answers
        self._pools = pools or []
        self.settings = Settings(**{"pace": "fixed", **settings})
        self.frontier = MemoryFrontier(clock=time.time)
        rules = UrlRules(self.settings, start_hosts=["a.test"])
        intake = Intake(rules, self.settings, pools=[pool.name for pool in self._pools])
        self.intake = intake
        self.journey = Journey(
            spider_name="plain",
            worker="w",
            settings=self.settings,
            needs_rules=needs_rules,
            handlers=Handlers(Plain(), intake=intake, item_key="", seconds=5.0),
            intake=intake,
            lane_rules=LaneRules(frontier=self.frontier, settings=self.settings),
            passages=passages_for(self, settings=self.settings, frontier=self.frontier, pools=self._pools),
            rng=random.Random(1),
        )

    async def fetch(self, request: Fetch) -> Response | Fault:
        cookie = (request.headers or {}).get("Cookie", "")
        self.asked.append((request.url, cookie))
        return self._answers(request, cookie)

    async def close(self) -> None:
        pass

    async def open(self, *, rules: dict[str, bytes]) -> None:
        """Open the crawl, with the rules of some lanes."""
        crawl = Crawl(id="c", spider="plain", interval=0.0, needs_rules=bool(rules), pools=tuple(self._pools))
        await self.frontier.open_crawl(crawl)
        for lane, text in rules.items():
            await self.frontier.update_lane("c", lane, LaneUpdate(rules=text, rules_seconds=60.0))

    async def take(self, url: str = URL, **fields: Any) -> Finished:
        if not await self.frontier.crawls():
            await self.open(rules={})
        lease: Lease = lease_for(url, **fields)
        return await self.journey.take(lease)


def moved(url: str, to: str, *cookies: str, status: int = 302) -> Response:
    headers = {"location": to}
    return respond(url, status=status, headers={**headers, "set-cookie": "\n".join(cookies)} if cookies else headers)


def sets(url: str, *cookies: str, status: int = 200, body: str = "a page") -> Response:
    return respond(url, body, status=status, headers={"set-cookie": "\n".join(cookies)})


def pages_of(finished: Finished) -> list[str]:
    assert isinstance(finished.result, Done), finished.result
    assert finished.result.outcome == "ok"
    return [item.key for item in finished.items]


def to_itself(request: Fetch, cookie: str) -> Response:
    return respond(request.url, "a page") if "ok=1" in cookie else moved(request.url, request.url, COOKIE)


def by_consent(request: Fetch, cookie: str) -> Response:
    """The first page remembers where the visitor wants to go; the second lets them in."""
    if request.url == WALL:
        return moved(WALL, URL, COOKIE) if "way=" in cookie else respond(WALL, "where from?")
    return respond(request.url, "a page") if "ok=1" in cookie else moved(request.url, WALL, "way=page; Path=/")


def forbidden(request: Fetch, cookie: str) -> Response:
    return respond(request.url, "a page") if "ok=1" in cookie else sets(request.url, COOKIE, status=403)


@pytest.mark.parametrize("answers", [to_itself, by_consent, forbidden])
async def test_the_page_behind_the_wall_is_handled(answers: Answers) -> None:
    visitor = Visitor(answers)
    assert pages_of(await visitor.take()) == [URL]
    before = len(visitor.asked)
    assert pages_of(await visitor.take(f"{URL}/2")) == [f"{URL}/2"]
    assert len(visitor.asked) == before + 1, "the wall is passed once"


@pytest.mark.parametrize("answers", [to_itself, by_consent, forbidden])
async def test_without_cookies_there_is_no_second_request(answers: Answers) -> None:
    visitor = Visitor(answers, cookies="off")
    finished = await visitor.take()
    assert visitor.asked == [(URL, "")]
    assert finished.items == ()


async def test_a_page_known_to_the_worker_is_reached_as_well() -> None:
    visitor = Visitor(by_consent)
    for url in (URL, WALL):
        visitor.intake.known.add(key_of(url))
    assert pages_of(await visitor.take()) == [URL]


async def test_every_further_request_takes_a_start_slot() -> None:
    visitor = Visitor(by_consent)
    reserved: list[str] = []
    reserve = visitor.frontier.reserve

    async def note(crawl: str, lane: str, *, exit: str = "direct") -> float:  # noqa: A002 -- as the contract has it
        reserved.append(lane)
        return await reserve(crawl, lane, exit=exit)

    visitor.frontier.reserve = note  # type: ignore[method-assign]  # a frontier under the test's control
    await visitor.take()
    assert reserved == ["a.test", "a.test"]


@pytest.mark.parametrize("is_known", [False, True])
async def test_a_redirect_back_to_the_page_before_it_gives_that_page(*, is_known: bool) -> None:
    """The wall is a task of its own: maybe of another worker, and maybe this one has its cookie already."""

    def answers(request: Fetch, cookie: str) -> Response:
        return moved(WALL, URL, COOKIE) if request.url == WALL else to_itself(request, cookie)

    visitor = Visitor(answers)
    if is_known:
        assert pages_of(await visitor.take(f"{URL}/other")) == [f"{URL}/other"]
    finished = await visitor.take(WALL, task={"hops": 1, "parent": key_of(URL)})
    assert pages_of(finished) == [URL]
    assert finished.fetch is not None
    assert (finished.fetch.url, finished.fetch.final_url) == (WALL, URL)


async def test_cookies_that_another_page_got_meanwhile_count_as_well() -> None:
    """Two pages are asked for before there is a cookie: the second answer sets the one that the first has set."""
    both = asyncio.Barrier(2)

    class Together(Visitor):
        async def fetch(self, request: Fetch) -> Response | Fault:
            answer = await super().fetch(request)
            if len(self.asked) <= 2:
                await both.wait()
            return answer

    visitor = Together(to_itself)
    first, second = await asyncio.gather(visitor.take(f"{URL}/1"), visitor.take(f"{URL}/2"))
    assert (pages_of(first), pages_of(second)) == ([f"{URL}/1"], [f"{URL}/2"])
    assert len(visitor.asked) == 4


async def test_ever_new_cookies_end_as_a_loop_and_soon_are_not_followed() -> None:
    numbers = iter(range(1000))

    def endless(request: Fetch, _: str) -> Response:
        return moved(request.url, request.url, f"n={next(numbers)}; Path=/")

    visitor = Visitor(endless, max_redirects=5)
    for _ in range(MAX_FRUITLESS):
        before = len(visitor.asked)
        finished = await visitor.take()
        assert isinstance(finished.result, Dead)
        assert finished.result.reason.startswith("redirect_loop")
        assert len(visitor.asked) == before + 6
    before = len(visitor.asked)
    assert isinstance((await visitor.take()).result, Dead)
    assert len(visitor.asked) == before + 1


async def test_a_redirect_that_leads_on_is_a_task_as_ever() -> None:
    numbers = iter(range(1000))

    def answers(request: Fetch, _: str) -> Response:
        if request.url.startswith(URL):
            return moved(request.url, f"/new/{request.url[-1]}", f"sid={next(numbers)}; Path=/")
        return respond(request.url, "moved here")

    visitor = Visitor(answers)
    for number in range(8):
        finished = await visitor.take(f"{URL}/{number}")
        assert isinstance(finished.result, Done)
        assert finished.result.outcome == "redirected"
        assert [task.url for task in finished.result.found] == [f"https://a.test/new/{number}"]
    assert len(visitor.asked) == 8 + MAX_FRUITLESS


async def test_pages_under_way_at_once_try_no_more_walks_than_one_after_the_other() -> None:
    numbers = iter(range(1000))

    def answers(request: Fetch, _: str) -> Response:
        if request.url.startswith(URL):
            return moved(request.url, f"/new/{request.url[-1]}", f"sid={next(numbers)}; Path=/")
        return respond(request.url, "moved here")

    visitor = Visitor(answers)
    ends = await asyncio.gather(*(visitor.take(f"{URL}/{number}") for number in range(8)))
    assert [end.result.outcome for end in ends if isinstance(end.result, Done)] == ["redirected"] * 8
    assert len(visitor.asked) == 8 + MAX_FRUITLESS


@pytest.mark.parametrize("status", [200, 302])
async def test_pages_that_all_lead_to_one_gate_are_reached_through_it(status: int) -> None:
    def answers(request: Fetch, cookie: str) -> Response:
        if request.url == WALL:
            return sets(WALL, COOKIE) if status == 200 else moved(WALL, "/", COOKIE)
        return respond(request.url, "a page") if "ok=1" in cookie else moved(request.url, WALL)

    visitor = Visitor(answers)
    first = await visitor.take(f"{URL}/0")
    assert isinstance(first.result, Done)
    assert [task.url for task in first.result.found] == [WALL], "it may be any redirect"
    for number in range(1, 4):
        assert pages_of(await visitor.take(f"{URL}/{number}")) == [f"{URL}/{number}"]


async def test_pages_that_all_lead_to_one_page_without_cookies_cost_three_requests_more() -> None:
    visitor = Visitor(lambda request, _: respond(WALL) if request.url == WALL else moved(request.url, WALL))
    for number in range(8):
        finished = await visitor.take(f"{URL}/{number}")
        assert isinstance(finished.result, Done)
        assert finished.result.outcome == "redirected"
    assert len(visitor.asked) == 8 + MAX_FRUITLESS


async def test_a_site_that_goes_on_refusing_is_asked_twice_only_at_first() -> None:
    numbers = iter(range(1000))
    visitor = Visitor(lambda request, _: sets(request.url, f"n={next(numbers)}; Path=/", status=403))
    for number in range(8):
        finished = await visitor.take(f"{URL}/{number}")
        assert isinstance(finished.result, Done)
        assert finished.result.outcome == "http_403"
    assert len(visitor.asked) == 8 + MAX_FRUITLESS


async def test_no_walk_leaves_the_site() -> None:
    visitor = Visitor(lambda request, _: moved(request.url, "https://b.test/", COOKIE), allow=["a.test", "b.test"])
    finished = await visitor.take()
    assert isinstance(finished.result, Done)
    assert [task.url for task in finished.result.found] == ["https://b.test/"]
    assert len(visitor.asked) == 1


async def test_no_walk_goes_where_robots_or_the_scope_forbid() -> None:
    visitor = Visitor(by_consent, needs_rules=True)
    await visitor.open(rules={"a.test": b"user-agent:*\ndisallow:/consent"})
    finished = await visitor.take(rules_version=1)
    assert isinstance(finished.result, Done)
    assert visitor.asked == [(URL, "")]
    visitor = Visitor(by_consent, deny=[".*consent.*"])
    finished = await visitor.take(task={"depth": 1})
    assert visitor.asked == [(URL, "")]


async def test_the_way_back_to_another_host_obeys_the_rules_of_that_host() -> None:
    """The wall is on a host of its own, and this worker has not met the host of the page yet."""
    gate = "https://gate.a.test/"

    def answers(request: Fetch, cookie: str) -> Response:
        return moved(gate, URL, f"{COOKIE}; Domain=a.test") if request.url == gate else to_itself(request, cookie)

    for rules, reached in ((b"", [URL]), (b"user-agent:*\ndisallow:/page", [])):
        visitor = Visitor(answers, needs_rules=True, allow=[".a.test"])
        await visitor.open(rules={"a.test": rules, "gate.a.test": b""})
        finished = await visitor.take(gate, task={"hops": 1, "parent": key_of(URL)}, rules_version=1)
        assert [item.key for item in finished.items] == reached
        assert len(visitor.asked) == 1 + len(reached)


async def test_a_cookie_header_of_the_spider_is_asked_once() -> None:
    visitor = Visitor(to_itself)
    finished = await visitor.take(task={"headers": {"Cookie": "mine=1"}})
    assert isinstance(finished.result, Dead)
    assert visitor.asked == [(URL, "mine=1")]


def after_a_form(request: Fetch, cookie: str) -> Response:
    """A form leads on twice, and each answer sets a cookie."""
    if request.method == "POST":
        return moved(request.url, "/thanks", f"n={len(cookie)}; Path=/", status=303)
    return moved(request.url, "/home", COOKIE) if request.url.endswith("/thanks") else respond(request.url, "home")


@pytest.mark.parametrize(
    "answers",
    [
        after_a_form,
        forbidden,
        lambda request, cookie: moved(request.url, request.url, f"n={len(cookie)}; Path=/", status=307),
    ],
)
async def test_a_form_is_sent_once_whatever_cookies_come_back(answers: Answers) -> None:
    visitor = Visitor(answers)
    key = key_of(URL, method="POST", body=b"order=1")
    await visitor.take(task={"key": key, "method": "POST", "body": b"order=1"})
    assert visitor.asked == [(URL, "")]


async def test_a_status_that_the_spider_handles_is_left_to_it() -> None:
    visitor = Visitor(forbidden, handle_statuses=(403,))
    finished = await visitor.take()
    assert isinstance(finished.result, Done)
    assert finished.result.outcome == "http_403"
    assert visitor.asked == [(URL, "")]


async def test_a_fault_behind_the_wall_is_tried_again() -> None:
    def answers(request: Fetch, cookie: str) -> Response | Fault:
        fault = Fault(kind=FaultKind.TIMEOUT_TOTAL, message="slow")
        return fault if cookie else moved(request.url, request.url, COOKIE)

    finished = await Visitor(answers).take()
    assert isinstance(finished.result, Retry)
    assert finished.result.reason == "timeout_total: slow"


@pytest.mark.parametrize("answers", [to_itself, by_consent, forbidden])
async def test_through_a_proxy_the_walk_keeps_its_exit(answers: Answers) -> None:
    pool = Pool(name="ring", exits=("ring/0", "ring/1"), interval=0.0)
    visitor = Visitor(answers, pools=[pool])
    lane = {"lane": "a.test via ring", "pool": "ring"}
    assert pages_of(await visitor.take(task=lane, exit="ring/0")) == [URL]
    before = len(visitor.asked)
    await visitor.take(f"{URL}/2", task=lane, exit="ring/1")
    assert visitor.asked[before] == (f"{URL}/2", ""), "another exit is another visitor"


async def test_a_handlers_error_shows_no_cookie() -> None:
    visitor = Visitor(lambda request, _: sets(request.url, "sid=hush-hush-7; Path=/"))
    finished = await visitor.take(task={"handler": "failing", "max_attempts": 1})
    assert isinstance(finished.result, Dead)
    assert "unexpected" in finished.result.reason
    assert "hush-hush" not in finished.result.reason + finished.result.detail


async def test_a_handlers_error_shows_no_cookie_that_was_replaced_meanwhile() -> None:
    numbers = iter(range(1000, 2000))
    visitor = Visitor(lambda request, _: sets(request.url, f"sid=hush-hush-{next(numbers)}; Path=/"))
    first = visitor.take(f"{URL}/1", task={"handler": "waiting", "max_attempts": 1})
    second = visitor.take(f"{URL}/2", task={"handler": "failing", "max_attempts": 1})
    for finished in await asyncio.gather(first, second):
        assert isinstance(finished.result, Dead)
        assert "hush-hush" not in finished.result.reason + finished.result.detail


async def test_words_that_are_the_value_of_a_cookie_stay_readable() -> None:
    visitor = Visitor(lambda request, _: sets(request.url, "cur=EUR; Path=/", "on=true; Path=/"))
    finished = await visitor.take(task={"handler": "priceless", "max_attempts": 1})
    assert isinstance(finished.result, Dead)
    assert finished.result.reason == "handler: ValueError: no price in EUR, is it true?"
