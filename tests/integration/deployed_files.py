"""What files of deployments name: variables, ports, metrics. checks/command_words.py holds their commands against the
real command line."""

from __future__ import annotations

import contextlib
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from checks.command_words import check_words as check_words
from shoal.cli.serve import PORT
from shoal.settings.layers import NO_SETTINGS
from shoal.settings.table import FIELDS
from shoal.settings.variables import SECRET_FILE_VARIABLES
from shoal.testing.servers.programs import find_program, free_port
from shoal.testing.waiting import wait_until

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
    return [one for one in yaml.load_all(text, Loader=yaml.CSafeLoader) if one]


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


@contextlib.contextmanager
def running_redis(command: list[str], *, folder: Path) -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
    """The Redis that this command starts as its container would, with its data in this folder: its port and process."""
    find_program("redis-server")
    port = free_port()
    script = command[-1].replace("dir /data", f"dir {folder}\nport {port}")
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command[:-1], script], stdout=log, stderr=log)
    try:
        wait_until(lambda: "NOAUTH" in _ask(port, "ping"), otherwise="redis does not answer, or asks for no password")
        yield port, process
    finally:
        process.terminate()
        assert process.wait(30) == 0


def check_redis(command: list[str], *, password: Path, folder: Path) -> None:
    """Fail where the Redis of this command breaks a promise: it writes to a file, evicts nothing, nobody gets in
    without the password or reads it from the list of processes."""
    secret = password.read_text().strip()
    given = ["-a", secret, "--no-auth-warning"]
    with running_redis(command, folder=folder) as (port, process):
        assert "PONG" in _ask(port, *given, "ping")
        assert "yes" in _ask(port, *given, "config", "get", "appendonly")
        assert "noeviction" in _ask(port, *given, "config", "get", "maxmemory-policy")
        shown = Path(f"/proc/{process.pid}/cmdline").read_bytes()
        assert shown.startswith(b"redis-server")
        assert secret.encode() not in shown


def _ask(port: int, *words: str) -> str:
    done = subprocess.run(["redis-cli", "-p", str(port), *words], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr
