"""How keys expire in a crawl with a `dedup_ttl`.

A generation lasts half a `dedup_ttl`, and its keys are known through it and the next two: so a key stays known for at
least the whole `dedup_ttl` after its task ended, at most for one and a half, and no key is looked at by itself."""

from __future__ import annotations

import math

from shoal.frontier.rules.constants import GENERATIONS_PER_TTL, KEPT_GENERATIONS


def generations_due(began: float, dedup_ttl: float, *, now: float) -> int:
    """How many generations should have begun after the one that began at this time."""
    return max(0, math.floor((now - began) / (dedup_ttl / GENERATIONS_PER_TTL)))


def generation_begin(began: float, dedup_ttl: float, due: int) -> float:
    """When the last of the due generations began, after the one that began at this time."""
    return began + due * (dedup_ttl / GENERATIONS_PER_TTL)


def oldest_known(generation: int) -> int:
    """The oldest generation whose keys are known while this one is the current one."""
    return generation - KEPT_GENERATIONS + 1
