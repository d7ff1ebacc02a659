"""Errors as people read them: short, in one line or with a traceback, without secrets; counts with their noun."""

from __future__ import annotations

import traceback
from collections.abc import Iterable

from shoal.secrecy import without

TRACEBACK_LINES = 30
LONGEST_ERROR = 20_000
LONGEST_LINE = 1_000


def several(number: int, noun: str) -> str:
    """1 page, 2 pages; 1 retry, 2,000 retries."""
    if number == 1:
        return f"1 {noun}"
    is_regular = not noun.endswith("y") or noun[-2] in "aeiou"
    return f"{number:,} {noun}s" if is_regular else f"{number:,} {noun[:-1]}ies"


def line_of(error: BaseException, *, secrets: Iterable[str] = ()) -> str:
    """An error in one line, for a reason. Secrets that it quotes are masked."""
    try:
        text = str(error)
    except Exception:
        text = "(no text)"
    return reason_of(f"{type(error).__name__}: {text}", secrets=secrets)


def reason_of(text: str, *, secrets: Iterable[str]) -> str:
    """A spider's own text in one line, for a reason. Secrets in it are masked."""
    # Secrets are masked before the text is cut: half a password would not be found.
    return " ".join(without(secrets, _encodable(text[:LONGEST_ERROR])).split())[:500]


def traceback_of(error: BaseException, *, secrets: Iterable[str] = ()) -> str:
    """The last lines of a traceback, for the dead letter. Secrets that it quotes are masked."""
    lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
    # Errors quote their input, and a page's text may be megabytes long.
    text = "\n".join(line[: 2 * LONGEST_LINE] for line in lines[-TRACEBACK_LINES:])
    return "\n".join(_shortened(line) for line in without(secrets, _encodable(text)).splitlines())


def _shortened(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…"


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()
