"""Schedules as shoal.toml or the API has them: every key checked before anything is started."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, NoReturn

import msgspec

from shoal.errors import SettingError
from shoal.processes.schedules.due_times import Timing, check_cron, check_timezone
from shoal.settings.layers import resolve
from shoal.settings.values import parse_duration
from shoal.text.near_names import did_you_mean

SCHEDULES: Final = "schedules"
ENCODING: Final = "utf-8-sig"  # Windows editors begin a file with a byte order mark
MOST_SCHEDULES: Final = 200
MOST_WORKERS: Final = 256
LONGEST_SECONDS: Final = 3650 * 86_400.0
# What a schedule may take in the notes of coordinators, which are read every second.
MOST_BYTES: Final = 16_384
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")

Overlap = Literal["skip", "queue", "cancel"]
Missed = Literal["skip", "once"]


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """A spider that is run again and again. `overlap`: what becomes of a run that falls due while the last one is still
    going; `missed`: of runs that fell due while nobody could start them."""

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
        """When it runs, in a few words."""
        if self.timing.every:
            return f"every {self.timing.every} s"
        return f"{self.timing.cron} {self.timing.timezone}"


class ScheduleKeys(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The keys of `[[schedules]]`, as they are written."""

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
    """The schedules of a shoal.toml by name; none where there is no such file."""
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
    """The schedule of a table with every value checked; `origin` is what a refusal begins with."""
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
