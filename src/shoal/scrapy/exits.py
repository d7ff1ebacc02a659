"""The exits of a process's leases: how Scrapy's requests leave through them, which fault an exception means, and the
report on each exit."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple
from urllib.parse import unquote, urlsplit

import msgspec
from scrapy import Request
from scrapy.exceptions import (
    CannotResolveHostError,
    DownloadCancelledError,
    DownloadConnectionRefusedError,
    DownloadFailedError,
    DownloadTimeoutError,
    ResponseDataLossError,
    UnsupportedURLSchemeError,
)
from twisted.internet.error import ConnectError, ConnectionClosed
from twisted.internet.error import TimeoutError as ConnectTimeout
from twisted.python.failure import Failure
from w3lib.http import basic_auth_header

from shoal.exits.passage import MISSING_SECONDS, Failures
from shoal.exits.refusals import ExitRefusal, Refused, ending_of, unused, verdict_on
from shoal.exits.troubles import Troubles, trouble_of
from shoal.fetch.base import Fault, FaultKind, Response
from shoal.fetch.exits import ExitConfig
from shoal.fetch.faults import SHORTAGES, one_line
from shoal.fetch.proxies import fault_of
from shoal.model import DIRECT, ExitUse, Lease, Pool, Released, Result

PROXY, AUTHORIZATION = "proxy", "Proxy-Authorization"

# Raised by download handlers if the connection could not be made; behind a proxy, to the proxy.
_NOT_CONNECTED = (DownloadConnectionRefusedError, CannotResolveHostError, ConnectError)
_STATUS = re.compile(r"\b(\d{3})\b")
_TUNNEL_STATUS = re.compile(r"'status': (\d{3})")
_KINDS: tuple[tuple[type[Exception], FaultKind], ...] = (
    (DownloadTimeoutError, FaultKind.TIMEOUT_TOTAL),
    (ResponseDataLossError, FaultKind.TRUNCATED),
    (DownloadCancelledError, FaultKind.TOO_LARGE),
    (UnsupportedURLSchemeError, FaultKind.BAD_URL),
)


class _Proxy(NamedTuple):
    """A proxy for Scrapy's handlers: its URL, and its credentials separately."""

    url: str
    credentials: bytes | None


@dataclass(eq=False, kw_only=True)
class LeasedExit:
    """The exit of one lease. `refused`: how the lease ends if the exit could not fetch the page, with the refusal and
    the answer."""

    lease: Lease
    config: ExitConfig
    proxy: _Proxy
    pool: Pool | None
    was_used: bool = False
    size: int = 0
    elapsed: float = 0.0
    refused: Refused | None = None
    refusal: ExitRefusal | None = None
    answer: Response | Fault | None = None

    @contextmanager
    def carries(self, request: Request) -> Iterator[None]:
        """Send the request through the exit, whatever other components have set. The proxy is removed from the request
        afterwards: copies of a request go to the frontier, and the password must not."""
        before = {PROXY: request.meta[PROXY]} if PROXY in request.meta else {}
        credentials = request.headers.getlist(AUTHORIZATION)
        request.meta[PROXY] = self.proxy.url
        request.headers.pop(AUTHORIZATION, None)
        if self.proxy.credentials is not None:
            request.headers[AUTHORIZATION] = self.proxy.credentials
        try:
            yield
        finally:
            request.meta.pop(PROXY, None)
            request.meta.update(before)
            request.headers.pop(AUTHORIZATION, None)
            if credentials:
                request.headers.setlist(AUTHORIZATION, credentials)

    def refuse(
        self, refusal: ExitRefusal, answer: Response | Fault | None, *, max_tries: int, failures: Failures
    ) -> Refused:
        """Note that the page could not be fetched through this exit; returns how its lease ends."""
        lease, key = self.lease, self.lease.task.key
        exits, is_sticky = (len(self.pool.exits), self.pool.sticky) if self.pool is not None else (1, False)
        result = ending_of(lease, refusal, most_tries=max_tries, exits=exits, failures=failures.of(key))
        if refusal.kind == "failed":
            failures.note(key)
        use = self.report(verdict_on(lease, refusal, exits=exits, is_sticky=is_sticky))
        self.refusal, self.answer = refusal, answer
        self.refused = Refused(msgspec.structs.replace(result, exit=use), refusal.outcome)
        return self.refused

    def report(self, verdict: Literal["ok", "blocked", "failed", "used"] = "ok") -> ExitUse:
        """The report on the exit."""
        return ExitUse(verdict=verdict if self.was_used else "unused", size=self.size, elapsed=self.elapsed)


class LeasedExits:
    """Finds the exits of leases, and keeps their troubles. `encoding`: of user names and passwords."""

    def __init__(
        self,
        exits: Mapping[str, ExitConfig],
        *,
        pools: Sequence[Pool],
        troubles: Troubles,
        say: Callable[[str], None],
        encoding: str,
    ) -> None:
        self._exits = exits
        self._pools = {pool.name: pool for pool in pools}
        self._encoding = encoding
        self._say = say
        self._has_said_missing = False
        self.troubles = troubles

    def has(self, lease: Lease) -> bool:
        """Whether this process has the exit of a lease."""
        return lease.exit == DIRECT or lease.exit in self._exits

    def of(self, lease: Lease) -> LeasedExit | None:
        """The exit of a lease, if `has` is true; None: direct."""
        if lease.exit == DIRECT:
            return None
        config = self._exits[lease.exit]
        proxy = _proxy_of(config, self._encoding)
        return LeasedExit(lease=lease, config=config, proxy=proxy, pool=self._pools.get(lease.task.pool))

    async def hand_back(self, lease: Lease) -> Released:
        """Return a lease with an unknown exit, after a pause: it would be leased to this process again."""
        if not self._has_said_missing:
            self._has_said_missing = True
            self._say(
                f"there is no exit {lease.exit} here: give this process the same shoal.toml and SHOAL_PROXIES as the"
                " others"
            )
        await asyncio.sleep(MISSING_SECONDS)
        return Released(lease=lease, exit=unused(lease))

    def refused(self, leased: LeasedExit) -> None:
        """Note the trouble of an exit, if the refusal shows one."""
        if leased.refusal is not None and (trouble := trouble_of(leased.config, leased.refusal)):
            self.troubles.begin(leased.config.name, trouble)

    def reported(self, result: Result, leased: LeasedExit) -> Result:
        """The result of a page that was fetched, with the report on its exit."""
        if leased.was_used:
            self.troubles.end(leased.config.name)
        return msgspec.structs.replace(result, exit=leased.report())


def _proxy_of(config: ExitConfig, encoding: str) -> _Proxy:
    parts = urlsplit(config.url)
    bare = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    if parts.username is None:
        return _Proxy(bare, None)
    return _Proxy(bare, basic_auth_header(unquote(parts.username), unquote(parts.password or ""), encoding))


def proxied_fault(config: ExitConfig, error: Exception, *, secure: bool, elapsed: float = 0.0) -> Fault:
    """The fault that an exception means, for a request through a proxy: of the proxy, or of the target as without a
    proxy. `secure`: the target is reached by https, through a tunnel. No message contains the URL of the proxy."""
    fault = _fault(config, error, secure=secure)
    return Fault(kind=fault.kind, message=fault.message, is_certain=fault.is_certain, elapsed=elapsed)


def _fault(config: ExitConfig, error: Exception, *, secure: bool) -> Fault:
    causes = list(_causes(error))
    if any(getattr(cause, "osError", None) in SHORTAGES or _errno(cause) in SHORTAGES for cause in causes):
        return Fault(kind=FaultKind.SHORTAGE, message=one_line(str(causes[-1])))
    if type(error).__name__ == "TunnelError":
        # By name: its module loads Twisted's HTTP client, which a project may not need.
        return _tunnel(config, str(error))
    if isinstance(error, _NOT_CONNECTED):
        return _not_connected(config, error, causes)
    if isinstance(error, DownloadTimeoutError) and any(isinstance(cause, ConnectTimeout) for cause in causes):
        return fault_of(config, "no connection in time")
    for kind, fault in _KINDS:
        if isinstance(error, kind):
            return Fault(kind=fault, message=_message(error))
    if isinstance(error, DownloadFailedError | ConnectionClosed):
        return _broken(config, causes, secure=secure)
    return Fault(kind=FaultKind.LOCAL, message=_message(error))


def _tunnel(config: ExitConfig, text: str) -> Fault:
    found = _TUNNEL_STATUS.search(text)
    status = int(found[1]) if found else 0
    if status == 407:
        return fault_of(config, "it wants other credentials (407)", is_certain=True)
    return fault_of(config, f"it refused to open a tunnel ({status})" if status else "it refused to open a tunnel")


def _not_connected(config: ExitConfig, error: Exception, causes: list[BaseException]) -> Fault:
    if isinstance(error, CannotResolveHostError):
        return fault_of(config, "its host cannot be found", is_certain=True)
    is_refused = any(_errno(cause) is not None or isinstance(cause, ConnectError) for cause in causes)
    if is_refused:
        return fault_of(config, "it cannot be connected to", is_certain=True)
    # Other handlers raise the same if the proxy does not open a tunnel.
    found = _STATUS.search(str(error))
    return fault_of(config, f"it refused to open a tunnel ({found[1]})" if found else "it cannot be connected to")


def _broken(config: ExitConfig, causes: list[BaseException], *, secure: bool) -> Fault:
    """A connection that was made but gave no whole answer."""
    names = [type(cause).__name__ for cause in causes]
    if any(type(cause).__module__.startswith("OpenSSL") or "Certificate" in type(cause).__name__ for cause in causes):
        return Fault(kind=FaultKind.TLS, message=_message(causes[-1]))
    if any(name in ("ParseError", "BadHeaders", "BadResponseVersion") for name in names):
        return Fault(kind=FaultKind.PROTOCOL, message=_message(causes[-1]))
    if "_DataLoss" in names or "PotentialDataLoss" in names:
        return Fault(kind=FaultKind.TRUNCATED, message=_message(causes[-1]))
    # With plain HTTP a proxy sends an error page if the target fails; only its own failure ends like this.
    message = "the connection was closed without an answer"
    return Fault(kind=FaultKind.CONNECT, message=message) if secure else fault_of(config, message)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The exception, then its causes, including several in one Twisted exception."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        for reason in getattr(error, "reasons", ()):
            if isinstance(reason, Failure):
                yield from _causes(reason.value)
        error = error.__cause__ or error.__context__


def _errno(error: BaseException) -> int | None:
    return error.errno if isinstance(error, OSError) else None


def _message(error: BaseException) -> str:
    return one_line(str(error)) or type(error).__name__
