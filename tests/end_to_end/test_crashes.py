"""Workers are killed with SIGKILL at every step and at random moments: nothing is lost, nothing is there twice."""

from __future__ import annotations

import asyncio
import random
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.testing.killing import STEPS
from shoal.testing.servers.object_server import MotoServer
from shoal.testing.servers.postgres_server import PostgresServer
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.sites.loopback import busiest_window

# Short leases: what a killed worker held comes back within the test.
SHORT = {"rate": "unlimited", "per_host": 64, "lease_seconds": 1.0, "flush_pages": 16, "max_attempts": 50}


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"), "--appendfsync", "no").start()
    yield server
    server.kill()


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MotoServer]:
    for name, value in MotoServer.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    server = MotoServer(tmp_path / "moto").start()
    server.make_bucket("pages")
    yield server
    server.kill()


@pytest.mark.parametrize("step", STEPS)
async def test_a_kill_at_any_step_loses_and_doubles_nothing(new_crawl: Any, step: str) -> None:
    crawl = await new_crawl(**SHORT)
    crawl.archive = str(crawl.db.with_name("pages"))
    await kill_at(crawl, step)


@pytest.mark.parametrize("step", ["leased", "settle", "settled"])
async def test_a_kill_at_a_step_over_redis_loses_and_doubles_nothing(
    new_crawl: Any, redis_server: RedisServer, step: str
) -> None:
    redis_server.call("FLUSHALL")
    await kill_at(await new_crawl(redis_server.url, **SHORT), step)


@pytest.mark.parametrize("step", STEPS)
async def test_a_kill_at_any_step_over_redis_postgresql_and_s3_loses_and_doubles_nothing(
    new_crawl: Any,
    redis_server: RedisServer,
    postgres: PostgresServer,
    objects: MotoServer,
    step: str,
) -> None:
    redis_server.call("FLUSHALL")
    store = postgres.new_database(f"killed_{step}_{uuid.uuid4().hex}")
    crawl = await new_crawl(redis_server.url, store, **SHORT)
    crawl.archive = objects.url("pages", step)
    await kill_at(crawl, step)


async def kill_at(crawl: Any, step: str) -> None:
    """Three workers die at this step, each a little later; another one finishes."""
    for call in (1, 3, 6):
        worker = crawl.start_worker(at=step, call=call)
        assert await asyncio.to_thread(worker.wait, 30) == -signal.SIGKILL
    await crawl.finish()
    await crawl.check()


async def test_kills_at_random_moments_lose_and_double_nothing(new_crawl: Any, rng: random.Random) -> None:
    crawl = await new_crawl(**{**SHORT, "rate": "150/s"})
    for _ in range(8):
        crew = [crawl.start_worker() for _ in range(2)]
        await asyncio.sleep(rng.uniform(0.4, 1.0))
        for worker in crew:
            worker.kill()
            worker.wait()
    await crawl.finish()
    await crawl.check()


async def test_the_pace_of_a_host_holds_through_kills_and_for_all_workers(new_crawl: Any, rng: random.Random) -> None:
    rate, pages = 20, 150
    crawl = await new_crawl(**{**SHORT, "rate": f"{rate}/s", "pace": "fixed", "max_pages": pages})
    for _ in range(2):
        crew = [crawl.start_worker() for _ in range(3)]
        await asyncio.sleep(rng.uniform(1.0, 1.6))
        crew[0].kill()
        for worker in crew[1:]:
            worker.terminate()
        for worker in crew:
            worker.wait()
    await crawl.finish()
    await crawl.check(pages)
    hits = crawl.site.hits()
    # By the site's own clock. One more than the rate is the start that opens the window, another what a busy
    # machine may delay on the way.
    assert busiest_window(hits, seconds=1.0) <= rate + 2
    assert busiest_window(hits, seconds=3.0) <= 3 * rate + 2
