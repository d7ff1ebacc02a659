"""The points of a crawl's history: their encoding, and thinning many points to a few."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from shoal.model import Point

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(Point)


def encode_point(point: Point) -> bytes:
    """The point as stored, without its time."""
    return _ENCODER.encode(point)


def readable_points(stored: Iterable[tuple[float, bytes]]) -> list[Point]:
    """The stored points with their times, without points that cannot be read, such as those of another version."""
    found = []
    for at, data in stored:
        try:
            found.append(msgspec.structs.replace(_DECODER.decode(data), at=at))
        except (msgspec.MsgspecError, TypeError, ValueError):
            continue
    return found


def thinned(times: Sequence[float], most: int) -> list[int]:
    """The indexes of at most `most` of these sorted times: the latest in each of `most` equal parts of the time span.

    `points.lua` does the same."""
    if len(times) <= most:
        return list(range(len(times)))
    if most < 1:
        return []
    first, last = times[0], times[-1]
    ends = [bisect_left(times, first + (last - first) * part / most) for part in range(1, most)]
    edges = [0, *ends, len(times)]
    return [end - 1 for begin, end in pairwise(edges) if end > begin]
