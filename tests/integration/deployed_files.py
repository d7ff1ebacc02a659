"""What files of deployments name: variables, ports, metrics. checks/command_words.py holds their commands against the
real command line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from checks.command_words import check_words as check_words
from shoal.cli.commands.serve import PORT
from shoal.cli.secret_files import SECRET_FILE_VARIABLES
from shoal.settings import FIELDS, NO_SETTINGS

COMPOSE_VARIABLE = re.compile(r"\$\{([A-Z_]+):-([^}]*)\}|\$\$")
VARIABLE = re.compile(r"\bSHOAL_[A-Z_]+\b")
METRIC = re.compile(r"\bshoal_[a-z_]+\b")
KNOWN_PORTS = {PORT, 9100}


def unknown_variables(text: str) -> set[str]:
    """Variables of shoal that a text names and that shoal does not read."""
    settings = {f"SHOAL_{name.upper()}" for name in FIELDS}
    return set(VARIABLE.findall(text)) - set(NO_SETTINGS) - set(SECRET_FILE_VARIABLES) - settings


def compose_resolved(text: str) -> dict[str, Any]:
    """A compose file as compose itself sees it: merge keys resolved, variables at their defaults, `$$` as `$`."""

    def default(found: re.Match[str]) -> str:
        return found[2] if found[1] else "$"

    def resolved(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: resolved(one) for name, one in value.items()}
        if isinstance(value, list):
            return [resolved(one) for one in value]
        if not isinstance(value, str):
            return value
        whole = COMPOSE_VARIABLE.sub(default, value)
        return int(whole) if whole != value and whole.isdigit() else whole

    found: dict[str, Any] = resolved(yaml.safe_load(text))
    return found


def compose_variables(text: str) -> dict[str, str]:
    """The variables that a compose file reads, with their defaults."""
    return {found[1]: found[2] for found in COMPOSE_VARIABLE.finditer(text) if found[1]}


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
