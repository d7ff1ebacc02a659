"""Notes that several processes change in turn, each in one step: whoever changes them has a duty for a moment."""

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
    """Whether somebody has a duty now, and what its holders have noted. Takes no duty."""
    found = await frontier.hold_duty(duty, f"reader-{uuid.uuid4().hex}", seconds=0.0)
    return not found.is_ours, found.notes


async def change_noted(frontier: Frontier, duty: str, change: Callable[[bytes], bytes], *, busy: str) -> bytes:
    """Change the notes of a duty after those who change them right now; gives the new ones. A change that took longer
    than the duty lasts, while another one was made, is made once more from what is noted then. `busy` is said of a duty
    that others never leave."""
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
    """The changed notes, written; None: another one has changed them since they were read."""
    changed: bytes | None = None
    try:
        changed = change(noted)
    finally:
        # Also after an error: others need not wait until the duty is over.
        kept = await frontier.hold_duty(duty, holder, seconds=0.0, notes=changed, term=term)
    return changed if kept.is_ours else None
