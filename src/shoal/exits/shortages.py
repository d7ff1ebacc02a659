"""What this machine lacks for a moment: descriptors, ports, memory. No page, no host and no exit is to blame."""

from __future__ import annotations

import asyncio
import random
from typing import Final, NamedTuple

from shoal.exits.troubles import Troubles
from shoal.fetch.descriptors import is_used_up, names_files, trouble_of_shortage

SHORTEST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 1.5
LOOKS: Final = 4  # for free descriptors, during a pause
KEPT_SECONDS: Final = 10.0
NAME: Final = "this machine"


class Shortage(NamedTuple):
    """A request that could not be sent, with what the system said."""

    message: str


async def wait_out(shortage: Shortage, *, troubles: Troubles, rng: random.Random) -> None:
    """Say what is lacking, and wait a moment; for descriptors, until there are some. The page keeps its slot meanwhile,
    so that a worker that lacks descriptors asks for fewer of them."""
    troubles.begin(NAME, trouble_of_shortage(shortage.message), seconds=KEPT_SECONDS)
    looks = LOOKS if names_files(shortage.message) else 1
    for _ in range(looks):
        await asyncio.sleep(rng.uniform(SHORTEST_PAUSE, LONGEST_PAUSE) / looks)
        if not is_used_up():
            return
