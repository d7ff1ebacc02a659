"""What a lane knows of its pool's exits, packed into the lane's row: whose turn it is, who is ill, who is in use.

Exits are known by their place in the pool's roll. The healthy ones stand in a ring and are used in turn."""

from __future__ import annotations

import math
import struct
from array import array

import msgspec

# What a place is marked with. Ill ones have a streak of failures; with requests in flight they are being tried. Ill and put
# off ones wait in the table `lane_rest`.
RING, ILL, TRIED, OFF, GONE = range(5)

_HEAD = struct.Struct("<IidddII")
_NUMBER, _TIME = array("I").itemsize, array("d").itemsize


class Roster(msgspec.Struct):
    """The exits of one lane. Whoever is in none of the dicts has nothing in flight, or is due."""

    marks: bytearray
    place: int = 0
    stuck: int = -1
    stuck_since: float = 0.0
    starved_since: float = 0.0
    rests_next: float = math.inf
    flights: dict[int, int] = msgspec.field(default_factory=dict)
    nexts: dict[int, float] = msgspec.field(default_factory=dict)

    @property
    def has_healthy(self) -> bool:
        return RING in self.marks or OFF in self.marks

    def start(self, place: int, *, next_start: float, now: float) -> None:
        """A request goes out through the exit at this place."""
        self.flights[place] = self.flights.get(place, 0) + 1
        if next_start > now:
            self.nexts[place] = next_start
        elif self.nexts:
            self.nexts.pop(place, None)

    def end(self, place: int) -> None:
        """A request is over. (One that was lent before the exits were last counted is not known.)"""
        left = self.flights.get(place, 0) - 1
        if left > 0:
            self.flights[place] = left
        else:
            self.flights.pop(place, None)

    def due_in_ring(self, cap: int, *, now: float) -> int | None:
        """The next place in the ring whose exit may be used now."""
        marks, flights, nexts = self.marks, self.flights, self.nexts
        for first, end in ((self.place, len(marks)), (0, self.place)):
            place = marks.find(RING, first, end)
            while place >= 0:
                if flights.get(place, 0) < cap and nexts.get(place, 0.0) <= now:
                    return place
                place = marks.find(RING, place + 1, end)
        return None

    def due_later(self, cap: int) -> list[tuple[float, int]]:
        """The places of the ring whose exits are not due yet, each with its time."""
        marks, flights = self.marks, self.flights
        return [(at, place) for place, at in self.nexts.items() if marks[place] == RING and flights.get(place, 0) < cap]

    def next_free(self, cap: int, *, now: float) -> float:
        """From when on an exit may be used; 0 when that is now."""
        marks = self.marks
        full = sum(marks[place] == RING for place, flights in self.flights.items() if flights >= cap)
        late = [at for at, _ in self.due_later(cap) if at > now]
        if self.rests_next <= now or marks.count(RING) > full + len(late):
            return 0.0
        return min([self.rests_next, *late])

    def encode(self, *, now: float) -> bytes:
        """For the lane's row."""
        nexts = {place: at for place, at in self.nexts.items() if at > now} if self.nexts else self.nexts
        marks = self.marks.rstrip(b"\0")
        head = _HEAD.pack(
            self.place, self.stuck, self.stuck_since, self.starved_since, self.rests_next, len(marks), len(self.flights)
        )
        if not self.flights and not nexts:
            return head + marks
        return b"".join(
            (head, marks, array("I", self.flights), array("I", self.flights.values()), array("I", nexts),
             array("d", nexts.values()))
        )  # fmt: skip


def decode(row: bytes, size: int) -> Roster:
    """What `encode` gave, for a roll of so many places."""
    place, stuck, stuck_since, starved_since, rests_next, marked, in_flight = _HEAD.unpack_from(row)
    at = _HEAD.size + marked
    marks = bytearray(row[_HEAD.size : at])
    marks.extend(bytes(size - marked))
    roster = Roster(marks, place, stuck, stuck_since, starved_since, rests_next)
    if len(row) > at:
        view = memoryview(row)
        middle, end = at + in_flight * _NUMBER, at + 2 * in_flight * _NUMBER
        roster.flights = dict(zip(view[at:middle].cast("I"), view[middle:end].cast("I"), strict=True))
        middle = end + (len(row) - end) // (_NUMBER + _TIME) * _NUMBER
        roster.nexts = dict(zip(view[end:middle].cast("I"), view[middle:].cast("d"), strict=True))
    return roster
