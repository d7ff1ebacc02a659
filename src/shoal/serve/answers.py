"""Answers as JSON, refusals as one line with a status, and cursors of lists."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec
from starlette.responses import Response

from shoal.errors import CrawlLost, ServerUnreachable, ShoalError, StorageError, UsageError
from shoal.serve.api.shapes import ErrorAnswer
from shoal.text.secrets import masked_text

JSON = "application/json"
RETRY_SECONDS = 2
T = TypeVar("T")


class Refusal(Exception):  # noqa: N818 -- an answer, not a defect
    """The request is answered with this status and one line."""

    def __init__(self, status: int, line: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(line)
        self.status = status
        self.headers = dict(headers or {})


def json_answer(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """The value as JSON, never cached by browsers or proxies."""
    kept = {"Cache-Control": "no-store", **(headers or {})}
    return Response(msgspec.json.encode(value), status_code=status, media_type=JSON, headers=kept)


def refused(refusal: Refusal) -> Response:
    """The answer to a refused request."""
    line = " ".join(masked_text(str(refusal)).split())
    return json_answer(ErrorAnswer(error=line), status=refusal.status, headers=refusal.headers)


def refusal_of(error: ShoalError) -> Refusal:
    """The refusal for an error of shoal."""
    if isinstance(error, UsageError):
        return Refusal(422, str(error))
    if isinstance(error, ServerUnreachable | StorageError | CrawlLost):
        return out_of_reach(str(error))
    return Refusal(500, str(error))


def out_of_reach(line: str) -> Refusal:
    """The refusal while a server or a file does not answer."""
    return Refusal(503, line, headers={"Retry-After": str(RETRY_SECONDS)})


def cursor(position: object) -> str:
    """A position in a list as text, which callers send back unchanged."""
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).decode().rstrip("=")


def position(after: str, kind: type[T]) -> T:
    """The position in such a text."""
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(after + "=" * (-len(after) % 4)), type=kind)
    except (binascii.Error, msgspec.DecodeError, msgspec.ValidationError, ValueError):
        raise Refusal(422, "`after` is not understood: give `next` of the former answer, or leave it out") from None
