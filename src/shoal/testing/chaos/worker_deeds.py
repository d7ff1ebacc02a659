"""What `shoal chaos` does to workers: kills, freezes, reliefs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from shoal.frontier.base import Frontier
from shoal.model import WorkerBeat
from shoal.testing.chaos.diary import POLL_SECONDS, Diary, unsaid, until
from shoal.testing.chaos.fleets import Team
from shoal.testing.chaos.plan import FREEZE_SECONDS, Deed
from shoal.worker.outages import until_reachable

COME_BACK_SECONDS = 2.0


class Victim(NamedTuple):
    """A worker to which something is done."""

    team: Team
    name: str
    pid: int

    def __str__(self) -> str:
        return f"worker {self.name.rpartition(':')[2]}{self.team.label}"


class WorkerDeeds:
    """Chooses victims among the workers of all crawls. `enough` is set when the crawls are over."""

    def __init__(
        self, teams: Sequence[Team], *, frontier: Frontier, rng: random.Random, diary: Diary, enough: asyncio.Event
    ) -> None:
        self._teams = teams
        self._frontier = frontier
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
        victim.team.crew.kill(victim.pid)
        self._kills[victim.name] += 1
        self._diary.done[Deed.KILL] += 1
        self._diary.doing = f"kill {self._diary.done[Deed.KILL]}: {victim} gets SIGKILL"

    async def freeze(self) -> None:
        """Stop a worker for longer than its leases last, then let it go on with the pages it had in hand."""
        victim = await self._victim(awake=2, pages=1)
        if victim is None:
            return
        read, pid = partial(self._frontier.progress, victim.team.crawl.id), victim.pid
        before = (await until_reachable(read, say=unsaid)).stale
        self._frozen.add(pid)
        self._diary.doing = f"freeze {self._diary.done[Deed.FREEZE] + 1}: {victim} is stopped past its leases"
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
        self._diary.doing = f"{victim} comes back; its late settles are to be refused"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COME_BACK_SECONDS):
                await until(read, lambda progress: progress.stale > before)

    async def relieve(self) -> None:
        self._diary.doing = "all workers are asked to stop; a new fleet takes over"
        self._kills.clear()
        for team in self._teams:
            team.crew.relieve()

    async def _victim(self, *, awake: int, pages: int = 0) -> Victim | None:
        """A worker with at least `pages` pages done, one of those killed least often; None when the crawls end first.

        Waits until `awake` workers of its crawl are at work."""
        while not self._enough.is_set():
            beats = await until_reachable(self._frontier.workers, say=unsaid)
            able = [victim for team in self._teams for victim in self._able(team, beats, awake=awake, pages=pages)]
            if able:
                fewest = min(self._kills[victim.name] for victim in able)
                return self._rng.choice([victim for victim in able if self._kills[victim.name] == fewest])
            await asyncio.sleep(POLL_SECONDS)
        return None

    def _able(self, team: Team, beats: Sequence[WorkerBeat], *, awake: int, pages: int) -> list[Victim]:
        done = {beat.pid: beat.pages for beat in beats if beat.crawl == team.crawl.id}
        awake_pids = done.keys() - self._frozen
        alive = sorted((name, pid) for name, pid in team.crew.pids.items() if pid in awake_pids)
        return [Victim(team, name, pid) for name, pid in alive if done[pid] >= pages] if len(alive) >= awake else []
