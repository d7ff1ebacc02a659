"""Errors as people read them: short, in one line or with a traceback, and without secrets."""

from __future__ import annotations

import traceback
from collections.abc import Iterable

from shoal.secrecy import without

TRACEBACK_LINES = 30
LONGEST_ERROR = 20_000
LONGEST_LINE = 1_000


def line_of(error: BaseException, *, secrets: Iterable[str] = ()) -> str:
    """An error in one line, for the reason. What it quotes of secrets is left out."""
    try:
        text = str(error)
    except Exception:
        text = "(no text)"
    return reason_of(f"{type(error).__name__}: {text}", secrets=secrets)


def reason_of(text: str, *, secrets: Iterable[str]) -> str:
    """What a spider says, in one line."""
    # First without secrets, then cut: half a password is one, too.
    return " ".join(without(secrets, _encodable(text[:LONGEST_ERROR])).split())[:500]


def traceback_of(error: BaseException, *, secrets: Iterable[str] = ()) -> str:
    """The last lines of a traceback, for the dead letter."""
    lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
    # Errors quote what they choke on, and a page may give them megabytes of it.
    text = "\n".join(line[: 2 * LONGEST_LINE] for line in lines[-TRACEBACK_LINES:])
    return "\n".join(_shortened(line) for line in without(secrets, _encodable(text)).splitlines())


def _shortened(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…"


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
