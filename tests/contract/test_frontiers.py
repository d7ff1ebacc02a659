"""Every frontier of shoal keeps the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.frontier.base import Frontier
from shoal.frontier.redis import RedisFrontier
from shoal.frontier.sqlite import SqliteFrontier
from shoal.testing.frontier_contract import FrontierContract
from shoal.testing.memory_frontier import MemoryFrontier
from shoal.testing.servers import RedisServer


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"), "--appendfsync", "no").start()
    yield server
    server.kill()


class TestSqliteFrontier(FrontierContract):
    async def open(self, folder: Path, clock: Callable[[], float]) -> Frontier:
        return await SqliteFrontier.open(folder / "shoal.db", clock=clock)


class TestMemoryFrontier(FrontierContract):
    _frontier: MemoryFrontier | None = None

    async def open(self, folder: Path, clock: Callable[[], float]) -> Frontier:
        self._frontier = self._frontier or MemoryFrontier(clock=clock)
        return self._frontier


class TestRedisFrontier(FrontierContract):
    _url = ""

    @pytest.fixture(autouse=True)
    def _empty_server(self, redis_server: RedisServer) -> None:
        redis_server.call("FLUSHALL")
        self._url = redis_server.url

    async def open(self, folder: Path, clock: Callable[[], float]) -> Frontier:
        return await RedisFrontier.open(self._url, clock=clock)


class TestRedisShards(TestRedisFrontier):
    """A crawl in three shards on one server."""

    is_sharded = True

    async def open(self, folder: Path, clock: Callable[[], float]) -> Frontier:
        return await RedisFrontier.open(f"{self._url}?shards=3", clock=clock)
