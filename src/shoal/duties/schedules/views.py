"""Schedules as people see them, from the notes of coordinators, the orders of people and a shoal.toml."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from shoal.duties.schedules.config import Missed, Overlap, Schedule, written
from shoal.duties.schedules.orders import Entry, Notes, Orders, ScheduleState, in_force, read_orders
from shoal.duties.schedules.rules import upcoming
from shoal.duties.schedules.scheduler import schedule_notes
from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.text.near_names import did_you_mean

NOBODY: Final = "no `shoal serve --spiders FOLDER` is there to start runs of schedules"


class ScheduleShown(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it is now. `origin`: "file" is one of shoal.toml, which is changed there; `every` and `jitter` are
    seconds. `state`: "unknown" is one that no coordinator has seen yet. `paused`: no more runs start, while one may
    still be going. `next_due` is when it falls due, `next_start` when it starts, after its jitter."""

    name: str
    spider: str
    origin: Literal["file", "api"]
    cron: str
    timezone: str
    every: int
    jitter: float
    overlap: Overlap
    missed: Missed
    workers: int
    arguments: dict[str, str]
    settings: dict[str, str | int | float | bool]
    state: Literal["waits", "runs", "paused", "unknown"]
    paused: bool
    next_due: float | None
    next_start: float | None
    next_local: str
    next_utc: str
    current: Entry | None
    waiting: Entry | None
    last: Entry | None


class Overview(NamedTuple):
    """The schedules of a frontier, and whether a coordinator is there that starts their runs."""

    is_run: bool
    schedules: dict[str, ScheduleShown]
    notes: Notes

    def get(self, name: str) -> ScheduleShown:
        """The schedule of a name. Refuses one that is not there."""
        if name not in self.schedules:
            known = ", ".join(list(self.schedules)[:20]) or "none"
            hint = did_you_mean(name, self.schedules, otherwise=f"there are: {known}")
            raise UsageError(f"no schedule is called {name!r}; {hint}")
        return self.schedules[name]

    def runs(self, name: str) -> list[Entry]:
        """The runs of a schedule, newest first: also the one that goes on, and the one that waits for it."""
        state = self.notes.states.get(name, ScheduleState())
        return [entry for entry in (state.waiting, state.current, *reversed(state.history)) if entry is not None]


async def overview(frontier: Frontier, filed: Mapping[str, Schedule], *, clock: Callable[[], float]) -> Overview:
    """All schedules: those that coordinators know, those of this shoal.toml, those that were made over HTTP."""
    is_run, notes = await schedule_notes(frontier)
    return overview_of(filed, notes=notes, orders=await read_orders(frontier), is_run=is_run, now=clock())


def overview_of(filed: Mapping[str, Schedule], *, notes: Notes, orders: Orders, is_run: bool, now: float) -> Overview:
    """The same, from what was read."""
    # The file of a coordinator that is there counts; of one that is gone, only where there is no other.
    known = notes.filed if is_run or not filed else {}
    files = {**filed, **known}
    shown = {
        name: _shown(schedule, notes, origin="file" if name in files else "api", now=now, is_run=is_run)
        for name, schedule in in_force(files, orders).items()
    }
    return Overview(is_run, shown, notes)


def _shown(
    schedule: Schedule, notes: Notes, *, origin: Literal["file", "api"], now: float, is_run: bool
) -> ScheduleShown:
    is_known = is_run and schedule.name in notes.states
    state = notes.states.get(schedule.name, ScheduleState())
    following = upcoming(schedule, state, now=now)
    timing = schedule.timing
    return ScheduleShown(
        name=schedule.name,
        spider=schedule.spider,
        origin=origin,
        cron=timing.cron,
        timezone=timing.timezone,
        every=timing.every,
        jitter=timing.jitter,
        overlap=schedule.overlap,
        missed=schedule.missed,
        workers=schedule.workers,
        arguments=schedule.arguments,
        settings=schedule.settings,
        state="runs" if state.current else "paused" if schedule.paused else "waits" if is_known else "unknown",
        paused=schedule.paused,
        next_due=None if following is None else following[0],
        next_start=None if following is None else following[1],
        next_local="" if following is None else written(following[1], timing.timezone),
        next_utc="" if following is None else written(following[1]),
        current=state.current,
        waiting=state.waiting,
        last=state.last,
    )
