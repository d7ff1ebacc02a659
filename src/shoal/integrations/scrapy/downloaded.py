"""What Scrapy's downloader gave, as shoal's policies read it: an answer, or a fault in place of one."""

from __future__ import annotations

import re
from collections.abc import Iterator

from scrapy import http
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

from shoal.fetch.base import Fault, FaultKind, Response
from shoal.fetch.exits import ExitConfig
from shoal.fetch.faults import SHORTAGES, one_line
from shoal.fetch.proxies import fault_of

# What the handlers say of a connection that could not be made. Through a proxy it is the one to the proxy.
_NOT_CONNECTED = (DownloadConnectionRefusedError, CannotResolveHostError, ConnectError)
_STATUS = re.compile(r"\b(\d{3})\b")
_TUNNEL_STATUS = re.compile(r"'status': (\d{3})")
_KINDS: tuple[tuple[type[Exception], FaultKind], ...] = (
    (DownloadTimeoutError, FaultKind.TIMEOUT_TOTAL),
    (ResponseDataLossError, FaultKind.TRUNCATED),
    (DownloadCancelledError, FaultKind.TOO_LARGE),
    (UnsupportedURLSchemeError, FaultKind.BAD_URL),
)


def answer_of(response: http.Response, *, elapsed: float) -> Response:
    """Scrapy's response."""
    headers = {
        name.decode("latin-1").lower(): b",".join(values).decode("latin-1") for name, values in response.headers.items()
    }
    return Response(
        url=response.url,
        status=response.status,
        headers=headers,
        body=response.body,
        wire_size=len(response.body),
        elapsed=elapsed,
    )


def proxied_fault(config: ExitConfig, error: Exception, *, secure: bool, elapsed: float = 0.0) -> Fault:
    """The fault that an exception stands for, of a request through a proxy: the proxy's, or the target's as it would be
    without one. `secure`: the target is reached by https, through a tunnel. No text has the proxy's URL."""
    fault = _fault(config, error, secure=secure)
    return Fault(kind=fault.kind, message=fault.message, is_certain=fault.is_certain, elapsed=elapsed)


def _fault(config: ExitConfig, error: Exception, *, secure: bool) -> Fault:
    causes = list(_causes(error))
    if any(getattr(cause, "osError", None) in SHORTAGES or _errno(cause) in SHORTAGES for cause in causes):
        return Fault(kind=FaultKind.SHORTAGE, message=one_line(str(causes[-1])))
    if type(error).__name__ == "TunnelError":
        # By its name: its module loads Twisted's HTTP client, which a project may do without.
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
    # Other handlers say the same of a tunnel that the proxy does not open.
    found = _STATUS.search(str(error))
    return fault_of(config, f"it refused to open a tunnel ({found[1]})" if found else "it cannot be connected to")


def _broken(config: ExitConfig, causes: list[BaseException], *, secure: bool) -> Fault:
    """A connection that was made, and gave no whole answer."""
    names = [type(cause).__name__ for cause in causes]
    if any(type(cause).__module__.startswith("OpenSSL") or "Certificate" in type(cause).__name__ for cause in causes):
        return Fault(kind=FaultKind.TLS, message=_message(causes[-1]))
    if any(name in ("ParseError", "BadHeaders", "BadResponseVersion") for name in names):
        return Fault(kind=FaultKind.PROTOCOL, message=_message(causes[-1]))
    if "_DataLoss" in names or "PotentialDataLoss" in names:
        return Fault(kind=FaultKind.TRUNCATED, message=_message(causes[-1]))
    # With plain HTTP a proxy answers with an error page when the target fails; only its own failure ends like this.
    message = "the connection was closed without an answer"
    return Fault(kind=FaultKind.CONNECT, message=message) if secure else fault_of(config, message)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The exception, then what it was raised from, also where Twisted has put several into one."""
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
