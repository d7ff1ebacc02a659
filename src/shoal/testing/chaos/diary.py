"""What is done in a chaos run, kept by the parts that do it."""

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


class Diary:
    """The deeds done so far, how many workers ended without being killed, what was not as promised, and what people
    are shown now (`doing`)."""

    def __init__(self) -> None:
        self.done: Counter[Deed] = Counter()
        self.ended = 0
        self.surprises: list[str] = []
        self.doing = "the workers start"


async def until(read: Callable[[], Awaitable[T]], is_so: Callable[[T], bool], *, pause: float = POLL_SECONDS) -> T:
    """Read until the condition holds, and give what was read; waits while the server is away."""
    while True:
        if is_so(found := await until_reachable(read, say=unsaid)):
            return found
        await asyncio.sleep(pause)


def unsaid(line: str) -> None:
    """Say nothing: the part that watches the crawl does."""
