"""A crawl with tasks of three kinds, of which workers do two."""

from __future__ import annotations

import time
from pathlib import Path

from shoal.frontier.sqlite.frontier import SqliteFrontier
from shoal.model import Crawl, Heartbeat
from shoal.testing.clock import FakeClock
from shoal.testing.fakes import task_for

MIXED = "mixed-1"
WAITING = {"http": 3, "browser": 2, "eu": 1}
DONE_BY = {"m-1": ("http",), "m-2": ("http", "eu")}


async def mix_kinds(folder: Path) -> None:
    """Make the crawl in the frontier of a folder. Its workers stay for an hour."""
    clock = FakeClock(time.time())
    frontier = await SqliteFrontier.open(folder / "shoal.db", clock=clock)
    await frontier.open_crawl(Crawl(id=MIXED, spider="mixed"))
    kinds = [kind for kind, number in WAITING.items() for _ in range(number)]
    await frontier.put(MIXED, [task_for(f"http://a.example/{n}", kind=kind) for n, kind in enumerate(kinds)])
    clock.advance(3600.0)
    for worker, kinds_done in DONE_BY.items():
        await frontier.beat(
            Heartbeat(worker=worker, crawl=MIXED, host="m", pid=1, version="0", slots=8, busy=1, kinds=kinds_done)
        )
    await frontier.close()
