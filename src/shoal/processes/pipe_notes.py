"""What coordinators at pipes note in their frontier: its name, and the messages that could not be read."""

from __future__ import annotations

import uuid
from functools import partial
from typing import Final

import msgspec

from shoal.error_text import several
from shoal.frontier.base import Frontier
from shoal.pipes.base import UNREADABLE

DUTY: Final = "notes on pipes"
WRITING_SECONDS: Final = 5.0


class PipeNotes(msgspec.Struct, frozen=True, kw_only=True):
    """`name` is the frontier's: by it workers know their frontier again. `unreadable` counts by pipe."""

    name: str
    unreadable: dict[str, int] = {}


async def read_notes(frontier: Frontier) -> PipeNotes | None:
    """The notes; None: no coordinator was at a pipe with this frontier."""
    _, data = await frontier.hold_duty(DUTY, f"reader-{uuid.uuid4().hex}", seconds=0.0)
    return msgspec.json.decode(data, type=PipeNotes) if data else None


async def name_of(frontier: Frontier, holder: str) -> str:
    """The name of the frontier, given to it by the first coordinator."""
    notes = await read_notes(frontier) or await _write(frontier, holder, PipeNotes(name=uuid.uuid4().hex))
    return notes.name


async def note_unreadable(frontier: Frontier, holder: str, *, pipe: str, number: int) -> None:
    """Note how many messages of a pipe could not be read, if that has changed."""
    notes = await read_notes(frontier)
    if notes is not None and notes.unreadable.get(pipe, 0) != number:
        counts = {**notes.unreadable, pipe: number}
        await _write(frontier, holder, msgspec.structs.replace(notes, unreadable=counts))


async def unreadable_lines(frontier: Frontier) -> list[str]:
    """For people: the pipes with messages that could not be read, a line each."""
    notes = await read_notes(frontier)
    return [
        f"{several(number, 'message')} at {pipe} could not be read: kept in its queue {UNREADABLE}; look at them with"
        " the broker's tools, then remove that queue"
        for pipe, number in (notes.unreadable.items() if notes else ())
        if number
    ]


async def _write(frontier: Frontier, holder: str, notes: PipeNotes) -> PipeNotes:
    """Write the notes, unless another coordinator does so right now; gives what stands there."""
    hold = partial(frontier.hold_duty, DUTY, holder)
    _, data = await hold(seconds=WRITING_SECONDS, notes=msgspec.json.encode(notes))
    await hold(seconds=0.0)
    return msgspec.json.decode(data, type=PipeNotes)
