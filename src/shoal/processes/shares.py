"""How scarce work is shared: how much of it a worker leaves to the others. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.model import WorkerBeat


def share_of(mine: int, others: Iterable[WorkerBeat]) -> int | None:
    """The requests that workers with room for more have on their way, divided by these workers; None: no other has it.

    `mine` is how many this worker had at once lately: at a single moment most of a fast host's may have landed. One
    that has none may always ask: the share is at least one."""
    with_room = [most for beat in others if (most := max(beat.busy, beat.most)) < beat.slots]
    if not with_room:
        return None
    return max(1, (mine + sum(with_room)) // (1 + len(with_room)))


def portion_of(mine: int, share: int | None) -> float:
    """The part of the places freed by its own landed requests that a worker takes again, where caps bind: less than
    all of them while it holds more than its share."""
    return 1.0 if share is None or mine <= share else share / mine
