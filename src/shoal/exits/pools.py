"""The pools of a crawl: which configured pools its spider can use, the default pool, and the pool of a region."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from shoal.errors import UsageError
from shoal.exits.configuration import PoolSpec, load_pools
from shoal.model import DIRECT, REGION, VIA, Pool
from shoal.policy.politeness import lent_interval
from shoal.settings.table import Settings
from shoal.settings.values import parse_duration, parse_rate
from shoal.spider.spider import Spider, has_login

_REGION_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
_AT: Final = "@"


def check_region(region: object, *, what: str) -> str:
    """The name of a region; refuses an invalid one."""
    if not isinstance(region, str) or not _REGION_NAME.fullmatch(region):
        raise UsageError(f"{what} {region!r} is no name of a region: write a short name such as de or eu-west")
    return region


def tagged_pools(pools: Iterable[Pool]) -> dict[str, tuple[str, ...]]:
    """The crawl's own pools with a region, by region."""
    found: dict[str, tuple[str, ...]] = {}
    for pool in pools:
        if pool.region:
            found[pool.region] = (*found.get(pool.region, ()), pool.name)
    return found


def pool_of_region(region: object, tagged: Mapping[str, tuple[str, ...]], *, what: str) -> str:
    """The pool of a region: the crawl's own pool with this region, else the pool that workers offer for it."""
    name = check_region(region, what=what)
    own = tagged.get(name, ())
    if len(own) > 1:
        raise UsageError(f"{what} {name!r} is that of several pools ({', '.join(own)}): name one of them as pool")
    return own[0] if own else f"{REGION}{name}"


def regional_kind(kind: str, pool: str) -> str:
    """The kind of a task through this pool: a region's tasks are only for workers that offer the region."""
    return f"{kind}{_AT}{pool.removeprefix(REGION)}" if pool.startswith(REGION) else kind


def plain_kind(kind: str) -> str:
    """The kind without its region."""
    return kind.partition(_AT)[0]


def region_in(lane: str) -> str:
    """The region of a lane; empty: none."""
    pool = lane.partition(VIA)[2]
    return pool.removeprefix(REGION) if pool.startswith(REGION) else ""


def region_of(kind: str) -> str:
    """The region of a kind; empty: none."""
    return kind.partition(_AT)[2]


NO_CAP: Final = 1_000_000


def usable_pools(pools: Mapping[str, PoolSpec], spider: Spider) -> dict[str, PoolSpec]:
    """The pools that this spider can use: pools of accounts only if it has a `login` method."""
    return {name: spec for name, spec in pools.items() if not spec.needs_login or has_login(type(spider))}


def default_pool(pools: Mapping[str, PoolSpec], *, spider: Spider, settings: Settings) -> str:
    """The pool of requests that name none: the setting `pool`, or that of the setting `region`, else the only pool in
    the file of `proxies`; empty: none of these."""
    chosen, usable = settings.pool, usable_pools(pools, spider)
    if settings.region:
        if chosen:
            raise UsageError(f"pool is {chosen!r} and region is {settings.region!r}: leave out one of these settings")
        tagged = tagged_pools(pool_of(spec, settings=settings) for spec in usable.values())
        return pool_of_region(settings.region, tagged, what="region")
    if chosen and chosen not in (DIRECT, *usable):
        raise _unusable(chosen, pools, usable, name=type(spider).__name__)
    if chosen or not settings.proxies:
        return chosen
    given = usable_pools(load_pools(Path(os.devnull), proxies=settings.proxies), spider)
    return next(iter(given)) if len(given) == 1 else ""


def pool_of(spec: PoolSpec, *, settings: Settings) -> Pool:
    """A pool for the frontier: exits by name, without secrets. Without its own rate it keeps the spider's rate at each
    host: a pool alone makes a crawl neither faster nor slower."""
    host_interval = spec.host_interval if spec.has_own_rate else parse_rate(settings.rate)
    return Pool(
        name=spec.name,
        exits=tuple(config.name for config in spec.exits),
        interval=lent_interval(spec.interval),
        cap=spec.cap or NO_CAP,
        host_interval=lent_interval(host_interval),
        host_cap=spec.host_cap or NO_CAP,
        exclusive=spec.exclusive,
        sticky=spec.sticky,
        rotate=spec.rotate,
        quarantine=spec.quarantine,
        max_quarantine=spec.max_quarantine,
        patience=parse_duration(settings.exit_patience),
        cost=spec.cost,
        cost_per_gb=spec.cost_per_gb,
        region=spec.region,
        has_own_rate=spec.has_own_rate,
        written_in=spec.written_in,
    )


def _unusable(chosen: str, pools: Mapping[str, PoolSpec], usable: Mapping[str, PoolSpec], *, name: str) -> UsageError:
    if chosen in pools:
        return UsageError(
            f"{name} has no login, and [accounts.{chosen}] needs one: write `async def login(self, session)`"
        )
    known = ", ".join([DIRECT, *sorted(usable)])
    return UsageError(f"there is no pool {chosen!r}, only {known}: pools are written in shoal.toml or --proxies FILE")
