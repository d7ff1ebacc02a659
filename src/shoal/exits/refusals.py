"""Whether an answer means that its exit was refused (a status, a known block page, a failed connection), and how the
lease then ends.

A refused page is retried at once through the next exit, without using up an attempt. This includes a 429: the exit is
quarantined, the lane keeps its pace. A page that is refused through many exits no longer counts against them, and is
given up in the end.
"""

from __future__ import annotations

import re
from typing import Final, Literal

import msgspec

from shoal.fetch.base import Fault, FaultKind, Response
from shoal.model import DIRECT, Dead, ExitUse, Lease, Retry
from shoal.policy.retries import Verdict
from shoal.text.errors import several

LOOKED_AT: Final = 16 * 1024
SMALL_PAGE: Final = 12 * 1024  # a longer page with status 200 is not a block page
MOST_LINKS: Final = 3  # a block page has few links
BLOCK_STATUSES: Final = frozenset({403, 429, 503})

# Patterns of block pages only, not of the scripts that the same services put into every page of a site.
_MARKS: Final[tuple[tuple[str, bytes], ...]] = (
    (
        "cloudflare challenge",
        rb"/cdn-cgi/challenge-platform/h/\w+/orchestrate/|window\._cf_chl_opt|cf-browser-verification",
    ),
    ("cloudflare block", rb"id=\"cf-error-details\"|Attention Required! \| Cloudflare"),
    ("datadome", rb"geo\.captcha-delivery\.com|ct\.captcha-delivery\.com"),
    ("perimeterx", rb"id=\"px-captcha\"|window\._pxUuid"),
    ("imperva", rb"Incapsula incident ID|_Incapsula_Resource\?[^\"']{0,500}incident_id="),
    ("akamai", rb"errors\.edgesuite\.net|Reference&#32;&#35;[0-9a-f]+&#46;|bm-verify="),
    ("aws waf", rb"window\.gokuProps"),
    ("kasada", rb"/2d206a39-8ed7-437e-a3be-862e0f06eea3/ips\.js"),
    ("sucuri", rb"Sucuri WebSite Firewall - Access Denied|sucuri_cloudproxy_js"),
    ("recaptcha interstitial", rb"Our systems have detected unusual traffic from your computer network"),
    ("captcha", rb"/errors/validateCaptcha"),
)
_ANY_MARK: Final = re.compile(b"|".join(b"(?P<m%d>%b)" % (index, mark) for index, (_, mark) in enumerate(_MARKS)))
# Only with a status that refuses: there a captcha is the purpose of the page. Other pages may just embed one.
_CAPTCHA: Final = re.compile(
    rb"g-recaptcha|google\.com/recaptcha/|hcaptcha\.com/|h-captcha|cf-turnstile|challenges\.cloudflare\.com/turnstile"
    rb"|<title>[^<]{0,80}(?:captcha|are you (?:a )?(?:human|robot)|robot check|access denied by bot)",
    re.IGNORECASE,
)


def block_of(response: Response) -> str | None:
    """The name of a known block page; None: the response is no block page."""
    status, headers, body = response.status, response.headers, response.body
    if headers.get("cf-mitigated") == "challenge":
        return "cloudflare challenge"
    if headers.get("x-amzn-waf-action") in ("captcha", "challenge"):
        return "aws waf"
    if status == 403 and headers.get("x-datadome") == "protected":
        return "datadome"
    refuses = status in BLOCK_STATUSES
    if not refuses and (status != 200 or len(body) > SMALL_PAGE):
        return None
    if not body or "html" not in headers.get("content-type", "html"):
        return None
    leads_nowhere = len(body) <= SMALL_PAGE and body.count(b"<a ") <= MOST_LINKS
    found = _ANY_MARK.search(body, 0, LOOKED_AT)
    if found and found.lastgroup and (refuses or leads_nowhere):
        return _MARKS[int(found.lastgroup[1:])][0]
    return "captcha" if refuses and leads_nowhere and _CAPTCHA.search(body, 0, LOOKED_AT) else None


HELD_AGAINST: Final = 3  # only a page's first tries count against their exits; at most for half of the pool's exits
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
    """Why a page could not be fetched through this exit. `is_certain`: the page cannot be the cause."""

    kind: Literal["blocked", "failed", "logged_out"]
    outcome: str
    reason: str
    is_certain: bool = False


class Refused(msgspec.Struct, frozen=True):
    """The result of a page that its exit could not fetch, and the outcome for the fetch log."""

    result: Retry | Dead
    outcome: str


def refusal_of(answer: Response | Fault, verdict: Verdict, *, had_key: bool = False) -> ExitRefusal | None:
    """The refusal in this answer: the site refused the exit, or the request failed on the way; None: neither.
    `had_key`: the request was sent with a key, which a 401 refuses."""
    if isinstance(answer, Fault):
        if answer.kind not in FAILURES:
            return None
        reason = f"{verdict.outcome}: {answer.message}"
        return ExitRefusal(kind="failed", outcome=verdict.outcome, reason=reason, is_certain=answer.is_certain)
    # The spider judges a status in `handle_statuses` itself.
    is_refused = answer.status in REFUSALS or (had_key and answer.status == UNAUTHORIZED)
    if is_refused and verdict.action != "handle":
        return ExitRefusal(kind="blocked", outcome=verdict.outcome, reason=_with_block(answer, verdict.outcome))
    if verdict.outcome.startswith("http_") and verdict.action == "handle":
        return None
    block = block_of(answer)
    return ExitRefusal(kind="blocked", outcome="blocked", reason=f"blocked: {block}") if block else None


def ending_of(lease: Lease, refusal: ExitRefusal, *, most_tries: int, exits: int, failures: int = 0) -> Retry | Dead:
    """The result of a refused page. If exits fail, the page is tried through each exit of the pool. `failures`: how
    many earlier tries failed because of their exits, which do not count as refusals."""
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
    """The verdict on the exit for the frontier. In a sticky pool a host keeps its exit until a bad verdict: there the
    page counts against all exits but one."""
    if refusal.kind == "logged_out":
        return "ok"
    held = max(exits - 1, 1) if is_sticky else min(HELD_AGAINST, max(exits // 2, 1))
    return refusal.kind if refusal.is_certain or lease.free_retries < held else "used"


def unused(lease: Lease) -> ExitUse | None:
    """The report on the exit if no request was sent; None: the lease has no exit."""
    return None if lease.exit == DIRECT else ExitUse(verdict="unused")


def _with_block(answer: Response, outcome: str) -> str:
    block = block_of(answer)
    return f"{outcome}: {block}" if block else outcome
