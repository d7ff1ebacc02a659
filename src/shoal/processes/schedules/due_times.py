"""When a schedule falls due: cron expressions in a time zone, intervals, and the jitter that spreads starts. Pure.

Around a change of the clocks cron expressions mean what Debian's cron makes of them, by cronsim: a
local time that is skipped runs right after the change, one that comes twice runs once. (croniter runs it twice.) Due
times need no state, so every coordinator computes the same ones, whenever it begins."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo, available_timezones

import msgspec

from shoal.errors import SettingError
from shoal.near_names import did_you_mean

MOST_COUNTED: Final = 1000
FIRST_WINDOW_SECONDS: Final = 60.0
# Due times lie on whole seconds.
JUST_BEFORE: Final = 0.001
ALIASES: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
}
DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
# What each field takes, and the names that may stand in it.
FIELDS: Final = (
    ("minute", "0 to 59", ()),
    ("hour", "0 to 23", ()),
    ("day of the month", "1 to 31, or L for the last", ()),
    ("month", "1 to 12, or jan to dec", MONTHS),
    ("day of the week", "0 to 7, or sun to sat", DAYS),
)


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """When runs fall due: by a cron expression in a time zone, or every so many seconds since 1970. `jitter` is by how
    many seconds a start is put off, at most."""

    cron: str = ""
    timezone: str = "UTC"
    every: int = 0
    jitter: float = 0.0


def check_cron(text: str) -> None:
    """Refuse what is no cron expression of five fields, or one that no date fits."""
    expression = ALIASES.get(text.lower(), text)
    if expression.startswith("@"):
        known = ", ".join(ALIASES)
        raise SettingError(f"cron: there is no {text!r}; {did_you_mean(text.lower(), ALIASES, otherwise=known)}")
    parts = expression.split()
    if len(parts) != len(FIELDS):
        wanted = "minute, hour, day of the month, month, day of the week"
        raise SettingError(
            f'cron: {text!r} has {len(parts)} fields, not five ({wanted}): write it as "30 6 * * mon-fri"'
        )
    for index, (part, (field, allowed, names)) in enumerate(zip(parts, FIELDS, strict=True)):
        alone = ["*"] * len(FIELDS)
        alone[index] = part
        if not _is_understood(" ".join(alone)):
            hint = did_you_mean(part.lower(), names, otherwise="") or f"write {allowed}, *, */5, a list or a range"
            raise SettingError(f"cron: {part!r} is no {field}: {hint}")
    if not _is_understood(expression) or next_due(Timing(cron=text), after=0.0) is None:
        raise SettingError(f"cron: no date fits {text!r}: it would never fall due")


def check_timezone(name: str) -> None:
    """Refuse a time zone that does not exist."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        known = sorted(available_timezones())
        hint = did_you_mean(name, known, otherwise="write it as Europe/Berlin or UTC")
        raise SettingError(f"timezone: there is no {name!r}; {hint}") from None


def next_due(timing: Timing, *, after: float) -> float | None:
    """The first due time after a moment; None: there is none within 50 years."""
    if timing.every:
        return float((int(after // timing.every) + 1) * timing.every)
    return next(_due_from(timing, after), None)


def newest_due(timing: Timing, *, after: float, until: float) -> float | None:
    """The last due time after one moment and not after another."""
    if timing.every:
        found = float(int(until // timing.every) * timing.every)
        return found if found > after else None
    # Only forwards: a window before the end that grows until a due time is in it.
    window = FIRST_WINDOW_SECONDS
    while True:
        begin = max(after, until - window)
        newest = None
        for due in _due_from(timing, begin):
            if due > until:
                break
            newest = due
        if newest is not None or begin <= after:
            return newest
        window *= 2


def count_due(timing: Timing, *, after: float, until: float, most: int = MOST_COUNTED) -> int:
    """How many due times lie after one moment and not after another; no more than `most` are counted."""
    if timing.every:
        return max(0, min(most, int(until // timing.every) - int(after // timing.every)))
    number = 0
    for due in _due_from(timing, after):
        if due > until or number >= most:
            break
        number += 1
    return number


def start_of(timing: Timing, due: float, *, name: str) -> float:
    """When the run of a due time starts: after its jitter, which is the same for everybody who reckons, and before the
    next run falls due."""
    if not timing.jitter:
        return due
    following = next_due(timing, after=due)
    longest = timing.jitter if following is None else min(timing.jitter, following - due)
    digest = hashlib.blake2b(f"{name}@{due:.0f}".encode(), digest_size=8).digest()
    return due + int(longest * (int.from_bytes(digest) / 2**64) * 1000) / 1000


def written(moment: float, timezone: str = "UTC") -> str:
    """A moment as people of a time zone write it, with the offset from UTC."""
    return datetime.fromtimestamp(moment, ZoneInfo(timezone)).isoformat(sep=" ", timespec="seconds")


def _is_understood(expression: str) -> bool:
    from cronsim import CronSim, CronSimError

    try:
        CronSim(expression, datetime(2000, 1, 1, tzinfo=UTC))
    except (CronSimError, AssertionError):
        # It checks with an assertion that a step does not follow the last weekday.
        return False
    return True


def _due_from(timing: Timing, after: float) -> Iterator[float]:
    """Due times after a moment, in order, each once."""
    # Loaded here: who only reads what is noted of schedules does without it.
    from cronsim import CronSim

    zone = UTC if timing.timezone == "UTC" else ZoneInfo(timing.timezone)
    latest = after
    for moment in CronSim(ALIASES.get(timing.cron.lower(), timing.cron), datetime.fromtimestamp(after, zone)):
        due = moment.timestamp()
        # In the hour that comes twice a local time stands for two moments, and the library gives the first.
        if due > latest:
            latest = due
            yield due
