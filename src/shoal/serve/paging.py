"""Where a list goes on: a position in it, as a text that callers give back as it is."""

from __future__ import annotations

import base64
import binascii
from typing import TypeVar

import msgspec

from shoal.serve.answers import Refusal

T = TypeVar("T")


def cursor(position: object) -> str:
    """The position as a text."""
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).decode().rstrip("=")


def position(after: str, kind: type[T]) -> T:
    """The position that a text stands for."""
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(after + "=" * (-len(after) % 4)), type=kind)
    except (binascii.Error, msgspec.DecodeError, msgspec.ValidationError, ValueError):
        raise Refusal(422, "`after` is not understood: give `next` of the former answer, or leave it out") from None
