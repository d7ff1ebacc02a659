"""Cookies without an account: which request gets which, how many are kept, and how a fleet shares them."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from shoal.errors import ServerUnreachable
from shoal.exits import site_cookies
from shoal.exits.site_cookies import LOOK_SECONDS, SiteCookies, SiteVisit
from shoal.fetch.base import Fetch, Response
from shoal.frontier.rules.constants import MAX_KEPT_SESSIONS
from shoal.model import DIRECT, Crawl
from shoal.testing.clock import FakeClock
from shoal.testing.fakes import lease_for, respond
from shoal.testing.memory_frontier import MemoryFrontier

URL = "https://www.shop.example/page"
NOW = 1_000_000.0


class Site:
    """Answers every request with these Set-Cookie lines, and keeps the Cookie headers that it gets."""

    def __init__(self, *lines: str, meanwhile: Callable[[], Any] | None = None) -> None:
        self.lines = list(lines)
        self.got: list[str] = []
        self._meanwhile = meanwhile

    async def fetch(self, request: Fetch) -> Response:
        self.got.append((request.headers or {}).get("Cookie", ""))
        if self._meanwhile is not None:
            await self._meanwhile()
        return respond(request.url, headers={"set-cookie": "\n".join(self.lines)} if self.lines else None)

    async def close(self) -> None:
        pass


async def visit(
    cookies: SiteCookies, site: Site, url: str = URL, *, through: str = DIRECT, headers: dict[str, str] | None = None
) -> SiteVisit:
    return await cookies.visit(
        Fetch(url=url, headers=headers, exit=through), fetcher=site, lease=lease_for(url, exit=through)
    )


async def with_cookies(*lines: str, url: str = URL, **options: Any) -> SiteCookies:
    cookies = SiteCookies(clock=FakeClock(NOW), **options)
    await visit(cookies, Site(*lines), url)
    return cookies


async def got(cookies: SiteCookies, url: str, **options: Any) -> str:
    site = Site()
    await visit(cookies, site, url, **options)
    return site.got[0]


@pytest.mark.parametrize(
    ("line", "url", "through", "sent"),
    [
        ("a=1; Path=/", "https://www.shop.example/other", DIRECT, "a=1"),
        ("a=1; Path=/", "https://www.shop.example:8443/other", DIRECT, "a=1"),
        ("a=1; Path=/", "https://www.shop.example/other", "ring/0", ""),
        ("a=1; Path=/", "https://api.shop.example/", DIRECT, ""),
        ("a=1; Path=/; Domain=shop.example", "https://api.shop.example/", DIRECT, "a=1"),
        ("a=1; Path=/; Domain=shop.example", "https://shop.other.example/", DIRECT, ""),
        ("a=1; Path=/; Domain=example", "https://www.shop.example/", DIRECT, ""),
        ("a; Path=/", "https://www.shop.example/", DIRECT, "a"),
    ],
)
async def test_a_cookie_comes_back_to_its_site_through_its_exit(line: str, url: str, through: str, sent: str) -> None:
    assert await got(await with_cookies(line), url, through=through) == sent


async def test_hosts_that_the_public_suffix_list_separates_share_nothing() -> None:
    cookies = await with_cookies("a=1; Path=/", "b=1; Path=/; Domain=github.io", url="https://mine.github.io/")
    assert await got(cookies, "https://mine.github.io/x") == "a=1"
    assert await got(cookies, "https://yours.github.io/") == ""


@pytest.mark.parametrize("name", ["Cookie", "cookie"])
async def test_a_cookie_header_of_the_request_stays_as_it_is(name: str) -> None:
    cookies = await with_cookies("a=1; Path=/")
    sent: list[dict[str, str] | None] = []

    class Listening(Site):
        async def fetch(self, request: Fetch) -> Response:
            sent.append(request.headers)
            return await super().fetch(request)

    await visit(cookies, Listening("b=2; Path=/"), headers={name: "mine=1", "X-A": "b"})
    assert sent == [{name: "mine=1", "X-A": "b"}]
    assert await got(cookies, URL, headers={"X-A": "b"}) == "a=1; b=2"


async def test_tells_whether_an_answer_set_new_cookies() -> None:
    cookies = SiteCookies(clock=FakeClock(NOW))
    first = await visit(cookies, Site("a=1; Path=/"))
    second = await visit(cookies, Site("a=1; Path=/"))
    third = await visit(cookies, Site())
    assert [(one.sent, one.has_new) for one in (first, second, third)] == [("", True), ("a=1", False), ("a=1", False)]


async def test_the_jars_that_were_not_used_for_longest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_cookies, "MAX_JARS", 3)
    cookies = SiteCookies(clock=FakeClock(NOW))
    for name in "abc":
        await visit(cookies, Site(f"{name}=1; Path=/"), f"https://{name}.example/")
    assert await got(cookies, "https://a.example/") == "a=1"
    await visit(cookies, Site("d=1; Path=/"), "https://d.example/")
    assert [await got(cookies, f"https://{name}.example/") for name in "abcd"] == ["a=1", "", "c=1", "d=1"]


async def test_jars_are_limited_by_their_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_cookies, "MAX_BYTES", 10_000)
    cookies = SiteCookies(clock=FakeClock(NOW))
    for number in range(5):
        await visit(cookies, Site(f"a={'x' * 4000}; Path=/"), f"https://s{number}.example/")
    kept = [bool(await got(cookies, f"https://s{number}.example/")) for number in range(5)]
    assert kept == [False, False, False, True, True]


async def test_many_small_cookies_weigh_what_they_take() -> None:
    small = "\n".join(f"c{number}=1; Path=/" for number in range(50))
    cookies = SiteCookies(clock=FakeClock(NOW))
    await visit(cookies, Site(small), "https://first.example/")
    tracemalloc.start()
    for number in range(100):
        await visit(cookies, Site(small), f"https://s{number}.example/")
    taken = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert cookies.weight > taken / 2


async def test_knows_the_values_that_no_message_may_show() -> None:
    cookies = await with_cookies("sid=hush-hush; Path=/deep", "other-hush", "cur=EUR")
    assert sorted(cookies.secrets(DIRECT, URL)) == ["hush-hush", "other-hush"]
    assert cookies.secrets("ring/0", URL) == []
    assert SiteCookies().secrets(DIRECT, URL) == []


def test_without_a_cookie_the_public_suffix_list_is_not_read() -> None:
    code = (
        "import asyncio, shoal.fetch.cookies as cookies\n"
        "from shoal.exits.site_cookies import SiteCookies\n"
        "from shoal.fetch.base import Fetch\n"
        "from shoal.testing.fakes import ScriptedFetcher, lease_for\n"
        "jars = SiteCookies()\n"
        "visit = jars.visit(Fetch(url='https://a.test/'), fetcher=ScriptedFetcher(), lease=lease_for('https://a.test/'))\n"
        "asyncio.run(visit)\n"
        "print(cookies._suffixes.cache_info().currsize)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "0\n", done.stderr


class Fleet:
    """Two workers that share their cookies through one frontier."""

    def __init__(self) -> None:
        self.clock = FakeClock(NOW)
        self.frontier = MemoryFrontier(clock=self.clock)
        self.first, self.second = self._worker(), self._worker()

    async def __aenter__(self) -> Fleet:
        await self.frontier.open_crawl(Crawl(id="c", spider="s"))
        return self

    async def __aexit__(self, *error: object) -> None:
        pass

    def _worker(self) -> SiteCookies:
        return SiteCookies(frontier=self.frontier, clock=self.clock, ticks=self.clock)


async def test_a_fleet_shares_what_one_worker_got() -> None:
    async with Fleet() as fleet:
        await visit(fleet.first, Site("a=1; Path=/"))
        assert await got(fleet.second, URL) == "a=1"
        assert await got(fleet.second, URL, through="ring/0") == ""
        assert await got(fleet.second, "https://other.example/") == ""
        await visit(fleet.first, Site("a=2; Path=/"))
        fleet.clock.advance(LOOK_SECONDS)
        assert await got(fleet.second, URL) == "a=2"
        await visit(fleet.second, Site("a=; Path=/; Max-Age=0"))
        fleet.clock.advance(LOOK_SECONDS)
        assert await got(fleet.first, URL) == ""


async def test_cookies_that_two_workers_get_at_once_are_both_kept() -> None:
    async with Fleet() as fleet:

        async def meanwhile() -> None:
            await visit(fleet.second, Site("b=2; Path=/"))

        await visit(fleet.first, Site("a=1; Path=/", meanwhile=meanwhile))
        assert await got(fleet.first, URL) == "b=2; a=1"
        fleet.clock.advance(LOOK_SECONDS)
        assert await got(fleet.second, URL) == "b=2; a=1"


async def test_where_the_frontier_has_no_room_a_worker_keeps_its_own() -> None:
    async with Fleet() as fleet:
        for number in range(MAX_KEPT_SESSIONS):
            await fleet.frontier.keep_session("c", f"site {number}", b"x", version=0)
        await visit(fleet.first, Site("a=1; Path=/"))
        fleet.clock.advance(LOOK_SECONDS)
        assert await got(fleet.first, URL) == "a=1"
        assert await got(fleet.second, URL) == ""


async def test_bytes_that_are_no_jar_count_as_none() -> None:
    async with Fleet() as fleet:
        await fleet.frontier.keep_session("c", "cookies direct shop.example", b"\xc1garbage", version=0)
        assert await got(fleet.first, URL) == ""
        await visit(fleet.first, Site("a=1; Path=/"))
        assert await got(fleet.second, URL) == "a=1"


class Unreachable(MemoryFrontier):
    """A frontier whose server has gone away."""

    async def session(self, crawl: str, exit: str) -> tuple[int, bytes]:  # noqa: A002 -- as the contract has it
        raise ServerUnreachable("gone")

    async def keep_session(self, crawl: str, name: str, session: bytes, *, version: int) -> tuple[int, bytes]:
        raise ServerUnreachable("gone")


async def test_a_frontier_out_of_reach_costs_no_page_and_no_cookie() -> None:
    clock = FakeClock(NOW)
    cookies = SiteCookies(frontier=Unreachable(clock=clock), clock=clock, ticks=clock)
    seen = await visit(cookies, Site("a=1; Path=/"))
    assert isinstance(seen.answer, Response)
    clock.advance(LOOK_SECONDS)
    assert await got(cookies, URL) == "a=1"
