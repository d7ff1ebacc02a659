"""Dedup by Bloom filters: how often they are wrong, what they cost, and that nothing else changes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from shoal.errors import SettingError, UsageError
from shoal.frontier.redis.frontier import RedisFrontier
from shoal.frontier.sqlite.frontier import SqliteFrontier
from shoal.model import Crawl, Done, TaskState
from shoal.settings.layers import resolve
from shoal.testing.contract.frontier.case import make_task
from shoal.testing.servers.redis_server import RedisServer
from shoal.worker.outages import until_reachable

ASKED = 0.01
KEYS = 50_000


async def opened(own_redis: RedisServer, crawl: str, dedup: str) -> RedisFrontier:
    frontier = await RedisFrontier.open(own_redis.url)
    await frontier.open_crawl(Crawl(id=crawl, spider="s", interval=0.0, cap=1000, dedup=dedup))
    return frontier


def memory_of(own_redis: RedisServer, pattern: str) -> int:
    return sum(own_redis.call("MEMORY", "USAGE", key.decode(), "SAMPLES", 0) for key in own_redis.call("KEYS", pattern))


async def put_all(frontier: RedisFrontier, crawl: str, keys: list[int]) -> int:
    """How many of them were new."""
    new = 0
    for start in range(0, len(keys), 5000):
        new += (await frontier.put(crawl, [make_task(key) for key in keys[start : start + 5000]])).new
    return new


# Five seconds: an error rate of one in a hundred needs this many keys to be measured.
# Slow because 50,000 keys are put four times: among few, a filter's error cannot be told from chance.
async def test_a_filter_misses_no_more_new_keys_than_asked_and_is_smaller(own_redis: RedisServer) -> None:
    draw = random.Random(5)
    hashed = [draw.getrandbits(64) - 2**63 for _ in range(KEYS)]
    counted = [*range(KEYS)]
    frontier = await opened(own_redis, "bloom", f"bloom:{ASKED}")
    assert await put_all(frontier, "bloom", hashed) > KEYS * (1 - 3 * ASKED)
    small = memory_of(own_redis, "shoal:{0-1}:bloom:bloom:*")
    assert await put_all(frontier, "bloom", hashed) == 0
    assert await put_all(frontier, "bloom", counted) > KEYS * (1 - 3 * ASKED)
    assert own_redis.call("HGET", "shoal:{0-1}:bloom:crawl", "filters") == b"2"
    await frontier.open_crawl(Crawl(id="exact", spider="s", interval=0.0))
    assert await put_all(frontier, "exact", hashed) == KEYS
    assert small < memory_of(own_redis, "shoal:{0-1}:exact:seen:*") / 3
    assert memory_of(own_redis, "shoal:{0-1}:bloom:seen:*") == 0
    for crawl in ("bloom", "exact"):
        await frontier.delete_crawl(crawl)
        assert own_redis.call("KEYS", f"shoal:{{*}}:{crawl}:*") == []
    await frontier.close()


async def test_a_crawl_with_a_filter_runs_to_its_end(own_redis: RedisServer) -> None:
    frontier = await opened(own_redis, "run", "bloom:0.000001")
    await frontier.put("run", [make_task(0)])
    while True:
        batch = await frontier.lease(["run"], 50, worker="w", seconds=60.0, horizon=1.0)
        if batch.finished:
            break
        found = {
            lease.token: [make_task((lease.task.key * 7 + step) % 997) for step in range(9)] for lease in batch.leases
        }
        await frontier.settle([Done(lease=lease, found=found[lease.token]) for lease in batch.leases])
    assert (await frontier.progress("run")).done == 997
    assert (await frontier.look_up("run", 5)).state == TaskState.DONE
    assert (await frontier.look_up("run", 5000)).state == TaskState.UNKNOWN
    with pytest.raises(UsageError, match="Bloom filter, which cannot forget"):
        await frontier.forget("run", [5])
    await frontier.close()


async def test_a_crawl_keeps_the_dedup_it_began_with(own_redis: RedisServer) -> None:
    frontier = await opened(own_redis, "kept", "bloom:0.001")
    await frontier.put("kept", [make_task(1)])
    again = await frontier.open_crawl(Crawl(id="kept", spider="s", dedup="exact"))
    assert again.dedup == "bloom:0.001"
    assert (await frontier.put("kept", [make_task(1)])).new == 0
    await frontier.close()


async def test_a_filter_is_repaired_after_a_restart(own_redis: RedisServer) -> None:
    frontier = await opened(own_redis, "again", "bloom:0.000001")
    await frontier.put("again", [make_task(number) for number in range(300)])
    leases = (await frontier.lease(["again"], 20, worker="w", seconds=60.0, horizon=0.0)).leases
    await frontier.settle([Done(lease=lease) for lease in leases[:10]])
    own_redis.call("DEL", "shoal:{0-1}:again:bloom:1")
    own_redis.restart()
    waiting = [make_task(number) for number in range(300) if number not in {lease.task.key for lease in leases[:10]}]
    assert (await until_reachable(lambda: frontier.put("again", waiting), say=str)).new == 0
    progress = await frontier.progress("again")
    assert (progress.done, progress.leased, progress.queued) == (10, 10, 280)
    await frontier.close()


async def test_a_filter_knows_keys_without_a_task_also_after_a_restart(own_redis: RedisServer) -> None:
    frontier = await opened(own_redis, "told", "bloom:0.000001")
    assert await frontier.know("told", range(70_000)) > 69_990
    assert await frontier.know("told", range(70_000)) == 0
    assert own_redis.call("HGET", "shoal:{0-1}:told:crawl", "filters") == b"2"
    await frontier.put("told", [make_task(number) for number in range(69_990, 70_010)])
    leases = (await frontier.lease(["told"], 5, worker="w", seconds=60.0, horizon=0.0)).leases
    await frontier.settle([Done(lease=lease) for lease in leases])
    own_redis.restart()
    assert (await until_reachable(lambda: frontier.put("told", [make_task(7)]), say=str)).duplicates == 1
    progress = await frontier.progress("told")
    assert (progress.done, progress.queued, progress.known) == (5, 5, 10)
    await frontier.close()


async def test_sqlite_refuses_a_filter(tmp_path: Path) -> None:
    frontier = await SqliteFrontier.open(tmp_path / "shoal.db")
    with pytest.raises(UsageError, match="needs a Redis frontier"):
        await frontier.open_crawl(Crawl(id="c", spider="s", dedup="bloom:0.001"))
    await frontier.close()


@pytest.mark.parametrize("text", ["bloom", "bloom:", "bloom:0", "bloom:2", "bloom:nan", "cuckoo:0.1", "exact:1", ""])
def test_a_dedup_that_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(SettingError, match="write exact, or bloom"):
        resolve([("command line", {"dedup": text})])


def test_a_dedup_may_be_a_filter() -> None:
    assert resolve([("command line", {"dedup": "bloom:0.001"})]).values.dedup == "bloom:0.001"
