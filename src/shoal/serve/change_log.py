"""Who changed what over HTTP, as events of the log. Tokens and bodies are not in it."""

from __future__ import annotations

import logging

from starlette.requests import Request

from shoal.logs import Events
from shoal.serve.answers import Refusal
from shoal.text.secrets import masked_text

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
MADE, REFUSED = "change made", "change refused"


def tell_made(request: Request, action: str, *, crawl: str | None = None) -> None:
    """A request has changed something; `crawl` is the one that it began."""
    if request.method not in SAFE_METHODS:
        _tell(request, logging.INFO, MADE, action=action, crawl=crawl)


def tell_refused(request: Request, action: str, refusal: Refusal) -> None:
    """A request would have changed something, and was refused."""
    if request.method not in SAFE_METHODS:
        _tell(request, logging.WARNING, REFUSED, action=action, status=refusal.status, reason=masked_text(str(refusal)))


def client_of(request: Request) -> str:
    """The address of the caller; behind a proxy on this machine, the one that the proxy names."""
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
