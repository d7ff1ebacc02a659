"""The tables that pools are written in: their keys, and the files and variables that they name."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

import msgspec

from shoal.errors import SettingError
from shoal.text.near_names import did_you_mean

PROXIES: Final = "proxies"
ACCOUNTS: Final = "accounts"
EXITS: Final = "exits"
ENCODING: Final = "utf-8-sig"  # Windows editors begin a file with a byte order mark

Login = dict[str, str | dict[str, str]]


class Table(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The keys of `[proxies.NAME]`, `[accounts.NAME]` and `[exits.NAME]`."""

    urls: list[str] = []
    url: str = ""
    logins: list[Login] = []
    hosts: list[str] = []
    file: str = ""
    env: str = ""
    rate: str | None = None
    per_exit: int = 0
    host_rate: str | None = None
    per_host: int = 1000
    sticky: bool = False
    rotate: str = ""
    quarantine: str = "1m"
    max_quarantine: str = "1h"
    region: str = ""
    cost: float = 0.0
    cost_per_gb: float = 0.0
    error_statuses: tuple[int, ...] = (401, 402, 407)
    forward_secrets: bool = False


_FIELDS: Final = {field.name: field for field in msgspec.structs.fields(Table)}
_ONLY_PROXIES: Final = {"urls", "url", "region", "error_statuses", "forward_secrets"}
_ONLY_ACCOUNTS: Final = {"logins", "hosts"}
# Towards a host, offered exits keep the pace of the crawl, or that of the pool that they are offered to.
_NOT_OFFERED: Final = {"host_rate", "per_host"}
FOREIGN: Final = {PROXIES: _ONLY_ACCOUNTS, ACCOUNTS: _ONLY_PROXIES, EXITS: _ONLY_ACCOUNTS | _NOT_OFFERED}


class Source:
    """The table and file that a pool comes from: reads the files and variables it names, and says what is wrong."""

    def __init__(self, table: str, folder: Path, environ: Mapping[str, str]) -> None:
        self._table = table
        self._folder = folder
        self._environ = environ

    def fail(self, problem: str) -> NoReturn:
        """Refuse the pool."""
        raise SettingError(f"{self._table}: {problem}")

    @property
    def title(self) -> str:
        """The table and its file."""
        return self._table

    def table(self, table: Any, *, foreign: set[str]) -> Table:
        """The table with every value checked; an unknown key is an error, and so is one of `foreign`."""
        if not isinstance(table, dict):
            self.fail("it is not a table")
        known = _FIELDS.keys() - foreign
        for key, value in table.items():
            if key not in known:
                self.fail(f"unknown key {key!r}; {did_you_mean(key, known, otherwise='see the how-to page')}")
            try:
                converted = msgspec.convert(value, _FIELDS[key].type)
            except msgspec.ValidationError as error:
                self.fail(f"{key}: {str(error).lower()}")  # not the value: it may be a secret
            if isinstance(converted, int | float) and not 0 <= converted < math.inf:
                self.fail(f"{key}: {converted:g} is {'less than 0' if converted < 0 else 'no amount'}")
        given = msgspec.convert(table, Table)
        if given.per_host < 1 or ("per_exit" in table and given.per_exit < 1):
            self.fail("per_exit and per_host are at least 1")
        return given

    def lines(self, name: str) -> list[str]:
        """The lines of a file beside this one, without comments."""
        return [line for line in (line.strip() for line in self.text(name).splitlines()) if line and line[0] != "#"]

    def urls(self, name: str) -> dict[str, str]:
        """The URLs of such a file by their line numbers. A comment may follow a URL."""
        lines = enumerate((line.split(" #")[0].strip() for line in self.text(name).splitlines()), 1)
        return {f"line {number} of {name}": line for number, line in lines if line and line[0] != "#"}

    def text(self, name: str) -> str:
        """The text of a file beside this one."""
        try:
            return (self._folder / name).read_text(encoding=ENCODING)
        except (OSError, UnicodeDecodeError) as error:
            self.fail(f"cannot read {name}: {reason_of(error)}")

    def variable(self, name: str) -> str:
        """The value of an environment variable, which must not be empty."""
        value = self._environ.get(name, "").strip()
        return value or self.fail(f"the environment has no {name}")


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding=ENCODING))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} is not valid TOML: {reason_of(error)}") from None


def reason_of(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
