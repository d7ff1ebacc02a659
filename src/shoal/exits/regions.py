"""Regions: which pool a request goes through that asks for one, and which workers get it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from shoal.errors import UsageError
from shoal.model import REGION, VIA, Pool

_REGION_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,39}")
_AT: Final = "@"


def check_region(region: object, *, what: str) -> str:
    """Refuse what cannot be the name of a region."""
    if not isinstance(region, str) or not _REGION_NAME.fullmatch(region):
        raise UsageError(f"{what} {region!r} is no name of a region: write a short name such as de or eu-west")
    return region


def tagged_pools(pools: Iterable[Pool]) -> dict[str, tuple[str, ...]]:
    """By region, the crawl's own pools with that tag."""
    found: dict[str, tuple[str, ...]] = {}
    for pool in pools:
        if pool.region:
            found[pool.region] = (*found.get(pool.region, ()), pool.name)
    return found


def pool_of_region(region: object, tagged: Mapping[str, tuple[str, ...]], *, what: str) -> str:
    """The pool that stands for a region: the crawl's own pool with that tag, else what workers offer for it."""
    name = check_region(region, what=what)
    own = tagged.get(name, ())
    if len(own) > 1:
        raise UsageError(f"{what} {name!r} is that of several pools ({', '.join(own)}): name one of them as pool")
    return own[0] if own else f"{REGION}{name}"


def regional_kind(kind: str, pool: str) -> str:
    """The kind of a task that goes through this pool: those of a region are for the workers that offer it."""
    return f"{kind}{_AT}{pool.removeprefix(REGION)}" if pool.startswith(REGION) else kind


def plain_kind(kind: str) -> str:
    """The kind without its region."""
    return kind.partition(_AT)[0]


def region_in(lane: str) -> str:
    """The region that a lane goes via; empty: it goes via none."""
    pool = lane.partition(VIA)[2]
    return pool.removeprefix(REGION) if pool.startswith(REGION) else ""


def region_of(kind: str) -> str:
    """The region of a kind; empty: it has none."""
    return kind.partition(_AT)[2]
