"""Every frontier of shoal keeps the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from shoal.frontier.base import Frontier
from shoal.frontier.redis.frontier import RedisFrontier
from shoal.frontier.sqlite.frontier import SqliteFrontier
from shoal.testing.contract.frontier.case import CRAWL, check_counts, make_task
from shoal.testing.frontier_contract import FrontierContract
from shoal.testing.model.memory_frontier import MemoryFrontier
from shoal.testing.servers.redis_server import RedisCluster, RedisServer

Steady = Callable[[], float] | None


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"), "--appendfsync", "no").start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    cluster = RedisCluster(tmp_path_factory.mktemp("cluster"), "--appendfsync", "no").start()
    yield cluster
    cluster.kill()


class TestSqliteFrontier(FrontierContract):
    async def open(self, folder: Path, clock: Callable[[], float], steady: Steady = None) -> Frontier:
        return await SqliteFrontier.open(folder / "shoal.db", clock=clock, steady=steady)


class TestMemoryFrontier(FrontierContract):
    _frontier: MemoryFrontier | None = None

    async def open(self, folder: Path, clock: Callable[[], float], steady: Steady = None) -> Frontier:
        frontier = MemoryFrontier(clock=clock, steady=steady, shared=self._frontier)
        self._frontier = self._frontier or frontier
        return frontier


class TestRedisFrontier(FrontierContract):
    _url = ""

    @pytest.fixture(autouse=True)
    def _empty_server(self, redis_server: RedisServer) -> None:
        redis_server.call("FLUSHALL")
        self._url = redis_server.url

    async def open(self, folder: Path, clock: Callable[[], float], steady: Steady = None) -> Frontier:
        return await RedisFrontier.open(self._url, clock=clock, steady=steady)


class TestRedisShards(TestRedisFrontier):
    """A crawl in three shards on one server."""

    is_sharded = True

    async def open(self, folder: Path, clock: Callable[[], float], steady: Steady = None) -> Frontier:
        return await RedisFrontier.open(f"{self._url}?shards=3", clock=clock, steady=steady)

    async def test_stores_a_key_put_twice_once(self, frontier: Frontier) -> None:
        """A shard knows the keys of its own lanes. A URL's key belongs to one lane; one that a spider chose may not."""
        report = await frontier.put(CRAWL, [make_task(1), make_task(2, "b.test"), make_task(1)])
        assert (report.new, report.duplicates) == (2, 1)
        report = await frontier.put(CRAWL, [make_task(2, "b.test"), make_task(3, "c.test")])
        assert (report.new, report.duplicates) == (1, 1)
        assert (await frontier.progress(CRAWL)).duplicates == 2
        await check_counts(frontier, queued=3)


class TestRedisCluster(TestRedisShards):
    """A crawl in five shards on a cluster of three nodes."""

    @pytest.fixture(autouse=True)
    def _empty_server(self, redis_cluster: RedisCluster) -> None:
        redis_cluster.flush()
        self._url = redis_cluster.url

    async def open(self, folder: Path, clock: Callable[[], float], steady: Steady = None) -> Frontier:
        return await RedisFrontier.open(f"{self._url}?shards=5", clock=clock, steady=steady)
