"""How the crawls of one worker process share its slots while there are too few for all. Pure; decision 60 says why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

# Of so many slots one is for the crawls of lower priority, all together; where a process has fewer slots, of so many
# starts one.
LOWER_PART: Final = 10


class Claim(NamedTuple):
    """What one crawl has of the slots: how many it holds, and when it last got one. `wants` more than it holds."""

    crawl: str
    priority: int
    held: int
    served: int
    wants: bool


def grants(claims: Sequence[Claim], *, size: int, since_lower: int) -> dict[str, int]:
    """How many of `size` slots each crawl that wants more gets now, beside those that it holds.

    The crawls of the highest priority share nine tenths, the others take turns at the rest; who wants no more keeps
    what it has. `since_lower`: starts of the highest since the last one of the others."""
    free = size - sum(claim.held for claim in claims)
    left = size - sum(claim.held for claim in claims if not claim.wants)
    wanting = sorted((claim for claim in claims if claim.wants), key=lambda claim: claim.served)
    top = max((claim.priority for claim in wanting), default=0)
    highest = [claim for claim in wanting if claim.priority == top]
    lower = [claim for claim in wanting if claim.priority < top]
    part = _part_of_lower(left, since_lower) if lower else 0
    given = _given(lower, part, free=free)
    most = free - sum(given.values())
    if lower and left < LOWER_PART:
        # Their next start is due after so many of the highest.
        most = min(most, LOWER_PART - 1 - since_lower)
    return given | _given(highest, left - part, free=most)


def _part_of_lower(slots: int, since_lower: int) -> int:
    if slots >= LOWER_PART:
        return slots // LOWER_PART
    return min(slots, int(since_lower >= LOWER_PART - 1))


def _given(claims: Sequence[Claim], slots: int, *, free: int) -> dict[str, int]:
    """The same number of slots for each of these, who share so many, of which some are free. What is left over goes to
    those that were served longest ago."""
    free = max(0, min(free, slots - sum(claim.held for claim in claims)))
    given = {}
    each, more = divmod(max(0, slots), len(claims) or 1)
    for index, claim in enumerate(claims):
        given[claim.crawl] = min(free, max(0, each + (index < more) - claim.held))
        free -= given[claim.crawl]
    return given
