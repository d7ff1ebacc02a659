"""Notes that several processes change, one at a time: a writer holds a duty (a leader lock) for a moment."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Final

from shoal.errors import ServerUnreachable
from shoal.frontier.base import Frontier

HOLD_SECONDS: Final = 5.0
PATIENCE_SECONDS: Final = 15.0
PAUSE_SECONDS: Final = 0.05


async def read_noted(frontier: Frontier, duty: str) -> tuple[bool, bytes]:
    """Whether a process holds a duty now, and its notes. Does not take the duty."""
    found = await frontier.hold_duty(duty, f"reader-{uuid.uuid4().hex}", seconds=0.0)
    return not found.is_ours, found.notes


async def change_noted(frontier: Frontier, duty: str, change: Callable[[bytes], bytes], *, busy: str) -> bytes:
    """Change the notes of a duty, after the processes that change them now. Returns the new notes. A change that took
    longer than the duty lasts is repeated if the notes have changed meanwhile. `busy` begins the error if the duty is
    never free."""
    holder = f"changer-{uuid.uuid4().hex}"
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                held = await frontier.hold_duty(duty, holder, seconds=HOLD_SECONDS)
                if held.is_ours:
                    written = await _written(frontier, duty, holder, change=change, noted=held.notes, term=held.term)
                    if written is not None:
                        return written
                await asyncio.sleep(PAUSE_SECONDS)
    except TimeoutError:
        raise ServerUnreachable(f"{busy}: try again") from None


async def _written(
    frontier: Frontier, duty: str, holder: str, *, change: Callable[[bytes], bytes], noted: bytes, term: int
) -> bytes | None:
    """The changed notes, written; None: another process has changed them since they were read."""
    changed: bytes | None = None
    try:
        changed = change(noted)
    finally:
        # Also after an error: others need not wait until the duty expires.
        kept = await frontier.hold_duty(duty, holder, seconds=0.0, notes=changed, term=term)
    return changed if kept.is_ours else None
