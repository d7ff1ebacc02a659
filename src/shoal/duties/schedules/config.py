"""The schedules of shoal.toml and the API, and their due times: cron expressions in a time zone, intervals, jitter.

Around a change of the clocks cron expressions run as in Debian's cron: a skipped local time runs right after the
change, one that comes twice runs once. Due times need no state: every coordinator computes the same ones.
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal, NoReturn
from zoneinfo import ZoneInfo, available_timezones

import msgspec

from shoal.errors import SettingError
from shoal.settings.layers import resolve
from shoal.settings.values import parse_duration
from shoal.text.near_names import did_you_mean

MOST_COUNTED: Final = 1000
FIRST_WINDOW_SECONDS: Final = 60.0
# Due times are whole seconds.
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
# The fields of a cron expression: name, allowed values, allowed words.
FIELDS: Final = (
    ("minute", "0 to 59", ()),
    ("hour", "0 to 23", ()),
    ("day of the month", "1 to 31, or L for the last", ()),
    ("month", "1 to 12, or jan to dec", MONTHS),
    ("day of the week", "0 to 7, or sun to sat", DAYS),
)
SCHEDULES: Final = "schedules"
ENCODING: Final = "utf-8-sig"  # Windows editors begin a file with a byte order mark
MOST_SCHEDULES: Final = 200
MOST_WORKERS: Final = 256
LONGEST_SECONDS: Final = 3650 * 86_400.0
# The largest schedule in the notes of coordinators, which are read every second.
MOST_BYTES: Final = 16_384
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """When runs are due: by a cron expression in a time zone, or every `every` seconds since 1970. `jitter`: a start is
    delayed by at most so many seconds."""

    cron: str = ""
    timezone: str = "UTC"
    every: int = 0
    jitter: float = 0.0


def check_cron(text: str) -> None:
    """SettingError unless it is a cron expression of five fields that some date fits."""
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
    """SettingError if there is no such time zone."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        known = sorted(available_timezones())
        hint = did_you_mean(name, known, otherwise="write it as Europe/Berlin or UTC")
        raise SettingError(f"timezone: there is no {name!r}; {hint}") from None


def next_due(timing: Timing, *, after: float) -> float | None:
    """The first due time after a moment; None: none within 50 years."""
    if timing.every:
        return float((int(after // timing.every) + 1) * timing.every)
    return next(_due_from(timing, after), None)


def newest_due(timing: Timing, *, after: float, until: float) -> float | None:
    """The last due time in (after, until]; None: there is none."""
    if timing.every:
        found = float(int(until // timing.every) * timing.every)
        return found if found > after else None
    # The library only goes forwards: search a window before the end, and double it until it has a due time.
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
    """The number of due times in (after, until], counted up to `most`."""
    if timing.every:
        return max(0, min(most, int(until // timing.every) - int(after // timing.every)))
    number = 0
    for due in _due_from(timing, after):
        if due > until or number >= most:
            break
        number += 1
    return number


def start_of(timing: Timing, due: float, *, name: str) -> float:
    """When the run of a due time starts: after its jitter, which every coordinator computes alike, and before the next
    due time."""
    if not timing.jitter:
        return due
    following = next_due(timing, after=due)
    longest = timing.jitter if following is None else min(timing.jitter, following - due)
    digest = hashlib.blake2b(f"{name}@{due:.0f}".encode(), digest_size=8).digest()
    return due + int(longest * (int.from_bytes(digest) / 2**64) * 1000) / 1000


def written(moment: float, timezone: str = "UTC") -> str:
    """The local time of a moment in a time zone, with the offset from UTC."""
    return datetime.fromtimestamp(moment, ZoneInfo(timezone)).isoformat(sep=" ", timespec="seconds")


def _is_understood(expression: str) -> bool:
    from cronsim import CronSim, CronSimError

    try:
        CronSim(expression, datetime(2000, 1, 1, tzinfo=UTC))
    except (CronSimError, AssertionError):
        # cronsim uses an assertion to refuse a step after the last weekday.
        return False
    return True


def _due_from(timing: Timing, after: float) -> Iterator[float]:
    """The due times after a moment, in order."""
    # Imported here: commands that only read notes do not need it.
    from cronsim import CronSim

    zone = UTC if timing.timezone == "UTC" else ZoneInfo(timing.timezone)
    latest = after
    for moment in CronSim(ALIASES.get(timing.cron.lower(), timing.cron), datetime.fromtimestamp(after, zone)):
        due = moment.timestamp()
        # In the hour that comes twice the library gives the first of the two moments.
        if due > latest:
            latest = due
            yield due


Overlap = Literal["skip", "queue", "cancel"]
Missed = Literal["skip", "once"]


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """Repeated runs of a spider. `overlap`: what happens to a run that is due while the last one goes on; `missed`: to
    runs that were due while nobody could start them."""

    name: str
    spider: str
    timing: Timing
    overlap: Overlap = "skip"
    missed: Missed = "skip"
    paused: bool = False
    workers: int = 1
    arguments: dict[str, str] = {}
    settings: dict[str, str | int | float | bool] = {}

    @property
    def rhythm(self) -> str:
        """A text for its due times; another text means that they have changed."""
        if self.timing.every:
            return f"every {self.timing.every} s"
        return f"{self.timing.cron} {self.timing.timezone}"


class ScheduleKeys(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The keys of `[[schedules]]`, as written."""

    name: str = ""
    spider: str = ""
    cron: str = ""
    timezone: str = ""
    every: str = ""
    overlap: Overlap = "skip"
    jitter: str = ""
    missed: Missed = "skip"
    paused: bool = False
    workers: int = 1
    arguments: dict[str, str] = {}
    settings: dict[str, str | int | float | bool] = {}


def load_schedules(config: Path) -> dict[str, Schedule]:
    """The schedules of a shoal.toml by name; none without the file."""
    if not config.exists():
        return {}
    try:
        tables = tomllib.loads(config.read_text(encoding=ENCODING)).get(SCHEDULES, [])
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{config} is not valid TOML: {error}") from None
    if not isinstance(tables, list):
        raise SettingError(f"[{SCHEDULES}] in {config}: write it with two brackets, [[{SCHEDULES}]], once per schedule")
    found: dict[str, Schedule] = {}
    for number, table in enumerate(tables, 1):
        name = table.get("name") if isinstance(table, dict) else None
        label = repr(name) if isinstance(name, str) and name else f"number {number}"
        schedule = schedule_of(table, origin=f"[[{SCHEDULES}]] {label} in {config}")
        if schedule.name in found:
            raise SettingError(f"[[{SCHEDULES}]] {label} in {config}: there are two of this name; give each its own")
        found[schedule.name] = schedule
    if len(found) > MOST_SCHEDULES:
        raise SettingError(f"{config} has {len(found)} schedules: {MOST_SCHEDULES} are the most")
    return found


def schedule_of(table: Any, *, origin: str) -> Schedule:
    """The schedule of a table, with every value checked; `origin` begins the text of an error."""
    keys = _read(table, origin)

    def fail(problem: str) -> NoReturn:
        raise SettingError(f"{origin}: {problem}")

    if not _NAME.fullmatch(keys.name):
        fail("it needs a name of letters, digits, dots and dashes: write name = …")
    if not keys.spider:
        fail('it needs the file of a spider: write spider = "books.py"')
    if not 1 <= keys.workers <= MOST_WORKERS:
        fail(f"workers: write a number from 1 to {MOST_WORKERS}")
    for argument in keys.arguments:
        if not argument.isidentifier():
            fail(f"arguments: {argument!r} is no name of an argument")
    try:
        timing = _timing(keys)
        resolve([("settings", keys.settings)])
    except SettingError as error:
        fail(str(error))
    made = Schedule(
        name=keys.name,
        spider=keys.spider,
        timing=timing,
        overlap=keys.overlap,
        missed=keys.missed,
        paused=keys.paused,
        workers=keys.workers,
        arguments=keys.arguments,
        settings=keys.settings,
    )
    if len(msgspec.json.encode(made)) > MOST_BYTES:
        fail(f"it is larger than {MOST_BYTES // 1024} KiB: shorten its arguments or settings")
    return made


def _read(table: Any, origin: str) -> ScheduleKeys:
    if not isinstance(table, Mapping):
        raise SettingError(f"{origin}: it is not a table")
    fields = {field.name: field for field in msgspec.structs.fields(ScheduleKeys)}
    for key, value in table.items():
        if key not in fields:
            hint = did_you_mean(key, fields, otherwise=f"there are {', '.join(fields)}")
            raise SettingError(f"{origin}: unknown key {key!r}; {hint}")
        try:
            msgspec.convert(value, fields[key].type)
        except msgspec.ValidationError as error:
            words = {"overlap": Overlap, "missed": Missed}.get(key)
            problem = str(error).lower() if words is None else _one_of(words, value)
            raise SettingError(f"{origin}: {key}: {problem}") from None
    return msgspec.convert(table, ScheduleKeys)


def _one_of(words: Any, value: Any) -> str:
    known = words.__args__
    return f"write {' or '.join(known)}, not {value!r}"


def _timing(keys: ScheduleKeys) -> Timing:
    if bool(keys.cron) == bool(keys.every):
        raise SettingError('write one of cron = "30 6 * * mon-fri" and every = "6h"')
    if keys.timezone:
        check_timezone(keys.timezone)
    jitter = _seconds("jitter", keys.jitter)
    if keys.cron:
        check_cron(keys.cron)
        return Timing(cron=keys.cron, timezone=keys.timezone or "UTC", jitter=jitter)
    if keys.timezone:
        raise SettingError("timezone: an interval is the same in every time zone; use cron for a time of the day")
    every = _seconds("every", keys.every)
    if not 1 <= every <= LONGEST_SECONDS or every != int(every):
        raise SettingError(f"every: {keys.every!r} is no whole number of seconds, from 1s to 3650d")
    if jitter >= every:
        raise SettingError(f"jitter: {keys.jitter} is not shorter than every = {keys.every!r}")
    return Timing(every=int(every), jitter=jitter)


def _seconds(key: str, text: str) -> float:
    try:
        return parse_duration(text)
    except SettingError as error:
        raise SettingError(f"{key}: {error}") from None
