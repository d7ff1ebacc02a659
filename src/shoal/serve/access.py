"""Who may do what: tokens, sessions of browsers, and how often a wrong token may be tried. Kept in memory."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple

from shoal.errors import UsageError

Role = Literal["admin", "reader"]

SHORTEST_TOKEN = 16
SESSION_SECONDS = 12 * 3600.0
MOST_SESSIONS = 1000
TRIES = 10
TRY_SECONDS = 60.0
MOST_CLIENTS = 10_000
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class Session(NamedTuple):
    role: Role
    ends: float


class Tries:
    """Wrong tokens of each client within the last minute."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._wrong: OrderedDict[str, deque[float]] = OrderedDict()

    def wait(self, client: str) -> float:
        """How many seconds this client must wait before it may try again."""
        wrong = self._wrong.get(client)
        if wrong is None:
            return 0.0
        while wrong and self._clock() - wrong[0] >= TRY_SECONDS:
            wrong.popleft()
        return TRY_SECONDS - (self._clock() - wrong[0]) if len(wrong) >= TRIES else 0.0

    def count(self, client: str) -> None:
        """This client gave a wrong token."""
        self._wrong.setdefault(client, deque(maxlen=TRIES)).append(self._clock())
        self._wrong.move_to_end(client)
        while len(self._wrong) > MOST_CLIENTS:
            self._wrong.popitem(last=False)


class Access:
    """The tokens of a process, and the sessions that were opened with them.

    Without tokens everybody who reaches the process is an admin: it listens on loopback alone then. `hosts` are names
    by which people reach it, `any_address`: also by any of its addresses."""

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
        """Whether nobody has to sign in."""
        return not self._tokens

    def role_of(self, token: str) -> Role | None:
        """Whose token this is. Every token is compared as a whole: the time tells nothing about it."""
        given = token.encode("utf-8", "surrogateescape")
        found: Role | None = None
        for role, known in self._tokens.items():
            if hmac.compare_digest(_digest(given), _digest(known)):
                found = found or role
        return found

    def sign_in(self, role: Role) -> str:
        """A new session; gives the secret that the browser keeps."""
        secret = secrets.token_urlsafe(32)
        self._sessions[_digest(secret.encode())] = Session(role, self._clock() + SESSION_SECONDS)
        while len(self._sessions) > MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return secret

    def session_role(self, secret: str) -> Role | None:
        """The role of a session that has not ended."""
        found = self._sessions.get(_digest(secret.encode("utf-8", "surrogateescape")))
        return found.role if found is not None and self._clock() < found.ends else None

    def sign_out(self, secret: str) -> None:
        """End a session."""
        self._sessions.pop(_digest(secret.encode("utf-8", "surrogateescape")), None)

    def knows_host(self, host: str) -> bool:
        """Whether people reach this process by this name. Else a foreign site may have pointed its own name here."""
        if host in self._hosts:
            return True
        return self._any_address and _is_address(host)


def check_tokens(token: str, reader_token: str) -> None:
    """Refuse tokens that can be guessed, or that cannot be told apart."""
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
    """Whether only this machine reaches what listens at this name or address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def is_wildcard(host: str) -> bool:
    """Whether all addresses of this machine are meant."""
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
