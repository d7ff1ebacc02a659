"""Merges settings: weakest first the defaults, shoal.toml, SHOAL_ variables, the spider, the command line.

An unknown name or a wrong value is an error with the nearest name or the expected form."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

import msgspec

from shoal.errors import SettingError
from shoal.settings.table import (
    EXITS_VARIABLE,
    FIELDS,
    LOG_FORMAT_VARIABLE,
    LOG_LEVEL_VARIABLE,
    LOG_MARK_VARIABLE,
    PLACE_VARIABLES,
    READER_VARIABLE,
    TOKEN_VARIABLE,
    WEBHOOK_VARIABLE,
    Settings,
)
from shoal.settings.values import (
    check_dedup,
    check_kind,
    check_networks,
    check_revisits,
    check_search,
    parse_deadline,
    parse_duration,
    parse_machines,
    parse_max_failures,
    parse_rate,
    parse_revisit,
    parse_revisit_bounds,
    parse_size,
)
from shoal.text.near_names import did_you_mean, is_slip

# Other tables of a shoal.toml, read by `exits/configuration.py` and `duties/`.
OTHER_TABLES = ("proxies", "accounts", "alerts", "schedules")
NO_SETTINGS: Final = frozenset(
    {
        *PLACE_VARIABLES.values(),
        EXITS_VARIABLE,
        TOKEN_VARIABLE,
        READER_VARIABLE,
        WEBHOOK_VARIABLE,
        LOG_FORMAT_VARIABLE,
        LOG_LEVEL_VARIABLE,
        LOG_MARK_VARIABLE,
    }
)


class Resolved(msgspec.Struct, frozen=True):
    """All settings, with the origin of each value."""

    values: Settings
    origins: dict[str, str]


def resolve(layers: Sequence[tuple[str, Mapping[str, Any]]]) -> Resolved:
    """Merge layers, weakest first; a layer is its origin and its values."""
    merged: dict[str, Any] = {}
    origins = dict.fromkeys(FIELDS, "default")
    for origin, layer in layers:
        for name, value in layer.items():
            merged[name] = _convert(name, value, origin)
            origins[name] = origin
    values = Settings(**merged)
    check_dedup(values.dedup, ttl=parse_duration(values.dedup_ttl))
    check_revisits(values.revisit, values.revisit_bounds)
    _check_retention(values, origins["retention_archive"])
    check_search(values.pace, rate=values.rate, max_rate=values.max_rate)
    if values.merge == "fill" and parse_duration(values.freshness):
        raise SettingError('freshness drops writes that merge = "fill" needs: use one of the two')
    return Resolved(values, origins)


def _check_retention(values: Settings, origin: str) -> None:
    if values.retention_archive and not parse_duration(values.retention):
        raise SettingError('retention_archive stores what `retention` removes: also set `retention`, such as "90d"')
    # Probably an unset shell variable: the log would be deleted instead of moved.
    if not values.retention_archive and values.retention and origin in ("environment", "command line"):
        raise SettingError(
            f"retention_archive ({origin}) is empty, so `retention` would delete the log: name an archive, or leave it"
            " out"
        )


def file_layer(path: Path) -> tuple[str, dict[str, Any]]:
    """The settings in a shoal.toml, without its other tables; empty if there is no file."""
    if not path.exists():
        return str(path), {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} is not valid TOML: {error}") from None
    return str(path), {
        name: value for name, value in table.items() if name not in OTHER_TABLES or isinstance(value, str)
    }


def environment_layer(environ: Mapping[str, str] = os.environ) -> tuple[str, dict[str, Any]]:
    """SHOAL_MAX_DEPTH=3 sets max_depth; lists are comma-separated."""
    return "environment", {
        name.removeprefix("SHOAL_").lower(): text
        for name, text in environ.items()
        if name.startswith("SHOAL_") and name not in NO_SETTINGS
    }


Value = TypeVar("Value")
Written = TypeVar("Written")

_CHECKS: dict[str, Callable[[str], object]] = {
    "rate": parse_rate,
    "dedup": check_dedup,
    "deadline": parse_deadline,
    "max_failures": parse_max_failures,
    "kind": check_kind,
    "revisit": parse_revisit,
    "revisit_bounds": parse_revisit_bounds,
}
_DURATIONS: Final = frozenset(
    {
        "crawl_ttl",
        "dedup_ttl",
        "exit_patience",
        "freshness",
        "known_ttl",
        "retention",
        "versions_retention",
        "worker_max_seconds",
    }
)
# Numbers that may have a unit.
_WITH_UNIT: dict[str, Callable[[str], float]] = {"max_bytes": parse_size, "max_seconds": parse_duration}
_CHECKS_OF_MANY: dict[str, Callable[[Sequence[str]], object]] = {
    "allow_addresses": check_networks,
    "machines": parse_machines,
}


def _convert(name: str, value: Any, origin: str) -> Any:
    field = FIELDS.get(name)
    if field is None and name in PLACE_VARIABLES:
        raise SettingError(
            f"{name!r} ({origin}) is a place, not a setting: set {PLACE_VARIABLES[name]}, or give --{name}"
        )
    if field is None:
        hint = did_you_mean(name, FIELDS, otherwise="`shoal settings` lists them all")
        raise SettingError(f"unknown setting {name!r} ({origin}); {hint}")
    is_text = isinstance(value, str)
    value = _as_written(name, value, origin)
    try:
        converted = msgspec.convert(value, field.type, strict=not is_text)
    except msgspec.ValidationError as error:
        expected = 'expected a time such as "14d"' if name in _DURATIONS else _expected(field.type, error)
        raise SettingError(f"setting {name!r} ({origin}): {expected}, got {value!r}") from None
    if name in _CHECKS:
        _check_written(name, converted, origin, _CHECKS[name])
    if name in _DURATIONS:
        _check_written(name, converted, origin, parse_duration)
    if name == "worker_max_memory":
        _check_written(name, converted, origin, parse_size)
    if name in _CHECKS_OF_MANY:
        _check_written(name, converted, origin, _CHECKS_OF_MANY[name])
    return converted


def _as_written(name: str, value: Any, origin: str) -> Any:
    """The value in the type of its setting, where another form is allowed: lists as text, numbers with units."""
    if isinstance(value, str) and isinstance(FIELDS[name].default, tuple):
        return [part.strip() for part in value.split(",") if part.strip()]
    if name == "max_failures" and type(value) in (int, float):
        return str(value)
    if name == "worker_max_seconds" and _is_bare(str(value)):
        return f"{value}s"
    if isinstance(value, str) and name in _WITH_UNIT and not _is_bare(value):
        return _check_written(name, value, origin, _WITH_UNIT[name])
    return value


def _expected(kind: Any, error: msgspec.ValidationError) -> str:
    """What a setting accepts: its words, else the message of the validation."""
    words = _words(kind)
    return f"expected {' or '.join(map(repr, words))}" if words else str(error).lower().partition(", got ")[0]


def _words(kind: Any) -> tuple[str, ...]:
    """The words of a Literal type; else none."""
    parts = get_args(kind)
    return parts if get_origin(kind) is Literal else tuple(word for part in parts for word in _words(part))


def _is_bare(text: str) -> bool:
    """Whether the text is a number without a unit."""
    return text.replace(".", "", 1).isdecimal()


def _check_written(name: str, written: Written, origin: str, check: Callable[[Written], Value]) -> Value:
    try:
        return check(written)
    except SettingError as error:
        raise SettingError(f"setting {name!r} ({origin}): {error}") from None


OF_SCRAPY: Final = {
    "allowed_domains": "allow",
    "concurrent_requests_per_domain": "per_host",
    "custom_settings": "settings",
    "depth_limit": "max_depth",
    "download_delay": "rate",
    "download_timeout": "total_seconds",
    "handle_httpstatus_list": "handle_statuses",
    "robotstxt_obey": "obey_robots",
}


def refuse_near_misses(attributes: Mapping[str, Any], origin: str) -> None:
    """Refuse spider attributes that are almost a setting (`raet`), and Scrapy's names that would do nothing here."""
    for name, value in attributes.items():
        if (ours := OF_SCRAPY.get(name.lower())) is not None:
            raise SettingError(f"{name!r} ({origin}) is a name from Scrapy that does nothing here: write {ours!r}")
        near = next((setting for setting in FIELDS if _could_be(value, setting) and is_slip(name, setting)), None)
        if near and name not in FIELDS:
            raise SettingError(
                f"unknown setting {name!r} ({origin}); did you mean {near!r}? An attribute of your own needs another"
                f" name, such as _{name}"
            )


def _could_be(value: Any, setting: str) -> bool:
    """Whether the value could be meant for the setting: `rates = {"a": 1}` is no typing error."""
    kinds = (str, int, float)
    return isinstance(value, (*kinds, list, tuple, set) if isinstance(FIELDS[setting].default, tuple) else kinds)
