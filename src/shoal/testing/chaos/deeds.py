"""What `shoal chaos` does to a running crawl: kills, freezes and late settles; and the fleets it does that to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TypeVar

import msgspec

from shoal.crawl import intake_of
from shoal.frontier.base import Frontier
from shoal.model import Crawl, Done, Lease, LeaseBatch, Progress, Task, TaskState, TaskStatus
from shoal.processes.fleet import Fleet
from shoal.processes.outages import until_reachable
from shoal.testing.chaos.plan import FREEZE_SECONDS, Deed, Event

POLL_SECONDS = 0.05
# After the page count that an event waits for: so that kills do not always follow a settle.
LONGEST_DELAY_SECONDS = 0.3
COME_BACK_SECONDS = 2.0
STRAGGLER = "straggler"
STRAGGLER_LEASES = 4
STRAGGLER_SECONDS = 0.4
STRAGGLER_PATIENCE_SECONDS = 10.0

Say = Callable[[str], None]
T = TypeVar("T")


class Crew:
    """Runs one fleet after the other until it is sent home. A worker that ends without being told to is a surprise."""

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


class Straggler:
    """A worker that lets its leases run out and settles them when another worker has the tasks: each settle must be
    refused.

    The links it reports lead to no page of the site, so that a settle which was wrongly accepted shows at the end."""

    def __init__(self, crawl: Crawl, frontier: Frontier) -> None:
        self._crawl = crawl
        self._frontier = frontier
        self._rules = intake_of(crawl).rules
        self._leases: list[Lease] = []
        self.late_settles = 0

    async def borrow(self) -> None:
        """Lease a few tasks; waits while there are none to lease."""
        await _until(self._lease, self._keep)

    async def settle_late(self) -> list[str]:
        """Settle each lease once another worker has its task; gives a line for every settle that was not refused."""
        deadline = asyncio.get_running_loop().time() + STRAGGLER_PATIENCE_SECONDS
        lines = []
        for lease in self._leases:
            await self._taken_back(lease, deadline)
            lines += await self._settle([lease])
        return lines

    async def settle_again(self) -> list[str]:
        """Settle all of them once more, when their tasks are done."""
        return await self._settle(self._leases) if self._leases else []

    async def _lease(self) -> LeaseBatch:
        # A longer horizon than that of the workers: they have leased every start slot within theirs.
        return await self._frontier.lease(
            [self._crawl.id], STRAGGLER_LEASES, worker=STRAGGLER, seconds=STRAGGLER_SECONDS, horizon=10.0
        )

    def _keep(self, batch: LeaseBatch) -> bool:
        self._leases += batch.leases
        return bool(batch.leases or batch.finished)

    async def _settle(self, leases: Sequence[Lease]) -> list[str]:
        results = [Done(lease=lease, found=[self._no_page(lease.task)]) for lease in leases]
        report = await until_reachable(lambda: self._frontier.settle(results), say=_unsaid)
        self.late_settles += len(leases)
        refused = {lease.token for lease in report.stale}
        return [f"the late settle of {lease.task.url} was taken" for lease in leases if lease.token not in refused]

    async def _taken_back(self, lease: Lease, deadline: float) -> None:
        """Wait until another worker has the task; a frontier that never reclaims the lease shows at the end."""
        look_up = partial(self._frontier.look_up, self._crawl.id, lease.task.key)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await _until(look_up, _is_anothers, pause=POLL_SECONDS / 5)

    def _no_page(self, task: Task) -> Task:
        url = f"{task.url}0000000000"
        return msgspec.structs.replace(task, url=url, key=self._rules.resolve(url).key, parent=task.key)


class Mischief:
    """Does what the schedule says while the crawl runs. `doing` is what people are shown."""

    def __init__(
        self,
        crawl: Crawl,
        *,
        frontier: Frontier,
        crew: Crew,
        rng: random.Random,
        restart: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._crawl = crawl
        self._frontier = frontier
        self._crew = crew
        self._rng = rng
        self._restart = restart
        self._kills: Counter[str] = Counter()
        self._frozen: set[int] = set()
        self._asides: list[asyncio.Task[None]] = []
        self._enough = asyncio.Event()
        self.straggler = Straggler(crawl, frontier)
        self.done: Counter[Deed] = Counter()
        self.surprises: list[str] = []
        self.doing = "the workers start"

    async def run(self, events: Sequence[Event]) -> None:
        """Carry out the events in order; those that are not due before the crawl ends are left out."""
        try:
            for event in events:
                await self._wait_for(partial(self._is_due, event))
                await asyncio.sleep(self._rng.uniform(0, LONGEST_DELAY_SECONDS))
                if self._enough.is_set():
                    break
                await self._do(event.deed)
            await asyncio.gather(*self._asides)
        finally:
            for aside in self._asides:
                aside.cancel()
            await asyncio.gather(*self._asides, return_exceptions=True)

    def stop(self) -> None:
        """Begin no further event; finish those that were begun."""
        self._enough.set()

    async def _do(self, deed: Deed) -> None:
        match deed:
            case Deed.KILL:
                await self._kill()
            case Deed.RELIEVE:
                self._relieve()
            case Deed.RESTART:
                await self._restart_server()
            # These take seconds; the kills go on meanwhile.
            case Deed.FREEZE:
                self._asides.append(asyncio.create_task(self._freeze()))
            case Deed.STRAGGLE:
                self._asides.append(asyncio.create_task(self._straggle()))

    def _is_due(self, event: Event, progress: Progress) -> bool:
        return self._enough.is_set() or progress.done >= event.at

    async def _kill(self) -> None:
        # While one worker is stopped, two others must run: one is killed, the other reclaims the leases.
        victim = await self._victim(awake=2 if self._frozen else 1)
        if victim is None:
            return
        name, pid = victim
        self._crew.kill(pid)
        self._kills[name] += 1
        self.done[Deed.KILL] += 1
        self.doing = f"kill {self.done[Deed.KILL]}: worker {_number(name)} gets SIGKILL"

    async def _freeze(self) -> None:
        """Stop a worker for longer than its leases last, then let it go on with the pages it had in hand."""
        victim = await self._victim(awake=2, pages=1)
        if victim is None:
            return
        name, pid = victim
        before = (await self._progress()).stale
        self._frozen.add(pid)
        os.kill(pid, signal.SIGSTOP)
        self.doing = f"freeze {self.done[Deed.FREEZE] + 1}: worker {_number(name)} is stopped past its leases"
        try:
            await asyncio.sleep(FREEZE_SECONDS)
        finally:
            os.kill(pid, signal.SIGCONT)
            self._frozen.remove(pid)
        self.done[Deed.FREEZE] += 1
        self.doing = f"worker {_number(name)} comes back; its late settles are to be refused"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(COME_BACK_SECONDS):
                await self._wait_for(lambda progress: progress.stale > before)

    async def _straggle(self) -> None:
        self.doing = "a worker that sleeps through its leases settles them late"
        await self.straggler.borrow()
        self.surprises += await self.straggler.settle_late()

    def _relieve(self) -> None:
        self.doing = "all workers are asked to stop; a new fleet takes over"
        self._kills.clear()
        self._crew.relieve()

    async def _restart_server(self) -> None:
        if self._restart is None:
            return
        self.doing = f"restart {self.done[Deed.RESTART] + 1}: the queue server is killed and started again"
        await self._restart()
        self.done[Deed.RESTART] += 1

    async def _victim(self, *, awake: int, pages: int = 0) -> tuple[str, int] | None:
        """A worker with at least `pages` pages done, one of those killed least often; None when the crawl ends first.

        Waits until `awake` workers are at work."""
        while not self._enough.is_set():
            beats = await until_reachable(self._frontier.workers, say=_unsaid)
            at_work = {
                beat.pid for beat in beats if beat.crawl == self._crawl.id and beat.pages >= pages
            } - self._frozen
            alive = sorted((name, pid) for name, pid in self._crew.pids.items() if pid in at_work)
            if len(alive) >= awake:
                fewest = min(self._kills[name] for name, _ in alive)
                return self._rng.choice([worker for worker in alive if self._kills[worker[0]] == fewest])
            await asyncio.sleep(POLL_SECONDS)
        return None

    async def _wait_for(self, is_so: Callable[[Progress], bool]) -> None:
        await _until(partial(self._frontier.progress, self._crawl.id), is_so)

    async def _progress(self) -> Progress:
        return await until_reachable(lambda: self._frontier.progress(self._crawl.id), say=_unsaid)


async def _until(read: Callable[[], Awaitable[T]], is_so: Callable[[T], bool], *, pause: float = POLL_SECONDS) -> None:
    """Read until the condition holds; waits while the server is away."""
    while True:
        if is_so(await until_reachable(read, say=_unsaid)):
            return
        await asyncio.sleep(pause)


def _is_anothers(status: TaskStatus) -> bool:
    return status.state is TaskState.DONE or (status.state is TaskState.LEASED and status.worker != STRAGGLER)


def _number(name: str) -> str:
    return name.rpartition(":")[2]


def _unsaid(line: str) -> None:
    """Say nothing: the part that watches the crawl does."""
