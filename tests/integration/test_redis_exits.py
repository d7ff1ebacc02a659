"""Exits on a real Redis server that is killed, and what is left of them when a crawl is gone."""

from __future__ import annotations

import asyncio
import random
import struct
from collections import Counter
from typing import Any

import pytest

from shoal.errors import UsageError
from shoal.frontier.redis.frontier import RedisFrontier
from shoal.frontier.redis.shards import prefix_of
from shoal.model import VIA, Budgets, Crawl, CrawlState, Done, ExitUse, Lease, Pool, Result, Retry
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import make_task
from shoal.testing.servers.redis_server import RedisServer
from shoal.worker.outages import until_reachable

CRAWL = "books"
PREFIX = prefix_of(CRAWL)
PROXIES = Pool(
    name="proxies", exits=("x", "y", "z"), interval=0.0, cap=4, quarantine=0.05, max_quarantine=0.1, patience=600.0
)
ACCOUNTS = Pool(name="accounts", exits=("anna", "ben"), interval=0.0, cap=1, exclusive=True, quarantine=0.05)
LANES = [f"{number}.test via {pool.name}" for number in range(4) for pool in (PROXIES, ACCOUNTS)]
TASKS = 400
_HELD = struct.Struct(">ddIIIHHI")


async def opened(own_redis: RedisServer) -> RedisFrontier:
    frontier = await RedisFrontier.open(own_redis.url)
    await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=1000, pools=(PROXIES, ACCOUNTS)))
    return frontier


async def fill(frontier: RedisFrontier, count: int = TASKS) -> None:
    tasks = [make_task(number, LANES[number % len(LANES)], max_attempts=50) for number in range(count)]
    await frontier.put(CRAWL, tasks)


async def take(frontier: RedisFrontier, limit: int = 30, *, worker: str = "w", seconds: float = 60.0) -> list[Lease]:
    return (await frontier.lease([CRAWL], limit, worker=worker, seconds=seconds, horizon=0.1)).leases


def held_leases(own_redis: RedisServer) -> list[tuple[str, str, int]]:
    """Lane, exit and token of every lease, as the keys themselves have them."""
    found = []
    for value in own_redis.call("HVALS", PREFIX + "held"):
        token, _, _, _, index, length, _, _ = _HELD.unpack_from(value)
        lane = value[_HELD.size : _HELD.size + length].decode()
        found.append((lane, exit_at(own_redis, lane, index), int(token)))
    return found


def exit_at(own_redis: RedisServer, lane: str, index: int) -> str:
    """The exit with this index in the lane's pool."""
    names = own_redis.call("HGET", f"{PREFIX}pool:{lane.partition(VIA)[2]}", "b:0").decode().split("\n")
    return str(names[index])


def resting(own_redis: RedisServer, lane: str) -> set[str]:
    """The exits that the lane does not use before a certain time."""
    members = own_redis.call("ZRANGE", f"{PREFIX}rests:{lane}", 0, -1)
    return {exit_at(own_redis, lane, int.from_bytes(member, "big")) for member in members}


def holders(own_redis: RedisServer) -> dict[str, int]:
    """Which lease holds each exit that is held."""
    found = own_redis.call("HGETALL", PREFIX + "exits")
    rows = {name.decode(): int(struct.unpack_from("<6d", row)[4]) for name, row in found.items()}
    return {name: token for name, token in rows.items() if token}


async def check_exits(frontier: RedisFrontier, own_redis: RedisServer) -> None:
    """Exits are in use exactly as far as there are leases that use them."""
    leases = held_leases(own_redis)
    in_flight = {(one.lane, one.exit): one.in_flight for one in await frontier.exits(CRAWL) if one.in_flight}
    assert in_flight == Counter((lane, name) for lane, name, _ in leases)
    assert holders(own_redis) == {name: token for lane, name, token in leases if lane.endswith(ACCOUNTS.name)}
    for lane in LANES:
        failed = [one for one in await frontier.exits(CRAWL) if one.lane == lane and one.streak]
        at_rest = resting(own_redis, lane)
        assert at_rest >= {one.exit for one in failed if not one.in_flight}
        assert not at_rest & {one.exit for one in failed if one.in_flight}


def result_of(lease: Lease, draw: random.Random) -> Result:
    dice = draw.random()
    if dice < 0.2:
        verdict: Any = "failed" if dice < 0.1 else "blocked"
        return Retry(lease=lease, reason="exit", delay=0.01, free=True, exit=ExitUse(verdict=verdict))
    return Done(lease=lease, exit=ExitUse(size=100, elapsed=0.1, session=b"cookies" if dice < 0.3 else None))


async def drain(frontier: RedisFrontier, draw: random.Random) -> None:
    """Work until there is nothing left; time-limited, as a stranded exit would let it wait for ever."""
    async with asyncio.timeout(30):
        while True:
            batch = await until_reachable(
                lambda: frontier.lease([CRAWL], 30, worker="w", seconds=60.0, horizon=0.1), say=str
            )
            if batch.finished:
                return
            await until_reachable(lambda: frontier.settle([result_of(lease, draw) for lease in batch.leases]), say=str)  # noqa: B023 -- awaited at once
            await asyncio.sleep(0 if batch.leases else min(batch.ask_again, 0.05))


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 4))])
async def test_exits_are_used_by_leases_alone_after_the_server_died_and_its_files_tail_is_gone(
    own_redis: RedisServer, seed: int
) -> None:
    draw = random.Random(seed)
    frontier = await opened(own_redis)
    await fill(frontier)
    own_redis.wait_for_the_file()
    safe = (own_redis.append_only_file, own_redis.append_only_file.stat().st_size)
    for _ in range(draw.randrange(4, 8)):
        leases = await take(frontier, 30, seconds=1.0)
        await frontier.settle([result_of(lease, draw) for lease in leases if draw.random() < 0.5])
    own_redis.wait_for_the_file()
    own_redis.kill()
    own_redis.lose_tail(draw, safe=safe)
    own_redis.start()
    await until_reachable(lambda: take(frontier, 0), say=str)
    await check_exits(frontier, own_redis)
    # Nobody works on the leases from before: after a restart they last as long as new ones.
    await frontier.evict("w")
    await drain(frontier, draw)
    await check_exits(frontier, own_redis)
    progress = await frontier.progress(CRAWL)
    assert (progress.done, progress.dead, progress.leased) == (TASKS, 0, 0)
    await frontier.close()


async def test_pools_that_a_crash_cut_off_are_written_again(own_redis: RedisServer) -> None:
    frontier = await opened(own_redis)
    await fill(frontier)
    await take(frontier)
    own_redis.call("HDEL", PREFIX + "pool:proxies", "cap", "quarantine", "size", "marks", "present", "e:y")
    own_redis.call("DEL", PREFIX + "pool:accounts", PREFIX + "pools")
    own_redis.restart()
    await until_reachable(lambda: take(frontier, 0), say=str)
    await check_exits(frontier, own_redis)
    await frontier.evict("w")
    await drain(frontier, random.Random(1))
    assert (await frontier.progress(CRAWL)).dead == 0
    await frontier.close()


async def test_exits_of_a_worker_that_is_gone_are_free_again(own_redis: RedisServer) -> None:
    frontier = await opened(own_redis)
    await fill(frontier)
    taken = await take(frontier, worker="gone")
    assert {lease.exit for lease in taken} == {"x", "y", "z", "anna", "ben"}
    assert await frontier.evict("gone") == len(taken)
    assert (holders(own_redis), held_leases(own_redis)) == ({}, [])
    await check_exits(frontier, own_redis)
    await frontier.close()


async def test_a_crawl_that_was_cancelled_and_resumed_has_its_exits(own_redis: RedisServer) -> None:
    frontier = await opened(own_redis)
    await fill(frontier)
    leases = await take(frontier)
    await frontier.set_state(CRAWL, CrawlState.CANCELLED)
    await frontier.settle([Done(lease=lease, exit=ExitUse()) for lease in leases])
    assert (holders(own_redis), await take(frontier)) == ({}, [])
    await frontier.set_state(CRAWL, CrawlState.RUNNING)
    await drain(frontier, random.Random(2))
    assert (await frontier.progress(CRAWL)).done == TASKS
    await check_exits(frontier, own_redis)
    await frontier.close()


@pytest.mark.parametrize("shards", [1, 3])
async def test_deleting_a_crawl_leaves_no_key_of_its_exits(own_redis: RedisServer, shards: int) -> None:
    frontier = await RedisFrontier.open(f"{own_redis.url}?shards={shards}")
    before = set(own_redis.call("KEYS", "*"))
    pools = (PROXIES, ACCOUNTS) if shards == 1 else (PROXIES,)
    await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=1000, pools=pools))
    await fill(frontier)
    draw = random.Random(3)
    for _ in range(5):
        await frontier.settle([result_of(lease, draw) for lease in await take(frontier)])
    await take(frontier)
    assert any(b":uses:" in key for key in own_redis.call("KEYS", "*"))
    await frontier.delete_crawl(CRAWL)
    left = {key for key in set(own_redis.call("KEYS", "*")) - before if b"{books." in key}
    assert left == set()
    await frontier.close()


async def test_what_is_counted_in_one_place_is_refused_for_a_crawl_in_shards(own_redis: RedisServer) -> None:
    frontier = await RedisFrontier.open(f"{own_redis.url}?shards=3")
    for fields in ({"pools": (ACCOUNTS,)}, {"pools": (PROXIES,), "budgets": Budgets(cost=5.0)}):
        with pytest.raises(UsageError, match="need a crawl in one shard: leave out \\?shards"):
            await frontier.open_crawl(Crawl(id=CRAWL, spider="s", **fields))  # type: ignore[arg-type]
    await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, pools=(PROXIES,)))
    await fill(frontier)
    assert {lease.exit for lease in await take(frontier, 12)} == {"x", "y", "z"}
    await frontier.close()


async def test_hundreds_of_requests_may_be_in_flight_through_one_exit_and_through_hundreds(
    own_redis: RedisServer,
) -> None:
    frontier = await RedisFrontier.open(own_redis.url)
    names = tuple(f"exit-{number:04}" for number in range(700))
    pools = (Pool(name="many", exits=names, interval=0.0), Pool(name="one", exits=("x",), interval=0.0, cap=1000))
    await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=1000, pools=pools))
    for number, lane in enumerate(("a.test via many", "a.test via one")):
        await frontier.put(CRAWL, [make_task(1000 * number + step, lane) for step in range(600)])
    leases = await take(frontier, 1200)
    used = Counter(lease.exit for lease in leases)
    assert used == {"x": 600, **dict.fromkeys(names[:600], 1)}
    assert {one.exit: one.in_flight for one in await frontier.exits(CRAWL, limit=2000)} == used
    await frontier.settle([Done(lease=lease, exit=ExitUse()) for lease in leases[::2]])
    left = Counter(lease.exit for lease in leases[1::2])
    assert {one.exit: one.in_flight for one in await frontier.exits(CRAWL, limit=2000) if one.in_flight} == left
    await frontier.settle([Done(lease=lease, exit=ExitUse()) for lease in leases[1::2]])
    statuses = await frontier.exits(CRAWL, limit=2000)
    assert {one.exit: (one.ok, one.in_flight) for one in statuses} == {name: (n, 0) for name, n in used.items()}
    await frontier.close()


async def test_a_repair_keeps_quarantined_exits_quarantined_and_used_ones_in_use(own_redis: RedisServer) -> None:
    clock = FakeClock()
    frontier = await RedisFrontier.open(own_redis.url, clock=clock)
    pool = Pool(name="proxies", exits=("w", "x", "y", "z"), interval=0.0, cap=2, quarantine=600.0)
    await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=1000, pools=(pool,)))
    await frontier.put(CRAWL, [make_task(number, "a.test via proxies") for number in range(40)])
    leases = await take(frontier, 6)
    assert [lease.exit for lease in leases] == ["w", "x", "y", "z", "w", "x"]
    blocked = [Retry(lease=lease, reason="no", free=True, exit=ExitUse(verdict="blocked")) for lease in leases[1:3]]
    await frontier.settle(blocked)
    seen = [(one.exit, one.in_flight, one.streak) for one in await frontier.exits(CRAWL)]
    assert seen == [("w", 2, 0), ("x", 1, 1), ("y", 0, 1), ("z", 1, 0)]
    own_redis.restart()
    await until_reachable(lambda: take(frontier, 0), say=str)
    assert [(one.exit, one.in_flight, one.streak) for one in await frontier.exits(CRAWL)] == seen
    assert resting(own_redis, "a.test via proxies") == {"y"}
    clock.advance(2.0)  # lanes rest after a repair
    assert [lease.exit for lease in await take(frontier, 9)] == ["z"]
    await frontier.settle([Done(lease=leases[5], exit=ExitUse())])
    clock.advance(600.0)
    assert [lease.exit for lease in await take(frontier, 9)][:3] == ["y", "w", "x"]
    await frontier.close()
