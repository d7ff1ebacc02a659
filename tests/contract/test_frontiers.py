"""Every frontier of shoal keeps the contract."""

from __future__ import annotations

import contextlib
import sqlite3
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from promises import names_of

from shoal.frontier.base import Frontier
from shoal.frontier.redis.frontier import RedisFrontier
from shoal.frontier.sqlite.frontier import SqliteFrontier
from shoal.model import LaneUpdate
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.beside import BesideOthers
from shoal.testing.contract.frontier.case import CRAWL, check_counts, make_task, take, take_one
from shoal.testing.contract.frontier.clock_promises import USUAL, SlowLine
from shoal.testing.contract.frontier.known_promises import KnownPromises
from shoal.testing.contract.frontier.life_promises import LifePromises
from shoal.testing.contract.frontier.put_promises import PutPromises
from shoal.testing.contract.frontier.ttl_promises import TtlPromises
from shoal.testing.frontier_contract import FrontierContract
from shoal.testing.servers.redis_server import RedisCluster, RedisServer

Steady = Callable[[], float] | None

ACROSS_SHARDS = {
    "test_found_tasks_appear_with_the_page_that_found_them",
    "test_links_to_other_shards_hasten_visits_there",
    "test_is_finished_exactly_when_nothing_is_left",
    "test_one_call_can_lease_from_several_crawls",
}
KEYS_AND_PLACES = names_of(PutPromises, KnownPromises, LifePromises, TtlPromises) | ACROSS_SHARDS


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


def halve(server: RedisServer, crawl: str, key: bytes) -> int:
    """Halve the records of a task that are on this server; gives their number."""
    changed = 0
    for name in server.call("KEYS", f"shoal:{{*}}:{crawl}:*"):
        kind = name.partition(b"}:")[2].partition(b":")[2]
        if kind == b"held" and (record := server.call("HGET", name, key)):
            server.call("HSET", name, key, record[: len(record) // 2])
            changed += 1
        elif kind == b"later" or kind.startswith((b"q:", b"kq:")):
            for member in server.call("ZRANGE", name, 0, -1):
                if key in member:
                    server.call("ZADD", name, server.call("ZSCORE", name, member), member[: len(member) // 2])
                    server.call("ZREM", name, member)
                    changed += 1
    return changed


def spoil_latest_point(server: RedisServer, crawl: str) -> int:
    """Let the latest point be of another version, if this server has it; gives whether it does."""
    names = server.call("KEYS", f"shoal:{{*}}:{crawl}:points")
    for name in names:
        member, score = server.call("ZREVRANGE", name, 0, 0, "WITHSCORES")
        server.call("ZREM", name, member)
        server.call("ZADD", name, score, member[:8] + b'{"at": 1}')
    return len(names)


class TestSqliteFrontier(FrontierContract):
    _path = Path()

    async def open(self, folder: Path, clock: Callable[[], float], steady: Steady = None) -> Frontier:
        self._path = folder / "shoal.db"
        return await SqliteFrontier.open(self._path, clock=clock, steady=steady)

    async def damage(self, frontier: Frontier, crawl: str, key: int) -> None:
        with contextlib.closing(sqlite3.connect(self._path, isolation_level=None)) as db:
            assert db.execute("UPDATE task SET payload = x'ff00ff' WHERE key = ?", (key,)).rowcount == 1

    async def write_unreadable_point(self, frontier: Frontier, crawl: str) -> None:
        with contextlib.closing(sqlite3.connect(self._path, isolation_level=None)) as db:
            damaged = "UPDATE point SET point = '{\"at\": 1}' WHERE at = (SELECT max(at) FROM point)"
            assert db.execute(damaged).rowcount == 2


class TestRedisFrontier(FrontierContract):
    _url = ""
    _servers: Sequence[RedisServer] = ()

    @pytest.fixture(autouse=True)
    def _empty_server(self, redis_server: RedisServer) -> None:
        redis_server.call("FLUSHALL")
        self._servers, self._url = [redis_server], redis_server.url

    async def open(self, folder: Path, clock: Callable[[], float], steady: Steady = None) -> Frontier:
        return await RedisFrontier.open(self._url, clock=clock, steady=steady)

    async def damage(self, frontier: Frontier, crawl: str, key: int) -> None:
        """Wherever its record is, only the first half of it is left."""
        assert sum(halve(server, crawl, struct.pack(">q", key)) for server in self._servers) == 1

    async def write_unreadable_point(self, frontier: Frontier, crawl: str) -> None:
        assert sum(spoil_latest_point(server, crawl) for server in self._servers) == 1

    @pytest.mark.parametrize("stall", [0.0, 3.0])
    async def test_a_slot_counts_from_when_it_was_given_also_after_the_server_stood_still(
        self, tmp_path: Path, clock: FakeClock, stall: float
    ) -> None:
        line = SlowLine(clock)
        frontier = await self.open(tmp_path, line, clock.steady)
        await frontier.open_crawl(USUAL)
        await frontier.put(CRAWL, [make_task(1)])
        await frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=2.0))
        await take_one(frontier)
        line.there = stall
        await take(frontier, 0)
        line.back = 0.3
        wait = await frontier.reserve(CRAWL, "a.test")
        (lane,) = await frontier.lanes(CRAWL)
        assert wait == pytest.approx(lane.starts_in - 2.0)
        await frontier.close()


class TestRedisShards(TestRedisFrontier):
    """A crawl in three shards on one server. `make test` proves here what depends on the shard that a key is in."""

    is_sharded = True
    in_make_test = KEYS_AND_PLACES

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
    """A crawl in five shards on a cluster of three nodes. Its calls are those of shards on one server, redirected."""

    in_make_test = names_of(PutPromises) | ACROSS_SHARDS

    @pytest.fixture(autouse=True)
    def _empty_server(self, redis_cluster: RedisCluster) -> None:
        redis_cluster.flush()
        self._servers, self._url = redis_cluster.nodes, redis_cluster.url

    async def open(self, folder: Path, clock: Callable[[], float], steady: Steady = None) -> Frontier:
        return await RedisFrontier.open(f"{self._url}?shards=5", clock=clock, steady=steady)


class TestSqliteBesideOthers(BesideOthers, TestSqliteFrontier):
    """The promises hold while another crawl works on the same hosts."""


class TestRedisBesideOthers(BesideOthers, TestRedisFrontier):
    """The same."""
