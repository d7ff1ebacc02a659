"""The workers of a chaos run, one fleet after the other, and the deeds that are done to them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from shoal.frontier.base import Frontier
from shoal.model import Crawl, Heartbeat
from shoal.testing.chaos.log import POLL_SECONDS, RunLog, say_nothing, until
from shoal.testing.chaos.plan import FREEZE_SECONDS, Deed
from shoal.worker.fleet import Fleet
from shoal.worker.outages import until_reachable


class FleetRunner:
    """Runs fleets one after the other until it is stopped, and knows which workers ended without being killed."""

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
        """Work until the crawl is finished or the runner is stopped."""
        while not self._is_over:
            self._relief = asyncio.Event()
            self._fleet = self._new_fleet()
            await self._fleet.run(self._relief)
            if not self._relief.is_set():
                return

    def relieve(self) -> None:
        """Ask every worker to stop in order; a new fleet follows."""
        self._relief.set()

    def stop(self) -> None:
        self._is_over = True
        self._relief.set()

    def kill(self, pid: int) -> None:
        self._killed.add(pid)
        os.kill(pid, signal.SIGKILL)

    def ended_by_themselves(self) -> list[str]:
        """Workers that were replaced since the last call without being killed."""
        now = self.pids
        ended = [name for name, pid in now.items() if self._before.get(name, pid) not in {pid, *self._killed}]
        self._before |= now
        return ended


class CrawlWorkers(NamedTuple):
    """One crawl of a run, and its workers. `label` names the crawl if there are several."""

    crawl: Crawl
    runner: FleetRunner
    label: str = ""


COME_BACK_SECONDS = 2.0


class Victim(NamedTuple):
    """The worker of a deed."""

    group: CrawlWorkers
    name: str
    pid: int

    def __str__(self) -> str:
        return f"worker {self.name.rpartition(':')[2]}{self.group.label}"


class WorkerDeeds:
    """Chooses victims among the workers of all crawls. `enough` is set when the crawls are over."""

    def __init__(
        self,
        groups: Sequence[CrawlWorkers],
        *,
        frontier: Frontier,
        rng: random.Random,
        log: RunLog,
        enough: asyncio.Event,
    ) -> None:
        self._groups = groups
        self._frontier = frontier
        self._rng = rng
        self._log = log
        self._enough = enough
        self._kills: Counter[str] = Counter()
        self._frozen: set[int] = set()

    async def kill(self) -> None:
        # While one worker is stopped, two others must run: one is killed, the other reclaims leases.
        victim = await self._victim(awake=2 if self._frozen else 1)
        if victim is None:
            return
        victim.group.runner.kill(victim.pid)
        self._kills[victim.name] += 1
        self._log.done[Deed.KILL] += 1
        self._log.doing = f"kill {self._log.done[Deed.KILL]}: {victim} gets SIGKILL"

    async def freeze(self) -> None:
        """Stop a worker for longer than its leases last, then continue it with its pages in hand."""
        victim = await self._victim(awake=2, pages=1)
        if victim is None:
            return
        read, pid = partial(self._frontier.progress, victim.group.crawl.id), victim.pid
        before = (await until_reachable(read, say=say_nothing)).stale
        self._frozen.add(pid)
        self._log.doing = f"freeze {self._log.done[Deed.FREEZE] + 1}: {victim} is stopped past its leases"
        try:
            # A page may end the worker at any moment.
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                await asyncio.sleep(FREEZE_SECONDS)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            self._frozen.remove(pid)
        self._log.done[Deed.FREEZE] += 1
        self._log.doing = f"{victim} comes back; its late settles are to be refused"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COME_BACK_SECONDS):
                await until(read, lambda progress: progress.stale > before)

    async def relieve(self) -> None:
        self._log.doing = "all workers are asked to stop; a new fleet takes over"
        self._kills.clear()
        for group in self._groups:
            group.runner.relieve()

    async def _victim(self, *, awake: int, pages: int = 0) -> Victim | None:
        """A worker with at least `pages` finished pages, among those killed least often; None if the crawls end first.

        Waits until `awake` workers of its crawl run."""
        while not self._enough.is_set():
            beats = await until_reachable(self._frontier.workers, say=say_nothing)
            able = [victim for group in self._groups for victim in self._able(group, beats, awake=awake, pages=pages)]
            if able:
                fewest = min(self._kills[victim.name] for victim in able)
                return self._rng.choice([victim for victim in able if self._kills[victim.name] == fewest])
            await asyncio.sleep(POLL_SECONDS)
        return None

    def _able(self, group: CrawlWorkers, beats: Sequence[Heartbeat], *, awake: int, pages: int) -> list[Victim]:
        done = {beat.pid: beat.pages for beat in beats if beat.crawl == group.crawl.id}
        awake_pids = done.keys() - self._frozen
        alive = sorted((name, pid) for name, pid in group.runner.pids.items() if pid in awake_pids)
        return [Victim(group, name, pid) for name, pid in alive if done[pid] >= pages] if len(alive) >= awake else []
