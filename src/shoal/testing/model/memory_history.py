"""The history of a crawl of the in-memory model, and the duties of its frontier."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from shoal.frontier.rules.constants import (
    LONG_POINT_SECONDS,
    LONG_POINTS_KEPT_SECONDS,
    POINT_SECONDS,
    POINTS_KEPT_SECONDS,
)
from shoal.frontier.rules.duties import DutyCall, HeldDuty, Step, step_of
from shoal.frontier.rules.history import thinned
from shoal.model import Duty, Point


@dataclass
class ModelHistory:
    """The points of a crawl, by the step that each one stands for."""

    short: dict[float, Point] = field(default_factory=dict)
    long: dict[float, Point] = field(default_factory=dict)

    def keep(self, point: Point, *, now: float) -> bool:
        point = msgspec.structs.replace(point, at=now)
        is_first = now // POINT_SECONDS not in self.short
        self.short[now // POINT_SECONDS] = self.long[now // LONG_POINT_SECONDS] = point
        self.short = _kept(self.short, since=(now - POINTS_KEPT_SECONDS) // POINT_SECONDS)
        self.long = _kept(self.long, since=(now - LONG_POINTS_KEPT_SECONDS) // LONG_POINT_SECONDS)
        return is_first

    def points(self, *, seconds: float, most: int, now: float) -> list[Point]:
        begins = min((point.at for point in self.short.values()), default=now)
        older = [point for point in self.long.values() if point.at < begins]
        found = [point for point in [*older, *self.short.values()] if point.at >= now - seconds]
        found.sort(key=lambda point: point.at)
        return [found[index] for index in thinned([point.at for point in found], most)]


def _kept(points: dict[float, Point], *, since: float) -> dict[float, Point]:
    return {slot: point for slot, point in points.items() if slot >= since}


@dataclass
class ModelDuty:
    """A duty, and who has it until when."""

    holder: str = ""
    since: float = 0.0
    until: float = 0.0
    notes: bytes = b""
    term: int = 0

    def hold(self, call: DutyCall, *, now: float) -> Duty:
        held = HeldDuty(self.holder, self.since, self.until, self.term)
        step, term = step_of(held, call, now=now)
        if step is Step.HELD:
            self.holder, self.since, self.until, self.term = call.holder, now, now + call.seconds, term
            self.notes = self.notes if call.notes is None else call.notes
        return Duty(step is not Step.REFUSED, self.notes, self.term)
