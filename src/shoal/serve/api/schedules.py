"""Schedules over HTTP: listed, created, deleted, paused, resumed, run at once."""

from __future__ import annotations

import time
import uuid

import msgspec

from shoal.duties.schedules.config import MOST_SCHEDULES, ScheduleKeys, schedule_of
from shoal.duties.schedules.orders import (
    Orders,
    ScheduledRun,
    change_orders,
    with_pause,
    with_run,
    with_schedule,
    without_schedule,
)
from shoal.duties.schedules.views import NOBODY, Overview, ScheduleShown, overview
from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.serve.answers import Refusal
from shoal.serve.api.operations import PREFIX, Call
from shoal.serve.api.shapes import Shape


class Schedules(Shape, frozen=True, kw_only=True):
    """All schedules. `is_run`: a coordinator starts their runs."""

    is_run: bool
    schedules: list[ScheduleShown]


class ScheduleRuns(Shape, frozen=True, kw_only=True):
    """The last runs of a schedule, newest first."""

    runs: list[ScheduledRun]


class AskedRun(Shape, frozen=True, kw_only=True):
    """A requested run: its name in the history ends with this."""

    asked: str


async def list_schedules(call: Call) -> Schedules:
    """All schedules, when each runs next, and how its last run ended."""
    async with call.frontier() as frontier:
        found = await _overview(call, frontier)
    return Schedules(is_run=found.is_run, schedules=list(found.schedules.values()))


async def create_schedule(call: Call) -> ScheduleShown:
    """Create a schedule. Durations and cron expressions are written as in shoal.toml."""
    body: ScheduleKeys = call.body
    schedule = schedule_of(msgspec.to_builtins(body), origin="the schedule")
    call.parts.spiders.reference(schedule.spider)

    def change(orders: Orders) -> Orders:
        if schedule.name in orders.schedules:
            raise Refusal(409, f"there is a schedule {schedule.name!r} already: delete it first")
        if len(orders.schedules) >= MOST_SCHEDULES:
            raise Refusal(409, f"there are {MOST_SCHEDULES} schedules already, which is the most: delete one first")
        return with_schedule(orders, schedule)

    async with call.frontier() as frontier:
        found = await _overview(call, frontier)
        if schedule.name in found.schedules and found.get(schedule.name).origin == "file":
            raise Refusal(409, f"shoal.toml has a schedule {schedule.name!r}: choose another name")
        await change_orders(frontier, change)
        return (await _overview(call, frontier)).get(schedule.name)


async def show_schedule(call: Call) -> ScheduleShown:
    """One schedule, when it runs next, and how its last run ended."""
    async with call.frontier() as frontier:
        return _named(call, await _overview(call, frontier))


async def delete_schedule(call: Call) -> None:
    """Delete a schedule that was created over HTTP, with its history. A current run goes on."""
    async with call.frontier() as frontier:
        shown = _named(call, await _overview(call, frontier))
        if shown.origin == "file":
            raise Refusal(409, f"{shown.name} is a schedule of shoal.toml: remove it there, or pause it here")
        await change_orders(frontier, lambda orders: without_schedule(orders, shown.name))


async def show_schedule_history(call: Call) -> ScheduleRuns:
    """The last 100 runs of a schedule, including skipped and missed ones with the reason."""
    async with call.frontier() as frontier:
        found = await _overview(call, frontier)
        return ScheduleRuns(runs=found.runs(_named(call, found).name))


async def run_schedule(call: Call) -> AskedRun:
    """Run a schedule at the coordinator's next check, even while it is paused."""
    async with call.frontier() as frontier:
        found = await _overview(call, frontier)
        name, key = _named(call, found).name, uuid.uuid4().hex[:8]
        if not found.is_run:
            raise Refusal(409, f"{name} cannot run now: {NOBODY}")
        await change_orders(frontier, lambda orders: with_run(orders, name, at=time.time(), key=key))
    return AskedRun(asked=key)


async def pause_schedule(call: Call) -> ScheduleShown:
    """Start no more runs of a schedule until it is resumed."""
    return await _set_paused(call, paused=True)


async def resume_schedule(call: Call) -> ScheduleShown:
    """Resume a paused schedule with its next due run."""
    return await _set_paused(call, paused=False)


async def _set_paused(call: Call, *, paused: bool) -> ScheduleShown:
    async with call.frontier() as frontier:
        name = _named(call, await _overview(call, frontier)).name
        await change_orders(frontier, lambda orders: with_pause(orders, name, paused=paused))
        return _named(call, await _overview(call, frontier))


async def _overview(call: Call, frontier: Frontier) -> Overview:
    return await overview(frontier, call.parts.schedules or {}, clock=time.time)


def _named(call: Call, found: Overview) -> ScheduleShown:
    """The schedule in the path."""
    try:
        return found.get(call.request.path_params["schedule"])
    except UsageError as error:
        raise Refusal(404, f"{error}: GET {PREFIX}/schedules lists them") from None
