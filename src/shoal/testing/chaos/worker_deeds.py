"""What `shoal chaos` does to workers: kills, freezes, reliefs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from functools import partial

from shoal.frontier.base import Frontier
from shoal.model import Crawl
from shoal.processes.outages import until_reachable
from shoal.testing.chaos.diary import POLL_SECONDS, Diary, unsaid, until
from shoal.testing.chaos.fleets import Crew
from shoal.testing.chaos.plan import FREEZE_SECONDS, Deed

COME_BACK_SECONDS = 2.0


class WorkerDeeds:
    """Chooses victims among the workers of one crawl. `enough` is set when the crawl is over."""

    def __init__(
        self, crawl: Crawl, *, frontier: Frontier, crew: Crew, rng: random.Random, diary: Diary, enough: asyncio.Event
    ) -> None:
        self._crawl = crawl
        self._frontier = frontier
        self._crew = crew
        self._rng = rng
        self._diary = diary
        self._enough = enough
        self._kills: Counter[str] = Counter()
        self._frozen: set[int] = set()

    async def kill(self) -> None:
        # While one worker is stopped, two others must run: one is killed, the other reclaims the leases.
        victim = await self._victim(awake=2 if self._frozen else 1)
        if victim is None:
            return
        name, pid = victim
        self._crew.kill(pid)
        self._kills[name] += 1
        self._diary.done[Deed.KILL] += 1
        self._diary.doing = f"kill {self._diary.done[Deed.KILL]}: worker {_number(name)} gets SIGKILL"

    async def freeze(self) -> None:
        """Stop a worker for longer than its leases last, then let it go on with the pages it had in hand."""
        victim = await self._victim(awake=2, pages=1)
        if victim is None:
            return
        name, pid = victim
        before = (await until_reachable(lambda: self._frontier.progress(self._crawl.id), say=unsaid)).stale
        self._frozen.add(pid)
        self._diary.doing = (
            f"freeze {self._diary.done[Deed.FREEZE] + 1}: worker {_number(name)} is stopped past its leases"
        )
        try:
            # A page may end the worker at any moment.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                await asyncio.sleep(FREEZE_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            self._frozen.remove(pid)
        self._diary.done[Deed.FREEZE] += 1
        self._diary.doing = f"worker {_number(name)} comes back; its late settles are to be refused"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COME_BACK_SECONDS):
                await until(partial(self._frontier.progress, self._crawl.id), lambda progress: progress.stale > before)

    async def relieve(self) -> None:
        self._diary.doing = "all workers are asked to stop; a new fleet takes over"
        self._kills.clear()
        self._crew.relieve()

    async def _victim(self, *, awake: int, pages: int = 0) -> tuple[str, int] | None:
        """A worker with at least `pages` pages done, one of those killed least often; None when the crawl ends first.

        Waits until `awake` workers are at work."""
        while not self._enough.is_set():
            beats = await until_reachable(self._frontier.workers, say=unsaid)
            done = {beat.pid: beat.pages for beat in beats if beat.crawl == self._crawl.id}
            awake_pids = done.keys() - self._frozen
            alive = sorted((name, pid) for name, pid in self._crew.pids.items() if pid in awake_pids)
            able = [(name, pid) for name, pid in alive if done[pid] >= pages]
            if able and len(alive) >= awake:
                fewest = min(self._kills[name] for name, _ in able)
                return self._rng.choice([worker for worker in able if self._kills[worker[0]] == fewest])
            await asyncio.sleep(POLL_SECONDS)
        return None


def _number(name: str) -> str:
    return name.rpartition(":")[2]
