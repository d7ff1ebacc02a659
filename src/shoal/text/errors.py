"""Formats errors for people, without secrets; also counts with their noun, and durations."""

from __future__ import annotations

import os
import traceback
from collections.abc import Collection, Iterable

from shoal.text.secrets import without

TRACEBACK_LINES = 30
LONGEST_ERROR = 20_000
LONGEST_LINE = 1_000
LONGEST_KIND = 60
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_SHOAL = os.path.dirname(os.path.abspath(__file__)) + os.sep


def several(number: int, noun: str) -> str:
    """1 page, 2 pages; 1 retry, 2,000 retries."""
    if number == 1:
        return f"1 {noun}"
    is_regular = not noun.endswith("y") or noun[-2] in "aeiou"
    return f"{number:,} {noun}s" if is_regular else f"{number:,} {noun[:-1]}ies"


def duration(seconds: float) -> str:
    """The two largest units: 95 is 1 m 35 s."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{round(seconds, 1):g} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 86_400} d {whole % 86_400 // 3600:02d} h"


def line_of(error: BaseException, *, secrets: Iterable[str] = ()) -> str:
    """An error in one line, as a reason; quoted secrets are masked."""
    try:
        text = str(error)
    except Exception:
        text = "(no text)"
    return reason_of(f"{type(error).__name__}: {text}", secrets=secrets)


def kind_of(error: BaseException) -> str:
    """The name of an error's type, as storable text."""
    return _encodable(type(error).__name__)[:LONGEST_KIND]


def code_line_of(error: BaseException, *, files: Collection[str]) -> str:
    """The innermost line of an error's traceback in these files or modules beside them, as books.py:14; else empty.
    Causes of the error are searched too."""
    seen: set[int] = set()
    at: BaseException | None = error
    while at is not None and id(at) not in seen:
        seen.add(id(at))
        for frame, line in reversed(list(traceback.walk_tb(at.__traceback__))):
            name = _own_name(frame.f_code.co_filename, files)
            if name:
                return f"{_encodable(name)}:{line}"
        at = at.__cause__ or at.__context__
    return ""


def reason_of(text: str, *, secrets: Iterable[str]) -> str:
    """A text in one line, as a reason; secrets are masked."""
    # Masked before the text is cut: half a password would not be found.
    return " ".join(without(secrets, _encodable(text[:LONGEST_ERROR])).split())[:500]


def traceback_of(error: BaseException, *, secrets: Iterable[str] = ()) -> str:
    """The last lines of a traceback, for a dead letter; quoted secrets are masked."""
    lines = "".join(traceback.format_exception(error)).rstrip().splitlines()
    # Errors quote their input, which may be a page of megabytes.
    text = "\n".join(line[: 2 * LONGEST_LINE] for line in lines[-TRACEBACK_LINES:])
    masked = without(secrets, _encodable(text)).splitlines()
    return "\n".join(line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}…" for line in masked)


def _own_name(path: str, files: Collection[str]) -> str:
    """The short path of a file among or beside `files`, except installed packages; else empty."""
    path = os.path.abspath(path)
    if path in files:
        return os.path.basename(path)
    for file in files:
        folder = os.path.dirname(file)
        name = path.removeprefix(folder + os.sep)
        parts = {os.path.basename(folder), *name.split(os.sep)}
        if name != path and not path.startswith(_SHOAL) and _INSTALLED.isdisjoint(parts):
            return name
    return ""


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def is_of_lost_line(error: RuntimeError) -> bool:
    """Whether this is uvloop's error for a write to a lost connection; asyncio raises an OSError."""
    text = str(error)
    return "handler is closed" in text or "closed=True" in text or "transport is clos" in text
