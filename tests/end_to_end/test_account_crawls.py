"""Crawls as somebody: one login per account for the whole fleet, cookies and headers that stay where they belong."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import parse_qs

import pytest
from exit_crawl import BACKENDS, ExitCrawl, site

from shoal import Item, Spider
from shoal.model import CrawlState, DeadFilter
from shoal.testing.servers.programs import find_program
from shoal.testing.servers.proxy_servers import Tinyproxy
from shoal.testing.sites.loopback import LoopbackServer, Reply, Request, pace_violations, reply

PAGES = 20
PASSWORDS = {"anna": "anna-s-secret", "bert": "bert-s-secret"}

NewCrawl = Callable[..., ExitCrawl]


class Shop:
    """A site for members. A session has a number of its own; each page sets a cookie that must come back."""

    def __init__(self) -> None:
        self.logins: Counter[str] = Counter()
        self.visits: list[tuple[str, str]] = []
        self.strangers = 0
        self.mixed: list[str] = []
        self.sessions: dict[str, str] = {}
        self.log_out_after = 0
        self.delay = 0.0

    def answer(self, request: Request) -> Reply:
        if request.path == "/login":
            return self._log_in(request) if request.method == "POST" else reply('<input name=token value="t1">')
        cookies = dict(part.split("=", 1) for part in request.headers.get("cookie", "").split("; ") if part)
        who = self.sessions.get(cookies.get("session", ""))
        if who is None:
            self.strangers += 1
            return reply("<p>Please log in")
        self.visits.append((who, request.path))
        # What a rendered page loads has the account's cookies, but not its headers.
        member = None if request.path == "/favicon.ico" else who
        said = request.headers["user-agent"], request.headers.get("x-member")
        if cookies.get("seen", who) != who or said != (f"Agent/{who}", member):
            self.mixed.append(request.path)
        if self.log_out_after and len(self.visits) == self.log_out_after:
            self.sessions = {number: name for number, name in self.sessions.items() if name != who}
        links = "".join(f'<a href="/{number}">x</a>' for number in range(1, PAGES)) if request.path == "/0" else ""
        seen = {"Set-Cookie": f"seen={who}; Path=/"}
        return reply(f"<h1>{request.path}</h1><i>{who}</i>{links}", headers=seen, delay=self.delay)

    def _log_in(self, request: Request) -> Reply:
        form = {name: values[0] for name, values in parse_qs(request.body.decode()).items()}
        who = form["user"]
        self.logins[who] += 1
        if PASSWORDS.get(who) != form["password"] or form["token"] != "t1":
            return reply("<p>Wrong")
        number = f"{who}-{self.logins[who]}"
        self.sessions[number] = who
        return reply("<p class=in>Welcome", headers={"Set-Cookie": f"session={number}; Path=/; HttpOnly"})


class Members(Spider):
    """Logs in, and takes every page."""

    pool = "shop"

    async def login(self, session: Any) -> Any:
        page = await session.get(f"{self.start[0].removesuffix('/0')}/login")
        form = {"user": session.account["name"], "password": session.account["password"]}
        page = await session.post("/login", form={**form, "token": page.attr("input", "value")})
        return page.text(".in") != ""

    def parse(self, page: Any) -> Any:
        if not page.css("i"):
            page.logged_out()
        yield Item(key=page.url, who=page.text("i"))
        yield page.follow("a")


@pytest.fixture
async def shop() -> AsyncIterator[tuple[Shop, LoopbackServer]]:
    shop = Shop()
    async with site(shop.answer) as server:
        yield shop, server


def members(
    exit_crawl: NewCrawl,
    server: LoopbackServer,
    spider: type[Spider] = Members,
    *,
    rate: str = "40/s",
    only: str = "",
    **passwords: str,
) -> ExitCrawl:
    crawl = exit_crawl(spider, f"http://127.0.0.1:{server.port}/0", max_attempts=1)
    given = {who: word for who, word in {**PASSWORDS, **passwords}.items() if only in ("", who)}
    logins = [
        {"name": who, "password": word, "user_agent": f"Agent/{who}", "headers.X-Member": who}
        for who, word in given.items()
    ]
    text = "".join(
        "[[logins]]\n" + "".join(f'{name} = "{value}"\n' for name, value in login.items()) for login in logins
    )
    (crawl.folder / "logins.toml").write_text(text)
    host = f"http://127.0.0.1:{server.port}"
    crawl.pool("shop", [], group="accounts", file="logins.toml", rate=rate, hosts=[host])
    return crawl


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
async def test_each_account_logs_in_once_and_cookies_never_cross(
    shop: tuple[Shop, LoopbackServer], exit_crawl: NewCrawl
) -> None:
    truth, server = shop
    crawl = members(exit_crawl, server)
    progress = await crawl.run()
    assert (progress.done, progress.dead, progress.retried) == (PAGES, 0, 0)
    assert truth.logins == {"anna": 1, "bert": 1}
    assert (truth.strangers, truth.mixed) == (0, [])
    assert Counter(path for _, path in truth.visits) == {f"/{number}": 1 for number in range(PAGES)}
    assert len({item.key for item in await crawl.items()}) == PAGES


class RenderedMembers(Members):
    """Its pages are rendered by a browser; logins are not."""

    render = True


# Ten seconds: a browser renders twenty pages.
@pytest.mark.full
async def test_rendered_pages_are_those_of_an_account_and_bring_its_cookies_back(
    shop: tuple[Shop, LoopbackServer], exit_crawl: NewCrawl
) -> None:
    find_program("chromium")
    truth, server = shop
    crawl = members(exit_crawl, server, RenderedMembers)
    progress = await crawl.run()
    assert (progress.done, progress.dead, progress.retried) == (PAGES, 0, 0)
    assert truth.logins == {"anna": 1, "bert": 1}
    assert (truth.strangers, truth.mixed) == (0, [])
    assert len({item.key for item in await crawl.items()}) == PAGES


async def test_one_request_at_a_time_for_an_account(shop: tuple[Shop, LoopbackServer], exit_crawl: NewCrawl) -> None:
    truth, server = shop
    truth.delay = 0.1  # four times as long as the interval of an account
    progress = await members(exit_crawl, server).run()
    assert progress.done == PAGES
    assert server.peak_in_flight["127.0.0.1"] == len(PASSWORDS)


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
async def test_a_lost_login_is_made_once_more_and_the_page_is_tried_again_for_free(
    shop: tuple[Shop, LoopbackServer], exit_crawl: NewCrawl
) -> None:
    truth, server = shop
    truth.log_out_after = 9
    progress = await members(exit_crawl, server).run()
    assert (progress.done, progress.dead, progress.retried) == (PAGES, 0, 1)
    assert (truth.logins.total(), truth.strangers) == (3, 1)
    assert len(truth.visits) == PAGES


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
async def test_a_crawl_that_is_resumed_is_still_logged_in(
    shop: tuple[Shop, LoopbackServer], exit_crawl: NewCrawl
) -> None:
    truth, server = shop
    crawl = members(exit_crawl, server, rate="10/s")
    await crawl.run(until=lambda progress: progress.done >= 6)
    assert len(truth.visits) < PAGES
    progress = await crawl.run()
    assert (progress.done, progress.state) == (PAGES, CrawlState.FINISHED)
    assert truth.logins == {"anna": 1, "bert": 1}


@pytest.mark.parametrize("backend", BACKENDS, indirect=True)
async def test_an_account_that_cannot_log_in_rests_and_the_others_do_its_pages(
    shop: tuple[Shop, LoopbackServer], exit_crawl: NewCrawl
) -> None:
    truth, server = shop
    crawl = members(exit_crawl, server, anna="wrong-word")
    progress = await crawl.run()
    assert (progress.done, progress.dead) == (PAGES, 0)
    assert truth.logins == {"anna": 1, "bert": 1}
    assert {who for who, _ in truth.visits} == {"bert"}
    exits = await crawl.exits()
    assert (exits["shop/anna"].failed, exits["shop/anna"].ok) == (1, 0)
    assert exits["shop/anna"].rests_for > 0


async def test_a_login_that_does_not_hold_rests_its_account_instead_of_going_on_for_ever(
    shop: tuple[Shop, LoopbackServer], exit_crawl: NewCrawl
) -> None:
    class Forgetful(Members):
        async def login(self, session: Any) -> Any:
            await super().login(session)
            session.load(b"")

    truth, server = shop
    crawl = members(exit_crawl, server, Forgetful)
    progress = await crawl.run(exit_patience="1s")
    assert (progress.done, progress.dead) == (0, 1)
    assert truth.logins == {"anna": 1, "bert": 1}
    assert truth.strangers == 2
    async with crawl.opened() as (frontier, store):
        key = (await frontier.dead(crawl.crawl, DeadFilter()))[0].task.key
        (row,) = await store.fetches(crawl.crawl, [key])
    assert row.error == "login: logged out at once"


async def test_the_requests_of_a_login_keep_the_accounts_pace(
    shop: tuple[Shop, LoopbackServer], exit_crawl: NewCrawl
) -> None:
    _, server = shop
    progress = await members(exit_crawl, server, rate="5/s", only="anna").run(max_pages=3)
    assert (progress.done, len(server.requests)) == (3, 5)
    assert pace_violations(server.requests, interval=0.2, tolerance=0.1) == 0


async def test_the_reason_of_a_failed_login_is_kept_without_the_password(
    shop: tuple[Shop, LoopbackServer], exit_crawl: NewCrawl
) -> None:
    class Chatty(Members):
        async def login(self, session: Any) -> Any:
            raise ValueError(f"cannot use {dict(session.account)}")

    _, server = shop
    crawl = members(exit_crawl, server, Chatty)
    progress = await crawl.run(exit_patience="1s")
    assert (progress.done, progress.dead) == (0, 1)
    async with crawl.opened() as (frontier, store):
        key = (await frontier.dead(crawl.crawl, DeadFilter()))[0].task.key
        (row,) = await store.fetches(crawl.crawl, [key])
    assert row.error.startswith("login: shop/")
    assert "ValueError" in row.error
    assert not any(word in row.error for word in PASSWORDS.values())


async def test_an_account_keeps_to_its_proxy(
    shop: tuple[Shop, LoopbackServer], exit_crawl: NewCrawl, start_proxy: Callable[..., Tinyproxy]
) -> None:
    _, server = shop
    crawl = exit_crawl(Members, f"http://127.0.0.1:{server.port}/0")
    urls = [start_proxy("127.0.0.2").url, start_proxy("127.0.0.3").url]
    text = "".join(
        f'[[logins]]\nname = "{who}"\npassword = "{word}"\nuser_agent = "Agent/{who}"\nproxy = "{url}"\n'
        for (who, word), url in zip(PASSWORDS.items(), urls, strict=True)
    )
    (crawl.folder / "logins.toml").write_text(text)
    crawl.pool("shop", [], group="accounts", file="logins.toml", rate="40/s")
    progress = await crawl.run()
    assert progress.done == PAGES
    agents = {(hit.peer, hit.user_agent) for hit in server.requests}
    assert agents == {("127.0.0.2", "Agent/anna"), ("127.0.0.3", "Agent/bert")}
