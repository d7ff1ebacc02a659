"""Hosts that crawls share on a Redis server: what their records look like, and what a lone crawl pays for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from shoal.frontier.redis.frontier import RedisFrontier
from shoal.frontier.redis.shards import prefix_of
from shoal.model import Crawl, Done, LaneUpdate, Lease, Pool
from shoal.testing.contract.frontier.case import make_task
from shoal.testing.servers.redis_server import RedisServer

SLOT = "shoal:{0-1}::"
ACCOUNTS = Pool(name="pool", exits=("anna",), interval=0.0, exclusive=True)


@pytest.fixture
async def frontier(redis: RedisServer) -> AsyncIterator[RedisFrontier]:
    frontier = await RedisFrontier.open(redis.url)
    yield frontier
    await frontier.close()


async def begin(frontier: RedisFrontier, crawl: str, *lanes: str, **fields: Any) -> None:
    await frontier.open_crawl(Crawl(**{"id": crawl, "spider": "s", "interval": 0.0, "cap": 1000, **fields}))
    await frontier.put(crawl, [make_task(number, lane) for number, lane in enumerate(lanes * 3)])


async def take(frontier: RedisFrontier, crawl: str, limit: int = 100) -> list[Lease]:
    return (await frontier.lease([crawl], limit, worker="w", seconds=60.0, horizon=0.0)).leases


def crawls_at(redis: RedisServer, lane: str) -> list[str]:
    return sorted((redis.call("HGET", f"{SLOT}hosts", lane) or b"").decode().split())


async def commands_of_a_lease(redis: RedisServer, frontier: RedisFrontier, crawl: str) -> dict[str, int]:
    """How often each command ran while a worker took leases and settled them."""
    await frontier.settle([Done(lease=lease) for lease in await take(frontier, crawl, 3)])
    redis.call("CONFIG", "RESETSTAT")
    leases = await take(frontier, crawl, 6)
    assert len(leases) == 6
    await frontier.settle([Done(lease=lease) for lease in leases])
    stats = redis.call("INFO", "commandstats")
    return {name: found["calls"] for name, found in stats.items() if name != "cmdstat_info"}


async def test_a_lone_crawl_looks_at_nothing_however_many_crawls_there_are(
    redis: RedisServer, frontier: RedisFrontier
) -> None:
    """What shoal promises of the cost: the same commands as a crawl that shares no host."""
    lanes = ["a.test", "b.test", "c.test"]
    for number in range(20):
        await begin(frontier, f"other-{number}", f"{number}.test")
    await begin(frontier, "apart", *lanes, pace_scope="crawl")
    await begin(frontier, "alone", *lanes)
    assert await commands_of_a_lease(redis, frontier, "alone") == await commands_of_a_lease(redis, frontier, "apart")


async def test_a_deleted_crawl_leaves_the_records_of_hosts(redis: RedisServer, frontier: RedisFrontier) -> None:
    await begin(frontier, "one", "a.test", "b.test", "c.test via pool", pools=(ACCOUNTS,))
    await begin(frontier, "two words", "a.test")
    assert crawls_at(redis, "a.test") == ["one", "two", "words"]
    assert redis.call("HKEYS", f"{SLOT}accounts") == []
    await take(frontier, "one")
    assert redis.call("HGETALL", f"{SLOT}accounts") == {b"anna": b"one"}
    await frontier.delete_crawl("one")
    assert redis.call("HKEYS", f"{SLOT}hosts") == [b"a.test"]
    assert redis.call("EXISTS", f"{SLOT}accounts") == 0
    await frontier.delete_crawl("two words")
    kept = redis.call("KEYS", f"{SLOT}*")
    assert sorted(kept) == [f"{SLOT}kept:{lane}".encode() for lane in ("a.test", "b.test", "c.test via pool")]
    assert all(0 < redis.call("PTTL", key.decode()) <= 60_000 for key in kept)


async def test_a_restart_that_lost_the_records_of_hosts_is_repaired(
    redis: RedisServer, frontier: RedisFrontier
) -> None:
    for crawl in ("one", "two"):
        await begin(frontier, crawl, "a.test", "b.test")
    await take(frontier, "one", 1)
    redis.call("DEL", f"{SLOT}hosts")
    for crawl in ("one", "two"):
        redis.call("HSET", f"{prefix_of(crawl)}crawl", "run", "earlier")
        await frontier.put(crawl, [make_task(99, "a.test")])
    for lane in ("a.test", "b.test"):
        assert crawls_at(redis, lane) == ["one", "two"]
    await frontier.update_lane("one", "b.test", LaneUpdate(rest_seconds=600.0))
    await frontier.update_lane("two", "b.test", LaneUpdate())
    (held,) = [lane.held for lane in await frontier.lanes("two") if lane.lane == "b.test"]
    assert held is not None
    assert (held.crawl, held.by) == ("one", "rest")


@pytest.mark.parametrize("key", ["lanes", "crawl", "leases", "rules", "shared"])
async def test_another_crawl_whose_keys_cannot_be_read_stops_nobody(
    redis: RedisServer, frontier: RedisFrontier, key: str
) -> None:
    await begin(frontier, "one", "a.test", needs_rules=True)
    await frontier.update_lane("one", "a.test", LaneUpdate(rules=b"allow", rules_seconds=600.0))
    await begin(frontier, "two", "a.test", needs_rules=True, fastest=0.1)
    await take(frontier, "one", 1)
    redis.call("DEL", f"{prefix_of('one')}{key}")
    redis.call("SET", f"{prefix_of('one')}{key}", "not yours")
    assert len(await take(frontier, "two", 1)) == 1


async def test_crawls_that_share_hosts_take_together_about_what_the_server_says(
    redis: RedisServer, frontier: RedisFrontier
) -> None:
    names = [f"books-{number}" for number in range(40)]
    for name in names:
        await begin(frontier, name, "a.test", "b.test", "c.test", settings={"record": "x" * 3000})
    told = sum([(await frontier.size(name)).bytes for name in names])
    taken = sum(redis.call("MEMORY", "USAGE", key, "SAMPLES", 0) for key in redis.call("KEYS", "*"))
    assert 0.9 * taken < told < 1.1 * taken
