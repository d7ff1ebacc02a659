"""Reads the pools of proxies, gateways, accounts and own addresses from shoal.toml, other files and the environment.

Secrets stay inside `ExitConfig`: logs, tables, the frontier and its `repr` only show its name.
"""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import SplitResult, quote, unquote, urlsplit

import ada_url
import msgspec

from shoal.errors import SettingError
from shoal.fetch.addresses import BIND, parse_address
from shoal.fetch.exits import TARGET, ExitConfig
from shoal.model import DIRECT
from shoal.settings.values import parse_duration, parse_rate
from shoal.text.near_names import did_you_mean

PROXIES: Final = "proxies"
ACCOUNTS: Final = "accounts"
EXITS: Final = "exits"
ENCODING: Final = "utf-8-sig"  # Windows editors begin a file with a byte order mark

Login = dict[str, str | dict[str, str]]


class PoolTable(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
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


_FIELDS: Final = {field.name: field for field in msgspec.structs.fields(PoolTable)}
_ONLY_PROXIES: Final = {"urls", "url", "region", "error_statuses", "forward_secrets"}
_ONLY_ACCOUNTS: Final = {"logins", "hosts"}
# At a host, offered exits keep the pace of the crawl, or of the pool that they are offered to.
_NOT_OFFERED: Final = {"host_rate", "per_host"}
FOREIGN: Final = {PROXIES: _ONLY_ACCOUNTS, ACCOUNTS: _ONLY_PROXIES, EXITS: _ONLY_ACCOUNTS | _NOT_OFFERED}


class TableReader:
    """Reads the table of a pool, and the files and variables that it names; errors name the table and its file."""

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

    def table(self, table: Any, *, foreign: set[str]) -> PoolTable:
        """The checked table; refuses unknown keys and those in `foreign`."""
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
        given = msgspec.convert(table, PoolTable)
        if given.per_host < 1 or ("per_exit" in table and given.per_exit < 1):
            self.fail("per_exit and per_host are at least 1")
        return given

    def lines(self, name: str) -> list[str]:
        """The lines of a file beside this one, without comments."""
        return [line for line in (line.strip() for line in self.text(name).splitlines()) if line and line[0] != "#"]

    def urls(self, name: str) -> dict[str, str]:
        """The URLs in a file beside this one, by their line numbers. A comment may follow a URL."""
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


PROXY_SCHEMES: Final = ("http", "https", "socks5", "socks5h")

_PROVIDER_FORM: Final = re.compile(r"([^\s:/@]+):(\d+)(?::([^\s:]+):(\S+))?")
_HOST: Final = re.compile(r"[\w.-]+|[0-9a-f:.]+")
_EXAMPLE: Final = "http://user:password@host:3128, socks5://host:1080, or a URL with {url} in it"

_BIND_EXAMPLE: Final = f"{BIND}192.0.2.7, with an address of this machine"


def exits_in(pool: str, given: PoolTable, source: TableReader) -> tuple[ExitConfig, ...]:
    """The proxies, gateways and addresses of a pool in their order, without duplicates."""
    written = {f"entry {number} of urls": url.strip() for number, url in enumerate(given.urls, 1)}
    written |= {"url": given.url.strip()} if given.url else {}
    written |= source.urls(given.file) if given.file else {}
    words = re.split(r"[\s,]+", source.variable(given.env).strip(", ")) if given.env else []
    written |= {f"word {number} of {given.env}": word for number, word in enumerate(words, 1)}
    urls: dict[str, str] = {}
    for where, entry in written.items():
        url, host = _written(entry)
        if not url:
            example = _BIND_EXAMPLE if entry.startswith(BIND) else _EXAMPLE
            source.fail(f"{where} is not an exit ({host}): write {example}")
        urls.setdefault(url, host)
    exits = zip(_distinct(f"{pool}/{host}" for host in urls.values()), urls, strict=True)
    return tuple(
        ExitConfig(name=name, kind="address", address=url.removeprefix(BIND))
        if url.startswith(BIND)
        else ExitConfig(
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


def _written(entry: str) -> tuple[str, str]:
    """The exit's URL and its name; or an empty URL, and what is wrong with the entry."""
    if entry.startswith(BIND):
        try:
            address = parse_address(entry.removeprefix(BIND))
        except ValueError as error:
            return "", str(error)
        return f"{BIND}{address}", address
    return _gateway(entry) if TARGET in entry else parse_proxy(entry)


def parse_proxy(entry: str) -> tuple[str, str]:
    """The proxy's URL and its host:port; or an empty URL, and what is wrong with the entry."""
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
        return "", "it needs a host and a port, and nothing after them"
    address = f"{f'[{name}]' if ':' in name else name}:{port_number}"
    user, password = (quote(unquote(part or ""), safe="") for part in (parts.username, parts.password))
    who = f"{user}:{password}@" if user or password else ""
    return f"{parts.scheme}://{who}{address}", address


def _gateway(entry: str) -> tuple[str, str]:
    """The gateway's template and its host; or an empty template, and what is wrong with the entry."""
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
    """The host; empty: it is invalid."""
    return parts.hostname if parts.hostname and _HOST.fullmatch(parts.hostname) else ""


def _distinct(names: Iterable[str]) -> Iterator[str]:
    """The names, made unique: the second a becomes a-2."""
    seen: dict[str, int] = {}
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        yield name if seen[name] == 1 else f"{name}-{seen[name]}"


_LOGIN_NAME: Final = re.compile(r"[^\s/]{1,100}")
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e]{1,8192}")
_HTTP: Final = re.compile("https?://")
_FROM_ENVIRONMENT: Final = "_env"


def accounts_in(pool: str, given: PoolTable, source: TableReader) -> tuple[ExitConfig, ...]:
    """The accounts of a pool in their order."""
    logins = list(given.logins)
    if given.file.endswith(".toml"):
        logins += _logins_of(given.file, source)
    elif given.file:
        logins += [_login(line, source) for line in source.lines(given.file)]
    if given.env:
        logins += [_login(word, source) for word in source.variable(given.env).split()]
    hosts = tuple(_beginning(host, source, number=number) for number, host in enumerate(given.hosts, 1))
    exits: dict[str, ExitConfig] = {}
    for number, login in enumerate(logins, 1):
        where = f"login {number} of its {len(logins)}"
        config = _account(pool, login, source, where=where, hosts=hosts)
        if config.name in exits:
            source.fail(f"{where} has no name of its own: write name = …")
        exits[config.name] = config
    kinds = {config.kind for config in exits.values()}
    if len(kinds) > 1:
        source.fail("some of its accounts have a password and some have only headers: make two pools of them")
    if hosts and not any(config.headers for config in exits.values()):
        source.fail("hosts says where headers go, and no login has headers: write headers = { … }")
    return tuple(exits.values())


def _account(pool: str, login: Login, source: TableReader, *, where: str, hosts: tuple[str, ...]) -> ExitConfig:
    headers = login.get("headers", {})
    if isinstance(headers, str):
        source.fail(f'headers of {where} is no table: write headers = {{ X-Api-Key_env = "NAME_OF_A_VARIABLE" }}')
    plain = {key: value for key, value in login.items() if key != "headers"}
    texts = {key: value for key, value in plain.items() if isinstance(value, str)}
    if odd := next((key for key in plain if key not in texts), None):
        source.fail(f"{odd} of {where} is a table: only headers is one")
    fields = _resolved(texts, source)
    name = fields.get("name", "")
    if not _LOGIN_NAME.fullmatch(name):
        source.fail(f"{where} has no name of its own: write name = …")
    agent, proxy = fields.pop("user_agent", ""), fields.pop("proxy", "")
    url, problem = parse_proxy(proxy) if proxy else ("", "")
    if proxy and not url:
        source.fail(f"the proxy of {name} is not one ({problem}): write http://user:password@host:3128")
    return ExitConfig(
        name=f"{pool}/{name}",
        kind="key" if headers and fields.keys() == {"name"} else "account",
        url=url,
        user_agent=agent,
        fields=fields,
        headers=_headers(headers, source, name=name, hosts=hosts),
        hosts=hosts if headers else (),
    )


def _resolved(texts: dict[str, str], source: TableReader) -> dict[str, str]:
    """The values, with variables resolved: `password_env = "NAME"` becomes the password."""
    return {
        key.removesuffix(_FROM_ENVIRONMENT): source.variable(value) if key.endswith(_FROM_ENVIRONMENT) else value
        for key, value in texts.items()
    }


def _headers(headers: dict[str, str], source: TableReader, *, name: str, hosts: tuple[str, ...]) -> dict[str, str]:
    found = _resolved(headers, source)
    for number, (header, value) in enumerate(found.items(), 1):
        if not _HEADER_NAME.fullmatch(header) or not _HEADER_VALUE.fullmatch(value):
            # Show neither name nor value: people may have swapped them.
            source.fail(f"header {number} of {name} is no header: write a name, and a value of one line in ASCII")
    if found and not hosts:
        source.fail('its headers would go to every site: write hosts = ["api.example.com"]')
    return found


def _beginning(host: str, source: TableReader, *, number: int) -> str:
    """The beginning of a host's URLs; https unless http is written, since headers over http are not secret."""
    written = host if "://" in host else f"https://{host}"
    try:
        # As in the URLs of tasks: api.bücher.example has another form there.
        url = ada_url.URL(f"{written.rstrip('/')}/")
    except ValueError:
        url = None
    if url is None or "*" in url.host or url.href != f"{url.protocol}//{url.host}/" or not _HTTP.match(url.href):
        source.fail(  # without the entry: people may have written a secret into it
            f"entry {number} of hosts is no host: write api.example.com, or http://localhost:8000 without TLS"
        )
    return url.href


def _logins_of(name: str, source: TableReader) -> list[Login]:
    try:
        return msgspec.convert(tomllib.loads(source.text(name)).get("logins"), list[Login])
    except (tomllib.TOMLDecodeError, msgspec.ValidationError):
        source.fail(f"{name} is no list of logins: write [[logins]] with name = … and password = …")


def _login(line: str, source: TableReader) -> Login:
    name, colon, password = line.partition(":")
    return {"name": name, "password": password} if colon else source.fail("a login is written as name:password")


MAX_EXITS: Final = 10_000

_POOL_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


class PoolSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A configured pool; intervals and times in seconds, 0: no limit.

    `interval` and `cap` are for one exit at one host, `host_interval` and `host_cap` for all exits together. Without
    `has_own_rate` the pool keeps the spider's rate over all its exits."""

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
    written_in: str = PROXIES

    @property
    def needs_login(self) -> bool:
        """Whether one of its exits is an account that must log in."""
        return any(config.kind == "account" for config in self.exits)


def load_pools(config: Path, *, proxies: str = "", environ: Mapping[str, str] = os.environ) -> dict[str, PoolSpec]:
    """The pools of a shoal.toml, if it exists, and of the file in the setting `proxies`, which wins."""
    pools: dict[str, PoolSpec] = {}
    if config.exists():
        table = read_toml(config)
        # `proxies = "FILE"` is the setting, not a table.
        found = {name: table[name] for name in (PROXIES, ACCOUNTS) if not isinstance(table.get(name, ""), str)}
        pools |= pools_in(found, config, environ)
    if proxies:
        pools |= pools_in(_proxies_file(Path(proxies)), Path(proxies), environ)
    return pools


def exits_by_name(pools: Mapping[str, PoolSpec]) -> dict[str, ExitConfig]:
    """Every exit of these pools by its name."""
    return {config.name: config for pool in pools.values() for config in pool.exits}


def _proxies_file(path: Path) -> dict[str, Any]:
    """The tables of a file: as in shoal.toml, or with the pools as its top-level tables, or a plain list of proxies."""
    try:
        text = path.read_text(encoding=ENCODING)
    except (OSError, UnicodeDecodeError) as error:
        if re.search(r"@|:/|:\d", str(path)):  # a proxy itself: not shown, it may have a password
            raise SettingError("--proxies needs a file: write the proxies into one, one URL per line") from None
        raise SettingError(f"cannot read the proxies in {path}: {reason_of(error)}") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        if path.suffix == ".toml":
            raise SettingError(f"{path} is not valid TOML: {error}") from None
        table = {PROXIES: {"file": path.name}}
    if not table:
        raise SettingError(f"{path} names no proxies: write one URL a line, or pools as in shoal.toml")
    return table if PROXIES in table or ACCOUNTS in table else {PROXIES: table}


def pools_in(
    tables: dict[str, Any], path: Path, environ: Mapping[str, str], *, groups: Sequence[str] = (PROXIES, ACCOUNTS)
) -> dict[str, PoolSpec]:
    """The pools in these groups of tables of a file."""
    pools: dict[str, PoolSpec] = {}
    for group in groups:
        named = tables.get(group, {})
        if not isinstance(named, dict):
            raise SettingError(f"{path}: {group} is not a table: write [{group}.NAME]")
        # A single pool may have no name: its keys are directly under [proxies].
        if named and not any(isinstance(value, dict) for value in named.values()):
            named = {group: named}
        elif loose := [name for name, value in named.items() if not isinstance(value, dict)]:
            raise SettingError(
                f"{path}: {loose[0]} is directly under [{group}], beside pools: move it into [{group}.NAME]"
            )
        for name, table in named.items():
            source = TableReader(f"[{group}.{name}] in {path}", path.parent, environ)
            if not _POOL_NAME.fullmatch(name) or name == DIRECT or name in pools:
                source.fail(f"{name!r} is not a valid pool name, or is used twice")
            pools[name] = _pool(name, table, group, source)
    return pools


def _pool(name: str, table: Any, group: str, source: TableReader) -> PoolSpec:
    given = source.table(table, foreign=FOREIGN[group])
    exits = accounts_in(name, given, source) if group == ACCOUNTS else exits_in(name, given, source)
    if group == PROXIES and (bound := next((config for config in exits if config.kind == "address"), None)):
        source.fail(
            f"{BIND}{bound.address} is an address of one machine: write it into a file for --exits on that machine"
        )
    if not exits:
        source.fail(f"it has no {'logins' if group == ACCOUNTS else 'proxies'}")
    if len(exits) > MAX_EXITS:
        source.fail(f"it has {len(exits)} exits, more than {MAX_EXITS}")
    # Two logins of one account at the same time would end each other's sessions; keys have no session.
    is_account = any(config.kind == "account" for config in exits)
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
            written_in=group,
        )
    except SettingError as error:
        source.fail(str(error))
    if spec.quarantine > spec.max_quarantine:
        source.fail("quarantine is longer than max_quarantine: raise that, too")
    if spec.rotate and not spec.sticky:
        source.fail("rotate says how long a host keeps its exit: write sticky = true, too")
    return spec
