"""Workers are killed with SIGKILL at every step and at random moments: nothing is lost, nothing is there twice."""

from __future__ import annotations

import asyncio
import random
import signal
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from shoal.testing.killing import STEPS
from shoal.testing.servers.object_server import MotoServer
from shoal.testing.servers.postgres_server import PostgresServer
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.loopback import busiest_window

# Short leases: what a killed worker held comes back within the test.
SHORT = {"rate": "unlimited", "per_host": 64, "lease_seconds": 1.0, "flush_pages": 16, "max_attempts": 50}
# More pages than two workers settle that are killed at their first and at their fourth batch: small ones, few in hand.
KILLED = {**SHORT, "concurrency": 8, "flush_pages": 4}
KILLED_PAGES = 80
small_graph = pytest.mark.parametrize("graph", [KILLED_PAGES], indirect=True)


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"), "--appendfsync", "no").start()
    yield server
    server.kill()


@small_graph
@pytest.mark.parametrize("step", STEPS)
async def test_a_kill_at_any_step_loses_and_doubles_nothing(new_crawl: Any, step: str) -> None:
    crawl = await new_crawl(**KILLED)
    crawl.archive = str(crawl.db.with_name("pages"))
    await kill_at(crawl, step)


@small_graph
@pytest.mark.parametrize(
    "step", [pytest.param(step, marks=[] if step == "settle" else pytest.mark.full) for step in STEPS]
)
async def test_a_kill_at_any_step_over_redis_postgresql_and_s3_loses_and_doubles_nothing(
    new_crawl: Any,
    redis_server: RedisServer,
    postgres: PostgresServer,
    moto: MotoServer,
    step: str,
) -> None:
    redis_server.call("FLUSHALL")
    name = f"killed-{step}-{uuid.uuid4().hex}"
    moto.make_bucket(name)
    crawl = await new_crawl(redis_server.url, postgres.new_database(name), **KILLED)
    crawl.archive = moto.url(name)
    await kill_at(crawl, step)


# Four seconds each: three worker processes one after the other, each waits for the leases of the one before.
# They are the proof that no step between lease and settle is one at which a kill loses or doubles a page.
async def kill_at(crawl: Any, step: str) -> None:
    """Two workers are killed at this step, at the first batch and in the midst; another one finishes the crawl."""
    for call in (1, 4):
        worker = crawl.start_worker(at=step, call=call)
        assert await asyncio.to_thread(worker.wait, 30) == -signal.SIGKILL
    await crawl.finish()
    await crawl.check(KILLED_PAGES)


async def test_the_pace_of_a_host_holds_through_kills_and_for_all_workers(new_crawl: Any, rng: random.Random) -> None:
    # Nine seconds: at 20 pages a second, 120 pages take six; less would not fill the windows that are looked at.
    rate, pages = 20, 120
    crawl = await new_crawl(**{**SHORT, "rate": f"{rate}/s", "pace": "fixed", "max_pages": pages})
    for number in (1, 2):
        crew = [crawl.start_worker() for _ in range(3)]
        await crawl.wait_for_pages(25 * number)
        await asyncio.sleep(rng.uniform(0.0, 0.3))  # a moment that the seed chooses
        crew[0].kill()
        for worker in crew[1:]:
            worker.terminate()
        ends = [worker.wait() for worker in crew]
        assert ends[0] == -signal.SIGKILL
    await crawl.finish()
    await crawl.check(pages)
    hits = crawl.site.hits()
    # By the site's own clock. One more than the rate is the start that opens the window, another what a busy
    # machine may delay on the way.
    assert rate // 2 < busiest_window(hits, seconds=1.0) <= rate + 2
    assert busiest_window(hits, seconds=3.0) <= 3 * rate + 2
