"""Writes the differences of `shoal diff`: a table, tab-separated lines or one JSON document."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from shoal.cli.display.lines import one_line
from shoal.cli.display.numbers import count, moment
from shoal.cli.display.screen import Screen
from shoal.store.base import Difference

SHOWN_ON_TERMINAL = 200
FIELDS_SHOWN = 3
VALUE_LENGTH = 30
COLUMNS = ("change", "when", "key", "url", "fields")


class DifferenceLines:
    """Writes differences one by one: on a terminal the first ones as a table, else each as a line."""

    def __init__(self, screen: Screen, *, as_json: bool) -> None:
        self._screen = screen
        self._as_json = as_json
        self._rows: list[tuple[str, ...]] = []
        self._written = 0

    def begin(self, what: Mapping[str, Any]) -> None:
        if self._as_json:
            self._write(msgspec.json.encode(what)[:-1] + b',"differences":[')

    def add(self, one: Difference) -> None:
        if self._as_json:
            self._write((b"," if self._written else b"") + msgspec.json.encode(_document(one)))
        elif not self._screen.out.is_terminal:
            self._screen.out.file.write("\t".join(map(one_line, _row(one))).rstrip() + "\n")
        elif self._written < SHOWN_ON_TERMINAL:
            self._rows.append(_row(one))
        self._written += 1

    def end(self, counts: Mapping[str, int]) -> None:
        if self._as_json:
            self._write(b"]," + msgspec.json.encode(dict(counts))[1:] + b"\n")
        elif self._rows:
            self._screen.table(COLUMNS, self._rows, spare=("when", "url"), folds=("key", "fields"), whole=("change",))
            if more := self._written - len(self._rows):
                self._screen.line(f"and {count(more)} more: a pipe, --only or --json shows them")

    def _write(self, document: bytes) -> None:
        from shoal.results.export import harmless

        sys.stdout.write(harmless(document).decode())


def total(counts: Mapping[str, int], spider: str, *, since: float, until: float) -> str:
    """What differs, in one line."""
    found = ", ".join(f"{count(number)} {change}" for change, number in counts.items() if number)
    return f"{spider}, {moment(since)} to {moment(until)}: {found or 'no differences'}"


def changed_fields(one: Difference) -> list[str]:
    """The names of the fields that differ; empty if the contents before or after are unknown."""
    before, after = _fields(one.before), _fields(one.after)
    if before is None or after is None:
        return []
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]


def _document(one: Difference) -> dict[str, Any]:
    return {
        "change": one.change,
        "key": one.key,
        "url": one.url,
        "at": one.at,
        "fields": changed_fields(one),
        "before": None if one.before is None else msgspec.Raw(one.before),
        "after": None if one.after is None else msgspec.Raw(one.after),
    }


def _row(one: Difference) -> tuple[str, ...]:
    return one.change, moment(one.at), one.key, one.url, _field_text(one)


def _field_text(one: Difference) -> str:
    """The first fields that differ, with their values before and after."""
    names = changed_fields(one)
    before, after = _fields(one.before) or {}, _fields(one.after) or {}
    shown = [f"{name}: {_value(before.get(name))} → {_value(after.get(name))}" for name in names[:FIELDS_SHOWN]]
    more = [f"{len(names) - FIELDS_SHOWN} more"] if len(names) > FIELDS_SHOWN else []
    return ", ".join([*shown, *more])


def _fields(data: bytes | None) -> dict[str, Any] | None:
    found = None if data is None else msgspec.json.decode(data)
    return found if isinstance(found, dict) else None


def _value(value: Any) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= VALUE_LENGTH else f"{text[: VALUE_LENGTH - 1]}…"
