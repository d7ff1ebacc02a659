"""One lease through an exit: what goes with its end, to the exit, to the lane and to the log."""

from __future__ import annotations

import random
import time
from typing import Any

import msgspec
import pytest

from shoal import Item, Page, Spider
from shoal.exits.passage import Passages
from shoal.fetch.base import FaultKind
from shoal.fetch.exits import ExitConfig
from shoal.journey.handlers import Handlers
from shoal.journey.intake import Intake
from shoal.journey.journey import Journey
from shoal.journey.results import Finished
from shoal.journey.robots import LaneRules
from shoal.model import DIRECT, Crawl, Dead, Done, ExitUse, Lease, Pool, Released, Retry
from shoal.settings.table import Settings
from shoal.spider.session import Session
from shoal.testing.fakes import Answer, ScriptedFetcher, fault, lease_for, respond
from shoal.testing.memory_frontier import MemoryFrontier
from shoal.urls.canonical import UrlRules

URL = "https://a.test/page"
ROBOTS = "https://a.test/robots.txt"
LOGIN = "https://a.test/login"
PASSWORD, TOKEN = "hunter2/hunter2", "t0ken-t0ken"
PROXY = "http://me:hunter2%2Fhunter2@x:1"
EXITS = tuple(f"ring/{number}" for number in range(8))


class Wary(Spider):
    async def login(self, session: Session) -> None:
        if session.account.get("logs_in"):
            await session.get(LOGIN)

    def parse(self, page: Page) -> Any:
        yield Item(key=page.url)
        if page.text() == "not you":
            page.blocked("they know us")
        yield page.follow("a")

    def quotes(self, page: Page) -> Any:
        raise ValueError(f"cannot use {page.task} by http://me:{PASSWORD}@10.0.0.1:80 nor {PASSWORD}")

    def quotes_headers(self, page: Page) -> Any:
        raise ValueError(f"what are {page.headers['set-cookie']} and {page.headers['x-id']}?")

    def says_much(self, page: Page) -> Any:
        page.blocked(f"{page.task.headers} {'x' * 100_000}")

    def swallows(self, page: Page) -> Any:
        try:
            page.blocked()
        except Exception:
            return {"kept": True}


class ScriptedJourney:
    """A journey over scripted answers, through the exits of a pool."""

    def __init__(
        self,
        script: dict[str, Any],
        *,
        needs_rules: bool = False,
        kind: Any = "proxy",
        keeping: Any = "nothing",
        fields: dict[str, str] | None = None,
        **settings: Any,
    ) -> None:
        self.settings = Settings(**settings)
        self.fetcher = ScriptedFetcher(script)
        frontier = MemoryFrontier(clock=time.time)
        pool = Pool(name="ring", exits=EXITS)
        self.frontier = frontier
        self.crawl = Crawl(id="c", spider="wary", needs_rules=needs_rules, pools=(pool,))
        rules = UrlRules(self.settings, start_hosts=["a.test"])
        intake = Intake(rules, self.settings, pools=["ring", "other"], pool="ring")
        handlers = Handlers(Wary(), intake=intake, item_key="", seconds=5.0)
        self.journey = Journey(
            spider_name="wary",
            worker="w",
            settings=self.settings,
            needs_rules=needs_rules,
            handlers=handlers,
            intake=intake,
            lane_rules=LaneRules(frontier=frontier, settings=self.settings),
            passages=Passages(
                exits={name: ExitConfig(name=name, kind=kind, url=PROXY, fields=fields or {}) for name in EXITS},
                pools=[pool],
                frontier=frontier,
                fetcher=self.fetcher,
                log_in=handlers.log_in,
                rules=rules,
                settings=self.settings,
                say=print,
            ),
            keeping=keeping,
            rng=random.Random(1),
        )

    async def take(self, lease: Lease) -> Finished:
        await self.frontier.open_crawl(self.crawl)
        return await self.journey.take(lease)


def lease_through(*, exit_name: str = "ring/0", handler: str = "parse", **fields: Any) -> Lease:
    task = {"lane": "a.test via ring", "pool": "ring", "handler": handler}
    return lease_for(URL, task=task, exit=exit_name, exit_interval=1.0, **fields)


async def take(answer: Answer, *, lease: dict[str, Any] | None = None, **settings: Any) -> Finished:
    return await ScriptedJourney({URL: answer}, **settings).take(lease_through(**(lease or {})))


async def test_a_good_page_goes_through_its_exit_and_says_so() -> None:
    scripted = ScriptedJourney({URL: respond(URL, "<a href=/next>x</a>")})
    finished = await scripted.take(lease_through())
    assert isinstance(finished.result, Done)
    assert finished.result.exit == ExitUse(verdict="ok", size=19, elapsed=0.01)
    assert [task.lane for task in finished.result.found] == ["a.test via ring"]
    assert [request.exit for request in scripted.fetcher.requests] == ["ring/0"]
    assert finished.fetch is not None
    assert finished.fetch.exit == "ring/0"


@pytest.mark.parametrize(
    ("kind", "cookies", "keeps"),
    [("proxy", "worker", False), ("proxy", "off", True), ("account", "worker", False), ("account", "off", False)],
)
async def test_cookies_that_will_be_used_are_not_archived(kind: str, cookies: str, keeps: bool) -> None:
    answer = respond(URL, "hello", headers={"set-cookie": "sid=secret", "server": "old"})
    scripted = ScriptedJourney({URL: answer}, kind=kind, keeping="page", cookies=cookies)
    finished = await scripted.take(lease_through())
    assert finished.page is not None
    assert finished.page.capture.headers["server"] == "old"
    assert ("set-cookie" in finished.page.capture.headers) is keeps


@pytest.mark.parametrize("kind", ["proxy", "account"])
async def test_an_error_shows_no_cookie_of_its_visitor(kind: str) -> None:
    headers = {"set-cookie": "sid=s3cret-of-anna; Path=/", "x-id": "s3cret-of-anna"}
    scripted = ScriptedJourney({URL: respond(URL, headers=headers)}, kind=kind)
    task = {"lane": "a.test via ring", "pool": "ring", "handler": "quotes_headers", "max_attempts": 1}
    result = (await scripted.take(lease_for(URL, task=task, exit="ring/0"))).result
    assert isinstance(result, Dead)
    assert "s3cret" not in result.reason + result.detail


async def test_a_page_that_is_given_up_unfetched_has_not_used_its_exit() -> None:
    urls = [f"https://a.test/p/{number}" for number in range(30)]
    scripted = ScriptedJourney({url: respond(url, "<p>no news") for url in urls}, max_equal_pages=5)
    links = [UrlRules(scripted.settings).resolve(url) for url in urls]
    tasks = [
        {"lane": "a.test via ring", "pool": "ring", "parent": 1, "shape": one.shape, "key": one.key} for one in links
    ]
    leases = [lease_for(url, task=task, exit="ring/0") for url, task in zip(urls, tasks, strict=True)]
    ends = [await scripted.take(lease) for lease in leases]
    given_up = [end.result for end in ends if isinstance(end.result, Dead)]
    assert given_up
    assert {result.exit for result in given_up} == {ExitUse(verdict="unused")}


async def test_a_redirect_keeps_its_pool() -> None:
    scripted = ScriptedJourney({URL: respond(URL, status=302, headers={"location": "/next"})})
    lease = lease_for(URL, task={"lane": "a.test via other", "pool": "other"}, exit="ring/1")
    result = (await scripted.take(lease)).result
    assert isinstance(result, Done)
    [hop] = result.found
    assert (hop.pool, hop.lane) == ("other", "a.test via other")


@pytest.mark.parametrize("exit_name", ["ring/0", DIRECT])
async def test_a_shortage_of_this_machine_costs_neither_page_nor_exit_nor_lane(exit_name: str) -> None:
    lease = lease_through(exit_name=exit_name, attempt=4, free_retries=99)
    finished = await ScriptedJourney({URL: fault(FaultKind.SHORTAGE)}).take(lease)
    report = None if exit_name == DIRECT else ExitUse(verdict="unused", elapsed=0.01)
    assert finished == Finished(Released(lease=lease, exit=report))


async def test_a_login_that_could_not_be_sent_does_not_count_against_its_account() -> None:
    scripted = ScriptedJourney({LOGIN: fault(FaultKind.SHORTAGE)}, kind="account", fields={"logs_in": "yes"})
    lease = lease_through(handler="parse")
    finished = await scripted.take(lease)
    assert isinstance(finished.result, Released)
    assert finished.result.exit == ExitUse(verdict="unused", elapsed=0.01)


async def test_a_429_rests_the_exit_and_not_the_lane() -> None:
    answer = respond(URL, status=429, headers={"retry-after": "60"})
    result = (await take(answer, lease={"attempt": 4})).result
    assert isinstance(result, Retry)
    assert (result.free, result.delay, result.lane) == (True, 0.0, None)
    assert result.exit is not None
    assert result.exit.verdict == "blocked"


async def test_a_503_with_retry_after_rests_the_lane_and_not_the_exit() -> None:
    answer = respond(URL, status=503, headers={"retry-after": "60"})
    result = (await take(answer, lease={"interval": 1.0, "base_interval": 1.0})).result
    assert isinstance(result, Retry)
    assert result.lane is not None
    assert (result.lane.rest_seconds, result.lane.interval) == (60.0, 1.1)
    assert result.exit is not None
    assert result.exit.verdict == "ok"


async def test_a_slow_exit_does_not_slow_its_lane() -> None:
    scripted = ScriptedJourney({URL: [respond(URL), msgspec.structs.replace(respond(URL), elapsed=30.0)]})
    await scripted.take(lease_through(interval=1.0, base_interval=1.0))
    assert (await scripted.take(lease_through(interval=1.0, base_interval=1.0))).result.lane is None


async def test_without_an_exit_a_slow_answer_slows_the_lane_and_there_is_no_report() -> None:
    scripted = ScriptedJourney({URL: [respond(URL), msgspec.structs.replace(respond(URL), elapsed=30.0)]})
    first, slow = [(await scripted.take(lease_for(URL, interval=1.0, base_interval=1.0))).result for _ in range(2)]
    assert (first.lane, first.exit, slow.exit) == (None, None, None)
    assert slow.lane is not None
    assert slow.lane.interval == 1.25


@pytest.mark.parametrize("kind", [FaultKind.EXIT, FaultKind.TIMEOUT_FIRST_BYTE, FaultKind.CONNECT, FaultKind.TLS])
async def test_a_failure_on_the_way_is_free_for_the_page_and_leaves_the_pace(kind: FaultKind) -> None:
    finished = await take(fault(kind), lease={"attempt": 4})
    assert isinstance(finished.result, Retry)
    assert (finished.result.free, finished.result.lane) == (True, None)
    assert finished.result.exit is not None
    assert finished.result.exit.verdict == "failed"
    assert finished.fetch is not None
    assert finished.fetch.outcome == f"retry:{kind}"


async def test_a_fault_before_anything_was_sent_leaves_the_exit_unused() -> None:
    result = (await take(fault(FaultKind.REFUSED_ADDRESS))).result
    assert isinstance(result, Dead)
    assert result.exit == ExitUse(verdict="unused", elapsed=0.01)


async def test_what_a_handler_calls_blocked_is_tried_again_and_nothing_of_it_is_kept() -> None:
    finished = await take(respond(URL, "not you"), lease={"attempt": 4})
    assert isinstance(finished.result, Retry)
    assert (finished.result.free, finished.result.reason) == (True, "blocked: they know us")
    assert finished.result.exit is not None
    assert finished.result.exit.verdict == "blocked"
    assert finished.items == ()


@pytest.mark.parametrize("attempt", [1, 2])
async def test_what_a_handlers_error_quotes_of_secrets_is_left_out(attempt: int) -> None:
    lease = lease_through(handler="quotes", attempt=attempt)
    task = msgspec.structs.replace(lease.task, headers={"Authorization": f"Bearer {TOKEN}"}, max_attempts=2)
    finished = await ScriptedJourney({URL: respond(URL)}).take(msgspec.structs.replace(lease, task=task))
    assert isinstance(finished.result, Retry if attempt == 1 else Dead)
    assert "cannot use" in finished.result.reason
    kept = repr([finished.result.reason, getattr(finished.result, "detail", ""), finished.fetch])
    assert PASSWORD not in kept
    assert TOKEN not in kept


@pytest.mark.parametrize("exit_name", ["ring/0", DIRECT])
async def test_what_a_spider_calls_blocked_is_one_short_line_without_secrets(exit_name: str) -> None:
    lease = lease_through(handler="says_much", exit_name=exit_name)
    task = msgspec.structs.replace(lease.task, headers={"Authorization": f"Bearer {TOKEN}"})
    finished = await ScriptedJourney({URL: respond(URL)}).take(msgspec.structs.replace(lease, task=task))
    assert isinstance(finished.result, Retry)
    assert finished.result.reason.startswith("blocked: {'Authorization': ***")
    assert len(finished.result.reason) <= 500


async def test_refusals_are_counted_without_the_tries_that_exits_failed() -> None:
    scripted = ScriptedJourney({URL: [fault(FaultKind.EXIT)] * 5 + [respond(URL, status=403)]}, max_exit_tries=6)
    for number in range(6):
        finished = await scripted.take(lease_through(free_retries=number))
        assert isinstance(finished.result, Retry)


async def test_a_login_is_kept_though_the_page_says_nothing_of_its_account() -> None:
    scripted = ScriptedJourney({URL: respond(URL, status=403, headers={"set-cookie": "id=1"})}, kind="account")
    finished = await scripted.take(lease_through(free_retries=4))
    assert finished.result.exit is not None
    assert finished.result.exit.verdict == "ok"
    assert finished.result.exit.session


async def test_a_handler_that_catches_everything_has_said_it_all_the_same() -> None:
    finished = await take(respond(URL), lease={"handler": "swallows"})
    assert isinstance(finished.result, Retry)
    assert finished.items == ()


async def test_without_an_exit_a_blocked_page_uses_up_its_attempts() -> None:
    scripted = ScriptedJourney({URL: respond(URL, "not you")})
    first, last = await scripted.take(lease_for(URL)), await scripted.take(lease_for(URL, attempt=4))
    assert isinstance(first.result, Retry)
    assert (first.result.free, first.result.reason, first.result.exit) == (False, "blocked: they know us", None)
    assert isinstance(last.result, Dead)
    assert last.result.reason == "blocked: they know us"


async def test_a_page_that_many_exits_were_turned_away_from_says_nothing_of_the_next() -> None:
    result = (await take(respond(URL, status=403), lease={"free_retries": 4})).result
    assert isinstance(result, Retry)
    assert result.exit is not None
    assert result.exit.verdict == "used"
    dead = (await take(respond(URL, status=403), lease={"free_retries": 5})).result
    assert isinstance(dead, Dead)
    assert dead.reason == "blocked: turned away through 6 exits"


async def test_robots_txt_is_asked_for_through_the_exit() -> None:
    scripted = ScriptedJourney(
        {ROBOTS: respond(ROBOTS, "User-agent: *\nDisallow: /x", kind="text/plain")}, needs_rules=True
    )
    result = (await scripted.take(lease_through(opens_lane=True))).result
    assert isinstance(result, Released)
    assert [(request.url, request.exit) for request in scripted.fetcher.requests] == [(ROBOTS, "ring/0")]
    assert result.lane is not None
    assert result.lane.rules
    assert result.exit is not None
    assert result.exit.verdict == "ok"


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [(fault(FaultKind.EXIT), "failed"), (fault(FaultKind.TIMEOUT_CONNECT), "failed"),
     (respond(ROBOTS, status=403), "blocked"), (respond(ROBOTS, status=429), "blocked")],
)  # fmt: skip
async def test_an_exit_that_cannot_get_robots_txt_leaves_it_to_the_next(answer: Answer, verdict: str) -> None:
    scripted = ScriptedJourney({ROBOTS: answer}, needs_rules=True)
    result = (await scripted.take(lease_through(opens_lane=True))).result
    assert isinstance(result, Retry)
    assert (result.free, result.delay, result.lane) == (True, 0.0, None)
    assert result.exit is not None
    assert result.exit.verdict == verdict


async def test_a_robots_txt_that_is_forbidden_to_every_exit_allows_everything_as_it_does_elsewhere() -> None:
    scripted = ScriptedJourney({ROBOTS: respond(ROBOTS, status=403)}, needs_rules=True)
    result = (await scripted.take(lease_through(opens_lane=True, free_retries=3))).result
    assert isinstance(result, Released)
    assert result.lane is not None
    assert result.lane.rules == b""
    assert result.exit is not None
    assert (result.exit.verdict, result.exit.elapsed) == ("used", 0.01)


async def test_what_robots_txt_forbids_leaves_the_exit_unused() -> None:
    scripted = ScriptedJourney({}, needs_rules=True)
    await scripted.frontier.open_crawl(scripted.crawl)
    opened = await ScriptedJourney(
        {ROBOTS: respond(ROBOTS, "User-agent: *\nDisallow: /", kind="text/plain")}, needs_rules=True
    ).take(lease_through(opens_lane=True))
    assert opened.result.lane is not None
    await scripted.frontier.update_lane("c", "a.test via ring", opened.result.lane)
    result = (await scripted.take(lease_through())).result
    assert isinstance(result, Done)
    assert (result.outcome, result.exit) == ("robots", ExitUse(verdict="unused"))
