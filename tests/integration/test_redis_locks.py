"""Keys of Redis that expire, and the clock of their server set back by an hour."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from shoal.frontier.redis.frontier import RedisFrontier
from shoal.frontier.redis.inbox import RedisInbox, inbox_keys
from shoal.model import Crawl
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.waiting import eventually
from shoal.worker.outages import until_reachable


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path / "redis", own_clock=True).start()
    yield server
    server.kill()


async def test_a_dead_repairer_of_before_a_step_back_is_waited_for_as_long_as_of_after_it(server: RedisServer) -> None:
    frontier = await RedisFrontier.open(server.url)
    await frontier.open_crawl(Crawl(id="c", spider="s"))
    server.restart()
    run_id, lock = server.call("INFO", "server")["run_id"], "shoal:{0-1}:c:repair"
    server.call("SET", lock, f"{run_id} another", "PX", 10_000)
    server.step_clock(-3600)
    assert server.call("PTTL", lock) > 3_000_000
    lease = asyncio.create_task(
        until_reachable(lambda: frontier.lease(["c"], 1, worker="w", seconds=60.0, horizon=0.0), say=str)
    )
    await eventually(lambda: server.call("PTTL", lock) <= 10_000)
    server.step_clock(60)
    assert (await lease).leases == []
    await frontier.close()


@pytest.mark.full
async def test_a_dead_taker_of_before_a_step_back_does_not_keep_an_inbox_for_an_hour(server: RedisServer) -> None:
    dead, other = RedisInbox(server.url, taker_seconds=0.2), RedisInbox(server.url, taker_seconds=0.2)
    server.call("LPUSH", inbox_keys("c")[0], "http://a.test/")
    assert await dead.take("c", 10) == [b"http://a.test/"]
    server.step_clock(-3600)
    await eventually(lambda: other.take("c", 10))
    await dead.close()
    await other.close()
