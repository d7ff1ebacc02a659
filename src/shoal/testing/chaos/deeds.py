"""Does the deeds of a plan, in order, while a crawl runs."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from shoal.frontier.base import Frontier
from shoal.model import Crawl, Done, Lease, LeaseBatch, Progress, Task, TaskState, TaskStatus
from shoal.run.intakes import intake_of
from shoal.testing.chaos.feeders import Reserve
from shoal.testing.chaos.log import POLL_SECONDS, RunLog, say_nothing, until
from shoal.testing.chaos.plan import Deed, Event
from shoal.testing.chaos.servers import Act
from shoal.worker.outages import until_reachable

STRAGGLER = "straggler"
STRAGGLER_LEASES = 4
STRAGGLER_SECONDS = 0.4
# Longer than its leases last again after a restart of the frontier server: its horizon of 10 s.
STRAGGLER_PATIENCE_SECONDS = 30.0


class Straggler:
    """A worker that lets its leases expire and settles them when another worker has the tasks: each settle must be
    refused.

    Its results link to pages that do not exist, so that a settle accepted by mistake shows at the end."""

    def __init__(self, crawl: Crawl, frontier: Frontier) -> None:
        self._crawl = crawl
        self._frontier = frontier
        self._rules = intake_of(crawl).rules
        self._leases: list[Lease] = []
        self.late_settles = 0

    async def borrow(self) -> None:
        """Lease a few tasks; waits until there are some."""
        await until(self._lease, self._keep)

    async def settle_late(self) -> list[str]:
        """Settle each lease once another worker has its task; returns a line for every settle that was not refused."""
        deadline = asyncio.get_running_loop().time() + STRAGGLER_PATIENCE_SECONDS
        lines = []
        for lease in self._leases:
            await self._taken_back(lease, deadline)
            lines += await self._settle([lease])
        return lines

    async def settle_again(self) -> list[str]:
        """Settle all of them again when their tasks are done."""
        return await self._settle(self._leases) if self._leases else []

    async def _lease(self) -> LeaseBatch:
        # A longer horizon than the workers: they have leased every start slot within theirs.
        return await self._frontier.lease(
            [self._crawl.id], STRAGGLER_LEASES, worker=STRAGGLER, seconds=STRAGGLER_SECONDS, horizon=10.0
        )

    def _keep(self, batch: LeaseBatch) -> bool:
        self._leases += batch.leases
        return bool(batch.leases or batch.finished)

    async def _settle(self, leases: Sequence[Lease]) -> list[str]:
        results = [Done(lease=lease, found=[self._no_page(lease.task)]) for lease in leases]
        report = await until_reachable(lambda: self._frontier.settle(results), say=say_nothing)
        self.late_settles += len(leases)
        refused = {lease.token for lease in report.stale}
        return [f"the late settle of {lease.task.url} was accepted" for lease in leases if lease.token not in refused]

    async def _taken_back(self, lease: Lease, deadline: float) -> None:
        """Wait until another worker has the task; if the frontier never reclaims the lease, that shows at the end."""
        look_up = partial(self._frontier.look_up, self._crawl.id, lease.task.key)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await until(look_up, _is_anothers, pause=POLL_SECONDS / 5)

    def _no_page(self, task: Task) -> Task:
        url = f"{task.url}0000000000"
        return msgspec.structs.replace(task, url=url, key=self._rules.resolve(url).key, parent=task.key)


def _is_anothers(status: TaskStatus) -> bool:
    return status.state is TaskState.DONE or (status.state is TaskState.LEASED and status.worker != STRAGGLER)


SHOWN = {
    Deed.RESTART: "restart {}: Redis is killed and started again",
    Deed.STALL: "stall {}: the frontier does not answer for longer than a lease",
    Deed.RESET: "reset {}: every connection to a server is reset",
    Deed.CLOCK: "clock {}: the frontier's clock is stepped by an hour",
    Deed.BACKEND: "backend {}: PostgreSQL loses a process",
    Deed.BROKER: "restart {} of the broker: it is killed and started again",
    Deed.COORDINATOR: "restart {} of the coordinator: it is killed and started again",
    Deed.STORE_RESTART: "restart {} of PostgreSQL, as after a crash",
}


def acts_of(acts: Mapping[Deed, Act], log: RunLog) -> dict[Deed, Act]:
    """The deeds to servers, counted and shown."""
    return {deed: partial(_pull, deed, act, log) for deed, act in acts.items()}


async def _pull(deed: Deed, act: Act, log: RunLog) -> None:
    log.doing = SHOWN[deed].format(log.done[deed] + 1)
    await act()
    log.done[deed] += 1


# A random delay after the page count of an event, so that kills do not always follow a settle.
LONGEST_DELAY_SECONDS = 0.3
# Deeds that take seconds; other deeds continue meanwhile.
ASIDE = frozenset({Deed.FREEZE, Deed.STRAGGLE, Deed.FEED})


class DeedRunner:
    """Does each deed of the schedule by its act. Sets `enough` when it is stopped, `calm` after its last deed."""

    def __init__(
        self,
        crawl: Crawl,
        *,
        frontier: Frontier,
        acts: Mapping[Deed, Act],
        reserve: Reserve,
        rng: random.Random,
        enough: asyncio.Event,
    ) -> None:
        self._crawl = crawl
        self._frontier = frontier
        self._acts = acts
        self._reserve = reserve
        self._rng = rng
        self._enough = enough
        self.calm = asyncio.Event()
        self._asides: list[asyncio.Future[None]] = []

    async def run(self, events: Sequence[Event]) -> None:
        """Do the events in order. Only a crawl that stands still, or has lost its workers, ends before the last event:
        the reserve keeps any other crawl unfinished."""
        try:
            for event in events:
                progress = await until(partial(self._frontier.progress, self._crawl.id), partial(self._is_due, event))
                if progress.left == 0:
                    await self._reserve.give_some()
                await asyncio.sleep(self._rng.uniform(0, LONGEST_DELAY_SECONDS))
                if self._enough.is_set():
                    break
                act = self._acts[event.deed]
                if event.deed in ASIDE:
                    self._asides.append(asyncio.ensure_future(act()))
                else:
                    await act()
            await self._finish_asides()
        finally:
            for aside in self._asides:
                aside.cancel()
            await asyncio.gather(*self._asides, return_exceptions=True)
            self.calm.set()

    def stop(self) -> None:
        """Begin no further event; finish running ones."""
        self._enough.set()

    async def _finish_asides(self) -> None:
        """Wait for long deeds. A deed that waits for a worker with finished pages gets pages for it."""
        waiting = asyncio.gather(*self._asides)
        await until(
            partial(self._frontier.progress, self._crawl.id), lambda progress: waiting.done() or progress.left == 0
        )
        await self._reserve.give_all()
        await waiting

    def _is_due(self, event: Event, progress: Progress) -> bool:
        """Also true when all pages but the reserve are done: if some became dead letters, fewer than planned are
        done."""
        return self._enough.is_set() or progress.done >= event.at or progress.left == 0
