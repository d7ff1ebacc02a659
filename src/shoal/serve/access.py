"""Access control of every HTTP request: host, origin, tokens, browser sessions, limits on wrong tokens; security
headers; and the log of changes."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import math
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shoal.errors import UsageError
from shoal.logs import Events
from shoal.serve.answers import Refusal, refused
from shoal.text.secrets import masked_text

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
MADE, REFUSED = "change made", "change refused"
SHORTEST_TOKEN = 16
SESSION_SECONDS = 12 * 3600.0
MOST_SESSIONS = 1000
TRIES = 10
TRY_SECONDS = 60.0
MOST_CLIENTS = 10_000
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
COOKIE = "shoal_session"
SESSION_PATH = "/api/v1/session"
# Open without a token: health probes, the page, which has no data of its own, and the OpenAPI document.
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


def log_change(request: Request, action: str, *, crawl: str | None = None) -> None:
    """Log a request that changed something; `crawl`: the crawl that it began."""
    if request.method not in SAFE_METHODS:
        _tell(request, logging.INFO, MADE, action=action, crawl=crawl)


def log_refusal(request: Request, action: str, refusal: Refusal) -> None:
    """Log a refused request that would have changed something."""
    if request.method not in SAFE_METHODS:
        _tell(request, logging.WARNING, REFUSED, action=action, status=refusal.status, reason=masked_text(str(refusal)))


def client_of(request: Request) -> str:
    """The address of the caller, as named by a proxy on this machine if there is one."""
    return request.client.host if request.client else "unknown"


def _tell(
    request: Request, level: int, event: str, *, action: str, crawl: str | None = None, **more: str | int
) -> None:
    given = request.scope.get("path_params", {})
    fields = {
        "host": given.get("host", ""),
        "schedule": given.get("schedule", ""),
        "action": action,
        "role": request.scope.get("state", {}).get("role", ""),
        "client": client_of(request),
    }
    Events(crawl=crawl or given.get("crawl", "")).tell(level, event, None, **fields, **more)


Role = Literal["admin", "reader"]


class Session(NamedTuple):
    role: Role
    ends: float


class Tries:
    """Counts each client's wrong tokens of the last minute."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._wrong: OrderedDict[str, deque[float]] = OrderedDict()

    def wait(self, client: str) -> float:
        """Seconds until this client may try again."""
        wrong = self._wrong.get(client)
        if wrong is None:
            return 0.0
        while wrong and self._clock() - wrong[0] >= TRY_SECONDS:
            wrong.popleft()
        return TRY_SECONDS - (self._clock() - wrong[0]) if len(wrong) >= TRIES else 0.0

    def count(self, client: str) -> None:
        """Count a wrong token of this client."""
        self._wrong.setdefault(client, deque(maxlen=TRIES)).append(self._clock())
        self._wrong.move_to_end(client)
        while len(self._wrong) > MOST_CLIENTS:
            self._wrong.popitem(last=False)


class Access:
    """The tokens of a process, and the sessions that were opened with them, in memory.

    Without tokens everybody is an admin: then the process listens on loopback alone. `hosts` are the allowed host
    names; `any_address`: any IP address is allowed too."""

    def __init__(
        self,
        *,
        token: str = "",
        reader_token: str = "",
        hosts: Iterable[str] = (),
        any_address: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_tokens(token, reader_token)
        self._tokens: dict[Role, bytes] = {}
        if token:
            self._tokens["admin"] = token.encode()
        if reader_token:
            self._tokens["reader"] = reader_token.encode()
        self._hosts = LOOPBACK_NAMES | {name.lower().strip("[]") for name in hosts}
        self._any_address = any_address
        self._clock = clock
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()
        self.tries = Tries(clock)

    @property
    def is_open(self) -> bool:
        """Whether there are no tokens."""
        return not self._tokens

    def role_of(self, token: str) -> Role | None:
        """The role of a token. All tokens are compared in constant time."""
        given = token.encode("utf-8", "surrogateescape")
        found: Role | None = None
        for role, known in self._tokens.items():
            if hmac.compare_digest(_digest(given), _digest(known)):
                found = found or role
        return found

    def sign_in(self, role: Role) -> str:
        """Open a session; returns its secret for the browser's cookie."""
        secret = secrets.token_urlsafe(32)
        self._sessions[_digest(secret.encode())] = Session(role, self._clock() + SESSION_SECONDS)
        while len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return secret

    def session_role(self, secret: str) -> Role | None:
        """The role of a session; None: unknown or expired."""
        found = self._sessions.get(_digest(secret.encode("utf-8", "surrogateescape")))
        return found.role if found is not None and self._clock() < found.ends else None

    def sign_out(self, secret: str) -> None:
        """End a session."""
        self._sessions.pop(_digest(secret.encode("utf-8", "surrogateescape")), None)

    def knows_host(self, host: str) -> bool:
        """Whether the host name is allowed: prevents DNS rebinding by a foreign site."""
        if host in self._hosts:
            return True
        return self._any_address and _is_address(host)


def check_tokens(token: str, reader_token: str) -> None:
    """UsageError for tokens that are short, equal, or cannot be sent in a header."""
    for name, value in (("token", token), ("reader token", reader_token)):
        if value and len(value) < SHORTEST_TOKEN:
            raise UsageError(
                f"the {name} has {len(value)} characters, {SHORTEST_TOKEN} are the least:"
                " `python3 -c 'import secrets; print(secrets.token_urlsafe())'` makes one"
            )
        if not value.isascii() or any(character.isspace() for character in value):
            raise UsageError(f"the {name} has spaces or characters beyond ASCII: no header can carry it")
    if token and token == reader_token:
        raise UsageError("the token and the reader token are the same: readers could change crawls")


def is_loopback(host: str) -> bool:
    """Whether the name or address is reachable from this machine alone."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Whether the address means all addresses of this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _digest(value: bytes) -> bytes:
    return hashlib.sha256(value).digest()


class Gate:
    """The middleware that refuses requests or passes them to the app, with the caller's role in `request.state`."""

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
            log_refusal(request, f"{request.method} {request.url.path}", refusal)
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
        """Refuse a change from another site's page (CSRF). Programs other than browsers send neither header."""
        if request.method in SAFE_METHODS:
            return
        headers = request.headers
        site, origin = headers.get("sec-fetch-site"), headers.get("origin")
        is_foreign = site is not None and site not in ("same-origin", "none")
        if is_foreign or (origin is not None and not is_same_origin(origin, headers["host"])):
            raise Refusal(403, "changes are taken from this server's own page alone, or from programs: not from there")

    def _role(self, request: Request) -> Role:
        """The role of the caller. Refuses callers without a token, and changes by readers."""
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
    """The role of a token. A client with many wrong tokens must wait, even with a right one."""
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
    """Whether an Origin header names this host. Both leave out default ports."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()


def is_open(path: str) -> bool:
    """Whether a path needs no token."""
    return path in OPEN_PATHS or path.startswith(OPEN_FOLDERS)
