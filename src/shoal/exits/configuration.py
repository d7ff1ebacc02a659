"""The exits that a crawl may use: pools of proxies, gateways and accounts, read from files and the environment.

Secrets stay inside `ExitConfig`: its name is what logs, tables and the frontier see, and its `repr` shows nothing else.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from shoal.errors import SettingError
from shoal.exits.exit_urls import exits_in
from shoal.exits.logins import accounts_in
from shoal.exits.pool_tables import ACCOUNTS, ENCODING, FOREIGN, PROXIES, Source, read_toml, reason_of
from shoal.fetch.addresses import BIND
from shoal.fetch.exits import ExitConfig
from shoal.model import DIRECT
from shoal.settings.values import parse_duration, parse_rate

MAX_EXITS: Final = 10_000

_POOL_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


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
    written_in: str = PROXIES

    @property
    def needs_login(self) -> bool:
        """Whether one of its exits is an account that must log in."""
        return any(config.kind == "account" for config in self.exits)


def load_pools(config: Path, *, proxies: str = "", environ: Mapping[str, str] = os.environ) -> dict[str, PoolSpec]:
    """The pools of a shoal.toml, if there is one, and of the file that the setting `proxies` names, which wins."""
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
        if re.search(r"@|:/|:\d", str(path)):  # a proxy itself: not to be shown, it may have a password
            raise SettingError("--proxies wants a file: write the proxies into one, a URL a line") from None
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
    """The pools of these groups of tables of a file."""
    pools: dict[str, PoolSpec] = {}
    for group in groups:
        named = tables.get(group, {})
        if not isinstance(named, dict):
            raise SettingError(f"{path}: {group} is not a table: write [{group}.NAME]")
        # A single pool may have no name: its keys are directly under [proxies].
        if named and not any(isinstance(value, dict) for value in named.values()):
            named = {group: named}
        elif loose := [name for name, value in named.items() if not isinstance(value, dict)]:
            raise SettingError(f"{path}: {loose[0]} stands under [{group}] beside pools: move it into [{group}.NAME]")
        for name, table in named.items():
            source = Source(f"[{group}.{name}] in {path}", path.parent, environ)
            if not _POOL_NAME.fullmatch(name) or name == DIRECT or name in pools:
                source.fail(f"{name!r} cannot be a pool's name, or is one already")
            pools[name] = _pool(name, table, group, source)
    return pools


def _pool(name: str, table: Any, group: str, source: Source) -> PoolSpec:
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
    # Logins of one account at the same time would end each other's sessions; keys do not mind.
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
