"""Exits that only some workers have: each lease call of such a worker offers them, and only its leases go through them.

An offered exit is an exit of its pool like any other while it is offered: it has its turn, its limits and its
quarantine. When nobody has offered it for OFFER_SECONDS it leaves its pool as if the pool had changed; when it is
offered again it comes back, with all that is known of it.

Nothing is registered and nothing is signed off: a killed worker could do neither. The frontier chooses the exit:
two machines that each choose after the lease could not keep the limits of one proxy. A region is a kind as well, so
that workers without such exits never look at its tasks."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import msgspec

from shoal.frontier.rules.constants import OFFER_SECONDS
from shoal.model import REGION, Pool

RENEWED_AT = 0.75 * OFFER_SECONDS  # an offer that lasts longer is not written again


class Offer(msgspec.Struct, frozen=True):
    """The exits that workers offer to one pool, each until a time. `pool` has the limits of a pool that the crawl does
    not have itself: those that were offered first, with the longest interval and the smallest cap of all that were
    offered since then, until the exits of a call are the only ones left."""

    pool: Pool
    until: dict[str, float]


Offers = Mapping[str, Offer]


def usable_offers(given: Sequence[Pool], pools: Collection[str]) -> list[Pool]:
    """The offers that tasks of a crawl with these pools can ask for: to its own pools, and to regions."""
    return [pool for pool in given if pool.name in pools or pool.name.startswith(REGION)]


def renewed(offers: Offers, given: Sequence[Pool], *, now: float) -> tuple[Offers, bool]:
    """The offers after a call with these, and whether a pool changes by that: exits came, or were offered by nobody for
    too long, or the limits are others."""
    left = {
        name: Offer(one.pool, {key: at for key, at in one.until.items() if at > now}) for name, one in offers.items()
    }
    has_changed = any(len(left[name].until) < len(one.until) for name, one in offers.items())
    for pool in given:
        before, bare = left.get(pool.name), msgspec.structs.replace(pool, exits=())
        known, limits = before.until if before is not None else {}, bare
        if before is not None and known.keys() - set(pool.exits):
            limits = _strictest(before.pool, bare)
        has_changed = has_changed or before is None or limits != before.pool
        has_changed = has_changed or any(name not in known for name in pool.exits)
        until = {name: now + OFFER_SECONDS for name in pool.exits if known.get(name, 0.0) < now + RENEWED_AT}
        left[pool.name] = Offer(limits, known | until)
    return left, has_changed


def _strictest(limits: Pool, other: Pool) -> Pool:
    return msgspec.structs.replace(
        limits, interval=max(limits.interval, other.interval), cap=min(limits.cap, other.cap)
    )


def with_offers(pools: Sequence[Pool], offers: Offers) -> tuple[Pool, ...]:
    """The pools with the exits that are offered, and the regions."""
    own = {pool.name: pool for pool in pools}
    every = own | {name: one.pool for name, one in offers.items() if name not in own and name.startswith(REGION)}
    return tuple(
        msgspec.structs.replace(pool, exits=tuple(dict.fromkeys((*pool.exits, *offers[name].until))))
        if name in offers
        else pool
        for name, pool in every.items()
    )


def offered_names(pools: Sequence[Pool], offers: Offers) -> dict[str, frozenset[str]]:
    """By pool, the exits that are in it only because they are offered."""
    common = {pool.name: frozenset(pool.exits) for pool in pools}
    return {name: frozenset(one.until) - common.get(name, frozenset()) for name, one in offers.items()}
