"""The main document of a rendered page: its request with our headers, its answer, and what is not for a browser.

A redirect is not followed: its hop is a task of its own. A document that is no HTML is taken as it came."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from typing import Any, Final

from playwright.async_api import CDPSession

from shoal.fetch.base import REDIRECTS, Fault, Fetch, Response
from shoal.fetch.decode import too_large

BODILESS: Final = frozenset({204, 205, 304})
RENDERED_TYPES: Final = ("text/html", "application/xhtml+xml")
# Set by the browser itself, or about a body that the handler does not get.
_NOT_KEPT: Final = frozenset({"content-encoding", "content-length", "transfer-encoding", "set-cookie"})
# Cookies go into the browser's own jar; the user agent is that of the whole context.
_NOT_SENT: Final = frozenset({"cookie", "user-agent", "host", "content-length", "connection"})


class MainDocument:
    """Watches the main frame of a page. `ended` is the answer that needs no rendering, as soon as it is there."""

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
        """Begin, before the page is asked for."""
        tree = await self._session.send("Page.getFrameTree")
        self._frame = tree["frameTree"]["frame"]["id"]
        self._session.on("Fetch.requestPaused", self._paused)
        stages = ("Request", "Response")
        patterns = [{"urlPattern": "*", "resourceType": "Document", "requestStage": stage} for stage in stages]
        await self._session.send("Fetch.enable", {"patterns": patterns})

    async def close(self) -> None:
        """Forget what is still under way."""
        for task in self._working:
            task.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)

    def _paused(self, event: dict[str, Any]) -> None:
        task = asyncio.ensure_future(self._decide(event))
        self._working.add(task)
        task.add_done_callback(self._working.discard)

    async def _decide(self, event: dict[str, Any]) -> None:
        # The page may be gone before the answer to this event is.
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
        self.headers = _headers(event.get("responseHeaders") or [])
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
    """Whether a browser shows this document as a page: not a download, nor data."""
    kind = headers.get("content-type", "text/html").partition(";")[0].strip().lower()
    return kind in RENDERED_TYPES and not headers.get("content-disposition", "").lower().startswith("attachment")


def _headers(pairs: list[dict[str, str]]) -> dict[str, str]:
    kept: dict[str, str] = {}
    for pair in pairs:
        name = pair["name"].lower()
        if name not in _NOT_KEPT:
            kept[name] = f"{kept[name]}, {pair['value']}" if name in kept else pair["value"]
    return kept
