"""The exits that one machine offers (`--exits FILE`): proxies that only it can reach, and its own addresses. Their
names end with the machine's name, so that exits of two machines are never confused."""

from __future__ import annotations

import os
import re
import socket
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

import msgspec

from shoal.errors import SettingError
from shoal.exits.configuration import ACCOUNTS, EXITS, PROXIES, PoolSpec, pools_in, read_toml
from shoal.exits.figures import pool_of_lane
from shoal.exits.pools import check_region, pool_of, pool_of_region, regional_kind, tagged_pools
from shoal.fetch.addresses import check_own
from shoal.fetch.exits import ExitConfig
from shoal.model import REGION, ExitStatus, Heartbeat, Pool
from shoal.settings.table import EXITS_VARIABLE, Settings

MARK: Final = "@"  # between the name of an exit or pool and the machine


class MachineOffer(NamedTuple):
    """How many exits a machine offers to a pool, and how many workers there use them."""

    machine: str
    pool: str
    exits: int
    workers: int


def name_on(machine: str, name: str) -> str:
    """The name with its machine."""
    return f"{name}{MARK}{machine}"


def offer_counts(offers: Sequence[Pool]) -> dict[str, int]:
    """The offers of a worker in its heartbeats: the number of exits, by pool and machine."""
    return {name_on(_machine_in(pool.exits[0]), pool.name): len(pool.exits) for pool in offers if pool.exits}


def machine_of(status: ExitStatus, pools: Iterable[Pool]) -> str:
    """The machine of an exit; empty: it is in one of the crawl's own `pools`, which every worker has."""
    name = pool_of_lane(status.lane)
    own = next((pool for pool in pools if pool.name == name), None)
    if own is None:
        return _machine_in(status.exit) if name.startswith(REGION) else ""
    return "" if own.written_in != "proxies" or status.exit in own.exits else _machine_in(status.exit)


def is_offered(status: ExitStatus, machine: str, now: Collection[str]) -> bool:
    """Whether the exit of this machine is offered now. `now`: the offers in heartbeats, as `name_on` names them."""
    return not machine or name_on(machine, pool_of_lane(status.lane)) in now


def offers_of(workers: Iterable[Heartbeat]) -> list[MachineOffer]:
    """The offers of these workers, by machine and pool."""
    exits: Counter[str] = Counter()
    users: Counter[str] = Counter()
    for worker in workers:
        users.update(worker.offers.keys())
        exits |= Counter(worker.offers)
    return sorted(
        MachineOffer(machine, pool, exits[name], users[name])
        for name in exits
        for pool, _, machine in [name.rpartition(MARK)]
    )


def _machine_in(exit_name: str) -> str:
    return exit_name.rpartition(MARK)[2] if MARK in exit_name else ""


MACHINE: Final = "machine"
_COMMON_NAMES: Final = frozenset({"localhost", "(none)", ""})
_MACHINE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class Offered(NamedTuple):
    """A worker's offer to one crawl: its exits, the pools to name in each lease call, and the crawl's pools with these
    exits added."""

    exits: Mapping[str, ExitConfig] = {}
    offers: tuple[Pool, ...] = ()
    pools: tuple[Pool, ...] = ()

    def kinds(self, plain: Iterable[str]) -> tuple[str, ...]:
        """The kinds of tasks that a worker does: these, and the same kinds for each of its regions."""
        kinds = tuple(plain)
        regions = [pool.name for pool in self.offers if pool.name.startswith(REGION)]
        return (*kinds, *(regional_kind(kind, name) for name in regions for kind in kinds))


class OwnExits(msgspec.Struct, frozen=True):
    """The exits in this machine's file, by table."""

    machine: str
    specs: tuple[PoolSpec, ...]

    def for_crawl(self, pools: tuple[Pool, ...], *, settings: Settings, say: Callable[[str], None]) -> Offered:
        """The offer to a crawl with these pools."""
        tagged, own = tagged_pools(pools), {pool.name: pool for pool in pools}
        configs: dict[str, ExitConfig] = {}
        offers: dict[str, Pool] = {}
        for spec in self.specs:
            name = pool_of_region(spec.region, tagged, what="the region") if spec.region else spec.name
            if name not in own and not name.startswith(REGION):
                say(
                    f"[{EXITS}.{spec.name}] is of no use to this crawl: it has no pool {name!r}; write region = … into"
                    " the table, or the pool into the crawl's shoal.toml"
                )
                continue
            exits = {name_on(self.machine, f"{name}/{config.name.partition('/')[2]}"): config for config in spec.exits}
            configs |= {key: msgspec.structs.replace(config, name=key) for key, config in exits.items()}
            before = offers.get(name) or msgspec.structs.replace(pool_of(spec, settings=settings), name=name, exits=())
            offers[name] = msgspec.structs.replace(before, exits=tuple(dict.fromkeys((*before.exits, *exits))))
        every = offers | own
        merged = [
            msgspec.structs.replace(
                pool, exits=(*pool.exits, *(offers[name].exits if name in own and name in offers else ()))
            )
            for name, pool in every.items()
        ]
        return Offered(configs, tuple(offers.values()), tuple(merged))


NO_EXITS: Final = OwnExits("", ())


def own_exits(environ: Mapping[str, str] = os.environ) -> OwnExits:
    """The exits of this machine, from the file that SHOAL_EXITS names; checked against what the machine has."""
    written = environ.get(EXITS_VARIABLE, "")
    return load_own_exits(Path(written), environ) if written else NO_EXITS


def load_own_exits(path: Path, environ: Mapping[str, str] = os.environ, *, given_by: str = EXITS_VARIABLE) -> OwnExits:
    """The exits in a file. Refuses an address that this machine does not have, and names those that it has."""
    if not path.is_file():
        # An exit itself is not shown: it may have a password.
        is_exit = re.search(r"@|:/|:\d", str(path))
        missing = f"{given_by} needs a file" if is_exit else f"{given_by}: there is no file {path}"
        raise SettingError(f"{missing}: write {MACHINE} = … and [{EXITS}.NAME] with the exits of this machine into it")
    table = read_toml(path)
    machine = _machine(path, table.pop(MACHINE, None))
    if foreign := next((name for name in (PROXIES, ACCOUNTS) if name in table), None):
        raise SettingError(f"{path}: [{foreign}.NAME] belongs in shoal.toml; exits of this machine are [{EXITS}.NAME]")
    if unknown := next((name for name in table if name != EXITS), None):
        raise SettingError(f"{path}: {unknown!r} has no meaning here: write {MACHINE} = … and [{EXITS}.NAME]")
    specs = tuple(pools_in(table, path, environ, groups=(EXITS,)).values())
    if not specs:
        raise SettingError(f"{path} names no exits: write [{EXITS}.NAME] with urls = […], and region = … if wanted")
    _check(path, specs)
    return OwnExits(machine, specs)


def _machine(path: Path, written: object) -> str:
    """The name of this machine: from the file, else its host name."""
    name = socket.gethostname() if written is None else written
    if written is None and str(name).partition(".")[0] in _COMMON_NAMES:
        raise SettingError(f"{path}: this machine is called {name}, as many are: write {MACHINE} = … at the top")
    if not isinstance(name, str) or not _MACHINE_NAME.fullmatch(name):
        raise SettingError(f"{path}: {MACHINE} is the name of this machine, such as fra-1, and not {name!r}")
    return name


def _check(path: Path, specs: tuple[PoolSpec, ...]) -> None:
    limits: dict[str, tuple[PoolSpec, PoolSpec]] = {}
    for spec in specs:
        where = f"[{EXITS}.{spec.name}] in {path}"
        if spec.region:
            check_region(spec.region, what=f"{where}: the region")
            bare = msgspec.structs.replace(spec, name="", exits=())
            first, expected = limits.setdefault(spec.region, (spec, bare))
            if bare != expected:
                _refuse(where, f"it has other limits than [{EXITS}.{first.name}], and both are of {spec.region}")
        addresses = [config.address for config in spec.exits if config.kind == "address"]
        if problem := check_own(addresses):
            _refuse(where, problem)


def _refuse(where: str, problem: str) -> NoReturn:
    raise SettingError(f"{where}: {problem}")
