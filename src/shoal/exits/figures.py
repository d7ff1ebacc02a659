"""Statistics of exits: how many requests succeeded, how long they took, and what a good page costs."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import Final, Literal

import msgspec

from shoal.model import VIA, ExitStatus

NEAR_SECONDS = 600.0


class EndedRequests(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that workers have reported. Not: requests in flight, or of lost workers."""

    ok: int
    blocked: int
    failed: int
    elapsed: float

    @classmethod
    def of(cls, uses: Iterable[ExitStatus]) -> EndedRequests:
        """The requests of several exits together."""
        uses = list(uses)
        return cls(
            ok=sum(use.ok for use in uses),
            blocked=sum(use.blocked for use in uses),
            failed=sum(use.failed for use in uses),
            elapsed=sum(use.elapsed for use in uses),
        )

    @property
    def total(self) -> int:
        return self.ok + self.blocked + self.failed

    @property
    def success(self) -> float | None:
        """The share of successful requests; None: none has ended."""
        return self.ok / self.total if self.total else None

    @property
    def mean_seconds(self) -> float | None:
        return self.elapsed / self.total if self.total else None


Health = Literal["healthy", "probation", "quarantined", "parked"]
HEALTH: Final[tuple[Health, ...]] = ("healthy", "probation", "quarantined", "parked")


def health_of(status: ExitStatus) -> Health:
    """The state of an exit at a host."""
    if status.parked_for > 0:
        return "parked"
    if status.rests_for > 0:
        return "quarantined"
    return "probation" if status.streak else "healthy"


class Earnings(msgspec.Struct, frozen=True, kw_only=True):
    """The statistics of one pool at one host."""

    host: str
    pool: str
    exits: int
    requests: int
    cost: float
    ended: EndedRequests

    @property
    def cost_per_1000_ok(self) -> float | None:
        """The cost of a thousand good pages; None: there was no good page."""
        return 1000 * self.cost / self.ended.ok if self.ended.ok else None


def earnings_of(uses: Iterable[ExitStatus]) -> list[Earnings]:
    """One for each host and pool; for each host the pool with the cheapest good pages first, at equal cost the more
    successful one."""
    by_lane: dict[str, list[ExitStatus]] = defaultdict(list)
    for use in uses:
        by_lane[use.lane].append(use)
    found = [
        Earnings(
            host=host_of(lane),
            pool=pool_of_lane(lane),
            exits=len(group),
            requests=sum(use.requests for use in group),
            cost=sum(use.cost for use in group),
            ended=EndedRequests.of(group),
        )
        for lane, group in by_lane.items()
    ]
    return sorted(found, key=_merit)


def host_of(lane: str) -> str:
    """The host of a lane that goes via a pool."""
    return lane.partition(VIA)[0]


def pool_of_lane(lane: str) -> str:
    """The pool that a lane goes via."""
    return lane.partition(VIA)[2]


def money(amount: float) -> str:
    """An amount with at least two significant digits: 3.20, 0.00042."""
    if amount <= 0 or amount >= 0.1:
        return f"{amount:,.2f}"
    return f"{amount:.{1 - math.floor(math.log10(amount))}f}"


def clock_time(timestamp: float, *, now: float | None = None) -> str:
    """A time as 12:31; with seconds if it is near, with the date if it is not today."""
    now = time.time() if now is None else now
    then, today = datetime.fromtimestamp(timestamp), datetime.fromtimestamp(now)
    if then.date() != today.date():
        return then.strftime("%Y-%m-%d %H:%M")
    return then.strftime("%H:%M:%S" if abs(timestamp - now) < NEAR_SECONDS else "%H:%M")


def _merit(one: Earnings) -> tuple[str, bool, float, float, str]:
    cost = one.cost_per_1000_ok
    return one.host, cost is None, cost or 0.0, -(one.ended.success or 0.0), one.pool
