"""What an answer means for its task: the table of statuses and faults to retry, and the backoff."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from email.utils import parsedate_to_datetime
from types import MappingProxyType
from typing import Final, Literal

import msgspec

from shoal.fetch.base import REDIRECTS, Fault, FaultKind, Response
from shoal.model import Dead, LaneUpdate, Lease, Retry
from shoal.settings.table import Settings
from shoal.text.errors import several

Action = Literal["handle", "redirect", "skip", "retry", "dead"]


class Verdict(msgspec.Struct, frozen=True):
    """What to do with an answer. `free`: not the page's fault, uses no attempt; `slows`: a sign that the host
    struggles; `too_often`: the host says that it is asked too often."""

    outcome: str
    action: Action
    free: bool = False
    slows: bool = False
    too_often: bool = False


# Statuses that may be different next time. All others end the task: 2xx in the handler, the rest without.
_RETRIED_STATUSES: Final[dict[int, Verdict]] = {
    408: Verdict("http_408", "retry", slows=True),
    425: Verdict("http_425", "retry"),
    429: Verdict("http_429", "retry", free=True, slows=True, too_often=True),
    500: Verdict("http_500", "retry"),
    502: Verdict("http_502", "retry"),
    503: Verdict("http_503", "retry", slows=True),
    504: Verdict("http_504", "retry", slows=True),
    509: Verdict("http_509", "retry", free=True, slows=True, too_often=True),  # bandwidth limit exceeded
    520: Verdict("http_520", "retry"),
    521: Verdict("http_521", "retry", slows=True),
    522: Verdict("http_522", "retry", slows=True),
    523: Verdict("http_523", "retry", slows=True),
    524: Verdict("http_524", "retry", slows=True),
    529: Verdict("http_529", "retry", free=True, slows=True, too_often=True),  # the site is overloaded
}
# With a Retry-After the host says that the trouble is not this page.
_UNAVAILABLE_FOR_NOW: Final = Verdict("http_503", "retry", free=True, slows=True)

_FAULTS: Final[dict[FaultKind, Verdict]] = {
    # The host or the network; the next attempt may succeed.
    FaultKind.DNS: Verdict("dns", "retry"),
    FaultKind.CONNECT: Verdict("connect", "retry"),
    FaultKind.TLS: Verdict("tls", "retry"),
    FaultKind.TIMEOUT_CONNECT: Verdict("timeout_connect", "retry", slows=True),
    FaultKind.TIMEOUT_FIRST_BYTE: Verdict("timeout_first_byte", "retry", slows=True),
    FaultKind.TIMEOUT_IDLE: Verdict("timeout_idle", "retry", slows=True),
    FaultKind.TIMEOUT_TOTAL: Verdict("timeout_total", "retry", slows=True),
    FaultKind.TRUNCATED: Verdict("truncated", "retry"),
    FaultKind.BAD_ENCODING: Verdict("bad_encoding", "retry"),
    FaultKind.PROTOCOL: Verdict("protocol", "retry"),
    FaultKind.BROWSER: Verdict("browser", "retry"),
    # The page itself: the same next time, unless a setting is changed.
    FaultKind.TOO_LARGE: Verdict("too_large", "dead"),
    FaultKind.BOMB: Verdict("bomb", "dead"),
    FaultKind.BAD_URL: Verdict("bad_url", "dead"),
    FaultKind.REFUSED_ADDRESS: Verdict("refused_address", "dead"),
    # Our own side.
    FaultKind.EXIT: Verdict("exit", "retry", free=True),
    FaultKind.LOCAL: Verdict("local", "retry", free=True),
    FaultKind.SHORTAGE: Verdict("shortage", "retry", free=True),
}

RETRIED_STATUSES: Final[Mapping[int, Verdict]] = MappingProxyType(_RETRIED_STATUSES)
FAULTS: Final[Mapping[FaultKind, Verdict]] = MappingProxyType(_FAULTS)
_OK: Final = Verdict("ok", "handle")
_REDIRECTED: Final = Verdict("redirected", "redirect")


def judge(answer: Response | Fault, *, handle_statuses: Sequence[int] = ()) -> Verdict:
    """What this answer means for its task. `handle_statuses` always go to the spider."""
    if isinstance(answer, Fault):
        return _FAULTS[answer.kind]
    status = answer.status
    if 200 <= status < 300:
        return _OK
    if status in handle_statuses:
        return Verdict(f"http_{status}", "handle")
    if status in REDIRECTS and answer.headers.get("location"):
        return _REDIRECTED
    if status == 503 and "retry-after" in answer.headers:
        return _UNAVAILABLE_FOR_NOW
    return _RETRIED_STATUSES.get(status) or Verdict(f"http_{status}", "skip")


def plan(
    lease: Lease, verdict: Verdict, answer: Response | Fault, *, settings: Settings, rng: random.Random, now: float
) -> Retry | Dead:
    """The result of a page that could not be fetched: retried later, or dead with the reason."""
    asked = retry_after(answer.headers, now) if isinstance(answer, Response) and verdict.slows else None
    rest = None if asked is None else min(asked, settings.max_rest_seconds)
    lane = None if rest is None else LaneUpdate(rest_seconds=rest, why=_asked_to_wait(verdict, asked or 0.0))
    reason = f"{verdict.outcome}: {answer.message}" if isinstance(answer, Fault) else verdict.outcome
    if verdict.action != "retry":
        return Dead(lease=lease, reason=reason, lane=lane)
    if verdict.free and lease.free_retries >= settings.max_free_retries:
        return Dead(
            lease=lease, reason=reason, detail=f"given up after {several(lease.free_retries, 'free retry')}", lane=lane
        )
    if not verdict.free and lease.attempt >= lease.task.max_attempts:
        return Dead(lease=lease, reason=reason, detail=f"given up after {several(lease.attempt, 'attempt')}", lane=lane)
    tries = lease.free_retries + 1 if verdict.free else lease.attempt
    delay = backoff(tries, settings, rng)
    return Retry(lease=lease, reason=reason, delay=max(delay, rest or 0.0), free=verdict.free, lane=lane)


def _asked_to_wait(verdict: Verdict, seconds: float) -> str:
    return f"{verdict.outcome.removeprefix('http_')}, asked to wait {seconds:.0f} s (Retry-After)"


def backoff(attempt: int, settings: Settings, rng: random.Random) -> float:
    """Seconds before the next attempt: exponential, with full jitter so that failed tasks do not all return at once."""
    ceiling = settings.retry_seconds * 2.0 ** min(max(attempt, 1) - 1, 60)
    return rng.uniform(0.0, min(ceiling, settings.max_retry_seconds))


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """The seconds of a Retry-After, a number or a date; None: there is none, or it is invalid."""
    text = headers.get("retry-after", "").strip()[:64]
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = _seconds_until(text, now)
    return max(seconds, 0.0) if math.isfinite(seconds) else None


def _seconds_until(date: str, now: float) -> float:
    try:
        return parsedate_to_datetime(date).timestamp() - now
    except (ValueError, OverflowError, OSError, IndexError, TypeError):
        return math.nan
