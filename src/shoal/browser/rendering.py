"""Renders one page in a browser: loads it, waits, does the steps of the request, and returns the DOM.

Redirects of the main document are not followed: each hop is a task. A document that is no HTML is returned as received.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Sequence
from email.utils import formatdate
from typing import Any, Final
from urllib.parse import urlsplit

from playwright.async_api import BrowserContext, CDPSession, Cookie, Page, ProxySettings, Request, Route
from playwright.async_api import Error as PlaywrightError

from shoal.browser.chromium import RunningBrowser
from shoal.browser.page_proxy import PageProxy
from shoal.fetch.base import REDIRECTS, Fault, FaultKind, Fetch, Response
from shoal.fetch.decode import too_large
from shoal.fetch.faults import one_line
from shoal.model import Render
from shoal.settings.table import Settings

BODILESS: Final = frozenset({204, 205, 304})
RENDERED_TYPES: Final = ("text/html", "application/xhtml+xml")
# Set by the browser itself, or about a body other than the DOM.
_NOT_KEPT: Final = frozenset({"content-encoding", "content-length", "transfer-encoding", "set-cookie"})
# Cookies are in the browser's jar, the User-Agent is set for the context.
_NOT_SENT: Final = frozenset({"cookie", "user-agent", "host", "content-length", "connection"})

UNTIL: Final = {"dom": "domcontentloaded", "load": "load", "quiet": "networkidle"}
GROW_SECONDS: Final = 2.0
MAX_SCROLLS: Final = 1000
CLOSED: Final = "has been closed"  # in Playwright's error for a page that is closed, with its browser or without
END_SECONDS: Final = 2.0  # the end of a browser may be reported so long after that of its pages
ERROR_LENGTH: Final = 200  # characters of an error that are shown
# Scrolls to the end of the page; true as soon as the page has grown, false if it does not.
SCROLL: Final = """seconds => new Promise(done => {
    const root = document.scrollingElement || document.documentElement;
    const before = root.scrollHeight, until = performance.now() + seconds * 1000;
    window.scrollTo(0, before);
    const check = () => {
        if (root.scrollHeight > before) done(true);
        else if (performance.now() > until) done(false);
        else setTimeout(check, 50);
    };
    check();
})"""


class Rendering:
    """One page in a browser context of its own, without cookies, cache and service workers of other pages."""

    def __init__(self, running: RunningBrowser, request: Fetch, *, page_proxy: PageProxy, settings: Settings) -> None:
        self._running = running
        self._request = request
        self.render = request.render or Render()
        self._page_proxy = page_proxy
        self._settings = settings
        self._document: MainDocument | None = None
        self._has_crashed = False
        self.context: BrowserContext | None = None
        self.given_up = asyncio.Event()
        self.too_much = ""
        self.requests = 0

    def give_up(self, reason: str) -> None:
        """Stop: the page exceeds a limit."""
        self.too_much = self.too_much or reason
        self.given_up.set()

    async def run(self, proxy: str) -> Response | Fault:
        """The rendered page, or the fault."""
        try:
            page = await self._open(proxy)
            document = self._document = MainDocument(
                await page.context.new_cdp_session(page), self._request, most_bytes=self._settings.max_body_bytes
            )
            await document.watch()
            response = await page.goto(self._request.url, wait_until="commit", timeout=0)
            if document.ended is None and response is not None:
                await self._do(page)
                return await self._taken(page, document)
        except PlaywrightError as error:
            if CLOSED in error.message:
                await self._running.wait_for_its_end(END_SECONDS)
            return self._explained(error)
        finally:
            if self._document is not None:
                await self._document.close()
        return document.ended or Fault(kind=FaultKind.BROWSER, message="the page gave no document")

    async def _open(self, proxy: str) -> Page:
        agent = next((text for name, text in _headers(self._request) if name == "user-agent"), None)
        self.context = context = await self._running.browser.new_context(
            proxy=ProxySettings(server=proxy, bypass="<-loopback>"),
            accept_downloads=False,
            user_agent=agent or self._settings.user_agent or None,
        )
        context.set_default_timeout(0)  # the page's own deadline is enough
        context.on("request", self._count)
        cookies = given_cookies(self._request)
        if cookies:
            await context.add_cookies(cookies)
        if self.render.block:
            await context.route("**/*", self._sieve)
        page = await context.new_page()
        page.on("crash", lambda _: self._crashed())
        # Registered after the first page: closes only windows that the page opens.
        context.on("page", lambda other: asyncio.ensure_future(_close(other)))
        return page

    def _count(self, _: Request) -> None:
        self.requests += 1
        if self.requests > self._settings.render_requests:
            self.give_up(f"the page made more than {self._settings.render_requests} requests (render_requests)")

    def _crashed(self) -> None:
        self._has_crashed = True
        self.given_up.set()

    async def _sieve(self, route: Route) -> None:
        if route.request.resource_type in self.render.block:
            await route.abort("blockedbyclient")
        else:
            await route.continue_()

    async def _do(self, page: Page) -> None:
        """Wait, and do the steps of the request."""
        await page.wait_for_load_state(UNTIL[self.render.wait])  # type: ignore[arg-type]  # one of its words
        if self.render.wait_for:
            await page.wait_for_selector(self.render.wait_for, state="attached")
        for step in self.render.steps:
            [(name, what)] = step.items()
            match name:
                case "click":
                    await page.click(str(what))
                case "scroll":
                    await _scroll(page, int(what))
                case "script":
                    await page.evaluate(f"async () => {{ {what} }}")
                case _:
                    await page.wait_for_selector(str(what), state="attached")

    async def _taken(self, page: Page, document: MainDocument) -> Response | Fault:
        if document.ended is not None:  # a script navigated to a document that is no page
            return document.ended
        body = (await page.content()).encode("utf-8", "replace")
        if len(body) > self._settings.max_body_bytes:
            return too_large(self._settings.max_body_bytes)
        picture = await page.screenshot(full_page=True) if self.render.screenshot else b""
        url = page.url.partition("#")[0]
        headers = {**document.headers, "content-type": "text/html; charset=utf-8"}
        lines = set_cookies(await page.context.cookies(url), self._request) if page.context else ""
        if lines:
            headers["set-cookie"] = lines
        return Response(
            url=url,
            status=document.status,
            headers=headers,
            body=body,
            wire_size=self._page_proxy.received,
            elapsed=0.0,
            screenshot=picture,
        )

    def limit_fault(self) -> Fault | None:
        """The fault of a page that exceeded a limit."""
        if self._has_crashed:
            most = self._settings.render_memory // (1024 * 1024)
            message = f"the page's process died, as with more than {most} MiB of memory (render_memory)"
            return Fault(kind=FaultKind.BROWSER, message=message)
        return Fault(kind=FaultKind.TOO_LARGE, message=self.too_much) if self.too_much else None

    def _explained(self, error: PlaywrightError) -> Response | Fault:
        document = self._document
        if document is not None and document.ended is not None:
            return document.ended
        fault = self.limit_fault() or self._page_proxy.fault_of(self._request.url)
        if fault is not None:
            return fault
        text = one_line(error.message.partition("\n")[0])[:ERROR_LENGTH]
        is_tls = "ERR_CERT" in text or "ERR_SSL" in text
        if "net::ERR_" in text:
            return Fault(kind=FaultKind.TLS if is_tls else FaultKind.CONNECT, message=text)
        return Fault(kind=FaultKind.BROWSER, message=text)


class MainDocument:
    """The main document of a page: sends its request with our headers. `ended`: the response, if it needs no
    rendering."""

    def __init__(self, session: CDPSession, request: Fetch, *, most_bytes: int) -> None:
        self._session = session
        self._request = request
        self._most_bytes = most_bytes
        self._frame = ""
        self._is_first = True
        self._working: set[asyncio.Task[None]] = set()
        self.ended: Response | Fault | None = None
        self.status = 0
        self.headers: dict[str, str] = {}

    async def watch(self) -> None:
        """Start to intercept requests; call it before the page is loaded."""
        tree = await self._session.send("Page.getFrameTree")
        self._frame = tree["frameTree"]["frame"]["id"]
        self._session.on("Fetch.requestPaused", self._paused)
        stages = ("Request", "Response")
        patterns = [{"urlPattern": "*", "resourceType": "Document", "requestStage": stage} for stage in stages]
        await self._session.send("Fetch.enable", {"patterns": patterns})

    async def close(self) -> None:
        """Cancel the work on intercepted requests."""
        for task in self._working:
            task.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)

    def _paused(self, event: dict[str, Any]) -> None:
        task = asyncio.ensure_future(self._decide(event))
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _decide(self, event: dict[str, Any]) -> None:
        # The page may be closed before this event is answered.
        with contextlib.suppress(Exception):
            is_main = event["frameId"] == self._frame
            if "responseStatusCode" not in event and "responseErrorReason" not in event:
                await self._send(event, is_ours=is_main and self._is_first)
            elif is_main and "responseStatusCode" in event:
                await self._receive(event)
            else:
                await self._session.send("Fetch.continueResponse", {"requestId": event["requestId"]})

    async def _send(self, event: dict[str, Any], *, is_ours: bool) -> None:
        changed: dict[str, Any] = {"requestId": event["requestId"]}
        if is_ours:
            self._is_first = False
            own = {name: text for name, text in (self._request.headers or {}).items() if name.lower() not in _NOT_SENT}
            if own or self._request.method != "GET" or self._request.body is not None:
                named = {name.lower() for name in own}
                kept = {name: text for name, text in event["request"]["headers"].items() if name.lower() not in named}
                changed["headers"] = [{"name": name, "value": text} for name, text in {**kept, **own}.items()]
                changed["method"] = self._request.method
            if self._request.body is not None:
                changed["postData"] = base64.b64encode(self._request.body).decode()
        await self._session.send("Fetch.continueRequest", changed)

    async def _receive(self, event: dict[str, Any]) -> None:
        self.status = event["responseStatusCode"]
        self.headers = _header_dict(event.get("responseHeaders") or [])
        is_hop = self.status in REDIRECTS and "location" in self.headers
        has_body = not is_hop and self.status not in BODILESS
        if not has_body or not _is_rendered(self.headers):
            body = b"" if not has_body else await self._body(event["requestId"])
            self.ended = self._answer(body)
            await self._session.send("Fetch.failRequest", {"requestId": event["requestId"], "errorReason": "Aborted"})
        else:
            await self._session.send("Fetch.continueResponse", {"requestId": event["requestId"]})

    async def _body(self, request_id: str) -> bytes:
        got = await self._session.send("Fetch.getResponseBody", {"requestId": request_id})
        return base64.b64decode(got["body"]) if got["base64Encoded"] else got["body"].encode()

    def _answer(self, body: bytes) -> Response | Fault:
        if len(body) > self._most_bytes:
            return too_large(self._most_bytes)
        return Response(
            url=self._request.url,
            status=self.status,
            headers=self.headers,
            body=body,
            wire_size=len(body),
            elapsed=0.0,
        )


def _is_rendered(headers: dict[str, str]) -> bool:
    """Whether a browser shows this document as a page, and not as a download or data."""
    kind = headers.get("content-type", "text/html").partition(";")[0].strip().lower()
    return kind in RENDERED_TYPES and not headers.get("content-disposition", "").lower().startswith("attachment")


def _header_dict(pairs: list[dict[str, str]]) -> dict[str, str]:
    kept: dict[str, str] = {}
    for pair in pairs:
        name = pair["name"].lower()
        if name not in _NOT_KEPT:
            kept[name] = f"{kept[name]}, {pair['value']}" if name in kept else pair["value"]
    return kept


def _headers(request: Fetch) -> list[tuple[str, str]]:
    return [(name.lower(), text) for name, text in (request.headers or {}).items()]


async def _scroll(page: Page, times: int) -> None:
    for _ in range(min(times, MAX_SCROLLS)):
        if not await page.evaluate(SCROLL, GROW_SECONDS):
            return


async def _close(page: Any) -> None:
    """Close a window that the page opened."""
    try:
        await page.close()
    except PlaywrightError:
        return  # it is closed already


def given_cookies(request: Fetch) -> list[Any]:
    """The cookies of a request for the browser's jar, only for the page's host."""
    parts = urlsplit(request.url)
    origin = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}/"
    return [{"name": name, "value": value, "url": origin} for name, value in _sent(request)]


def set_cookies(found: Sequence[Cookie], request: Fetch) -> str:
    """The cookies that the page has set, by header or by script, as Set-Cookie lines."""
    known = set(_sent(request))
    return "\n".join(_line(cookie) for cookie in found if (cookie.get("name"), cookie.get("value")) not in known)


def _sent(request: Fetch) -> list[tuple[str, str]]:
    header = next((text for name, text in (request.headers or {}).items() if name.lower() == "cookie"), "")
    pairs = (pair.strip().partition("=") for pair in header.split(";"))
    return [(name, value) for name, _, value in pairs if name]


def _line(cookie: Cookie) -> str:
    domain = cookie.get("domain", "")
    expires = cookie.get("expires", -1)
    parts = [f"{cookie.get('name')}={cookie.get('value')}", f"Path={cookie.get('path') or '/'}"]
    parts += [f"Domain={domain}"] if domain.startswith(".") else []
    parts += [f"Expires={formatdate(expires, usegmt=True)}"] if expires and expires > 0 else []
    parts += ["Secure"] if cookie.get("secure") else []
    parts += ["HttpOnly"] if cookie.get("httpOnly") else []
    return "; ".join(parts)
