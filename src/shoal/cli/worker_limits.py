"""The flags that say when a worker process ends by itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import click

from shoal.errors import SettingError, UsageError
from shoal.settings.values import parse_duration, parse_size

Command = Callable[..., Any]
Value = TypeVar("Value", int, float)


def limit_options(command: Command) -> Command:
    """--max-pages, --max-seconds, --max-memory, --replace and --idle-seconds of `shoal worker`."""

    @functools.wraps(command)
    def wrapped(*args: Any, idle_seconds: float | None, **options: Any) -> Any:
        return command(*args, idle_seconds=idle_seconds or 0.0, **options)

    for decorate in (
        click.option(
            "--idle-seconds",
            metavar="TIME",
            callback=_read_by(_seconds),
            help="End when there was no work for so long: 90s, 10m.  [default: wait for work]",
        ),
        click.option(
            "--replace", "replaces", is_flag=True, help="Let a new worker process take the place of one that retires."
        ),
        click.option(
            "--max-memory",
            metavar="SIZE",
            callback=_read_by(parse_size),
            help="Retire with so much memory: 500MB, 2GB.  [default: worker_max_memory of the spider]",
        ),
        click.option(
            "--max-seconds",
            metavar="TIME",
            callback=_read_by(_seconds),
            help="Retire after so long: 90s, 6h.  [default: worker_max_seconds of the spider]",
        ),
        click.option(
            "--max-pages",
            metavar="N",
            type=click.IntRange(min=0),
            help="Retire after so many pages: finish those in hand, hand the rest back, exit with 0."
            "  [default: worker_max_pages of the spider]",
        ),
    ):
        wrapped = decorate(wrapped)
    return wrapped


def _read_by(read: Callable[[str], Value]) -> Callable[[click.Context, click.Parameter, str | None], Value | None]:
    def parsed(_: click.Context, option: click.Parameter, text: str | None) -> Value | None:
        try:
            return None if text is None else read(text)
        except SettingError as error:
            raise UsageError(f"{option.opts[0]}: {error}") from None

    return parsed


def _seconds(text: str) -> float:
    """A time, or a bare number of seconds, as the flag's name suggests."""
    return parse_duration(f"{text}s" if text.replace(".", "", 1).isdigit() else text)
