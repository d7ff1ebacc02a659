"""What an answer says about the exit it came through, and how the lease of a refused page ends. Pure policy.

A page is refused by a status or a block page of the site, or by a failure between exit and site. That is free for the
page: it is tried again at once, through the exit that is due next. A 429 is such a refusal, too: its exit is
quarantined, and the lane keeps its pace. But a page that is refused through exit after exit says nothing more about
exits, and in the end it is given up.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from shoal.fetch.base import Fault, FaultKind, Response
from shoal.fetch.blocks import block_of
from shoal.model import DIRECT, Dead, ExitUse, Lease, Retry
from shoal.policy.retries import Verdict
from shoal.text.errors import several

HELD_AGAINST: Final = 3  # the first tries of a page count against their exits; in a small pool, half as many as exits
REFUSALS: Final = frozenset({403, 407, 429})
UNAUTHORIZED: Final = 401
LOGGED_OUT: Final = "logged out at once"
FAILURES: Final = frozenset(
    {
        FaultKind.EXIT,
        FaultKind.CONNECT,
        FaultKind.TLS,
        FaultKind.TIMEOUT_CONNECT,
        FaultKind.TIMEOUT_FIRST_BYTE,
        FaultKind.TIMEOUT_IDLE,
        FaultKind.TIMEOUT_TOTAL,
        FaultKind.TRUNCATED,
        FaultKind.PROTOCOL,
    }
)


class ExitRefusal(msgspec.Struct, frozen=True, kw_only=True):
    """Why a page could not be fetched through this exit. `is_certain`: it cannot be the page's fault."""

    kind: Literal["blocked", "failed", "logged_out"]
    outcome: str
    reason: str
    is_certain: bool = False


class Refused(msgspec.Struct, frozen=True):
    """How the lease of a page that its exit could not fetch ends, and the outcome for the fetch log."""

    result: Retry | Dead
    outcome: str


def refusal_of(answer: Response | Fault, verdict: Verdict, *, had_key: bool = False) -> ExitRefusal | None:
    """The refusal in this answer: the site refused the exit, or the request did not get through; None: neither.
    `had_key`: the exit is a key that was sent, so that a 401 refuses it."""
    if isinstance(answer, Fault):
        if answer.kind not in FAILURES:
            return None
        reason = f"{verdict.outcome}: {answer.message}"
        return ExitRefusal(kind="failed", outcome=verdict.outcome, reason=reason, is_certain=answer.is_certain)
    # A status in `handle_statuses` is the spider's to judge.
    is_refused = answer.status in REFUSALS or (had_key and answer.status == UNAUTHORIZED)
    if is_refused and verdict.action != "handle":
        return ExitRefusal(kind="blocked", outcome=verdict.outcome, reason=_with_block(answer, verdict.outcome))
    if verdict.outcome.startswith("http_") and verdict.action == "handle":
        return None
    block = block_of(answer)
    return ExitRefusal(kind="blocked", outcome="blocked", reason=f"blocked: {block}") if block else None


def ending_of(lease: Lease, refusal: ExitRefusal, *, most_tries: int, exits: int, failures: int = 0) -> Retry | Dead:
    """How the lease of a refused page ends. Where exits fail, there is a try for each exit of the pool.

    `failures` of the earlier tries were failures of exits: they are no refusals of the page."""
    tries = lease.free_retries + 1
    refusals = tries - failures
    most = most_tries + failures if refusal.kind == "blocked" else max(most_tries, exits + 1)
    if tries < most:
        return Retry(lease=lease, reason=refusal.reason, free=True)
    detail = f"given up after {several(tries, 'try')} through exits"
    if refusal.kind == "blocked":
        times = f"{several(refusals, 'time')} " if refusals > exits else ""
        return Dead(
            lease=lease,
            reason=f"blocked: turned away {times}through {several(min(refusals, exits), 'exit')}",
            detail=f"{refusal.reason}; {detail}",
        )
    return Dead(lease=lease, reason=refusal.reason, detail=detail)


def verdict_on(
    lease: Lease, refusal: ExitRefusal, *, exits: int, is_sticky: bool = False
) -> Literal["ok", "blocked", "failed", "used"]:
    """The verdict on the exit for the frontier.

    A host of a sticky pool keeps an exit that gets no bad verdict: there the page counts against all exits but one."""
    if refusal.kind == "logged_out":
        return "ok"
    held = max(exits - 1, 1) if is_sticky else min(HELD_AGAINST, max(exits // 2, 1))
    return refusal.kind if refusal.is_certain or lease.free_retries < held else "used"


def unused(lease: Lease) -> ExitUse | None:
    """The report on the exit of a lease that ends before a request was sent; None for a lease without an exit."""
    return None if lease.exit == DIRECT else ExitUse(verdict="unused")


def _with_block(answer: Response, outcome: str) -> str:
    block = block_of(answer)
    return f"{outcome}: {block}" if block else outcome
