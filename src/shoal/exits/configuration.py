"""The exits that a crawl may use: pools of proxies, gateways and accounts, read from files and the environment.

Secrets stay inside `ExitConfig`: its name is what logs, tables and the frontier see, and its `repr` shows nothing else.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import SplitResult, quote, unquote, urlsplit

import msgspec

from shoal.errors import SettingError
from shoal.fetch.exit_config import TARGET, ExitConfig
from shoal.model import DIRECT
from shoal.near_names import did_you_mean
from shoal.setting_values import parse_duration, parse_rate

PROXIES: Final = "proxies"
ACCOUNTS: Final = "accounts"
PROXY_SCHEMES: Final = ("http", "https", "socks5", "socks5h")
MAX_EXITS: Final = 10_000
ENCODING: Final = "utf-8-sig"  # Windows editors begin a file with a byte order mark

_POOL_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_LOGIN_NAME: Final = re.compile(r"[^\s/]{1,100}")
_PROVIDER_FORM: Final = re.compile(r"([^\s:/@]+):(\d+)(?::([^\s:]+):(\S+))?")
_HOST: Final = re.compile(r"[\w.-]+|[0-9a-f:.]+")
_EXAMPLE: Final = "http://user:password@host:3128, socks5://host:1080, or a URL with {url} in it"


class PoolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A pool as it was configured, in numbers: intervals and times in seconds, 0 for "no limit".

    `interval` and `cap` hold for one exit towards one host, `host_interval` and `host_cap` for all exits together.
    Without a rate of its own (`has_own_rate`) the pool keeps the spider's, over all its exits."""

    name: str
    exits: tuple[ExitConfig, ...]
    interval: float
    cap: int
    host_interval: float
    host_cap: int
    exclusive: bool
    sticky: bool
    rotate: float
    quarantine: float
    max_quarantine: float
    region: str
    cost: float
    cost_per_gb: float
    has_own_rate: bool


class _Table(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The keys of `[proxies.NAME]` and `[accounts.NAME]`."""

    urls: list[str] = []
    url: str = ""
    logins: list[dict[str, str]] = []
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


_FIELDS: Final = {field.name: field for field in msgspec.structs.fields(_Table)}
_ONLY_PROXIES: Final = {"urls", "url", "region", "error_statuses", "forward_secrets"}
_ONLY_ACCOUNTS: Final = {"logins"}


def load_pools(config: Path, *, proxies: str = "", environ: Mapping[str, str] = os.environ) -> dict[str, PoolSpec]:
    """The pools of a shoal.toml, if there is one, and of the file that the setting `proxies` names, which wins."""
    pools: dict[str, PoolSpec] = {}
    if config.exists():
        table = _toml(config)
        # `proxies = "FILE"` is the setting, not a table.
        found = {name: table[name] for name in (PROXIES, ACCOUNTS) if not isinstance(table.get(name, ""), str)}
        pools |= _pools(found, config, environ)
    if proxies:
        pools |= _pools(_proxies_file(Path(proxies)), Path(proxies), environ)
    return pools


def exits_by_name(pools: Mapping[str, PoolSpec]) -> dict[str, ExitConfig]:
    """Every exit of these pools by its name."""
    return {config.name: config for pool in pools.values() for config in pool.exits}


def _proxies_file(path: Path) -> dict[str, Any]:
    """The tables of a file: as in shoal.toml, or with the pools as its top-level tables, or a plain list of proxies."""
    try:
        text = path.read_text(encoding=ENCODING)
    except (OSError, UnicodeDecodeError) as error:
        if re.search(r"@|:/|:\d", str(path)):  # a proxy itself: not to be shown, it may have a password
            raise SettingError("--proxies wants a file: write the proxies into one, a URL a line") from None
        raise SettingError(f"cannot read the proxies in {path}: {_reason(error)}") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        if path.suffix == ".toml":
            raise SettingError(f"{path} is not valid TOML: {error}") from None
        table = {PROXIES: {"file": path.name}}
    if not table:
        raise SettingError(f"{path} names no proxies: write one URL a line, or pools as in shoal.toml")
    return table if PROXIES in table or ACCOUNTS in table else {PROXIES: table}


def _pools(tables: dict[str, Any], path: Path, environ: Mapping[str, str]) -> dict[str, PoolSpec]:
    pools: dict[str, PoolSpec] = {}
    for group in (PROXIES, ACCOUNTS):
        named = tables.get(group, {})
        if not isinstance(named, dict):
            raise SettingError(f"{path}: {group} is not a table: write [{group}.NAME]")
        # A single pool may have no name: its keys are directly under [proxies].
        if named and not any(isinstance(value, dict) for value in named.values()):
            named = {group: named}
        elif loose := [name for name, value in named.items() if not isinstance(value, dict)]:
            raise SettingError(f"{path}: {loose[0]} stands under [{group}] beside pools: move it into [{group}.NAME]")
        for name, table in named.items():
            source = _Source(f"[{group}.{name}] in {path}", path.parent, environ)
            if not _POOL_NAME.fullmatch(name) or name == DIRECT or name in pools:
                source.fail(f"{name!r} cannot be a pool's name, or is one already")
            pools[name] = _pool(name, table, group, source)
    return pools


def _pool(name: str, table: Any, group: str, source: _Source) -> PoolSpec:
    given = source.table(table, foreign=_ONLY_ACCOUNTS if group == PROXIES else _ONLY_PROXIES)
    exits = _accounts(name, given, source) if group == ACCOUNTS else _exits(name, given, source)
    if not exits:
        source.fail(f"it has no {'logins' if group == ACCOUNTS else 'proxies'}")
    if len(exits) > MAX_EXITS:
        source.fail(f"it has {len(exits)} exits, more than {MAX_EXITS}")
    is_account = group == ACCOUNTS
    try:
        spec = PoolSpec(
            name=name,
            exits=exits,
            interval=0.0 if given.rate is None else parse_rate(given.rate),
            cap=given.per_exit or (1 if is_account else 4),
            host_interval=0.0 if given.host_rate is None else parse_rate(given.host_rate),
            host_cap=given.per_host,
            exclusive=is_account,
            sticky=given.sticky,
            rotate=parse_duration(given.rotate),
            quarantine=parse_duration(given.quarantine),
            max_quarantine=parse_duration(given.max_quarantine),
            region=given.region,
            cost=given.cost,
            cost_per_gb=given.cost_per_gb,
            has_own_rate=given.rate is not None or given.host_rate is not None,
        )
    except SettingError as error:
        source.fail(str(error))
    if spec.quarantine > spec.max_quarantine:
        source.fail("quarantine is longer than max_quarantine: raise that, too")
    if spec.rotate and not spec.sticky:
        source.fail("rotate says how long a host keeps its exit: write sticky = true, too")
    return spec


class _Source:
    """The table and file that a pool comes from: reads the files and variables it names, and says what is wrong."""

    def __init__(self, table: str, folder: Path, environ: Mapping[str, str]) -> None:
        self._table = table
        self._folder = folder
        self._environ = environ

    def fail(self, problem: str) -> NoReturn:
        """Refuse the pool."""
        raise SettingError(f"{self._table}: {problem}")

    def table(self, table: Any, *, foreign: set[str]) -> _Table:
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
        given = msgspec.convert(table, _Table)
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
            self.fail(f"cannot read {name}: {_reason(error)}")

    def variable(self, name: str) -> str:
        """The value of an environment variable, which must not be empty."""
        value = self._environ.get(name, "").strip()
        return value or self.fail(f"the environment has no {name}")


def _exits(pool: str, given: _Table, source: _Source) -> tuple[ExitConfig, ...]:
    """The proxies and gateways of a pool, each once, in the order they were written."""
    written = {f"entry {number} of urls": url.strip() for number, url in enumerate(given.urls, 1)}
    written |= {"url": given.url.strip()} if given.url else {}
    written |= source.urls(given.file) if given.file else {}
    words = re.split(r"[\s,]+", source.variable(given.env).strip(", ")) if given.env else []
    written |= {f"word {number} of {given.env}": word for number, word in enumerate(words, 1)}
    urls: dict[str, str] = {}
    for where, entry in written.items():
        url, host = _gateway(entry) if TARGET in entry else _proxy(entry)
        if not url:
            source.fail(f"{where} is not an exit ({host}): write {_EXAMPLE}")
        urls.setdefault(url, host)
    exits = zip(_distinct(f"{pool}/{host}" for host in urls.values()), urls, strict=True)
    return tuple(
        ExitConfig(
            name=name,
            kind="gateway",
            url=url,
            error_statuses=given.error_statuses,
            forwards_secrets=given.forward_secrets,
        )
        if TARGET in url
        else ExitConfig(name=name, kind="proxy", url=url)
        for name, url in exits
    )


def _accounts(pool: str, given: _Table, source: _Source) -> tuple[ExitConfig, ...]:
    logins = list(given.logins)
    if given.file.endswith(".toml"):
        logins += _logins_of(given.file, source)
    elif given.file:
        logins += [_login(line, source) for line in source.lines(given.file)]
    if given.env:
        logins += [_login(word, source) for word in source.variable(given.env).split()]
    exits = {}
    for number, login in enumerate(logins, 1):
        fields = {
            key.removesuffix("_env"): source.variable(value) if key.endswith("_env") else value
            for key, value in login.items()
        }
        name = fields.get("name", "")
        if not _LOGIN_NAME.fullmatch(name) or name in exits:
            source.fail(f"login {number} of its {len(logins)} has no name of its own: write name = …")
        agent, proxy = fields.pop("user_agent", ""), fields.pop("proxy", "")
        url, problem = _proxy(proxy) if proxy else ("", "")
        if proxy and not url:
            source.fail(f"the proxy of {name} is not one ({problem}): write http://user:password@host:3128")
        exits[name] = ExitConfig(name=f"{pool}/{name}", kind="account", url=url, user_agent=agent, fields=fields)
    return tuple(exits.values())


def _logins_of(name: str, source: _Source) -> list[dict[str, str]]:
    try:
        return msgspec.convert(tomllib.loads(source.text(name)).get("logins"), list[dict[str, str]])
    except (tomllib.TOMLDecodeError, msgspec.ValidationError):
        source.fail(f"{name} is no list of logins: write [[logins]] with name = … and password = …")


def _login(line: str, source: _Source) -> dict[str, str]:
    name, colon, password = line.partition(":")
    return {"name": name, "password": password} if colon else source.fail("a login is written as name:password")


def _proxy(entry: str) -> tuple[str, str]:
    """The proxy's URL and its host:port; or no URL, and what is wrong with the entry."""
    if plain := _PROVIDER_FORM.fullmatch(entry):
        host, port, user, password = plain.groups()
        who = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user else ""
        entry = f"http://{who}{host}:{port}"
    try:
        parts = urlsplit(entry)
        port_number = parts.port
    except ValueError:
        return "", "its port is no number up to 65535; write / ? # @ in a password as %2F %3F %23 %40"
    if parts.scheme not in PROXY_SCHEMES:
        return "", f"its scheme is none of {', '.join(PROXY_SCHEMES)}"
    name = _host_of(parts)
    if not name or not port_number or parts.path not in ("", "/") or parts.query or parts.fragment:
        return "", "it wants a host and a port, and nothing behind them"
    address = f"{f'[{name}]' if ':' in name else name}:{port_number}"
    user, password = (quote(unquote(part or ""), safe="") for part in (parts.username, parts.password))
    who = f"{user}:{password}@" if user or password else ""
    return f"{parts.scheme}://{who}{address}", address


def _gateway(entry: str) -> tuple[str, str]:
    """The gateway's template and its host; or no template, and what is wrong with the entry."""
    problem = "", "a gateway is a http or https URL with {url} behind its host"
    try:
        parts = urlsplit(entry.partition(TARGET)[0])
        name = _host_of(parts) if parts.port != 0 else ""  # an invalid port raises
    except ValueError:
        return problem
    if parts.scheme not in ("http", "https") or not name or not (parts.path or parts.query):
        return problem
    if not parts.path:
        entry = entry.replace("?", "/?", 1)
    return entry, parts.netloc.rpartition("@")[2]


def _host_of(parts: SplitResult) -> str:
    """The host; empty if it is not a valid one."""
    return parts.hostname if parts.hostname and _HOST.fullmatch(parts.hostname) else ""


def _distinct(names: Iterable[str]) -> Iterator[str]:
    """The names, each of them once: the second a becomes a-2."""
    seen: dict[str, int] = {}
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        yield name if seen[name] == 1 else f"{name}-{seen[name]}"


def _toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding=ENCODING))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingError(f"{path} is not valid TOML: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
