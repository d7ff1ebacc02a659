"""What every request passes before it is answered: host, origin, role; and the headers of every answer."""

from __future__ import annotations

import math
from collections.abc import MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.serve.access import Access, Role
from shoal.serve.answers import Refusal, refused
from shoal.serve.change_log import SAFE_METHODS, client_of, tell_refused

COOKIE = "shoal_session"
SESSION_PATH = "/api/v1/session"
# Without a token: what probes ask for, the page, which has no data of its own, and the description of the API.
OPEN_PATHS = ("/healthz", "/readyz", "/", "/schedules", "/favicon.ico", "/api/v1/openapi.json", SESSION_PATH)
OPEN_FOLDERS = ("/static/", "/crawls/", "/schedules/")
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CONTENT_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


class Gate:
    """Lets requests through to the app, or refuses them. The app finds the role of the caller in the request."""

    def __init__(self, app: ASGIApp, *, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            self._check_host(request.headers)
            self._check_origin(request)
            state: MutableMapping[str, Any] = scope.setdefault("state", {})
            state["role"] = self._role(request)
        except Refusal as refusal:
            tell_refused(request, f"{request.method} {request.url.path}", refusal)
            await refused(refusal)(scope, receive, send_with_headers)
            return
        await self._app(scope, receive, send_with_headers)

    def _check_host(self, headers: Headers) -> None:
        given = headers.getlist("host")
        name = host_name(given[0]) if len(given) == 1 else ""
        if not name:
            raise Refusal(400, "the request names no host, or several: send one Host header")
        if not self._access.knows_host(name):
            raise Refusal(
                403, f"the host name {name} is not served here: start with --public-host {name} if it is meant"
            )

    def _check_origin(self, request: Request) -> None:
        """Refuse a change that another site's page asks a browser for. Programs send neither of the two headers."""
        if request.method in SAFE_METHODS:
            return
        headers = request.headers
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        is_foreign = site is not None and site not in ("same-origin", "none")
        if is_foreign or (origin is not None and not is_same_origin(origin, headers["host"])):
            raise Refusal(403, "changes are taken from this server's own page alone, or from programs: not from there")

    def _role(self, request: Request) -> Role:
        """The role of the caller; refuses callers without one, and readers that change something."""
        role = self._role_given(request)
        if role is None and not is_open(request.url.path):
            raise Refusal(
                401,
                "sign in, or send the token: Authorization: Bearer TOKEN",
                headers={"WWW-Authenticate": 'Bearer realm="shoal"'},
            )
        is_change = request.method not in SAFE_METHODS and request.url.path != SESSION_PATH
        if role != "admin" and is_change:
            raise Refusal(403, "the reader token may look, not change: use the other one")
        return role or "reader"

    def _role_given(self, request: Request) -> Role | None:
        if self._access.is_open:
            return "admin"
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return checked_token(self._access, token.strip(), client_of(request))
        return self._access.session_role(request.cookies.get(COOKIE, ""))


def checked_token(access: Access, token: str, client: str) -> Role:
    """The role of a token. A client that gave many wrong ones must wait, also with a right one."""
    wait = access.tries.wait(client)
    if wait > 0:
        seconds = str(math.ceil(wait))
        line = f"too many wrong tokens from {client}: try again in {seconds} s"
        raise Refusal(429, line, headers={"Retry-After": seconds})
    role = access.role_of(token)
    if role is None:
        access.tries.count(client)
        raise Refusal(401, "this token is not known here", headers={"WWW-Authenticate": 'Bearer realm="shoal"'})
    return role


def host_name(given: str) -> str:
    """The name in a Host header, without the port; empty if it is none."""
    try:
        parts = urlsplit(f"//{given}")
        _ = parts.port
    except ValueError:
        return ""
    return (parts.hostname or "") if not parts.path and "@" not in given else ""


def is_same_origin(origin: str, host: str) -> bool:
    """Whether an Origin header names the host that was asked. Ports that go without saying are left out by both."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()


def is_open(path: str) -> bool:
    """Whether a path is for everybody."""
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDERS)
