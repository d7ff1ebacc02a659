"""The frontier behind a pipe keeps the contract of the one that the coordinator has.

Here the coordinator passes every verb on; what a worker may say is in `WORKER_VERBS`, and the rest is refused."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from shoal.frontier.base import Frontier
from shoal.frontier.sqlite.frontier import SqliteFrontier
from shoal.pipes import open_pipe
from shoal.pipes.frontier import ALL_VERBS, PipedFrontier
from shoal.pipes.messages import REQUESTS
from shoal.pipes.pump import Pump
from shoal.testing.contract.frontier.case import FrontierCase
from shoal.testing.contract.frontier.kind_promises import KindPromises
from shoal.testing.contract.frontier.lease_promises import LeasePromises
from shoal.testing.contract.frontier.settle_promises import SettlePromises
from shoal.testing.contract.frontier.stage_promises import StagePromises
from shoal.testing.contract.frontier.visit_promises import VisitPromises
from shoal.testing.frontier_contract import FrontierContract
from shoal.testing.servers.object_server import MotoServer
from shoal.testing.servers.rabbitmq_server import RabbitServer

Steady = Callable[[], float] | None


class PipedCase(FrontierCase):
    """Each view has a coordinator of its own, as each process of the other suites has a connection of its own."""

    _path = Path()

    @pytest.fixture(autouse=True)
    async def at_a_broker(self, pipe_url: Callable[[str], str]) -> AsyncIterator[None]:
        self._url = pipe_url
        self._ends = contextlib.AsyncExitStack()
        yield
        await self._ends.aclose()

    async def open(self, folder: Path, clock: Callable[[], float], steady: Steady = None) -> Frontier:
        self._path = folder / "shoal.db"
        behind = await SqliteFrontier.open(self._path, clock=clock, steady=steady)
        url = self._url(f"t{uuid.uuid4().hex[:12]}")
        pump = asyncio.create_task(Pump(behind, open_pipe(url), say=print, allows=ALL_VERBS).run())

        async def end() -> None:
            pump.cancel()
            await asyncio.gather(pump, return_exceptions=True)
            await behind.close()
            pipe = open_pipe(url)
            await pipe.remove_queue(REQUESTS)
            await pipe.close()

        self._ends.push_async_callback(end)
        return await PipedFrontier.open(open_pipe(url), steady=None)


class TestPipedFrontier(PipedCase, FrontierContract):
    @pytest.fixture
    def pipe_url(self, rabbitmq: RabbitServer) -> Callable[[str], str]:
        return rabbitmq.at

    async def damage(self, frontier: Frontier, crawl: str, key: int) -> None:
        with contextlib.closing(sqlite3.connect(self._path, isolation_level=None)) as db:
            assert db.execute("UPDATE task SET payload = x'ff00ff' WHERE key = ?", (key,)).rowcount == 1

    async def write_unreadable_point(self, frontier: Frontier, crawl: str) -> None:
        with contextlib.closing(sqlite3.connect(self._path, isolation_level=None)) as db:
            damaged = "UPDATE point SET point = '{\"at\": 1}' WHERE at = (SELECT max(at) FROM point)"
            assert db.execute(damaged).rowcount == 2


# Not the whole suite: a test takes half a second through moto's server. These promises show that answers find those who
# asked, that leases, kinds and stages come through, and that results keep what they are. Decision 43 lists the others.
class TestPipedFrontierOverSqs(PipedCase, SettlePromises, KindPromises, StagePromises, VisitPromises):
    test_two_workers_asking_at_once = LeasePromises.test_two_workers_asking_at_once_never_get_the_same_task
    test_says_from_which_moment = LeasePromises.test_says_from_which_moment_of_this_process_the_waits_count
    test_lends_ahead_within_the_horizon = LeasePromises.test_lends_ahead_within_the_horizon_and_never_beyond
    test_lends_an_expired_lease_again = LeasePromises.test_lends_an_expired_lease_again_with_a_new_token
    test_an_extended_lease_lasts_longer = LeasePromises.test_an_extended_lease_lasts_longer
    test_an_evicted_workers_tasks_are_lent_again = LeasePromises.test_an_evicted_workers_tasks_are_lent_again_at_once
    test_a_reserved_start_counts_in_the_pace = LeasePromises.test_a_reserved_start_counts_in_the_pace
    test_a_lane_without_rules_is_opened = LeasePromises.test_a_lane_without_rules_lends_one_lease_that_opens_it

    @pytest.fixture
    def pipe_url(self, moto: MotoServer) -> Callable[[str], str]:
        return moto.queues_url
