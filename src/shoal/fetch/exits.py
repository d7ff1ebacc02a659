"""The configuration of an exit (proxy, gateway, account, address) with its secrets, and a fetcher bound to one exit."""

from __future__ import annotations

import re
from typing import Any, Final, Literal
from urllib.parse import unquote, urlsplit

import msgspec

from shoal.fetch.base import Fault, FaultKind, Fetch, Fetcher, Response
from shoal.model import ExitUse, Lease

TARGET: Final = "{url}"  # the placeholder of the page's URL in a gateway's template
SHORTEST_WORD: Final = 8  # of a header's value, to be a secret by itself
# A word after a gateway's host is a key by its name, or if it is long and has digits. Others are options.
_KEY: Final = re.compile(
    r"[^=]*(?:key|token|secret|pass|auth|sign|credential)[^=]*=.{4,}|(?:[^=]*=)?(?=[^=]*\d)[^=]{12,}", re.IGNORECASE
)


# Faults before a request was sent.
NEVER_SENT: Final = frozenset(
    {FaultKind.DNS, FaultKind.REFUSED_ADDRESS, FaultKind.BAD_URL, FaultKind.LOCAL, FaultKind.SHORTAGE}
)


class ExitConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of one exit.

    - `kind`: `address`: one of this machine's addresses; `key`: an account without a login, only with `headers`
    - `url`: a proxy's URL, a gateway's template, or the proxy of an account, if it has one
    - `fields`: the account data for the spider's login
    - `headers`: headers of an account, sent only to `hosts`: prefixes of URLs such as https://api.example.com/
    - `error_statuses`: statuses of a gateway's own errors
    - `forwards_secrets`: the gateway gets Authorization and Cookie headers, too
    """

    name: str
    kind: Literal["proxy", "gateway", "account", "address", "key"]
    url: str = ""
    address: str = ""
    user_agent: str = ""
    fields: dict[str, str] = msgspec.field(default_factory=dict)
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    hosts: tuple[str, ...] = ()
    error_statuses: tuple[int, ...] = ()
    forwards_secrets: bool = False

    def __repr__(self) -> str:
        return f"<ExitConfig {self.name}>"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("name", self.name)]


def secrets_of(config: ExitConfig) -> list[str]:
    """The secrets of an exit: its password, the fields and headers of an account, the key of a gateway."""
    fields = [value for name, value in config.fields.items() if name != "name"]
    for value in config.headers.values():
        # The word after `Bearer` is a secret by itself.
        fields += [value, *(word for word in value.split()[1:] if len(word) >= SHORTEST_WORD)]
    parts = urlsplit(config.url.replace(TARGET, ""))
    # Some services have their key as the user name, without a password.
    password = unquote(parts.password or parts.username or "")
    behind = re.split("[/&;]", f"{parts.path}&{parts.query}") if config.kind == "gateway" else []
    keys = [unquote(word.rpartition("=")[2]) for word in behind if _KEY.fullmatch(word)]
    return [*fields, *([password] if password else []), *keys]


def headers_for(config: ExitConfig, url: str, own: dict[str, str] | None) -> dict[str, str] | None:
    """The request's own headers, and those of the account if the URL is one of its hosts. The request's own win."""
    if not config.headers or not url.startswith(config.hosts):
        return own
    names = {name.lower() for name in own or {}}
    return {**{name: text for name, text in config.headers.items() if name.lower() not in names}, **(own or {})}


class ExitFetcher:
    """Sends requests through the exit of a lease; counts bytes and seconds, and keeps the last answer."""

    def __init__(self, fetcher: Fetcher, lease: Lease) -> None:
        self._fetcher = fetcher
        self._exit = lease.exit
        self.was_used = False
        self.size = 0
        self.elapsed = 0.0
        self.answer: Response | Fault | None = None

    async def fetch(self, request: Fetch) -> Response | Fault:
        """Send the request through the exit."""
        answer = await self._fetcher.fetch(msgspec.structs.replace(request, exit=self._exit))
        self.answer = answer
        self.was_used = self.was_used or not (isinstance(answer, Fault) and answer.kind in NEVER_SENT)
        self.size += answer.wire_size if isinstance(answer, Response) else 0
        self.elapsed += answer.elapsed
        return answer

    async def close(self) -> None:
        """Do nothing: the fetcher belongs to the worker."""

    def use(
        self, verdict: Literal["ok", "blocked", "failed", "used"] = "ok", *, session: bytes | None = None
    ) -> ExitUse:
        """The report on the exit for the frontier."""
        said = verdict if self.was_used else "unused"
        return ExitUse(verdict=said, size=self.size, elapsed=self.elapsed, session=session)
