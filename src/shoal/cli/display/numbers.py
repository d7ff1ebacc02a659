"""Numbers, times and keys as people read and type them."""

from __future__ import annotations

import math
import re
import time
from datetime import datetime

from shoal.error_text import several as several
from shoal.errors import SettingError, UsageError
from shoal.setting_values import parse_duration

KEYS = 1 << 64


def count(number: int) -> str:
    """12345 is 12,345."""
    return f"{number:,}"


def per_second(rate: float) -> str:
    """A rate with about three digits: 0.25/s, 3.1/s, 1,200/s."""
    if rate >= 100:
        return f"{rate:,.0f}/s"
    return f"{rate:.1f}/s" if rate >= 1 or rate == 0 else f"{rate:.2f}/s"


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


def size(octets: int) -> str:
    """Bytes in the unit that fits."""
    amount = float(octets)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000 or unit == "GB":
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1000
    return ""


def share(part: float) -> str:
    """0.985 is 98.5 %; rounded down, so that only 1 is 100 %."""
    return f"{math.floor(part * 1000) / 10:g} %"


def moment(timestamp: float) -> str:
    """A point in time, in the zone of this machine."""
    return datetime.fromtimestamp(timestamp).strftime("%Y-%m-%d %H:%M:%S")


def moment_given(text: str, *, now: float | None = None) -> float:
    """A point in time as people write it: how long ago (30m, 2h, 7d), or a date, with a time or without."""
    ago: float | None
    try:
        ago = parse_duration(re.sub(r"(?<=\d) (?=[a-z])", "", text.strip()))
    except SettingError:
        ago = None
    if ago is not None and text.strip():
        return (time.time() if now is None else now) - ago
    try:
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise UsageError(
            f"the time {text!r} is not understood: write 30m, 2h or 7d for how long ago, or 2026-05-12T14:00"
        ) from None


def key_shown(key: int) -> str:
    """The key of a task: 16 characters."""
    return f"{key % KEYS:016x}"


def key_given(text: str) -> int:
    """The key of a task as people copy it."""
    try:
        number = int(text, 16)
    except ValueError:
        number = -1
    if not 0 <= number < KEYS:
        raise UsageError(f"{text!r} is no key: `shoal why URL` shows keys, 16 characters of 0-9 and a-f")
    return number - KEYS if number >= KEYS // 2 else number
