"""What people order of schedules, by a command or over HTTP: new ones, pauses, a run at once. Kept in the frontier.

Whoever orders holds a duty for a moment, so that no order is lost between two of them; the coordinator only reads.

What is known of each schedule's runs: noted in the frontier by the coordinator that starts them.
"""

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


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a schedule, or why there was none. `run` names it for ever: a process that is started for it a second
    time goes on with the same crawl. `number`: so many runs in a row were skipped or missed, `due` is the last one."""

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
    """Where a schedule stands. Due times up to `passed` are dealt with. `current` is the run that starts or goes on,
    `waiting` the one that is queued behind it; `answered` are the requests to run at once that were dealt with."""

    rhythm: str = ""
    passed: float = 0.0
    paused: bool = False
    current: Entry | None = None
    waiting: Entry | None = None
    history: tuple[Entry, ...] = ()
    answered: tuple[str, ...] = ()

    @property
    def last(self) -> Entry | None:
        """The newest line of the history."""
        return self.history[-1] if self.history else None


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody's wish that a schedule runs at once."""

    id: str
    schedule: str
    at: float


class Notes(msgspec.Struct, frozen=True, kw_only=True):
    """All that a coordinator has to remember. `filed` are the schedules of its shoal.toml, for commands elsewhere."""

    states: dict[str, ScheduleState] = msgspec.field(default_factory=dict)
    filed: dict[str, Schedule] = msgspec.field(default_factory=dict)


def read_notes(data: bytes) -> Notes:
    """The notes; none where there are none, or another version wrote them: then nothing before now is due."""
    try:
        return msgspec.json.decode(data, type=Notes) if data else Notes()
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Notes()


def run_name(schedule: Schedule, due: float, *, asked: Asked | None = None) -> str:
    """The name of a run, the same for every coordinator."""
    moment = written(due).replace(" ", "T").replace("+00:00", "Z")
    return f"{schedule.name}@{moment}" if asked is None else f"{schedule.name}@{moment}-{asked.id}"


def kept(state: ScheduleState, entry: Entry) -> ScheduleState:
    """The state with one more line of history. Lines in a row that say the same become one that counts."""
    entry = msgspec.structs.replace(entry, reason=entry.reason[:LONGEST_REASON])
    last = state.last
    if (
        last is not None
        and entry.state in ("skipped", "missed")
        and (last.state, last.reason) == (entry.state, entry.reason)
    ):
        merged = msgspec.structs.replace(entry, number=last.number + entry.number, started=last.started)
        return msgspec.structs.replace(state, history=(*state.history[:-1], merged))
    return msgspec.structs.replace(state, history=(*state.history, entry)[-MOST_KEPT:])


ORDERS: Final = "schedule orders"

Value = TypeVar("Value")


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """Schedules that were made over the API; which ones are paused or go on whatever they say themselves; runs that
    were asked for and that no coordinator has dealt with yet."""

    schedules: dict[str, Schedule] = msgspec.field(default_factory=dict)
    paused: dict[str, bool] = msgspec.field(default_factory=dict)
    asked: tuple[Asked, ...] = ()


async def read_orders(frontier: Frontier) -> Orders:
    """The orders as they are now."""
    _, data = await read_noted(frontier, ORDERS)
    return _orders(data)


async def change_orders(frontier: Frontier, change: Callable[[Orders], Orders]) -> Orders:
    """Change the orders in one step, after those who change them right now; gives the new ones."""
    changed = await change_noted(
        frontier,
        ORDERS,
        lambda data: msgspec.json.encode(change(_orders(data))),
        busy="somebody else changes the schedules all the time",
    )
    return _orders(changed)


def with_run(orders: Orders, schedule: str, *, at: float, key: str) -> Orders:
    """The orders with one more run that is asked for."""
    return msgspec.structs.replace(orders, asked=(*orders.asked, Asked(id=key, schedule=schedule, at=at)))


def with_pause(orders: Orders, schedule: str, *, paused: bool) -> Orders:
    """The orders with a schedule paused, or going on."""
    return msgspec.structs.replace(orders, paused={**orders.paused, schedule: paused})


def with_schedule(orders: Orders, schedule: Schedule) -> Orders:
    """The orders with one more schedule."""
    return msgspec.structs.replace(
        orders, schedules={**orders.schedules, schedule.name: schedule}, paused=_without(orders.paused, schedule.name)
    )


def without_schedule(orders: Orders, name: str) -> Orders:
    """The orders without a schedule and all that was said of it."""
    return Orders(
        schedules=_without(orders.schedules, name),
        paused=_without(orders.paused, name),
        asked=tuple(wish for wish in orders.asked if wish.schedule != name),
    )


def without_answered(orders: Orders, answered: frozenset[str]) -> Orders:
    """The orders without the runs that were dealt with."""
    return msgspec.structs.replace(orders, asked=tuple(wish for wish in orders.asked if wish.id not in answered))


def in_force(filed: dict[str, Schedule], orders: Orders) -> dict[str, Schedule]:
    """The schedules that are run: those of the file win over those of the API, the latest word on pauses over both."""
    found = {**orders.schedules, **filed}
    return {
        name: msgspec.structs.replace(schedule, paused=orders.paused.get(name, schedule.paused))
        for name, schedule in sorted(found.items())
    }


def _orders(data: bytes) -> Orders:
    try:
        return msgspec.json.decode(data, type=Orders) if data else Orders()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # Not begun anew: what people ordered would be gone.
        raise StorageBroken(
            f"the orders of schedules in the frontier are of another version of shoal: {error}"
        ) from None


def _without(mapping: dict[str, Value], name: str) -> dict[str, Value]:
    return {key: value for key, value in mapping.items() if key != name}
