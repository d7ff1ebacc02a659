"""The scheduler: starts the runs of schedules while it has the duty, one coordinator of several over one frontier.

A run is noted before its process is started, under a name that its crawl keeps. The next holder of the duty starts a
noted run that has no crawl: two processes with one name work on one crawl."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, Protocol

import msgspec

from shoal.crawl.duty_notes import read_noted
from shoal.crawl.record import belongs_to, is_unfinished, record_of, with_refusals
from shoal.duties.schedules.config import Schedule
from shoal.duties.schedules.orders import (
    Notes,
    Orders,
    ScheduledRun,
    ScheduleState,
    change_orders,
    in_force,
    read_notes,
    read_orders,
    without_answered,
)
from shoal.duties.schedules.rules import ObservedRun, crawl_to_cancel, look, wants_look
from shoal.errors import ShoalError
from shoal.frontier.base import Frontier
from shoal.model import Crawl, CrawlState
from shoal.policy.failures import faults_of
from shoal.text.errors import line_of
from shoal.worker.workers import at_work

DUTY: Final = "schedules"
# The duty of a killed coordinator expires after this time.
DUTY_SECONDS: Final = 15.0
# A crawl without workers for this time was left by its process.
QUIET_SECONDS: Final = 30.0


class StartedRun(Protocol):
    """A process that was started for a run."""

    @property
    def has_ended(self) -> bool: ...

    @property
    def has_failed(self) -> bool: ...

    @property
    def last_line(self) -> str: ...

    @property
    def log_file(self) -> str: ...


class Starter(Protocol):
    """Starts the processes of runs."""

    def reference(self, spider: str) -> str:
        """The path of a spider, as in its crawls' records. UsageError: it may not be started."""

    def start_run(self, schedule: Schedule, run: str) -> StartedRun:
        """Start the process of a run."""


class Scheduler:
    """Runs the schedules of one coordinator. Its frontier may be reopened between two checks."""

    def __init__(
        self,
        filed: Mapping[str, Schedule],
        *,
        starter: Starter,
        place: str,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self.filed = dict(filed)
        self._starter = starter
        self._place = place
        self._say = say
        self._clock = clock
        self._steady = steady
        self._holder = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._processes: dict[str, StartedRun] = {}
        self._refused: dict[str, str] = {}
        self._quiet: dict[str, float] = {}

    async def look(self, frontier: Frontier) -> bool:
        """Check once and start what is due, if the duty is ours; returns whether it is."""
        held = await frontier.hold_duty(DUTY, self._holder, seconds=DUTY_SECONDS)
        if not held.is_ours:
            self._quiet.clear()
            return False
        notes, orders = read_notes(held.notes), await read_orders(frontier)
        schedules = in_force(self.filed, orders)
        states = await self._looked(schedules, notes, orders, frontier=frontier)
        after = Notes(states=states, filed=self.filed)
        if after != notes or self._has_orders(schedules, states):
            # With the term of the notes that were read: a coordinator that was paused meanwhile neither overwrites the
            # notes of another one nor repeats its work.
            data = None if after == notes else msgspec.json.encode(after)
            held = await frontier.hold_duty(DUTY, self._holder, seconds=DUTY_SECONDS, notes=data, term=held.term)
        # After the notes: a run that is not noted would be started again by the next holder of the duty.
        if held.is_ours:
            await self._carry_out(schedules, states, frontier=frontier)
            await _cross_out(orders, states, frontier=frontier)
        return held.is_ours

    async def finish(self, frontier: Frontier) -> None:
        """Release the duty. Runs go on."""
        await frontier.hold_duty(DUTY, self._holder, seconds=0.0)

    async def _looked(
        self, schedules: Mapping[str, Schedule], notes: Notes, orders: Orders, *, frontier: Frontier
    ) -> dict[str, ScheduleState]:
        now = self._clock()
        # Before the crawls are read: else a crawl that a process began just before its end would be missed.
        ended = {run: process for run, process in self._processes.items() if process.has_ended}
        crawls: list[Crawl] | None = None
        states = {name: notes.states.get(name, ScheduleState()) for name in schedules}
        for name, schedule in schedules.items():
            state = states[name]
            asked = [
                request for request in orders.asked if request.schedule == name and request.id not in state.answered
            ]
            observed = ObservedRun()
            if wants_look(schedule, state, now=now, asked=asked):
                if crawls is None:
                    crawls = with_refusals(await frontier.crawls())
                observed = await self._observe(schedule, state, crawls, ended=ended, frontier=frontier)
                # Also a run whose crawl has not begun: a spider has one unfinished crawl at a time.
                if not observed.others and (other := _rival(schedule, schedules, states)):
                    observed = msgspec.structs.replace(observed, others=f"the run of schedule {other} is still going")
            states[name] = look(schedule, state, now=now, observed=observed, asked=asked)
            self._tell(schedule, state, states[name])
        return states

    async def _observe(
        self,
        schedule: Schedule,
        state: ScheduleState,
        crawls: Sequence[Crawl],
        *,
        ended: Mapping[str, StartedRun],
        frontier: Frontier,
    ) -> ObservedRun:
        readable = [crawl for crawl in crawls if not crawl.refusal and crawl.settings]
        run = state.current
        mine = next((one for one in readable if run is not None and run.run in record_of(one).scheduled), None)
        observed = ObservedRun(others=await self._others(schedule, readable, mine, frontier=frontier))
        if run is None:
            return observed
        process = self._processes.get(run.run)
        observed = msgspec.structs.replace(observed, log="" if process is None else process.log_file)
        if mine is not None:
            return await self._observe_crawl(
                observed, mine, run=run, has_process_ended=run.run in ended, frontier=frontier
            )
        if run.run in self._refused:
            return msgspec.structs.replace(observed, ended="failed", reason=self._refused[run.run])
        if run.crawl:
            return msgspec.structs.replace(observed, ended="interrupted", reason=f"{run.crawl} was deleted")
        if run.run in ended:
            return msgspec.structs.replace(observed, ended="failed", reason=ended[run.run].last_line)
        return observed

    async def _observe_crawl(
        self, observed: ObservedRun, crawl: Crawl, *, run: ScheduledRun, has_process_ended: bool, frontier: Frontier
    ) -> ObservedRun:
        """The state of a run that has a crawl. The crawl shows its end: the process may belong to a coordinator that is
        gone."""
        observed = msgspec.structs.replace(observed, crawl=crawl.id)
        if crawl.state is CrawlState.CANCELLED:
            return msgspec.structs.replace(observed, ended="cancelled")
        if crawl.state in (CrawlState.FINISHED, CrawlState.STOPPED):
            progress = await frontier.progress(crawl.id)
            if faults := faults_of(progress, max_failures=record_of(crawl).settings.max_failures):
                return msgspec.structs.replace(observed, ended="failed", reason="; ".join(faults))
            ended: Literal["stopped", "finished"] = "stopped" if crawl.state is CrawlState.STOPPED else "finished"
            return msgspec.structs.replace(observed, ended=ended, reason=progress.reason)
        is_left = has_process_ended and not await at_work(crawl.id, frontier=frontier)
        if is_left or await self._is_quiet(crawl, frontier=frontier):
            reason = (await frontier.progress(crawl.id)).reason
            why = f"{crawl.id} is {crawl.state}{f': {reason}' if reason else ''}, and nobody works on it"
            return msgspec.structs.replace(observed, ended="interrupted", reason=why)
        return observed

    async def _is_quiet(self, crawl: Crawl, *, frontier: Frontier) -> bool:
        """Whether no worker was on the crawl for QUIET_SECONDS of checks."""
        if await at_work(crawl.id, frontier=frontier):
            self._quiet.pop(crawl.id, None)
            return False
        return self._steady() - self._quiet.setdefault(crawl.id, self._steady()) >= QUIET_SECONDS

    async def _others(
        self, schedule: Schedule, crawls: Sequence[Crawl], mine: Crawl | None, *, frontier: Frontier
    ) -> str:
        """The crawl of the spider that prevents a new one; an abandoned crawl does not, it is resumed."""
        try:
            reference = self._starter.reference(schedule.spider)
        except ShoalError:
            return ""
        for crawl in crawls:
            if crawl is mine or not is_unfinished(crawl.state) or not self._is_of(crawl, reference):
                continue
            if crawl.state is CrawlState.PAUSED:
                return f"{crawl.id} is paused"
            if await at_work(crawl.id, frontier=frontier):
                return f"{crawl.id} is still going"
        return ""

    def _is_of(self, crawl: Crawl, reference: str) -> bool:
        known, ours = record_of(crawl).spider.rpartition(".py")[2], reference.rpartition(".py")[2]
        is_other_class = bool(known and ours) and known != ours
        return not is_other_class and belongs_to(crawl, reference, frontier=self._place)

    async def _carry_out(
        self, schedules: Mapping[str, Schedule], states: Mapping[str, ScheduleState], *, frontier: Frontier
    ) -> None:
        for name, state in states.items():
            if state.current is not None and self._is_to_start(state.current):
                self._start(schedules[name], state.current)
            if crawl := crawl_to_cancel(schedules[name], state):
                await frontier.set_state(crawl, CrawlState.CANCELLED, reason=f"schedule {name}: the next run was due")
        current = {state.current.run for state in states.values() if state.current is not None}
        self._processes = {run: process for run, process in self._processes.items() if run in current}
        self._refused = {run: line for run, line in self._refused.items() if run in current}

    def _has_orders(self, schedules: Mapping[str, Schedule], states: Mapping[str, ScheduleState]) -> bool:
        """Whether there is a run to start or a crawl to cancel."""
        return any(
            (state.current is not None and self._is_to_start(state.current)) or crawl_to_cancel(schedules[name], state)
            for name, state in states.items()
        )

    def _is_to_start(self, run: ScheduledRun) -> bool:
        return run.state == "starting" and run.run not in {*self._processes, *self._refused}

    def _start(self, schedule: Schedule, run: ScheduledRun) -> None:
        try:
            self._processes[run.run] = self._starter.start_run(schedule, run.run)
        except (ShoalError, OSError) as error:
            self._refused[run.run] = str(error) if isinstance(error, ShoalError) else line_of(error)

    def _tell(self, schedule: Schedule, before: ScheduleState, after: ScheduleState) -> None:
        """Report runs that begin, and runs that do not end well."""
        if after.current is not None and (before.current is None or before.current.run != after.current.run):
            self._say(f"schedule {schedule.name}: run {after.current.run} starts")
        last = after.last
        if last is not None and last.number == 1 and last != before.last and last.state != "finished":
            self._say(
                f"schedule {schedule.name}: run {last.run} {last.state}{f': {last.reason}' if last.reason else ''}"
            )


def _rival(schedule: Schedule, schedules: Mapping[str, Schedule], states: Mapping[str, ScheduleState]) -> str:
    """Another schedule of the same spider with a current run; empty: there is none."""
    for name, other in schedules.items():
        is_other_class = ":" in schedule.spider and ":" in other.spider and schedule.spider != other.spider
        is_same = other.spider.partition(":")[0] == schedule.spider.partition(":")[0] and not is_other_class
        if name != schedule.name and is_same and states[name].current is not None:
            return name
    return ""


async def _cross_out(orders: Orders, states: Mapping[str, ScheduleState], *, frontier: Frontier) -> None:
    """Remove handled requests, and requests for schedules that no longer exist."""
    answered = frozenset(key for state in states.values() for key in state.answered)
    done = frozenset(request.id for request in orders.asked if request.id in answered or request.schedule not in states)
    if done:
        await change_orders(frontier, lambda now: without_answered(now, done))


async def schedule_notes(frontier: Frontier) -> tuple[bool, Notes]:
    """Whether a coordinator has the duty now, and its notes. Does not take the duty."""
    is_run, data = await read_noted(frontier, DUTY)
    return is_run, read_notes(data)
