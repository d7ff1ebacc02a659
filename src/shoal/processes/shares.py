"""How scarce work is shared: how much of it a worker leaves to the others. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from shoal.model import WorkerBeat


def share_of(mine: int, others: Iterable[WorkerBeat]) -> int | None:
    """The leases in hand, divided by the workers that have room for more; None: there is no other such worker.

    `mine` is how many this worker holds. A worker that holds nothing may always ask: the share is at least one."""
    with_room = [beat for beat in others if beat.busy < beat.slots]
    if not with_room:
        return None
    return max(1, (mine + sum(beat.busy for beat in with_room)) // (1 + len(with_room)))


def portion_of(mine: int, share: int | None) -> float:
    """The part of the places freed by its own landed requests that a worker takes again, where caps bind: less than
    all of them while it holds more than its share."""
    return 1.0 if share is None or mine <= share else share / mine
