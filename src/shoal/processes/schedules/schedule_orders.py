"""What people order of schedules, by a command or over HTTP: new ones, pauses, a run at once. Kept in the frontier.

Whoever orders holds a duty for a moment, so that no order is lost between two of them; the coordinator only reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from shoal.crawl.duty_notes import change_noted, read_noted
from shoal.errors import StorageBroken
from shoal.frontier.base import Frontier
from shoal.processes.schedules.schedule_config import Schedule
from shoal.processes.schedules.schedule_state import Asked

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
