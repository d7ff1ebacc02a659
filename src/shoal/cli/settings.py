"""`shoal settings`: every setting, its value, and where it came from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import click

from shoal.cli.display.screen import Screen
from shoal.cli.options import described, json_option, setting_options
from shoal.settings.table import EXITS_VARIABLE, LOG_FORMAT_VARIABLE, LOG_LEVEL_VARIABLE, PLACE_VARIABLES
from shoal.settings.variables import VARIABLES
from shoal.text.secrets import masked

SHOWN = 3
SHOWN_VARIABLES = PLACE_VARIABLES | {
    "exits": EXITS_VARIABLE,
    "log_format": LOG_FORMAT_VARIABLE,
    "log_level": LOG_LEVEL_VARIABLE,
}


@click.command(short_help="Every setting, its value, and where it came from.")
@click.argument("spider", metavar="[FILE[:SPIDER]]", required=False)
@setting_options
@json_option
def settings(spider: str | None, *, flags: dict[str, Any], as_json: bool) -> None:
    """Every setting, its value, and where it came from: the default, shoal.toml, SHOAL_… in the environment,
    the spider, or the command line. The places and the log format at the end are not settings, but flags of
    commands.

    \b
    Example: shoal settings books.py --rate 2/s
    """
    import msgspec

    from shoal.run.intakes import settings_of
    from shoal.spider.loading import load_spider
    from shoal.spider.spider import Spider

    resolved = settings_of(load_spider(spider) if spider else Spider, flags)
    values = {name: _without_secrets(value) for name, value in msgspec.structs.asdict(resolved.values).items()}
    screen = Screen()
    if as_json:
        screen.json(
            {
                name: {"value": value, "from": resolved.origins[name], "help": described(name)}
                for name, value in values.items()
            }
            | {
                name: {"value": value, "from": origin, "help": VARIABLES[SHOWN_VARIABLES[name]].text}
                for name, (value, origin) in _places(os.environ).items()
            }
        )
        return
    rows = [(name, _written(value), resolved.origins[name], described(name)) for name, value in values.items()]
    rows += [
        (name, value, origin, VARIABLES[SHOWN_VARIABLES[name]].text)
        for name, (value, origin) in _places(os.environ).items()
    ]
    screen.table(("setting", "value", "from", "what it is for"), rows, whole=("setting",))


def _places(environ: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """Places and log options with their values, without passwords, and the origin of each."""
    return {
        name: (" ".join(map(masked, environ[variable].split(" "))), variable)
        if environ.get(variable)
        else (VARIABLES[variable].default or "none", "default")
        for name, variable in SHOWN_VARIABLES.items()
    }


def _without_secrets(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_without_secrets, value))
    return masked(value) if isinstance(value, str) else value


def _written(value: Any) -> str:
    """A value much as it is written in shoal.toml."""
    if isinstance(value, tuple):
        more = f" and {len(value) - SHOWN} more" if len(value) > SHOWN else ""
        return ",".join(map(str, value[:SHOWN])) + more or "(none)"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value)
