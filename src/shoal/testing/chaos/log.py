"""What happens in a chaos run, noted by its parts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TypeVar

from shoal.testing.chaos.plan import Deed
from shoal.worker.outages import until_reachable

POLL_SECONDS = 0.05

Say = Callable[[str], None]
T = TypeVar("T")


class RunLog:
    """The deeds done so far, the workers that ended without being killed, everything that was not as promised
    (`surprises`), and what is shown now (`doing`)."""

    def __init__(self) -> None:
        self.done: Counter[Deed] = Counter()
        self.ended = 0
        self.surprises: list[str] = []
        self.doing = "the workers start"


async def until(read: Callable[[], Awaitable[T]], is_so: Callable[[T], bool], *, pause: float = POLL_SECONDS) -> T:
    """Read until the condition holds, and return what was read; waits while the server is down."""
    while True:
        if is_so(found := await until_reachable(read, say=say_nothing)):
            return found
        await asyncio.sleep(pause)


def say_nothing(line: str) -> None:
    """Say nothing: the part that watches the crawl does."""
