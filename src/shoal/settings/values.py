"""Parsers and checks for values written as text: rates, durations, sizes, deadlines, kinds, networks, machines."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from typing import Final, NamedTuple
from zoneinfo import ZoneInfo, available_timezones

from shoal.errors import SettingError
from shoal.text.near_names import did_you_mean

MIN_BLOOM_ERROR, MAX_BLOOM_ERROR = 1e-9, 0.1
MIN_REVISIT_SECONDS: Final = 1.0
_DURATION = re.compile(r"(?:(\d{1,9}(?:\.\d{1,6})?)([smhdw]))?")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
_SIZE = re.compile(r"(?:(\d{1,9}(?:\.\d{1,6})?) ?([kKMG]i?)B?)?")
_FACTORS = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "ki": 2.0**10, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
_DEADLINE = re.compile(r"(?:(\d{4}-\d\d-\d\d)[T ])?(\d\d:\d\d(?::\d\d)?)(?: ?(Z|[+-]\d\d:\d\d)| ([A-Za-z]\S*))?")
_MACHINE = re.compile(r"([1-9]\d{0,3}) cores? (\d{1,6}(?:\.\d{1,6})?) GB (\d{1,6}(?:\.\d{1,6})?)/h")
_KIND = re.compile(r"[a-z0-9][a-z0-9_-]{0,31}")
_FAILURES = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)%|(\d{1,12})")


def parse_rate(text: str) -> float:
    """The interval in seconds between starts: "4/s" is 0.25, "unlimited" is 0."""
    if text == "unlimited":
        return 0.0
    count, slash, unit = text.partition("/")
    seconds = {"s": 1.0, "m": 60.0, "h": 3600.0}.get(unit)
    try:
        number = float(count)
    except ValueError:
        number = 0.0
    if not slash or seconds is None or not 0 < number < float("inf"):
        raise SettingError(f"rate {text!r} is not understood: write it as 4/s, 30/m, 100/h or unlimited")
    return seconds / number


def parse_duration(text: str) -> float:
    """Seconds: "90s", "30m", "1h", "7d" or "2w"; an empty text is 0."""
    match = _DURATION.fullmatch(text)
    if match is None:
        raise SettingError(f"duration {text!r} is not understood: write it as 90s, 30m, 1h, 7d or 2w")
    return float(match[1]) * _UNITS[match[2]] if match[1] else 0.0


def parse_size(text: str) -> int:
    """Bytes: "500MB", "2GB" or "512MiB"; an empty text is 0."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise SettingError(f"size {text!r} is not understood: write it as 500MB, 2GB or 512MiB")
    return int(float(match[1]) * _FACTORS[match[2]]) if match[1] else 0


class Deadline(NamedTuple):
    """A time of day; day None: the next one; zone None: this machine's time zone."""

    day: date | None
    time: time
    zone: tzinfo | None


def parse_deadline(text: str) -> Deadline | None:
    """ "06:00", "06:00 Europe/Berlin" or "2026-11-20 06:00+01:00"; an empty text is none."""
    if not text:
        return None
    match = _DEADLINE.fullmatch(text)
    how = "write it as 06:00, 06:00 Europe/Berlin or 2026-11-20 06:00+01:00"
    if match is None:
        raise SettingError(f"deadline {text!r} is not understood: {how}")
    day, clock, offset, zone = match.groups()
    try:
        return Deadline(date.fromisoformat(day) if day else None, time.fromisoformat(clock), _zone(offset or zone))
    except ValueError as error:
        raise SettingError(f"deadline {text!r} is not understood: {error}; {how}") from None


def _zone(name: str | None) -> tzinfo | None:
    """The time zone with this name or offset; None: this machine's."""
    if name is None:
        return None
    if name == "Z" or name[0] in "+-":
        offset = datetime.fromisoformat(f"2000-01-01T00:00{name}").utcoffset()
        return timezone(offset or timedelta())
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        raise SettingError(f"deadline: {_no_zone(name, sorted(available_timezones()))}") from None


def _no_zone(name: str, known: Sequence[str]) -> str:
    """The message for an unknown time zone: what to write or install."""
    if not known:
        return f"this machine knows no time zones: install tzdata (apt or pip) for {name}, or write its hours as +01:00"
    hint = did_you_mean(name, known, otherwise="write it as Europe/Berlin or UTC")
    return f"there is no time zone {name!r}; {hint}"


def deadline_at(text: str, *, now: float) -> float:
    """The deadline as a Unix time. Without a day: the next such time of day after `now`.

    At a clock change, a skipped time is moved to after the gap; of a repeated time the first one counts."""
    deadline = parse_deadline(text)
    if deadline is None:
        raise ValueError("there is no deadline")
    day, clock, zone = deadline
    if day is not None:
        return datetime.combine(day, clock, zone).timestamp()
    today = datetime.fromtimestamp(now, zone).date()
    moments = (datetime.combine(today + timedelta(days=days), clock, zone).timestamp() for days in range(3))
    return next(moment for moment in moments if moment > now)


def parse_revisit(text: str) -> float:
    """Seconds between the visits of a page: "24h"; "never" and an empty text are 0."""
    seconds = 0.0 if text == "never" else parse_duration(text)
    if 0 < seconds < MIN_REVISIT_SECONDS:
        raise SettingError(f"revisit {text!r} is too often: a page is visited every {MIN_REVISIT_SECONDS:g} s at most")
    return seconds


def written_revisit(seconds: float | None) -> str | None:
    """The inverse of parse_revisit; None stays None."""
    if seconds is None:
        return None
    return f"{seconds:f}s" if seconds else "never"


def parse_revisit_bounds(text: str) -> tuple[float, float]:
    """Shortest and longest seconds between two visits of a page: "1h-7d"; an empty text is 0 and 0."""
    if not text:
        return 0.0, 0.0
    shortest, dash, longest = text.partition("-")
    try:
        bounds = parse_revisit(shortest.strip()), parse_revisit(longest.strip())
    except SettingError as error:
        raise SettingError(f"revisit_bounds {text!r} is not understood: {error}") from None
    if not dash or not 0 < bounds[0] < bounds[1]:
        raise SettingError(f"revisit_bounds {text!r} is not understood: write the shortest and the longest, as 1h-7d")
    return bounds


def check_revisits(revisit: str, bounds: str) -> None:
    """Refuse revisit_bounds without revisit, and a revisit outside its bounds."""
    seconds, (shortest, longest) = parse_revisit(revisit), parse_revisit_bounds(bounds)
    if longest and not seconds:
        raise SettingError(
            f"revisit_bounds {bounds!r} needs revisit, the time until the second visit, such as revisit = 24h"
        )
    if longest and not shortest <= seconds <= longest:
        raise SettingError(f"revisit {revisit!r} is outside revisit_bounds {bounds!r}: change one of the two")


def check_search(pace: str, *, rate: str, max_rate: str) -> None:
    """Refuse pace = "search" without an upper limit, or without a first rate below it."""
    if pace != "search":
        if max_rate:
            raise SettingError(
                f'max_rate {max_rate!r} is only for pace = "search": write that, or set max_rate to an empty text'
            )
        return
    if not max_rate:
        raise SettingError('pace = "search" needs max_rate, the upper limit for one host, such as max_rate = "50/s"')
    if (first := parse_rate(rate)) == 0:
        raise SettingError('pace = "search" begins at `rate` and cannot begin at "unlimited": write it as 1/s')
    try:
        fastest = parse_rate(max_rate)
    except SettingError as error:
        raise SettingError(f"max_{error}") from None
    if fastest == 0:
        raise SettingError(
            f"max_rate {max_rate!r} is no limit for a search: write the upper limit for one host, such as 50/s"
        )
    if fastest >= first:
        raise SettingError(
            f"max_rate {max_rate!r} is not above rate {rate!r}, where the search begins: raise max_rate, or lower rate"
        )


def check_kind(kind: object, *, what: str = "kind") -> None:
    """Refuse a value that cannot be the name of a kind of worker."""
    if not isinstance(kind, str) or _KIND.fullmatch(kind) is None:
        raise SettingError(
            f"{what} {kind!r} is not a kind: write a name of at most 32 lower-case letters, digits, - and _, such as"
            " browser"
        )


def parse_kinds(text: str) -> tuple[str, ...]:
    """The kinds of a worker: "browser,http"."""
    kinds = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for kind in kinds:
        check_kind(kind, what="--kinds")
    return kinds


def parse_max_failures(text: str) -> tuple[float, bool]:
    """The limit, and whether it is in percent of the pages: "50%" or "100"."""
    match = _FAILURES.fullmatch(text)
    if match is None or float(match[1] or 0) > 100:
        raise SettingError(
            f"max_failures {text!r} is not understood: write a share such as 50%, or a number such as 100"
        )
    return float(match[1] or match[2]), match[1] is not None


def check_dedup(text: str, *, ttl: float = 0.0) -> None:
    """Refuse any `dedup` but "exact" and "bloom:SHARE" (share of new URLs to miss). Only exact keys can expire."""
    kind, _, share = text.partition(":")
    try:
        is_right = kind == "bloom" and MIN_BLOOM_ERROR <= float(share) <= MAX_BLOOM_ERROR
    except ValueError:
        is_right = False
    if text != "exact" and not is_right:
        raise SettingError(f"dedup {text!r} is not understood: write exact, or bloom:0.001 (at most {MAX_BLOOM_ERROR})")
    if ttl and text != "exact":
        raise SettingError(f"dedup_ttl needs dedup=exact: with dedup={text} single URLs cannot expire")


def check_networks(entries: Sequence[str]) -> None:
    """Refuse entries that are neither an address nor a network."""
    for entry in entries:
        try:
            ipaddress.ip_network(entry)
        except ValueError:
            raise SettingError(f"allow_addresses entry {entry!r} is not a network: write it as 10.1.0.0/16") from None


class MachineSize(NamedTuple):
    """A machine size: cores, memory in GB, price per hour."""

    cores: int
    gigabytes: float
    price: float


def parse_machine(text: str) -> MachineSize:
    """A machine size: "4 cores 8 GB 0.18/h"."""
    match = _MACHINE.fullmatch(text)
    if match is None or not float(match[2]):
        raise SettingError(f"machines entry {text!r} is not understood: write it as 4 cores 8 GB 0.18/h")
    return MachineSize(int(match[1]), float(match[2]), float(match[3]))


def parse_machines(entries: Sequence[str]) -> list[MachineSize]:
    """Machine sizes, in the order given."""
    return [parse_machine(entry) for entry in entries]
