"""A worker that settles too late, on purpose."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from functools import partial

import msgspec

from shoal.frontier.base import Frontier
from shoal.model import Crawl, Done, Lease, LeaseBatch, Task, TaskState, TaskStatus
from shoal.run.intakes import intake_of
from shoal.testing.chaos.diary import POLL_SECONDS, unsaid, until
from shoal.worker.outages import until_reachable

STRAGGLER = "straggler"
STRAGGLER_LEASES = 4
STRAGGLER_SECONDS = 0.4
# Longer than its leases last once more after a restart of the frontier's server: as long as its horizon, 10 s.
STRAGGLER_PATIENCE_SECONDS = 30.0


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
        await until(self._lease, self._keep)

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
        report = await until_reachable(lambda: self._frontier.settle(results), say=unsaid)
        self.late_settles += len(leases)
        refused = {lease.token for lease in report.stale}
        return [f"the late settle of {lease.task.url} was taken" for lease in leases if lease.token not in refused]

    async def _taken_back(self, lease: Lease, deadline: float) -> None:
        """Wait until another worker has the task; a frontier that never reclaims the lease shows at the end."""
        look_up = partial(self._frontier.look_up, self._crawl.id, lease.task.key)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                await until(look_up, _is_anothers, pause=POLL_SECONDS / 5)

    def _no_page(self, task: Task) -> Task:
        url = f"{task.url}0000000000"
        return msgspec.structs.replace(task, url=url, key=self._rules.resolve(url).key, parent=task.key)


def _is_anothers(status: TaskStatus) -> bool:
    return status.state is TaskState.DONE or (status.state is TaskState.LEASED and status.worker != STRAGGLER)
