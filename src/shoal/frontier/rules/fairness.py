"""How a lease call shares its room among the lanes that may start."""

from __future__ import annotations

from collections.abc import Sequence


def share_out(rooms: Sequence[int], limit: int) -> list[int]:
    """Give each lane the same share, then what is left to those that can still take some."""
    given = [0] * len(rooms)
    while limit > 0:
        hungry = [place for place, room in enumerate(rooms) if given[place] < room]
        if not hungry:
            break
        share = max(1, limit // len(hungry))
        for place in hungry:
            part = min(share, rooms[place] - given[place], limit)
            given[place] += part
            limit -= part
    return given
