"""Rules of exits: quarantine, probation, parking, patience, and exits that only some workers have and offer.

An exit is quarantined towards one host when the host blocks it or a request through it fails. After the quarantine it
is on probation: one request tries it. Failures in a row towards several hosts park it for every host.

A lane uses the exit whose rest (quarantined, parked, or held by another lane) ended first; else the next due exit in
the ring of healthy exits; else the healthy exit that is due first, within the horizon. A host of a sticky pool keeps
its exit while that is healthy.

An offered exit is like any other exit of its pool, with turn, limits and quarantine, but only leases of workers that
offer it go through it. When nobody has offered it for OFFER_SECONDS, it leaves the pool; when it is offered again, it
returns with its state. Workers do not sign off: a killed worker could not. The frontier chooses the exit: two
machines that choose after the lease could not keep the limits of one proxy. Tasks of a region have a kind of their own,
so that workers without its exits never see them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from shoal.errors import UsageError
from shoal.frontier.rules.constants import (
    BUSY_SECONDS,
    BYTES_PER_GB,
    HELD,
    MAX_DOUBLINGS,
    OFFER_SECONDS,
    PARKED,
    STRIKES,
)
from shoal.model import DIRECT, NO_EXIT, REGION, VIA, ExitStatus, ExitUse, Pool


class Ended(NamedTuple):
    """The ended requests through one exit towards one lane, and its failure streak there."""

    requests: int = 0
    ok: int = 0
    blocked: int = 0
    failed: int = 0
    size: int = 0
    elapsed: float = 0.0
    cost: float = 0.0
    streak: int = 0
    rests_until: float = 0.0


class Quarantine(NamedTuple):
    """How many times in a row an exit was blocked or failed towards one lane, and until when it rests there."""

    streak: int = 0
    until: float = 0.0


class Parking(NamedTuple):
    """An exit's failures in a row towards different lanes, and until when it is parked for them.

    `trial` is the token of the lease that tries the exit after its parking."""

    strikes: int = 0
    struck_lane: str = ""
    parked_until: float = 0.0
    parkings: int = 0
    trial: int = 0


NOT_PARKED = Parking()

_NAMES = "names are printable, not empty, not reserved, and used once"


def check_exits(pools: Sequence[Pool]) -> None:
    """Refuse pools and exits whose names are empty, reserved, not printable or used twice."""
    names = [pool.name for pool in pools]
    for name in names:
        if names.count(name) > 1 or not name.isprintable() or VIA in name or name in ("", DIRECT):
            raise UsageError(f"{name!r} cannot be the name of a pool: {_NAMES}")
    for pool in pools:
        for name, number in Counter(pool.exits).items():
            if number > 1 or not name.isprintable() or name in ("", DIRECT):
                raise UsageError(f"pool {pool.name}: {name!r} cannot be the name of an exit: {_NAMES}")


def rest_seconds(pool: Pool, failures: int) -> float:
    """How long an exit rests after its n-th failure in a row, or n-th parking in a row."""
    return min(pool.quarantine * 2.0 ** min(failures - 1, MAX_DOUBLINGS), pool.max_quarantine)


def quarantine_after(before: Quarantine, pool: Pool, *, now: float) -> Quarantine:
    """The quarantine of an exit that was blocked or failed. Further failures do not prolong it: many requests in flight
    when a host blocks an exit are one reason to rest, not many."""
    if before.streak and now < before.until:
        return before
    streak = before.streak + 1
    return Quarantine(streak, now + rest_seconds(pool, streak))


def parking_after(before: Parking, pool: Pool, *, lane: str, token: int, now: float) -> Parking:
    """The parking of an exit that failed towards a lane. It begins, or begins again, after STRIKES strikes; while the
    exit is parked, only a failure of the lease that tries it counts."""
    strikes, _, parked_until, parkings, trial = before
    if before.struck_lane != lane:
        strikes += 1
    if strikes >= STRIKES and (parked_until <= now or trial == token):
        parkings += 1
        parked_until, trial = now + rest_seconds(pool, parkings), 0
    return Parking(strikes, lane, parked_until, parkings, trial)


def parking_on_trial(before: Parking, pool: Pool, *, token: int, now: float) -> Parking:
    """The parking of an exit that a lease begins to use. After STRIKES strikes only this lease tries it: the exit stays
    parked for all others."""
    if before.strikes < STRIKES:
        return before
    return before._replace(parked_until=now + pool.quarantine, trial=token)


def put_off(parked_until: float, *, is_held: bool, next_start: float, now: float) -> tuple[int, float] | None:
    """The mark PARKED or HELD of an exit that a lane may not use now, and until when; None: it may use it."""
    if parked_until > max(now, next_start):
        return PARKED, parked_until
    return (HELD, max(next_start, now + BUSY_SECONDS)) if is_held else None


def keeps_exit(pool: Pool, *, since: float, parked_until: float, now: float) -> bool:
    """Whether a host of a sticky pool keeps the healthy exit that it has used since `since`."""
    is_old = pool.rotate > 0 and now >= since + pool.rotate
    return not is_old and parked_until <= now


def starved_since(before: float, *, has_healthy: bool, now: float) -> float:
    """Since when all exits of a lane rest; 0: not all rest."""
    return 0.0 if has_healthy else before or now


def is_out_of_patience(starved_since: float, pool: Pool, *, now: float) -> bool:
    """Whether all exits of a lane have rested for longer than the pool's patience."""
    return starved_since > 0 and now >= starved_since + pool.patience


def gives_up(pool: Pool | None, *, starved_since: float, has_healthy: bool, first_rest: float, now: float) -> bool:
    """Whether a lane gives up its tasks: all its exits have rested for too long, or the pool does not exist. An exit
    whose rest (`first_rest`) ended before that, or that joined the pool later, is tried first."""
    if pool is None:
        return True
    if has_healthy or not is_out_of_patience(starved_since, pool, now=now):
        return False
    return first_rest >= starved_since + pool.patience


def look_again_at(free_at: float, pool: Pool, *, starved_since: float, now: float) -> float:
    """When to check a lane again: when its next exit is free (`free_at`), at the latest when its patience ends. 0:
    now."""
    at = free_at if free_at > now else 0.0
    return min(at, starved_since + pool.patience) if starved_since else at


def cost_of(pool: Pool | None, use: ExitUse | None) -> float:
    """The cost of one request; 0 if the exit was not used or its pool is gone."""
    if pool is None or (use and use.verdict == "unused"):
        return 0.0
    return pool.cost + (use.size / BYTES_PER_GB * pool.cost_per_gb if use else 0.0)


def status_of(
    exit_name: str, lane: str, ended: Ended, *, in_flight: int, parked_until: float, now: float
) -> ExitStatus:
    """The status of an exit towards a lane, for people."""
    return ExitStatus(
        exit=exit_name,
        lane=lane,
        requests=ended.requests + in_flight,
        ok=ended.ok,
        blocked=ended.blocked,
        failed=ended.failed,
        in_flight=in_flight,
        size=ended.size,
        elapsed=ended.elapsed,
        cost=ended.cost,
        streak=ended.streak,
        rests_for=max(0.0, ended.rests_until - now) if ended.streak else 0.0,
        parked_for=max(0.0, parked_until - now),
    )


def no_exit_reason(lane: str, *, is_known: bool) -> str:
    """The reason of tasks given up because their lane waited too long for an exit."""
    pool = lane.partition(VIA)[2]
    return f"{NO_EXIT}: every exit of pool {pool} rests" if is_known else f"{NO_EXIT}: there is no pool {pool}"


RENEWED_AT = 0.75 * OFFER_SECONDS  # an offer that lasts longer is not written again


class Offer(msgspec.Struct, frozen=True):
    """The exits that workers offer to one pool, each until a time. `pool`: the limits, for a pool that the crawl does
    not have itself: those of the first offer, with the longest interval and the smallest cap of all offers since; a
    call whose exits are the only ones left sets them anew."""

    pool: Pool
    until: dict[str, float]


Offers = Mapping[str, Offer]


def usable_offers(given: Sequence[Pool], pools: Collection[str]) -> list[Pool]:
    """The offers that a crawl with these pools can use: to its own pools, and to regions."""
    return [pool for pool in given if pool.name in pools or pool.name.startswith(REGION)]


def renewed(offers: Offers, given: Sequence[Pool], *, now: float) -> tuple[Offers, bool]:
    """The offers after a call that offers `given`, and whether a pool has changed: exits were added or have expired, or
    limits differ."""
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
    """The pools with their offered exits, and the pools of regions."""
    own = {pool.name: pool for pool in pools}
    every = own | {name: one.pool for name, one in offers.items() if name not in own and name.startswith(REGION)}
    return tuple(
        msgspec.structs.replace(pool, exits=tuple(dict.fromkeys((*pool.exits, *offers[name].until))))
        if name in offers
        else pool
        for name, pool in every.items()
    )


def offered_names(pools: Sequence[Pool], offers: Offers) -> dict[str, frozenset[str]]:
    """By pool, the exits that are in it only because workers offer them."""
    common = {pool.name: frozenset(pool.exits) for pool in pools}
    return {name: frozenset(one.until) - common.get(name, frozenset()) for name, one in offers.items()}
