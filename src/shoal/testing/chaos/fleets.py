"""The worker processes of a chaos run: one fleet after the other."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import NamedTuple

from shoal.model import Crawl
from shoal.worker.fleet import Fleet


class Crew:
    """Runs one fleet after the other until it is sent home, and knows which workers ended without being killed."""

    def __init__(self, new_fleet: Callable[[], Fleet]) -> None:
        self._new_fleet = new_fleet
        self._is_over = False
        self._relief = asyncio.Event()
        self._fleet: Fleet | None = None
        self._before: dict[str, int] = {}
        self._killed: set[int] = set()

    @property
    def pids(self) -> dict[str, int]:
        return self._fleet.pids if self._fleet else {}

    async def run(self) -> None:
        """Work until the crawl is finished or the crew is sent home."""
        while not self._is_over:
            self._relief = asyncio.Event()
            self._fleet = self._new_fleet()
            await self._fleet.run(self._relief)
            if not self._relief.is_set():
                return

    def relieve(self) -> None:
        """Ask every worker to stop in good order; a new fleet takes over."""
        self._relief.set()

    def send_home(self) -> None:
        self._is_over = True
        self._relief.set()

    def kill(self, pid: int) -> None:
        self._killed.add(pid)
        os.kill(pid, signal.SIGKILL)

    def ended_unasked(self) -> list[str]:
        """Workers that were replaced since the last look without having been killed."""
        now = self.pids
        ended = [name for name, pid in now.items() if self._before.get(name, pid) not in {pid, *self._killed}]
        self._before |= now
        return ended


class Team(NamedTuple):
    """One of the crawls of a run, and its workers. `label` tells the crawl from others, where there are several."""

    crawl: Crawl
    crew: Crew
    label: str = ""
