"""Converts exceptions of the HTTP client to faults: a kind for the table in `policy/retries.py`, and one line."""

from __future__ import annotations

import errno
import re
from typing import Final

from pyreqwest.exceptions import (
    BodyDecodeError,
    BuilderError,
    ClientClosedError,
    ConnectTimeoutError,
    DecodeError,
    DetailedPyreqwestError,
    RequestTimeoutError,
)

from shoal.fetch.base import FaultKind

# Temporary shortages of this machine.
SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS, errno.EADDRNOTAVAIL})
MAX_MESSAGE: Final = 200
CONNECTING: Final = "client error (Connect)"
_OS_ERROR: Final = re.compile(r"\(os error (\d+)\)")
_READING: Final = "error reading a body from connection"
_ENDED_EARLY: Final = re.compile(r"\beof\b|end of file|closed|reset by peer|broken pipe", re.IGNORECASE)


def one_line(text: str) -> str:
    """The text without line breaks and control characters, cut to MAX_MESSAGE."""
    line = " ".join(re.sub(r"[\x00-\x1f\x7f]+", " ", text[: 4 * MAX_MESSAGE]).split())
    return line if len(line) <= MAX_MESSAGE else f"{line[: MAX_MESSAGE - 1]}…"


def never_connected(error: Exception) -> bool:
    """Whether no request was sent: then another address of the host can be tried without sending it twice."""
    causes = causes_of(error)
    return CONNECTING in causes and (isinstance(error, RequestTimeoutError) or "tcp connect error" in causes)


def explain(error: Exception, *, secure: bool) -> tuple[FaultKind, str]:
    """The kind of fault of an exception, and its message without the URL."""
    causes = causes_of(error)
    # The outer causes repeat the URL, which may contain a password; the innermost cause names the fault.
    message = one_line(causes[-1]) if len(causes) > 1 else type(error).__name__
    number = _os_error(causes)
    if number in SHORTAGES or isinstance(error, MemoryError):
        return FaultKind.SHORTAGE, message
    if isinstance(error, OSError) and not causes:
        is_short = error.errno in SHORTAGES
        return (FaultKind.SHORTAGE if is_short else FaultKind.LOCAL), one_line(error.strerror or message)
    if isinstance(error, RequestTimeoutError) or number == errno.ETIMEDOUT:
        return _timed_out(error, causes), message
    if CONNECTING in causes:
        return _not_connected(causes, number, secure=secure), message
    if _READING in causes or isinstance(error, BodyDecodeError):
        ended_early = number is not None or _ENDED_EARLY.search(message)
        return (FaultKind.TRUNCATED if ended_early else FaultKind.PROTOCOL), message
    if isinstance(error, DecodeError):
        return FaultKind.PROTOCOL, message
    if isinstance(error, BuilderError | ValueError | TypeError):
        return FaultKind.BAD_URL, f"the request cannot be built: {message}"
    if isinstance(error, ClientClosedError):
        return FaultKind.LOCAL, "the fetcher was closed"
    if number is not None or _ENDED_EARLY.search(message):
        return FaultKind.CONNECT, message
    return FaultKind.PROTOCOL, message


def _timed_out(error: Exception, causes: list[str]) -> FaultKind:
    if CONNECTING in causes:
        return FaultKind.TIMEOUT_CONNECT
    return FaultKind.TIMEOUT_FIRST_BYTE if isinstance(error, ConnectTimeoutError) else FaultKind.TIMEOUT_IDLE


def _not_connected(causes: list[str], number: int | None, *, secure: bool) -> FaultKind:
    if "dns error" in causes:
        return FaultKind.DNS
    if not secure or number is not None or "tcp connect error" in causes:
        return FaultKind.CONNECT
    return FaultKind.TLS


def causes_of(error: Exception) -> list[str]:
    """The client's messages of an exception's causes, outermost first."""
    if not isinstance(error, DetailedPyreqwestError):
        return []
    return [cause["message"] for cause in error.details.get("causes") or ()]


def lacks_a_port(error: Exception) -> bool:
    """Whether no local port was left, or this machine has no address of the target's family: same error code."""
    return _os_error(causes_of(error)) == errno.EADDRNOTAVAIL


def _os_error(causes: list[str]) -> int | None:
    found = _OS_ERROR.search(causes[-1]) if causes else None
    return int(found[1]) if found else None
