"""A coordinator that notes a run and is killed with SIGKILL before or after it starts the process.

    python dying_timekeeper.py FRONTIER SPIDERS before|after

The run fell due at one moment of the clock that it is given, and no other is due for years."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from shoal.crawl.opening import Places
from shoal.duties.schedules.config import LONGEST_SECONDS, Schedule, load_schedules
from shoal.duties.schedules.scheduler import Scheduler, StartedRun
from shoal.frontier import open_frontier
from shoal.frontier.base import Frontier
from shoal.model import Duty
from shoal.serve.spiders import Spiders
from shoal.testing.killing import die

DUE = 5 * LONGEST_SECONDS
DUTY_SECONDS = 2.0


class Deadly:
    """Starts spiders, and dies of it."""

    def __init__(self, spiders: Spiders, *, when: str) -> None:
        self._spiders = spiders
        self._when = when

    def reference(self, spider: str) -> str:
        return self._spiders.reference(spider)

    def start_run(self, schedule: Schedule, run: str) -> StartedRun:
        if self._when == "before":
            die()
        self._spiders.start_run(schedule, run)
        die()
        raise AssertionError("nobody survives SIGKILL")


class BriefDuties:
    """The frontier, where duties last so briefly that nobody has to wait long for that of the dead."""

    def __init__(self, frontier: Frontier) -> None:
        self._frontier = frontier

    def __getattr__(self, name: str) -> Any:
        return getattr(self._frontier, name)

    async def hold_duty(self, duty: str, holder: str, *, seconds: float, **more: Any) -> Duty:
        return await self._frontier.hold_duty(duty, holder, seconds=min(seconds, DUTY_SECONDS), **more)


async def main(place: str, folder: str, when: str) -> None:
    spiders = Spiders(Path(folder), Places(frontier=place))
    moments = iter([DUE - 10, DUE])
    scheduler = Scheduler(
        load_schedules(Path("shoal.toml")),
        starter=Deadly(spiders, when=when),
        place=place,
        say=print,
        clock=lambda: next(moments),
    )
    frontier = BriefDuties(await open_frontier(place))
    for _ in range(2):
        await scheduler.look(frontier)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
