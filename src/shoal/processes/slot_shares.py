"""How the crawls of one worker process share its slots while there are too few for all. Pure.

Of ten slots nine go to the highest priority and one to all other crawls together: strict priority would starve them.
Slots are counted and not starts: a lower crawl with slow pages would hold ever more slots at one start in ten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

# Of so many slots one is for the crawls of lower priority, all together; where a process has fewer slots, of so many
# starts one.
LOWER_PART: Final = 10


class Claim(NamedTuple):
    """What one crawl has of the slots: how many it holds, and when it last got one. `wants` more than it holds, and may
    have `most` at once."""

    crawl: str
    priority: int
    held: int
    served: int
    wants: bool
    most: int


def grants(claims: Sequence[Claim], *, size: int, since_lower: int) -> dict[str, int]:
    """How many of `size` slots each crawl that wants more gets now, beside those that it holds.

    The crawls of the highest priority share nine tenths, or as many as they may have, the others take turns at the
    rest; who wants no more keeps what it has. `since_lower`: starts of the highest since the last one of the others."""
    free = size - sum(claim.held for claim in claims)
    left = size - sum(claim.held for claim in claims if not claim.wants)
    wanting = sorted((claim for claim in claims if claim.wants), key=lambda claim: claim.served)
    top = max((claim.priority for claim in wanting), default=0)
    highest = [claim for claim in wanting if claim.priority == top]
    lower = [claim for claim in wanting if claim.priority < top]
    part = max(_part_of_lower(left, since_lower), left - sum(claim.most for claim in highest))
    part = min(part, sum(claim.most for claim in lower))
    given = _given(lower, part, free=free)
    most = free - sum(given.values())
    if lower and left < LOWER_PART and not any(claim.held for claim in lower):
        # Their next start is due after so many of the highest. While a page of theirs is on its way, however slow it
        # is, nobody waits for that start.
        most = min(most, LOWER_PART - 1 - since_lower)
    return given | _given(highest, left - part, free=most)


def _part_of_lower(slots: int, since_lower: int) -> int:
    if slots >= LOWER_PART:
        return slots // LOWER_PART
    return min(slots, int(since_lower >= LOWER_PART - 1))


def _given(claims: Sequence[Claim], slots: int, *, free: int) -> dict[str, int]:
    """What these, who share so many slots, get of those that are free."""
    free = max(0, min(free, slots - sum(claim.held for claim in claims)))
    shares = _shares(claims, max(0, slots))
    given = {}
    for claim in claims:
        given[claim.crawl] = min(free, max(0, shares[claim.crawl] - claim.held))
        free -= given[claim.crawl]
    return given


def _shares(claims: Sequence[Claim], slots: int) -> dict[str, int]:
    """The same number of slots for each, or as many as it may have: the others share the rest. What is left over goes
    to those that were served longest ago."""
    shares: dict[str, int] = {}
    while claims and (small := [claim for claim in claims if claim.most <= slots // len(claims)]):
        shares |= {claim.crawl: claim.most for claim in small}
        slots -= sum(claim.most for claim in small)
        claims = [claim for claim in claims if claim.crawl not in shares]
    each, more = divmod(slots, len(claims) or 1)
    return shares | {claim.crawl: each + (index < more) for index, claim in enumerate(claims)}
