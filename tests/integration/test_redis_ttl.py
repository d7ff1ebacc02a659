"""Keys that expire in Redis: what lies there, what goes, and what a crash may leave."""

from __future__ import annotations

import itertools
import random

import pytest

from shoal.errors import SettingError
from shoal.frontier.redis.frontier import RedisFrontier
from shoal.frontier.redis.shards import prefix_of
from shoal.model import Crawl, Dead, DeadFilter, Done, TaskState
from shoal.settings.layers import resolve
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import make_task
from shoal.testing.servers.redis_server import RedisServer
from shoal.worker.outages import until_reachable

CRAWL = "weekly"
PREFIX = prefix_of(CRAWL)
TTL = 100.0


async def opened(own_redis: RedisServer, clock: FakeClock, *, ttl: float = TTL) -> RedisFrontier:
    frontier = await RedisFrontier.open(own_redis.url, clock=clock)
    await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=1_000_000, dedup_ttl=ttl))
    return frontier


async def finish(frontier: RedisFrontier, keys: list[int]) -> int:
    """Put these keys and see them done; gives how many were new."""
    new = (await frontier.put(CRAWL, [make_task(key) for key in keys])).new
    while leases := (await frontier.lease([CRAWL], 500, worker="w", seconds=10.0, horizon=0.0)).leases:
        await frontier.settle([Done(lease=lease) for lease in leases])
    return new


def random_keys(seed: int, count: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.getrandbits(64) - 2**63 for _ in range(count)]


def keys_in(own_redis: RedisServer, pattern: str) -> int:
    return sum(own_redis.call("SCARD", name.decode()) for name in own_redis.call("KEYS", f"{PREFIX}{pattern}"))


def where(own_redis: RedisServer, key: int) -> list[str]:
    """The sets that hold a key."""
    names = [name.decode() for kind in ("seen:*", "past:*") for name in own_redis.call("KEYS", PREFIX + kind)]
    return sorted(name.removeprefix(PREFIX) for name in names if own_redis.call("SISMEMBER", name, key))


async def test_keys_stay_in_compact_sets_and_each_is_in_one(own_redis: RedisServer) -> None:
    clock = FakeClock()
    frontier = await opened(own_redis, clock)
    keys = random_keys(1, 6000)
    await finish(frontier, keys[:1500])
    clock.advance(0.6 * TTL)
    await finish(frontier, keys[1500:4000])
    await frontier.put(CRAWL, [make_task(key) for key in keys[4000:]])
    names = own_redis.call("KEYS", PREFIX + "seen:*") + own_redis.call("KEYS", PREFIX + "past:*")
    assert {own_redis.call("OBJECT", "ENCODING", name.decode()) for name in names} == {b"intset"}
    assert max(own_redis.call("SCARD", name.decode()) for name in names) < 400
    assert [keys_in(own_redis, kind) for kind in ("past:0:*", "past:1:*", "seen:*")] == [1500, 2500, 2000]
    assert (await frontier.put(CRAWL, [make_task(key) for key in keys])).duplicates == 6000
    await frontier.delete_crawl(CRAWL)
    assert own_redis.call("KEYS", f"shoal:{{*}}:{CRAWL}:*") == []
    await frontier.close()


async def test_what_expired_is_deleted_a_little_with_every_call(own_redis: RedisServer) -> None:
    clock = FakeClock()
    frontier = await opened(own_redis, clock)
    # A call sweeps up to 200 sets, and one more set is made for every 224 keys: a few more than two hundred.
    keys = [*range(46_000)]
    for start in range(0, len(keys), 11_500):
        await frontier.put(CRAWL, [make_task(key) for key in keys[start : start + 11_500]])
    await finish(frontier, [])
    before = own_redis.call("DBSIZE")
    clock.advance(1.5 * TTL)
    sizes = [before]
    while own_redis.call("KEYS", PREFIX + "past:*") and len(sizes) < 10:
        assert (await frontier.look_up(CRAWL, 7)).state == TaskState.UNKNOWN
        await frontier.lease([CRAWL], 1, worker="w", seconds=10.0, horizon=0.0)
        sizes.append(own_redis.call("DBSIZE"))
    assert len(sizes) == 3
    assert max(earlier - later for earlier, later in itertools.pairwise(sizes)) <= 200
    assert (await frontier.progress(CRAWL)).done == len(keys)
    await frontier.close()


async def test_a_crawl_without_a_ttl_has_none_of_this(own_redis: RedisServer) -> None:
    frontier = await opened(own_redis, FakeClock(), ttl=0.0)
    await finish(frontier, [*range(300)])
    assert own_redis.call("KEYS", PREFIX + "past:*") == []
    assert keys_in(own_redis, "seen:*") == 300
    assert own_redis.call("EXISTS", PREFIX + "turns") == 0
    await frontier.close()


async def test_repairs_what_a_torn_write_left_of_keys_that_expire(own_redis: RedisServer) -> None:
    """Each half of a script's writes that a crash can keep, made by hand."""
    clock = FakeClock()
    frontier = await opened(own_redis, clock)
    await finish(frontier, [*range(1000, 1400)])
    clock.advance(1.6 * TTL)
    await finish(frontier, [*range(100)])
    clock.advance(0.6 * TTL)
    await frontier.put(CRAWL, [make_task(key) for key in range(100, 140)])
    leases = (await frontier.lease([CRAWL], 20, worker="w", seconds=1000.0, horizon=0.0)).leases
    await frontier.settle([Done(lease=leases[0]), Dead(lease=leases[1], reason="gone")])
    now = own_redis.call("HGET", PREFIX + "turns", "generation").decode()
    # A settle cut off after its keys were moved, and one before they were taken from `seen`; the same of a drop.
    for key, is_moved in ((102, True), (103, False), (101, True)):
        (bucket,) = where(own_redis, key)
        own_redis.call("SADD", f"{PREFIX}past:{now}:{bucket.partition(':')[2]}", key)
        if is_moved:
            own_redis.call("SREM", PREFIX + bucket, key)
    own_redis.call("HSET", PREFIX + "count", "done", 7, "seen", 1)
    own_redis.call("HSET", PREFIX + "turns", "ended0", 5, "ended1", 5, "ended2", 5)
    own_redis.restart()
    await until_reachable(lambda: frontier.put(CRAWL, [make_task(key) for key in range(1)]), say=str)
    progress = await frontier.progress(CRAWL)
    assert (progress.queued, progress.leased, progress.done, progress.dead) == (20, 18, 501, 1)
    for key in (101, 102, 103):
        assert [name.partition(":")[0] for name in where(own_redis, key)] == ["seen"]
    assert own_redis.call("HGET", PREFIX + "count", "seen") == b"39"
    turns = own_redis.call("HMGET", PREFIX + "turns", "expired", "ended0", "ended1", "ended2")
    assert sorted(map(int, turns)) == [0, 1, 100, 400]
    clock.advance(1.5 * TTL)
    assert await frontier.drop_dead(CRAWL, DeadFilter()) == 1
    assert (await frontier.put(CRAWL, [make_task(key) for key in range(140)])).new == 101
    await frontier.close()


async def test_counts_are_right_after_a_restart_that_came_after_an_expiry(own_redis: RedisServer) -> None:
    clock = FakeClock()
    frontier = await opened(own_redis, clock)
    for _ in range(3):
        assert await finish(frontier, [*range(50)]) == 50
        clock.advance(1.5 * TTL)
    await frontier.forget(CRAWL, [1])
    await finish(frontier, [1, 2])
    await frontier.forget(CRAWL, [1])
    await frontier.know(CRAWL, [1, *range(100, 140)])
    clock.advance(1.5 * TTL)
    await finish(frontier, [3])
    await frontier.know(CRAWL, [*range(100, 120)])
    before = await frontier.progress(CRAWL)
    own_redis.restart()
    await until_reachable(lambda: frontier.put(CRAWL, []), say=str)
    after = await frontier.progress(CRAWL)
    assert (before.done, after.done, after.known) == (153, 153, 153)
    assert after.epoch == before.epoch + 1
    await frontier.close()


async def test_the_keys_of_a_filter_cannot_expire(own_redis: RedisServer) -> None:
    frontier = await RedisFrontier.open(own_redis.url)
    with pytest.raises(SettingError, match="dedup_ttl needs dedup=exact"):
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s", dedup="bloom:0.001", dedup_ttl=5.0))
    with pytest.raises(SettingError, match="dedup_ttl needs dedup=exact"):
        resolve([("shoal.toml", {"dedup_ttl": "4d"}), ("command line", {"dedup": "bloom:0.01"})])
    await frontier.close()
