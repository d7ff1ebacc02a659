"""Formats and parses numbers, times and task keys for people."""

from __future__ import annotations

import math
import re
import time
from datetime import datetime

from shoal.errors import SettingError, UsageError
from shoal.frontier.rules.keys import key_given as key_given
from shoal.frontier.rules.keys import key_shown as key_shown
from shoal.settings.values import parse_duration
from shoal.text.errors import duration as duration
from shoal.text.errors import several as several


def count(number: int) -> str:
    """12345 is 12,345."""
    return f"{number:,}"


def per_second(rate: float) -> str:
    """A rate with about three digits: 0.25/s, 3.1/s, 1,200/s."""
    if rate >= 100:
        return f"{rate:,.0f}/s"
    return f"{rate:.1f}/s" if rate >= 1 or rate == 0 else f"{rate:.2f}/s"


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
    """A time in the time zone of this machine."""
    return datetime.fromtimestamp(timestamp).strftime("%Y-%m-%d %H:%M:%S")


def moment_given(text: str, *, now: float | None = None) -> float:
    """A time given by people: how long ago (30m, 2h, 7d), or a date with or without a time."""
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
            f"the time {text!r} is not understood: write 30m, 2h or 7d (ago), or 2026-05-12T14:00"
        ) from None
