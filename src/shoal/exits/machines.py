"""Which machine an offered exit belongs to, and what the workers at work offer. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Final, NamedTuple

from shoal.exits.figures import pool_of
from shoal.model import REGION, ExitStatus, Pool, WorkerBeat

MARK: Final = "@"  # stands before the machine, behind the name of an exit and of the pool that it is offered to


class MachineOffer(NamedTuple):
    """What a machine offers to a pool: how many exits, and how many workers there use them."""

    machine: str
    pool: str
    exits: int
    workers: int


def name_on(machine: str, name: str) -> str:
    """The name with its machine."""
    return f"{name}{MARK}{machine}"


def told(offers: Sequence[Pool]) -> dict[str, int]:
    """The offers of a worker, as its signs of life have them: by pool and machine, how many exits."""
    return {name_on(_machine_in(pool.exits[0]), pool.name): len(pool.exits) for pool in offers if pool.exits}


def machine_of(status: ExitStatus, pools: Iterable[Pool]) -> str:
    """The machine of an exit; empty: it is one of the crawl's own `pools`, which every worker has."""
    name = pool_of(status.lane)
    own = next((pool for pool in pools if pool.name == name), None)
    if own is None:
        return _machine_in(status.exit) if name.startswith(REGION) else ""
    return "" if own.written_in != "proxies" or status.exit in own.exits else _machine_in(status.exit)


def is_offered(status: ExitStatus, machine: str, now: Collection[str]) -> bool:
    """Whether the exit of this machine is offered now. `now`: the pools with their machines that workers tell of."""
    return not machine or name_on(machine, pool_of(status.lane)) in now


def offers_of(workers: Iterable[WorkerBeat]) -> list[MachineOffer]:
    """What these workers offer, by machine and pool."""
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
