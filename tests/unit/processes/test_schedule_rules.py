"""Which runs of a schedule start, wait or do not take place, with clocks that are passed in; a year of it."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shoal.duties.schedules.config import Schedule, Timing, next_due, start_of
from shoal.duties.schedules.orders import MOST_KEPT, Notes, RunRequest, ScheduledRun, ScheduleState, read_notes
from shoal.duties.schedules.rules import (
    LATE_SECONDS,
    NOTHING_OBSERVED,
    ObservedRun,
    crawl_to_cancel,
    look,
    upcoming,
    wants_look,
)

HOUR, DAY = 3600.0, 86_400.0
BEGIN = datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp()
HOURLY = Schedule(name="books", spider="books.py", timing=Timing(every=3600))
GOING = ObservedRun(crawl="books-1")
DONE = ObservedRun(crawl="books-1", ended="finished")


def begun(schedule: Schedule = HOURLY, *, now: float = BEGIN) -> ScheduleState:
    return look(schedule, ScheduleState(), now=now)


def with_run(schedule: Schedule = HOURLY) -> ScheduleState:
    """The state while the first run goes on, which fell due an hour after the beginning."""
    state = look(schedule, begun(schedule), now=BEGIN + HOUR)
    return look(schedule, state, now=BEGIN + HOUR + 1, observed=GOING)


def changed(schedule: Schedule = HOURLY, **values: object) -> Schedule:
    return msgspec.structs.replace(schedule, **values)


def lines(state: ScheduleState) -> list[tuple[str, int]]:
    return [(entry.state, entry.number) for entry in state.history]


def test_a_run_is_noted_as_starting_until_its_crawl_is_seen() -> None:
    state = begun()
    assert (state.current, state.passed) == (None, BEGIN)
    state = look(HOURLY, state, now=BEGIN + HOUR)
    assert state.current is not None
    assert (state.current.run, state.current.state) == ("books@2026-01-01T13:00:00Z", "starting")
    assert look(HOURLY, state, now=BEGIN + HOUR + 5) == state
    state = look(HOURLY, state, now=BEGIN + HOUR + 6, observed=GOING)
    assert (state.current and state.current.state, state.current and state.current.crawl) == ("running", "books-1")
    state = look(HOURLY, state, now=BEGIN + HOUR + 60, observed=DONE)
    assert state.current is None
    assert state.last is not None
    assert (state.last.state, state.last.crawl, state.last.ended) == ("finished", "books-1", BEGIN + HOUR + 60)


def test_nothing_that_fell_due_before_the_schedule_was_known_is_made_up_for() -> None:
    state = begun(changed(missed="once"), now=BEGIN + 0.5 * HOUR)
    assert (state.current, state.history) == (None, ())


@pytest.mark.parametrize(
    ("overlap", "state", "waits"), [("skip", [("skipped", 1)], False), ("queue", [], True), ("cancel", [], True)]
)
def test_overlap(overlap: str, state: list[tuple[str, int]], waits: bool) -> None:
    schedule = changed(overlap=overlap)
    found = look(schedule, with_run(schedule), now=BEGIN + 2 * HOUR, observed=GOING)
    assert (lines(found), found.waiting is not None) == (state, waits)
    assert crawl_to_cancel(schedule, found) == ("books-1" if overlap == "cancel" else "")


def test_a_queued_run_starts_when_the_last_one_ends_and_only_one_waits() -> None:
    schedule = changed(overlap="queue")
    state = with_run(schedule)
    for hour in (2, 3, 4):
        state = look(schedule, state, now=BEGIN + hour * HOUR, observed=GOING)
    assert lines(state) == [("skipped", 2)]
    state = look(schedule, state, now=BEGIN + 4.5 * HOUR, observed=DONE)
    assert state.current is not None
    assert (state.current.run, state.current.started) == ("books@2026-01-01T14:00:00Z", BEGIN + 4.5 * HOUR)
    assert state.waiting is None


def test_a_cancelled_run_gives_way_to_the_next_one() -> None:
    schedule = changed(overlap="cancel")
    state = look(schedule, with_run(schedule), now=BEGIN + 2 * HOUR, observed=GOING)
    state = look(schedule, state, now=BEGIN + 2 * HOUR + 1, observed=ObservedRun(crawl="books-1", ended="cancelled"))
    assert state.last is not None
    assert (state.last.state, state.last.reason) == ("cancelled", "the next run was due")
    assert state.current is not None
    assert state.current.run == "books@2026-01-01T14:00:00Z"


@pytest.mark.parametrize("overlap", ["skip", "cancel"])
def test_a_crawl_that_somebody_else_began_is_left_alone(overlap: str) -> None:
    schedule = changed(overlap=overlap)
    seen = ObservedRun(others="books-7 is still going")
    state = look(schedule, begun(schedule), now=BEGIN + HOUR, observed=seen)
    assert (state.current, state.waiting, crawl_to_cancel(schedule, state)) == (None, None, "")
    assert state.last is not None
    assert (state.last.state, state.last.reason) == ("skipped", "books-7 is still going")


def test_a_run_that_comes_a_moment_late_is_not_missed() -> None:
    state = look(HOURLY, begun(), now=BEGIN + HOUR + LATE_SECONDS)
    assert (state.current is not None, state.history) == (True, ())


@pytest.mark.parametrize(("missed", "runs", "number"), [("skip", False, 5), ("once", True, 4)])
def test_missed_runs_are_counted_and_at_most_one_is_made_up_for(missed: str, runs: bool, number: int) -> None:
    schedule = changed(missed=missed)
    state = look(schedule, begun(schedule), now=BEGIN + 5.5 * HOUR)
    assert lines(state) == [("missed", number)]
    assert (state.current is not None) is runs
    state = look(schedule, state, now=BEGIN + 5.6 * HOUR, observed=DONE)
    assert state.current is None
    assert state.passed == BEGIN + 5 * HOUR


def test_a_run_on_time_is_the_one_that_makes_up_for_those_before_it() -> None:
    schedule = changed(missed="once")
    state = look(schedule, begun(schedule), now=BEGIN + 5 * HOUR + 1)
    assert lines(state) == [("missed", 4)]
    assert state.current is not None
    assert (state.current.due, state.current.reason) == (BEGIN + 5 * HOUR, "")


def test_a_year_without_a_coordinator_is_one_line() -> None:
    schedule = changed(timing=Timing(cron="* * * * *", timezone="Europe/Berlin"))
    state = look(schedule, begun(schedule), now=BEGIN + 365 * DAY + 30.5)
    assert [(entry.state, "or more" in entry.reason) for entry in state.history] == [("missed", True)]
    assert state.passed == BEGIN + 365 * DAY


def test_what_falls_due_during_a_pause_is_not_missed() -> None:
    paused = changed(paused=True, missed="once")
    state = begun(paused)
    assert not wants_look(paused, state, now=BEGIN + 5 * HOUR)
    state = look(paused, state, now=BEGIN + 5.5 * HOUR)
    state = look(changed(missed="once"), state, now=BEGIN + 5.6 * HOUR)
    assert (state.current, state.history, state.passed) == (None, (), BEGIN + 5.6 * HOUR)
    assert upcoming(paused, state, now=BEGIN) is None


def test_another_rhythm_begins_anew() -> None:
    schedule = changed(timing=Timing(every=60), missed="once")
    state = look(schedule, begun(changed(timing=Timing(every=86_400))), now=BEGIN + 10 * HOUR)
    assert (state.current, state.history) == (None, ())


def test_a_clock_that_was_years_ahead_does_not_stop_a_schedule() -> None:
    state = begun(now=BEGIN + 50 * 365 * DAY)
    state = look(HOURLY, state, now=BEGIN)
    assert look(HOURLY, state, now=BEGIN + HOUR).current is not None


def test_a_clock_that_is_set_back_a_little_makes_no_run_twice() -> None:
    state = look(HOURLY, with_run(), now=BEGIN + HOUR + 60, observed=DONE)
    for seconds in range(-600, 600, 60):
        state = look(HOURLY, state, now=BEGIN + HOUR + seconds)
    assert state.current is None
    assert lines(state) == [("finished", 1)]


def test_a_run_that_is_asked_for_starts_also_in_a_pause_and_once() -> None:
    request = RunRequest(id="x1", schedule="books", at=BEGIN + 7)
    paused = changed(paused=True)
    state = look(paused, begun(paused), now=BEGIN + 8, asked=[request])
    assert state.current is not None
    assert state.current.run == "books@2026-01-01T12:00:07Z-x1"
    state = look(paused, state, now=BEGIN + 9, observed=DONE, asked=[request])
    assert (state.current, lines(state)) == (None, [("finished", 1)])


def test_the_history_is_bounded_and_lines_that_say_the_same_are_one() -> None:
    state = with_run()
    for hour in range(2, 500):
        state = look(HOURLY, state, now=BEGIN + hour * HOUR, observed=GOING)
    assert lines(state) == [("skipped", 498)]
    assert state.current is not None
    for hour in range(500, 500 + 2 * MOST_KEPT):
        state = look(HOURLY, state, now=BEGIN + hour * HOUR, observed=DONE)
    assert len(state.history) == MOST_KEPT


def test_the_notes_survive_their_way_through_the_frontier() -> None:
    notes = Notes(states={"books": with_run()}, filed={"books": HOURLY})
    assert read_notes(msgspec.json.encode(notes)) == notes
    assert read_notes(b"") == read_notes(b"{bad") == Notes()


@dataclass
class World:
    """Crawls that take their time, and a coordinator that looks at times of its own."""

    schedule: Schedule
    lasts: float = 30.0
    state: ScheduleState = field(default_factory=ScheduleState)
    ends: dict[str, float] = field(default_factory=dict)
    started: list[ScheduledRun] = field(default_factory=list)

    def look(self, now: float) -> None:
        run = self.state.current
        observed = NOTHING_OBSERVED
        if run is not None:
            observed = ObservedRun(crawl=run.run, ended="finished" if now >= self.ends[run.run] else "")
        self.state = look(self.schedule, self.state, now=now, observed=observed)
        run = self.state.current
        if run is not None and run.run not in self.ends:
            self.ends[run.run] = now + self.lasts
            self.started.append(run)


YEAR_BEGIN = datetime(2028, 1, 1, tzinfo=ZoneInfo("Europe/Berlin"))
YEAR = [
    # 2028 is a leap year; the year in Berlin has one hour that is skipped and one that comes twice.
    (Timing(cron="30 6 * * *", timezone="Europe/Berlin"), 366),
    (Timing(cron="30 2 * * *", timezone="Europe/Berlin"), 366),
    (Timing(cron="30 1 * * *", timezone="America/New_York", jitter=7200.0), 366),
    pytest.param(Timing(cron="0 * * * *", timezone="Europe/Berlin", jitter=1200.0), 366 * 24, marks=pytest.mark.full),
    (Timing(cron="0 9 * * mon-fri", timezone="Europe/Berlin"), 260),
    (Timing(cron="0 0 L * *", timezone="Europe/Berlin"), 12),
    (Timing(cron="0 12 29 2 *", timezone="America/New_York"), 1),
    (Timing(every=6 * 3600, jitter=3600.0), 366 * 4),
]


@pytest.mark.parametrize(("timing", "number"), YEAR)
def test_a_year_has_exactly_its_runs_and_none_twice(timing: Timing, number: int) -> None:
    world = World(Schedule(name="books", spider="books.py", timing=timing))
    begin, end = YEAR_BEGIN.timestamp() - 1, YEAR_BEGIN.replace(year=2029).timestamp() - 1
    world.look(begin)
    looks = random.Random(7)
    moment = begin
    # Looks lie up to 50 s apart; where nothing falls due for long they are left out.
    while moment < end + 2 * HOUR:
        moment += looks.uniform(0.5, 50.0)
        following = next_due(timing, after=world.state.passed)
        start = end + 3 * HOUR if following is None else start_of(timing, following, name="books")
        if world.state.current is None and start > moment + 100:
            moment = min(start - looks.uniform(0.0, 60.0), end + 3 * HOUR)
        world.look(moment)
    made = [entry for entry in world.started if entry.due <= end]
    assert len(made) == number
    assert max(Counter(entry.run for entry in made).values()) == 1
    assert [entry.due for entry in made] == sorted({entry.due for entry in made})
    assert {entry.state for entry in world.state.history} == {"finished"}


def test_the_daily_run_of_a_year_is_at_the_same_local_time_each_day() -> None:
    zone = ZoneInfo("Europe/Berlin")
    timing = Timing(cron="30 6 * * *", timezone="Europe/Berlin")
    moment, day = YEAR_BEGIN.timestamp(), YEAR_BEGIN.date()
    for _ in range(366):
        due = next_due(timing, after=moment)
        assert due is not None
        local = datetime.fromtimestamp(due, zone)
        assert (local.date(), local.hour, local.minute) == (day, 6, 30)
        moment, day = due, day + timedelta(days=1)


@settings(deadline=None)
@given(
    overlap=st.sampled_from(["skip", "queue"]),
    missed=st.sampled_from(["skip", "once"]),
    jitter=st.floats(0, 59),
    lasts=st.floats(1, 400),
    # Each look adds three lines at most, and the history keeps 100.
    gaps=st.lists(st.floats(0.5, 500), min_size=10, max_size=33),
)
def test_every_due_time_is_run_skipped_or_missed_once(
    overlap: str, missed: str, jitter: float, lasts: float, gaps: list[float]
) -> None:
    timing = Timing(every=60, jitter=jitter)
    schedule = Schedule(name="n", spider="n.py", timing=timing, overlap=overlap, missed=missed)  # type: ignore[arg-type]  # from the words above
    world = World(schedule, lasts=lasts)
    moment = BEGIN
    world.look(moment)
    for gap in gaps:
        moment += gap
        world.look(moment)
    dealt_with = round((world.state.passed - BEGIN) / 60) if world.state.passed > BEGIN else 0
    lost = sum(entry.number for entry in world.state.history if entry.state in ("skipped", "missed"))
    waiting = int(world.state.waiting is not None)
    assert len(world.started) + lost + waiting == dealt_with
    assert len({entry.run for entry in world.started}) == len(world.started)
    assert all(entry.started >= start_of(timing, entry.due, name="n") for entry in world.started)
