"""What coordinators at pipes note in their frontier: its name, and the messages that could not be read."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Final

import msgspec

from shoal.frontier.base import Frontier
from shoal.pipes.base import UNREADABLE
from shoal.processes.duty_notes import change_noted, read_noted
from shoal.text.errors import several

DUTY: Final = "notes on pipes"


class PipeNotes(msgspec.Struct, frozen=True, kw_only=True):
    """`name` is the frontier's: by it workers know their frontier again. `unreadable` counts by pipe."""

    name: str
    unreadable: dict[str, int] = {}


async def read_notes(frontier: Frontier) -> PipeNotes | None:
    """The notes; None: no coordinator was at a pipe with this frontier."""
    _, data = await read_noted(frontier, DUTY)
    return _notes(data)


async def name_of(frontier: Frontier) -> str:
    """The name of the frontier, given to it by the first coordinator."""
    known = await read_notes(frontier)
    return known.name if known else (await _change(frontier, lambda notes: notes)).name


async def note_unreadable(frontier: Frontier, *, pipe: str, number: int) -> None:
    """Note how many messages of a pipe could not be read, if that has changed."""
    known = await read_notes(frontier)
    if known is not None and known.unreadable.get(pipe, 0) != number:
        await _change(
            frontier,
            lambda notes: msgspec.structs.replace(notes, unreadable={**notes.unreadable, pipe: number}),
        )


async def unreadable_lines(frontier: Frontier) -> list[str]:
    """For people: the pipes with messages that could not be read, a line each."""
    notes = await read_notes(frontier)
    return [
        f"{several(number, 'message')} at {pipe} could not be read: kept in its queue {UNREADABLE}; look at them with"
        " the broker's tools, then remove that queue"
        for pipe, number in (notes.unreadable.items() if notes else ())
        if number
    ]


async def _change(frontier: Frontier, change: Callable[[PipeNotes], PipeNotes]) -> PipeNotes:
    """Change the notes, or begin them with a name of their own; gives what stands there."""

    def changed(data: bytes) -> bytes:
        return msgspec.json.encode(change(_notes(data) or PipeNotes(name=uuid.uuid4().hex)))

    data = await change_noted(
        frontier, DUTY, changed, busy="another coordinator changes the notes on pipes all the time"
    )
    return msgspec.json.decode(data, type=PipeNotes)


def _notes(data: bytes) -> PipeNotes | None:
    return msgspec.json.decode(data, type=PipeNotes) if data else None
