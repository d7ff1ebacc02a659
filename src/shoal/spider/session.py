"""The argument of a spider's `login`: an account to log in, with requests that keep its cookies."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

import msgspec

from shoal.errors import UsageError
from shoal.fetch.base import REDIRECTS, Fault, Fetch, Fetcher, Response, location_of
from shoal.fetch.cookies import CookieJar, site_of
from shoal.fetch.exits import ExitConfig
from shoal.model import Task
from shoal.settings.table import Settings
from shoal.spider.markup import MarkupLimits
from shoal.spider.page import Page
from shoal.text.secrets import visible_origin, without_secrets
from shoal.urls.canonical import UrlRules, lane_of, origin_of

_FORM: Final = "application/x-www-form-urlencoded"


class FetchFailed(Exception):  # noqa: N818 -- reads as what happened
    """A request of a session got no response.

    - `fault`: the reason: its `kind`, such as "dns", and a `message`
    """

    def __init__(self, fault: Fault) -> None:
        super().__init__(f"{fault.kind}: {fault.message}")
        self.fault = fault


class Session:
    """An account to log in. Its requests send the account's cookies and User-Agent, through its proxy, if it has one.

    Redirects within the site are followed. A redirect to another site, or from https to http, is returned as a page.

    - `cookies`: the account's cookies, kept for its pages
    """

    def __init__(
        self,
        config: ExitConfig,
        *,
        fetcher: Fetcher,
        settings: Settings,
        rules: UrlRules,
        before: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """before: awaited with the URL of every request, to keep the host's pace."""
        self.cookies = CookieJar()
        self._config = config
        self._fetcher = fetcher
        self._settings = settings
        self._rules = rules
        self._limits = MarkupLimits(settings.max_tags, settings.max_nesting)
        self._before = before
        self._url = ""

    @property
    def account(self) -> Mapping[str, str]:
        """The account's configured name, password and other fields."""
        return MappingProxyType(self._config.fields)

    async def get(self, url: str, *, headers: Mapping[str, str] | None = None) -> Page:
        """Fetch a page. After the first request, the URL may be relative to the last page.

        Raises FetchFailed if there is no response, UsageError for a URL that is neither http nor https."""
        return await self._send("GET", url, dict(headers or {}), None)

    async def post(
        self,
        url: str,
        *,
        form: Mapping[str, Any] | None = None,
        json: Any = None,
        headers: Mapping[str, str] | None = None,
    ) -> Page:
        """Send a form or JSON and return the response as a page. Raises like `get`."""
        if form is not None:
            kind, body = _FORM, urlencode(form, doseq=True).encode()
        else:
            kind, body = "application/json", msgspec.json.encode(json)
        return await self._send("POST", url, {"Content-Type": kind, **(headers or {})}, body)

    def headers_for(self, url: str) -> dict[str, str]:
        """The headers with the account's cookies and User-Agent for a URL. For shoal itself."""
        cookies, agent = self.cookies.header(url), self._config.user_agent
        return {name: value for name, value in (("Cookie", cookies), ("User-Agent", agent)) if value}

    def take(self, response: Response) -> bool:
        """Keep the cookies of a response; returns whether there are new ones. For shoal itself."""
        return self.cookies.take(response.url, response.headers.get("set-cookie"))

    def dump(self) -> bytes:
        """The cookies as bytes for the frontier. For shoal itself."""
        return self.cookies.dump()

    def load(self, data: bytes) -> None:
        """Load dumped cookies; unreadable bytes count as none, so the account logs in again. For shoal itself."""
        try:
            self.cookies = CookieJar.load(data)
        except msgspec.MsgspecError:
            self.cookies = CookieJar()

    async def _send(self, method: str, href: str, headers: dict[str, str], body: bytes | None) -> Page:
        url = self._resolved(href)
        if url is None:
            raise UsageError(f"a session cannot fetch {visible_origin(href)[:80]!r}: it is not a http or https URL")
        fetch = Fetch(url=url, method=method, headers=headers, body=body, exit=self._config.name)
        for _ in range(self._settings.max_redirects):
            response = await self._fetch(fetch)
            following = self._following(response)
            if following is None:
                break
            fetch = _redirected(fetch, following, status=response.status)
        else:
            response = await self._fetch(fetch)
        task = Task(url=response.url, key=self._rules.key_of(response.url), lane=lane_of(response.url))
        return Page(response, task=task, resolver=self._rules, limits=self._limits)

    async def _fetch(self, request: Fetch) -> Response:
        if self._before is not None:
            await self._before(request.url)
        headers = {**self.headers_for(request.url), **(request.headers or {})}
        answer = await self._fetcher.fetch(msgspec.structs.replace(request, headers=headers))
        if isinstance(answer, Fault):
            raise FetchFailed(answer)
        self._url = answer.url
        self.take(answer)
        return answer

    def _following(self, response: Response) -> str | None:
        """The target of a redirect, if a login may follow it."""
        location = location_of(response.headers) if response.status in REDIRECTS else ""
        following = self._resolved(location) if location else None
        if following is None or _site(following) != _site(response.url):
            return None
        return None if response.url.startswith("https:") and not following.startswith("https:") else following

    def _resolved(self, href: str) -> str | None:
        link = self._rules.resolve(href, self._url)
        return link.url if link.lane and link.rejected != "credentials" else None

    def __repr__(self) -> str:
        return f"<Session {self._config.name}>"


def _redirected(fetch: Fetch, url: str, *, status: int) -> Fetch:
    """The request of the next hop, as browsers make it; without secret headers for another origin."""
    method, body, headers = fetch.method, fetch.body, fetch.headers or {}
    if origin_of(url) != origin_of(fetch.url):
        headers = without_secrets(headers) or {}
    if status not in (307, 308):
        method, body = "GET", None
        headers = {name: value for name, value in headers.items() if not name.lower().startswith("content-")}
    return msgspec.structs.replace(fetch, url=url, method=method, headers=headers, body=body)


def _site(url: str) -> str:
    return site_of(urlsplit(url).hostname or "")
