"""All promises again while another crawl works on the same frontier.

class TestMyFrontierBesideOthers(BesideOthers, TestMyFrontier): ...
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from shoal.frontier.base import Frontier
from shoal.model import Crawl, Done, Pool
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import BESIDE, LEASE_SECONDS, FrontierCase, make_task

# The hosts of most promises, and the host of the other crawl.
HOSTS = ("a.test", "b.test", "c.test", "a.test via pool", "b.test via pool")
OWN_HOST = "beside.test"
# Its starts are longer ago than the intervals of most promises; its limits are no stricter.
SINCE_ITS_STARTS = 50.0


class BesideOthers(FrontierCase):
    """Another crawl has tasks on the hosts of the promises: it has started requests there, wants no more for now, and
    has requests in flight on its own host. It changes nothing for the other crawls, so every promise holds
    unchanged."""

    _is_at_work = False

    async def open(
        self, folder: Path, clock: Callable[[], float], steady: Callable[[], float] | None = None
    ) -> Frontier:
        frontier = await super().open(folder, clock, steady)
        if isinstance(clock, FakeClock) and not self._is_at_work:
            self._is_at_work = True
            pool = Pool(name="pool", exits=("other",), interval=0.0, cap=1000)
            await frontier.open_crawl(Crawl(id=BESIDE, spider="s", interval=0.0, cap=100_000, pools=(pool,)))
            lanes = [*HOSTS, OWN_HOST]
            tasks = [make_task(-1 - index, lane) for index, lane in enumerate(lanes * 3)]
            await frontier.put(BESIDE, tasks)
            limit = 2 * len(lanes)
            batch = await frontier.lease([BESIDE], limit, worker="w beside", seconds=10 * LEASE_SECONDS, horizon=0.0)
            assert len(batch.leases) == limit
            await frontier.settle([Done(lease=lease) for lease in batch.leases if lease.task.lane != OWN_HOST])
            clock.advance(SINCE_ITS_STARTS)
        return frontier
