"""How a lease call shares its room among the lanes that may start."""

from __future__ import annotations

from collections.abc import Sequence


def share_out(rooms: Sequence[int], limit: int) -> list[int]:
    """Give each lane the same share, then the remainder to the lanes that have room for more."""
    given = [0] * len(rooms)
    while limit > 0:
        hungry = [index for index, room in enumerate(rooms) if given[index] < room]
        if not hungry:
            break
        share = max(1, limit // len(hungry))
        for index in hungry:
            part = min(share, rooms[index] - given[index], limit)
            given[index] += part
            limit -= part
    return given
