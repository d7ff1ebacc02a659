"""The records of schedules in the frontier: the orders of people, and the notes of the coordinator about runs.

A command or request that changes the orders holds their duty for a moment, so that no order is lost; the coordinator
only reads them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Literal, TypeVar

import msgspec

from shoal.crawl.duty_notes import change_noted, read_noted
from shoal.duties.schedules.config import Schedule, written
from shoal.errors import StorageBroken
from shoal.frontier.base import Frontier

MOST_KEPT: Final = 100
MOST_ANSWERED: Final = 50
LONGEST_REASON: Final = 300

RunState = Literal[
    "queued", "starting", "running", "finished", "stopped", "failed", "cancelled", "interrupted", "skipped", "missed"
]
ORDERS: Final = "schedule orders"


class ScheduledRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a schedule, or a reason why it did not start. `run` is its permanent name: a second process with it
    resumes the same crawl. `number`: runs in a row that were skipped or missed, of which `due` is the last."""

    run: str
    due: float
    state: RunState
    started: float = 0.0
    ended: float = 0.0
    crawl: str = ""
    reason: str = ""
    log: str = ""
    number: int = 1


class ScheduleState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a schedule. Due times up to `passed` are handled. `current` is the run that starts or goes on,
    `waiting` the run queued behind it; `answered`: the handled requests to run at once."""

    rhythm: str = ""
    passed: float = 0.0
    paused: bool = False
    current: ScheduledRun | None = None
    waiting: ScheduledRun | None = None
    history: tuple[ScheduledRun, ...] = ()
    answered: tuple[str, ...] = ()

    @property
    def last(self) -> ScheduledRun | None:
        """The newest run of the history."""
        return self.history[-1] if self.history else None


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody's request that a schedule runs at once."""

    id: str
    schedule: str
    at: float


class Notes(msgspec.Struct, frozen=True, kw_only=True):
    """The notes of the duty. `filed`: the schedules of the coordinator's shoal.toml, for commands on other machines."""

    states: dict[str, ScheduleState] = msgspec.field(default_factory=dict)
    filed: dict[str, Schedule] = msgspec.field(default_factory=dict)


def read_notes(data: bytes) -> Notes:
    """The notes; empty ones if there are none or another version wrote them: then nothing before now is due."""
    try:
        return msgspec.json.decode(data, type=Notes) if data else Notes()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Notes()


def run_name(schedule: Schedule, due: float, *, asked: RunRequest | None = None) -> str:
    """The name of a run, which every coordinator computes alike."""
    moment = written(due).replace(" ", "T").replace("+00:00", "Z")
    return f"{schedule.name}@{moment}" if asked is None else f"{schedule.name}@{moment}-{asked.id}"


def kept(state: ScheduleState, run: ScheduledRun) -> ScheduleState:
    """The state with one more run in its history. Equal ones in a row are merged and counted."""
    run = msgspec.structs.replace(run, reason=run.reason[:LONGEST_REASON])
    last = state.last
    if last is not None and run.state in ("skipped", "missed") and (last.state, last.reason) == (run.state, run.reason):
        merged = msgspec.structs.replace(run, number=last.number + run.number, started=last.started)
        return msgspec.structs.replace(state, history=(*state.history[:-1], merged))
    return msgspec.structs.replace(state, history=(*state.history, run)[-MOST_KEPT:])


Value = TypeVar("Value")


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What people have ordered: schedules made over the API, pauses by name, which override `paused` of the schedules,
    and requested runs that no coordinator has handled yet."""

    schedules: dict[str, Schedule] = msgspec.field(default_factory=dict)
    paused: dict[str, bool] = msgspec.field(default_factory=dict)
    asked: tuple[RunRequest, ...] = ()


async def read_orders(frontier: Frontier) -> Orders:
    """Read the orders."""
    _, data = await read_noted(frontier, ORDERS)
    return _orders(data)


async def change_orders(frontier: Frontier, change: Callable[[Orders], Orders]) -> Orders:
    """Change the orders atomically; returns the new ones."""
    changed = await change_noted(
        frontier,
        ORDERS,
        lambda data: msgspec.json.encode(change(_orders(data))),
        busy="somebody else changes the schedules all the time",
    )
    return _orders(changed)


def with_run(orders: Orders, schedule: str, *, at: float, key: str) -> Orders:
    """The orders with one more requested run."""
    return msgspec.structs.replace(orders, asked=(*orders.asked, RunRequest(id=key, schedule=schedule, at=at)))


def with_pause(orders: Orders, schedule: str, *, paused: bool) -> Orders:
    """The orders with a schedule paused or resumed."""
    return msgspec.structs.replace(orders, paused={**orders.paused, schedule: paused})


def with_schedule(orders: Orders, schedule: Schedule) -> Orders:
    """The orders with one more schedule."""
    return msgspec.structs.replace(
        orders, schedules={**orders.schedules, schedule.name: schedule}, paused=_without(orders.paused, schedule.name)
    )


def without_schedule(orders: Orders, name: str) -> Orders:
    """The orders without a schedule, its pause and its requested runs."""
    return Orders(
        schedules=_without(orders.schedules, name),
        paused=_without(orders.paused, name),
        asked=tuple(request for request in orders.asked if request.schedule != name),
    )


def without_answered(orders: Orders, answered: frozenset[str]) -> Orders:
    """The orders without the handled requests."""
    return msgspec.structs.replace(
        orders, asked=tuple(request for request in orders.asked if request.id not in answered)
    )


def in_force(filed: dict[str, Schedule], orders: Orders) -> dict[str, Schedule]:
    """The schedules that run: the file overrides the API, ordered pauses override both."""
    found = {**orders.schedules, **filed}
    return {
        name: msgspec.structs.replace(schedule, paused=orders.paused.get(name, schedule.paused))
        for name, schedule in sorted(found.items())
    }


def _orders(data: bytes) -> Orders:
    try:
        return msgspec.json.decode(data, type=Orders) if data else Orders()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # An error instead of empty orders: those of people would be lost.
        raise StorageBroken(
            f"the orders of schedules in the frontier are of another version of shoal: {error}"
        ) from None


def _without(mapping: dict[str, Value], name: str) -> dict[str, Value]:
    return {key: value for key, value in mapping.items() if key != name}
