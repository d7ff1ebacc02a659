"""What a lane stores about its pool's exits: which one is next, how each is marked, what is in flight through it.

An exit is known by its index in the list of all exits that the pool ever had. The healthy ones form a ring and are used
in turn. Quarantined, held and parked exits are out of the ring until a time, which is in `lane_rest`: they rest."""

from __future__ import annotations

import math

import msgspec

from shoal.frontier.rules.constants import HEALTHY, HELD


class Roster(msgspec.Struct, array_like=True):
    """The exits of one lane.

    `next_index` is where the ring goes on. `marks` ends with the last exit that is not healthy. An exit that is not in
    `flights` has nothing in flight, one that is not in `next_starts` is due. `first_rest` is when the first rest ends.
    `kept_index` is the exit that the lane keeps if its pool is sticky."""

    next_index: int = 0
    marks: bytes = b""
    flights: dict[int, int] = msgspec.field(default_factory=dict)
    next_starts: dict[int, float] = msgspec.field(default_factory=dict)
    first_rest: float = math.inf
    starved_since: float = 0.0
    kept_index: int = -1
    kept_since: float = 0.0

    def mark_of(self, index: int) -> int:
        return self.marks[index] if index < len(self.marks) else HEALTHY

    def mark(self, index: int, mark: int) -> None:
        marks = bytearray(self.marks.ljust(index + 1, b"\0"))
        marks[index] = mark
        self.marks = bytes(marks.rstrip(b"\0"))

    def without(self, away: bytes) -> Roster:
        """As a worker sees it that lacks the exits with a mark in `away`: to choose from, not to change."""
        if not away:
            return self
        size = max(len(away), len(self.marks))
        marks = bytes(map(max, away.ljust(size, b"\0"), self.marks.ljust(size, b"\0")))
        return msgspec.structs.replace(self, marks=marks.rstrip(b"\0"))

    def is_free(self, index: int, cap: int) -> bool:
        """Whether the exit is healthy and may have one request more in flight."""
        return self.flights.get(index, 0) < cap and self.mark_of(index) == HEALTHY

    def has_healthy(self, size: int) -> bool:
        """Whether any exit is healthy; one that another lane holds is. `size` is the length of the pool's list."""
        return len(self.marks) < size or HEALTHY in self.marks or HELD in self.marks

    def due_in_ring(self, size: int, cap: int, *, now: float) -> int | None:
        """The next exit in the ring that may be used now."""
        first = self.next_index
        if not self.marks and not self.next_starts and first < size and self.flights.get(first, 0) < cap:
            return first  # as nearly always
        index = self._due(first, size, cap, now=now)
        return self._due(0, min(first, size), cap, now=now) if index is None else index

    def _due(self, first: int, end: int, cap: int, *, now: float) -> int | None:
        flights, next_starts, index = self.flights, self.next_starts, self._in_ring(first, end)
        while index is not None and (flights.get(index, 0) >= cap or next_starts.get(index, 0.0) > now):
            index = self._in_ring(index + 1, end)
        return index

    def _in_ring(self, first: int, end: int) -> int | None:
        """The first healthy exit from this index on."""
        marked = len(self.marks)
        if first < marked:
            index = self.marks.find(HEALTHY, first, end)
            if index >= 0:
                return index
            first = marked
        return first if first < end else None

    def due_later(self, cap: int, *, now: float) -> list[tuple[float, int]]:
        """The healthy exits that are free but not due yet, each after its next start."""
        return [(at, index) for index, at in self.next_starts.items() if at > now and self.is_free(index, cap)]

    def next_free(self, size: int, cap: int, *, now: float) -> float:
        """When an exit may be used next; 0: now."""
        ring = size - len(self.marks) + self.marks.count(HEALTHY)
        if self.first_rest <= now or ring > len(self.flights) + len(self.next_starts):
            return 0.0
        full = sum(self.mark_of(index) == HEALTHY for index, flights in self.flights.items() if flights >= cap)
        later = self.due_later(cap, now=now)
        if ring > full + len(later):
            return 0.0
        return min([self.first_rest, *(at for at, _ in later)])

    def start(self, index: int, *, next_start: float, now: float) -> None:
        """A request goes out through the exit."""
        self.flights[index] = self.flights.get(index, 0) + 1
        if next_start > now:
            self.next_starts[index] = next_start
        elif self.next_starts:
            self.next_starts.pop(index, None)

    def end(self, index: int) -> None:
        """A request through the exit is over."""
        left = self.flights[index] - 1
        if left:
            self.flights[index] = left
        else:
            del self.flights[index]

    def encode(self, *, now: float) -> bytes:
        """For the lane's row."""
        if self.next_starts:
            self.next_starts = {index: at for index, at in self.next_starts.items() if at > now}
        return _ENCODER.encode(self)


_ENCODER = msgspec.msgpack.Encoder()
decode = msgspec.msgpack.Decoder(Roster).decode
