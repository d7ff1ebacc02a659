"""Which run of a schedule starts now, waits, or does not take place. Pure: clocks and what is seen are passed in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec

from shoal.duties.schedules.config import JUST_BEFORE, MOST_COUNTED, Schedule, count_due, newest_due, next_due, start_of
from shoal.duties.schedules.orders import MOST_ANSWERED, Asked, Entry, RunState, ScheduleState, kept, run_name

# A run that can be started within this time is not missed: another coordinator needs a moment to take over.
LATE_SECONDS: Final = 60.0
# A clock that was wrong and is set back: due times beyond this are not awaited.
CLOCK_SECONDS: Final = 3600.0


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """What is seen of a schedule's current run, and of its spider: `others` names a crawl of it that is worked on or
    paused and that this run has not begun; empty: there is none."""

    crawl: str = ""
    ended: Literal["", "finished", "stopped", "failed", "cancelled", "interrupted"] = ""
    reason: str = ""
    log: str = ""
    others: str = ""


NOTHING_SEEN: Final = Sight()


class Fallen(msgspec.Struct, frozen=True, kw_only=True):
    """The newest due time whose start has come, whether that was just now, and how many others were missed."""

    due: float
    on_time: bool
    missed: int


def look(
    schedule: Schedule, state: ScheduleState, *, now: float, sight: Sight = NOTHING_SEEN, asked: Sequence[Asked] = ()
) -> ScheduleState:
    """The state after a look. A run that is to start is its `current` one, in the state "starting", and stays so until
    its crawl is seen: whoever holds the duty starts it."""
    state = _followed(state, sight, now=now)
    state = _in_step(schedule, state, now=now)
    for wish in asked:
        state = _obeyed(schedule, state, wish, now=now, sight=sight)
    fallen = None if schedule.paused else fall_due(schedule, state.passed, now=now)
    if fallen is not None:
        state = _fallen(schedule, state, fallen, now=now, sight=sight)
    waiting = state.waiting
    if waiting is not None and state.current is None and not sight.others:
        state = _started(msgspec.structs.replace(state, waiting=None), waiting, now=now)
    return state


def wants_look(schedule: Schedule, state: ScheduleState, *, now: float, asked: Sequence[Asked] = ()) -> bool:
    """Whether it matters what is seen: without a run, a wish or a due time nothing can change."""
    if state.current is not None or state.waiting is not None or asked:
        return True
    return not schedule.paused and fall_due(schedule, state.passed, now=now) is not None


def fall_due(schedule: Schedule, passed: float, *, now: float) -> Fallen | None:
    """What has fallen due since the time up to which all is dealt with; None: nothing."""
    timing, name = schedule.timing, schedule.name
    first = next_due(timing, after=passed)
    if first is None or start_of(timing, first, name=name) > now:
        return None
    newest = newest_due(timing, after=passed, until=now)
    if newest is not None and start_of(timing, newest, name=name) > now:
        # Its jitter is not over. That of the one before it is.
        newest = newest_due(timing, after=passed, until=newest - JUST_BEFORE)
    due = first if newest is None else newest
    on_time = now - start_of(timing, due, name=name) <= LATE_SECONDS
    return Fallen(due=due, on_time=on_time, missed=count_due(timing, after=passed, until=due) - on_time)


def upcoming(schedule: Schedule, state: ScheduleState, *, now: float) -> tuple[float, float] | None:
    """The next due time and when its run starts; None while it is paused, or if there is none."""
    if schedule.paused:
        return None
    is_known = state.rhythm == schedule.rhythm and not state.paused
    due = next_due(schedule.timing, after=state.passed if is_known and state.passed > now - LATE_SECONDS else now)
    return None if due is None else (due, start_of(schedule.timing, due, name=schedule.name))


def crawl_to_cancel(schedule: Schedule, state: ScheduleState) -> str:
    """The crawl that a waiting run wants out of its way; empty: none."""
    is_in_the_way = schedule.overlap == "cancel" and state.waiting is not None and state.current is not None
    return state.current.crawl if is_in_the_way and state.current is not None else ""


def _followed(state: ScheduleState, sight: Sight, *, now: float) -> ScheduleState:
    """The state with what became of the current run."""
    run = state.current
    if run is None:
        return state
    run = msgspec.structs.replace(run, crawl=sight.crawl or run.crawl, log=sight.log or run.log)
    if sight.ended:
        reason = sight.reason
        if sight.ended == "cancelled" and state.waiting is not None and not reason:
            reason = "the next run was due"
        ended = msgspec.structs.replace(run, state=sight.ended, ended=now, reason=reason)
        return kept(msgspec.structs.replace(state, current=None), ended)
    return msgspec.structs.replace(state, current=msgspec.structs.replace(run, state="running") if run.crawl else run)


def _in_step(schedule: Schedule, state: ScheduleState, *, now: float) -> ScheduleState:
    """The state of this schedule as it is now: a new rhythm, the end of a pause and a clock that was set back begin
    anew. What fell due before does not count."""
    is_other = state.rhythm != schedule.rhythm or (state.paused and not schedule.paused)
    if is_other or state.passed > now + CLOCK_SECONDS:
        state = msgspec.structs.replace(state, passed=now)
    waiting = None if schedule.paused and not state.paused else state.waiting
    return msgspec.structs.replace(state, rhythm=schedule.rhythm, paused=schedule.paused, waiting=waiting)


def _obeyed(schedule: Schedule, state: ScheduleState, wish: Asked, *, now: float, sight: Sight) -> ScheduleState:
    if wish.id in state.answered:
        return state
    state = msgspec.structs.replace(state, answered=(*state.answered, wish.id)[-MOST_ANSWERED:])
    entry = Entry(run=run_name(schedule, wish.at, asked=wish), due=wish.at, state="queued")
    return _due(schedule, state, entry, now=now, sight=sight)


def _fallen(schedule: Schedule, state: ScheduleState, fallen: Fallen, *, now: float, sight: Sight) -> ScheduleState:
    state = msgspec.structs.replace(state, passed=fallen.due)
    runs = fallen.on_time or schedule.missed == "once"
    entry = Entry(run=run_name(schedule, fallen.due), due=fallen.due, state="queued")
    if lost := fallen.missed - (runs and not fallen.on_time):
        more = " or more" if fallen.missed >= MOST_COUNTED - 1 else ""
        line = _ended(entry, "missed", f"nobody could start it in time{more}", now=now)
        state = kept(state, msgspec.structs.replace(line, number=lost))
    if not runs:
        return state
    if not fallen.on_time:
        entry = msgspec.structs.replace(entry, reason="made up for a missed run")
    return _due(schedule, state, entry, now=now, sight=sight)


def _due(schedule: Schedule, state: ScheduleState, entry: Entry, *, now: float, sight: Sight) -> ScheduleState:
    """The state after a run fell due: it starts, waits, or is skipped."""
    going = state.current.crawl or "the run before it" if state.current is not None else ""
    reason = f"{going} is still going" if going else sight.others
    if not reason and state.waiting is None:
        return _started(state, entry, now=now)
    if state.waiting is not None:
        return kept(state, _ended(entry, "skipped", "another run waits already", now=now))
    # A crawl that somebody else began is not cancelled for a schedule.
    waits = schedule.overlap == "queue" or (schedule.overlap == "cancel" and going)
    if not waits:
        return kept(state, _ended(entry, "skipped", reason, now=now))
    return msgspec.structs.replace(state, waiting=msgspec.structs.replace(entry, reason=entry.reason or reason))


def _started(state: ScheduleState, entry: Entry, *, now: float) -> ScheduleState:
    return msgspec.structs.replace(state, current=msgspec.structs.replace(entry, state="starting", started=now))


def _ended(entry: Entry, state: RunState, reason: str, *, now: float) -> Entry:
    return msgspec.structs.replace(entry, state=state, reason=reason, ended=now)
