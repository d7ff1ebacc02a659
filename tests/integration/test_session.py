"""Accounts that log in at a site on loopback, which checks every cookie."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from urllib.parse import parse_qs

import pytest

from shoal.errors import UsageError
from shoal.fetch.base import FaultKind, Fetch, Response
from shoal.fetch.exits import ExitConfig
from shoal.fetch.http import HttpFetcher
from shoal.settings.table import Settings
from shoal.spider.page import Page
from shoal.spider.session import FetchFailed, Session
from shoal.testing.fakes import ScriptedFetcher, respond
from shoal.testing.servers.programs import free_port
from shoal.testing.sites.loopback import LoopbackServer, Reply, Request, reply
from shoal.urls.canonical import UrlRules

SETTINGS = Settings(allow_private=True, max_redirects=4)
PASSWORD = "open sesame & co"
ANNA = ExitConfig(
    name="shop/anna", kind="account", user_agent="Anna/1.0", fields={"name": "anna", "password": PASSWORD, "pin": "7"}
)
FORM = '<form action="/login" method="post"><input type="hidden" name="token" value="t1"><input name="user"></form>'


class Shop:
    """A shop with a login: a token in a form, a cookie before and another after."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.server = LoopbackServer(answer=self._answer, hosts=("127.0.0.1", "127.0.0.2"))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"

    def _answer(self, request: Request) -> Reply:
        self.asked.append(request)
        cookies = request.headers.get("cookie", "")
        if request.path == "/login" and request.method == "POST":
            return self._log_in(parse_qs(request.body.decode()), cookies)
        pages: dict[str, Callable[[], Reply]] = {
            "/login": lambda: reply(FORM, headers={"Set-Cookie": "before=1\r\nSet-Cookie: theme=dark; Path=/"}),
            "/account": lambda: reply(f"<h1>{'Hello anna' if 'id=a1' in cookies else 'Who?'}</h1>"),
            "/round": lambda: _redirect("/round"),
            "/away": lambda: _redirect(f"http://127.0.0.2:{self.server.port}/account"),
            "/again": lambda: _redirect("/echo", 307),
            "/echo": lambda: reply(f"{request.method} {request.body.decode()}", kind="text/plain"),
        }
        return pages[request.path]()

    def _log_in(self, form: dict[str, list[str]], cookies: str) -> Reply:
        is_right = form == {"user": ["anna"], "password": [PASSWORD], "token": ["t1"]} and "before=1" in cookies
        if not is_right:
            return reply("no", status=401)
        return _redirect("/account", headers={"Set-Cookie": "id=a1; Path=/; HttpOnly"})


def _redirect(location: str, status: int = 302, headers: dict[str, str] | None = None) -> Reply:
    return reply("", status=status, headers={"Location": location, **(headers or {})})


@pytest.fixture
async def shop() -> AsyncIterator[Shop]:
    shop = Shop()
    await shop.server.start()
    yield shop
    await shop.server.close()


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    fetcher = HttpFetcher(SETTINGS, exits={ANNA.name: ANNA})
    yield Session(ANNA, fetcher=fetcher, settings=SETTINGS, rules=UrlRules(SETTINGS))
    await fetcher.close()


async def log_in(session: Session, url: str) -> Page:
    page = await session.get(f"{url}/login")
    form = {"user": session.account["name"], "password": session.account["password"]}
    return await session.post("/login", form={**form, "token": page.attr("input[name=token]", "value")})


async def test_logs_in_and_stays_logged_in(shop: Shop, session: Session) -> None:
    page = await log_in(session, shop.url)
    assert page.text("h1") == "Hello anna"
    assert page.url == f"{shop.url}/account"
    assert [(request.method, request.path) for request in shop.asked] == [
        ("GET", "/login"),
        ("POST", "/login"),
        ("GET", "/account"),
    ]
    assert {request.headers["user-agent"] for request in shop.asked} == {"Anna/1.0"}
    assert "content-type" not in shop.asked[-1].headers


async def test_goes_on_with_its_cookies_elsewhere(shop: Shop, session: Session) -> None:
    await log_in(session, shop.url)
    kept = session.dump()
    assert PASSWORD.encode() not in kept
    fetcher = HttpFetcher(SETTINGS, exits={ANNA.name: ANNA})
    other = Session(ANNA, fetcher=fetcher, settings=SETTINGS, rules=UrlRules(SETTINGS))
    other.load(kept)
    url = f"{shop.url}/account"
    answer = await fetcher.fetch(Fetch(url=url, exit=ANNA.name, headers=other.headers_for(url)))
    await fetcher.close()
    assert isinstance(answer, Response)
    assert b"Hello anna" in answer.body
    assert other.headers_for("http://evil.example/") == {"User-Agent": "Anna/1.0"}


def test_unreadable_cookies_are_as_good_as_none(session: Session) -> None:
    for data in (b"", b"\xff\x00", b"\x01"):
        session.load(data)
        assert len(session.cookies) == 0


async def test_a_redirect_to_another_site_is_given_back(shop: Shop, session: Session) -> None:
    page = await session.get(f"{shop.url}/away")
    assert page.status == 302
    assert [request.host for request in shop.asked] == ["127.0.0.1"]


async def test_redirects_in_circles_end(shop: Shop, session: Session) -> None:
    page = await session.get(f"{shop.url}/round")
    assert page.status == 302
    assert len(shop.asked) == SETTINGS.max_redirects + 1


async def test_a_form_or_json_is_sent_again_when_the_site_asks_for_it(shop: Shop, session: Session) -> None:
    page = await session.post(f"{shop.url}/again", json={"a": 1})
    assert page.content == 'POST {"a":1}'
    assert shop.asked[-1].headers["content-type"] == "application/json"


def redirecting(url: str, *, to: str) -> ScriptedFetcher:
    """A fetcher for which this URL redirects, and no other."""
    script = {url: respond(url, status=307, headers={"location": to})}
    return ScriptedFetcher(script, otherwise=respond(to))


async def test_never_goes_from_https_to_http() -> None:
    fetcher = redirecting("https://shop.example/", to="http://shop.example/")
    page = await Session(ANNA, fetcher=fetcher, settings=SETTINGS, rules=UrlRules(SETTINGS)).get("https://shop.example")
    assert page.status == 307
    assert len(fetcher.requests) == 1


async def test_an_authorization_stays_with_its_origin() -> None:
    fetcher = redirecting("https://shop.example/", to="https://www.shop.example/")
    session = Session(ANNA, fetcher=fetcher, settings=SETTINGS, rules=UrlRules(SETTINGS))
    headers = {"Authorization": "Bearer x", "X-Api-Key": "y"}
    await session.post("https://shop.example/", form={"a": 1}, headers=headers)
    first, second = fetcher.requests
    assert (first.headers or {})["Authorization"] == "Bearer x"
    assert not (second.headers or {}).keys() & headers.keys()
    assert second.body == b"a=1"


async def test_waits_for_its_turn_before_every_request(shop: Shop) -> None:
    turns: list[str] = []

    async def before(url: str) -> None:
        turns.append(url.removeprefix(shop.url))

    fetcher = HttpFetcher(SETTINGS, exits={ANNA.name: ANNA})
    await log_in(Session(ANNA, fetcher=fetcher, settings=SETTINGS, rules=UrlRules(SETTINGS), before=before), shop.url)
    await fetcher.close()
    assert turns == ["/login", "/login", "/account"]


async def test_says_why_there_was_no_answer(session: Session) -> None:
    with pytest.raises(FetchFailed) as caught:
        await session.get(f"http://127.0.0.1:{free_port()}/")
    assert caught.value.fault.kind is FaultKind.CONNECT
    for url in ("ftp://shop.example/", "/relative", "http://u:p@shop.example/"):
        with pytest.raises(UsageError, match="not a http"):
            await session.get(url)


def test_shows_no_secret(session: Session) -> None:
    assert repr(session) == "<Session shop/anna>"
