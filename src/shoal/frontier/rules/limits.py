"""When a crawl is stopped before its work is done: by a limit that it was opened with."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from shoal.model import Limit

_LIMITS = msgspec.json.Decoder(tuple[Limit, ...])


def encoded(limits: Sequence[Limit]) -> str:
    """Limits as a frontier stores them; empty: none."""
    return msgspec.json.encode(limits).decode() if limits else ""


def decoded(stored: str | bytes) -> tuple[Limit, ...]:
    """Limits as they were stored. Raises a msgspec.MsgspecError for anything else."""
    return _LIMITS.decode(stored) if stored else ()


def reached(limits: Sequence[Limit], *, note: Callable[[str], float], ran: float, wall: float) -> Limit | None:
    """The first of these limits that the crawl has reached. `note` gives the sum of a note."""
    for limit in limits:
        if (note(limit.note) if limit.of == "note" else ran if limit.of == "ran" else wall) >= limit.most:
            return limit
    return None
