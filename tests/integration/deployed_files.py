"""What files of deployments name, held against the real command line: words of commands, variables, ports, paths."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import click
import yaml

from shoal.cli.commands.serve import PORT
from shoal.cli.main import shoal
from shoal.cli.secret_files import SECRET_FILE_VARIABLES
from shoal.settings import FIELDS, NO_SETTINGS

VARIABLE = re.compile(r"\bSHOAL_[A-Z_]+\b")
METRIC = re.compile(r"\bshoal_[a-z_]+\b")
KNOWN_PORTS = {PORT, 9100}


def unknown_variables(text: str) -> set[str]:
    """Variables of shoal that a text names and that shoal does not read."""
    settings = {f"SHOAL_{name.upper()}" for name in FIELDS}
    return set(VARIABLE.findall(text)) - set(NO_SETTINGS) - set(SECRET_FILE_VARIABLES) - settings


def check_words(words: Iterable[str]) -> None:
    """Fail on a command, an option or a value that the real command line does not take."""
    command: click.Command | None = shoal
    rest = list(words)
    while isinstance(command, click.Group):
        name = rest.pop(0)
        command = command.get_command(click.Context(shoal), name)
        assert command is not None, f"there is no command {name}"
    with command.make_context("shoal", rest):
        pass


def documents(text: str) -> list[dict[str, Any]]:
    """The documents of a YAML file."""
    return [one for one in yaml.safe_load_all(text) if one]


def inner(value: Any, key: str) -> Iterator[Any]:
    """Every value that has this key, at any depth."""
    if isinstance(value, dict):
        for name, one in value.items():
            if name == key:
                yield one
            yield from inner(one, key)
    elif isinstance(value, list):
        for one in value:
            yield from inner(one, key)
