"""Which run of a schedule starts now, waits, or is skipped. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from shoal.duties.schedules.config import JUST_BEFORE, MOST_COUNTED, Schedule, count_due, newest_due, next_due, start_of
from shoal.duties.schedules.orders import (
    MOST_ANSWERED,
    RunRequest,
    RunState,
    ScheduledRun,
    ScheduleState,
    kept,
    run_name,
)

# A run that starts within this time is not missed: another coordinator needs a moment to take over.
LATE_SECONDS: Final = 60.0
# If `passed` is further in the future than this, the clock was wrong and has been set back.
CLOCK_SECONDS: Final = 3600.0


class ObservedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The observed state of a schedule's current run. `others` names another crawl of its spider that is at work or
    paused; empty: there is none."""

    crawl: str = ""
    ended: Literal["", "finished", "stopped", "failed", "cancelled", "interrupted"] = ""
    reason: str = ""
    log: str = ""
    others: str = ""


NOTHING_OBSERVED: Final = ObservedRun()


class DueRun(msgspec.Struct, frozen=True, kw_only=True):
    """The newest due time whose start has come, whether it is on time, and how many due times were missed."""

    due: float
    on_time: bool
    missed: int


def look(
    schedule: Schedule,
    state: ScheduleState,
    *,
    now: float,
    observed: ObservedRun = NOTHING_OBSERVED,
    asked: Sequence[RunRequest] = (),
) -> ScheduleState:
    """The state after a check. A run to start becomes `current` in the state "starting" until its crawl is observed:
    the holder of the duty starts it."""
    state = _with_outcome(state, observed, now=now)
    state = _with_timing(schedule, state, now=now)
    for request in asked:
        state = _requested(schedule, state, request, now=now, observed=observed)
    due_run = None if schedule.paused else fall_due(schedule, state.passed, now=now)
    if due_run is not None:
        state = _fell_due(schedule, state, due_run, now=now, observed=observed)
    waiting = state.waiting
    if waiting is not None and state.current is None and not observed.others:
        state = _started(msgspec.structs.replace(state, waiting=None), waiting, now=now)
    return state


def wants_look(schedule: Schedule, state: ScheduleState, *, now: float, asked: Sequence[RunRequest] = ()) -> bool:
    """Whether it matters what is seen: without a run, a request or a due time nothing can change."""
    if state.current is not None or state.waiting is not None or asked:
        return True
    return not schedule.paused and fall_due(schedule, state.passed, now=now) is not None


def fall_due(schedule: Schedule, passed: float, *, now: float) -> DueRun | None:
    """What has become due since `passed`; None: nothing."""
    timing, name = schedule.timing, schedule.name
    first = next_due(timing, after=passed)
    if first is None or start_of(timing, first, name=name) > now:
        return None
    newest = newest_due(timing, after=passed, until=now)
    if newest is not None and start_of(timing, newest, name=name) > now:
        # The jitter of the newest is not over; that of the one before it is.
        newest = newest_due(timing, after=passed, until=newest - JUST_BEFORE)
    due = first if newest is None else newest
    on_time = now - start_of(timing, due, name=name) <= LATE_SECONDS
    return DueRun(due=due, on_time=on_time, missed=count_due(timing, after=passed, until=due) - on_time)


def upcoming(schedule: Schedule, state: ScheduleState, *, now: float) -> tuple[float, float] | None:
    """The next due time and the start of its run; None: paused, or no due time."""
    if schedule.paused:
        return None
    is_known = state.rhythm == schedule.rhythm and not state.paused
    due = next_due(schedule.timing, after=state.passed if is_known and state.passed > now - LATE_SECONDS else now)
    return None if due is None else (due, start_of(schedule.timing, due, name=schedule.name))


def crawl_to_cancel(schedule: Schedule, state: ScheduleState) -> str:
    """The crawl to cancel for the waiting run (overlap "cancel"); empty: none."""
    is_in_the_way = schedule.overlap == "cancel" and state.waiting is not None and state.current is not None
    return state.current.crawl if is_in_the_way and state.current is not None else ""


def _with_outcome(state: ScheduleState, observed: ObservedRun, *, now: float) -> ScheduleState:
    """The state after the observed progress or end of the current run."""
    run = state.current
    if run is None:
        return state
    run = msgspec.structs.replace(run, crawl=observed.crawl or run.crawl, log=observed.log or run.log)
    if observed.ended:
        reason = observed.reason
        if observed.ended == "cancelled" and state.waiting is not None and not reason:
            reason = "the next run was due"
        ended = msgspec.structs.replace(run, state=observed.ended, ended=now, reason=reason)
        return kept(msgspec.structs.replace(state, current=None), ended)
    return msgspec.structs.replace(state, current=msgspec.structs.replace(run, state="running") if run.crawl else run)


def _with_timing(schedule: Schedule, state: ScheduleState, *, now: float) -> ScheduleState:
    """The state for the present schedule: after a changed rhythm, a pause, or a clock set back, earlier due times do
    not count."""
    is_other = state.rhythm != schedule.rhythm or (state.paused and not schedule.paused)
    if is_other or state.passed > now + CLOCK_SECONDS:
        state = msgspec.structs.replace(state, passed=now)
    waiting = None if schedule.paused and not state.paused else state.waiting
    return msgspec.structs.replace(state, rhythm=schedule.rhythm, paused=schedule.paused, waiting=waiting)


def _requested(
    schedule: Schedule, state: ScheduleState, request: RunRequest, *, now: float, observed: ObservedRun
) -> ScheduleState:
    if request.id in state.answered:
        return state
    state = msgspec.structs.replace(state, answered=(*state.answered, request.id)[-MOST_ANSWERED:])
    run = ScheduledRun(run=run_name(schedule, request.at, asked=request), due=request.at, state="queued")
    return _due(schedule, state, run, now=now, observed=observed)


def _fell_due(
    schedule: Schedule, state: ScheduleState, due_run: DueRun, *, now: float, observed: ObservedRun
) -> ScheduleState:
    state = msgspec.structs.replace(state, passed=due_run.due)
    runs = due_run.on_time or schedule.missed == "once"
    run = ScheduledRun(run=run_name(schedule, due_run.due), due=due_run.due, state="queued")
    if lost := due_run.missed - (runs and not due_run.on_time):
        more = " or more" if due_run.missed >= MOST_COUNTED - 1 else ""
        line = _ended(run, "missed", f"nobody could start it in time{more}", now=now)
        state = kept(state, msgspec.structs.replace(line, number=lost))
    if not runs:
        return state
    if not due_run.on_time:
        run = msgspec.structs.replace(run, reason="made up for a missed run")
    return _due(schedule, state, run, now=now, observed=observed)


def _due(
    schedule: Schedule, state: ScheduleState, run: ScheduledRun, *, now: float, observed: ObservedRun
) -> ScheduleState:
    """The state after a run has become due: it starts, waits, or is skipped."""
    going = state.current.crawl or "the run before it" if state.current is not None else ""
    reason = f"{going} is still going" if going else observed.others
    if not reason and state.waiting is None:
        return _started(state, run, now=now)
    if state.waiting is not None:
        return kept(state, _ended(run, "skipped", "another run waits already", now=now))
    # Only runs of this schedule are cancelled, not crawls that somebody else began.
    waits = schedule.overlap == "queue" or (schedule.overlap == "cancel" and going)
    if not waits:
        return kept(state, _ended(run, "skipped", reason, now=now))
    return msgspec.structs.replace(state, waiting=msgspec.structs.replace(run, reason=run.reason or reason))


def _started(state: ScheduleState, run: ScheduledRun, *, now: float) -> ScheduleState:
    return msgspec.structs.replace(state, current=msgspec.structs.replace(run, state="starting", started=now))


def _ended(run: ScheduledRun, state: RunState, reason: str, *, now: float) -> ScheduledRun:
    return msgspec.structs.replace(run, state=state, reason=reason, ended=now)
