"""Schedules for commands and the API, from the notes of coordinators, the orders of people and shoal.toml."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal, NamedTuple

import msgspec

from shoal.duties.schedules.config import Missed, Overlap, Schedule, written
from shoal.duties.schedules.orders import Notes, Orders, ScheduledRun, ScheduleState, in_force, read_orders
from shoal.duties.schedules.rules import upcoming
from shoal.duties.schedules.scheduler import schedule_notes
from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.text.near_names import did_you_mean

NOBODY: Final = "no `shoal serve --spiders FOLDER` is there to start runs of schedules"


class ScheduleShown(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as it is now. `origin`: "file" is shoal.toml; `every` and `jitter` are seconds. `state`: "unknown"
    until a coordinator has seen it. `paused`: no more runs start, one may still go on. `next_start` is `next_due` with
    its jitter."""

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
    current: ScheduledRun | None
    waiting: ScheduledRun | None
    last: ScheduledRun | None


class Overview(NamedTuple):
    """The schedules of a frontier; `is_run`: a coordinator is there that starts their runs."""

    is_run: bool
    schedules: dict[str, ScheduleShown]
    notes: Notes

    def get(self, name: str) -> ScheduleShown:
        """The schedule of this name. UsageError: there is none."""
        if name not in self.schedules:
            known = ", ".join(list(self.schedules)[:20]) or "none"
            hint = did_you_mean(name, self.schedules, otherwise=f"there are: {known}")
            raise UsageError(f"no schedule is called {name!r}; {hint}")
        return self.schedules[name]

    def runs(self, name: str) -> list[ScheduledRun]:
        """The runs of a schedule, newest first, with the current and the waiting one."""
        state = self.notes.states.get(name, ScheduleState())
        return [run for run in (state.waiting, state.current, *reversed(state.history)) if run is not None]


async def overview(frontier: Frontier, filed: Mapping[str, Schedule], *, clock: Callable[[], float]) -> Overview:
    """All schedules: of the coordinators, of this shoal.toml, of the API."""
    is_run, notes = await schedule_notes(frontier)
    return overview_of(filed, notes=notes, orders=await read_orders(frontier), is_run=is_run, now=clock())


def overview_of(filed: Mapping[str, Schedule], *, notes: Notes, orders: Orders, is_run: bool, now: float) -> Overview:
    """The overview from notes and orders that were read already."""
    # The file of a running coordinator counts, else this one's, else that of the last coordinator.
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
