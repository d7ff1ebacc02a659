"""What a lane knows of its pool's exits, as its row keeps it: whose turn it is, who is ill, who is in use.

Exits are known by their place in the pool's roll. The healthy ones stand in a ring and are used in turn."""

from __future__ import annotations

import math

import msgspec

# What a place is marked with. Ill ones have a streak of failures; with requests in flight they are being tried. Ill
# ones and those that are put off, because somebody else holds them or because they are parked, wait in `lane_rest`.
RING, ILL, TRIED, OFF, GONE, PARKED = range(6)


class Roster(msgspec.Struct, array_like=True):
    """The exits of one lane. `marks` ends with the last place that is not in the ring. Whoever is not in `flights` has
    nothing in flight, whoever is not in `nexts` is due."""

    place: int = 0
    marks: bytes = b""
    flights: dict[int, int] = msgspec.field(default_factory=dict)
    nexts: dict[int, float] = msgspec.field(default_factory=dict)
    rests_next: float = math.inf
    starved_since: float = 0.0
    stuck: int = -1
    stuck_since: float = 0.0

    def mark_of(self, place: int) -> int:
        return self.marks[place] if place < len(self.marks) else RING

    def mark(self, place: int, mark: int) -> None:
        marks = bytearray(self.marks.ljust(place + 1, b"\0"))
        marks[place] = mark
        self.marks = bytes(marks.rstrip(b"\0"))

    def is_free(self, place: int, cap: int) -> bool:
        """Whether the exit stands in the ring and has room for one request more."""
        return self.flights.get(place, 0) < cap and self.mark_of(place) == RING

    def has_healthy(self, size: int) -> bool:
        """Whether any of the pool's exits, so many with those that left, is neither ill nor parked."""
        return len(self.marks) < size or RING in self.marks or OFF in self.marks

    def due_in_ring(self, size: int, cap: int, *, now: float) -> int | None:
        """The next place in the ring whose exit may be used now."""
        if not self.marks and not self.nexts and self.place < size and self.flights.get(self.place, 0) < cap:
            return self.place  # as nearly always
        place = self._due(self.place, size, cap, now=now)
        return self._due(0, min(self.place, size), cap, now=now) if place is None else place

    def _due(self, first: int, end: int, cap: int, *, now: float) -> int | None:
        flights, nexts, place = self.flights, self.nexts, self._in_ring(first, end)
        while place is not None and (flights.get(place, 0) >= cap or nexts.get(place, 0.0) > now):
            place = self._in_ring(place + 1, end)
        return place

    def _in_ring(self, first: int, end: int) -> int | None:
        """The first place of the ring from here on."""
        marked = len(self.marks)
        if first < marked:
            place = self.marks.find(RING, first, end)
            if place >= 0:
                return place
            first = marked
        return first if first < end else None

    def due_later(self, cap: int, *, now: float) -> list[tuple[float, int]]:
        """The places of the ring whose exits are free and not due yet, each with its time."""
        return [(at, place) for place, at in self.nexts.items() if at > now and self.is_free(place, cap)]

    def next_free(self, size: int, cap: int, *, now: float) -> float:
        """From when on an exit may be used; 0 when that is now."""
        ring = size - len(self.marks) + self.marks.count(RING)
        if self.rests_next <= now or ring > len(self.flights) + len(self.nexts):
            return 0.0
        full = sum(self.mark_of(place) == RING for place, flights in self.flights.items() if flights >= cap)
        later = self.due_later(cap, now=now)
        if ring > full + len(later):
            return 0.0
        return min([self.rests_next, *(at for at, _ in later)])

    def start(self, place: int, *, next_start: float, now: float) -> None:
        """A request goes out through the exit at this place."""
        self.flights[place] = self.flights.get(place, 0) + 1
        if next_start > now:
            self.nexts[place] = next_start
        elif self.nexts:
            self.nexts.pop(place, None)

    def end(self, place: int) -> None:
        """A request is over."""
        left = self.flights[place] - 1
        if left:
            self.flights[place] = left
        else:
            del self.flights[place]

    def encode(self, *, now: float) -> bytes:
        """For the lane's row."""
        if self.nexts:
            self.nexts = {place: at for place, at in self.nexts.items() if at > now}
        return _ENCODER.encode(self)


_ENCODER = msgspec.msgpack.Encoder()
decode = msgspec.msgpack.Decoder(Roster).decode
