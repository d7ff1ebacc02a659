"""Steps between shards that others come between: links on their way, the two looks at the end, allowances."""

from __future__ import annotations

import signal
import sys
from collections.abc import AsyncIterator

import pytest
from sharded_crawl import CRAWL, SHARDS, lanes_apart, opened, run, sharded, take

from shoal.frontier.base import Frontier
from shoal.frontier.redis.connections import RedisConnections
from shoal.frontier.redis.put import ask_for_allowance
from shoal.frontier.redis.repair import Repair
from shoal.frontier.redis.runner import ShardRunner
from shoal.frontier.redis.shards import prefix_of, shard_of
from shoal.frontier.redis.wire import Batch
from shoal.model import CrawlState, Done, Lease
from shoal.testing.contract.frontier.case import make_task
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.waiting import eventually

DYING = """
import asyncio, os, signal, sys
from shoal.frontier.redis.frontier import RedisFrontier
from shoal.frontier.redis.outbox import Outbox
from shoal.frontier.redis.settle import Settler
from shoal.model import Done
from shoal.testing.contract.frontier.case import make_task

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

class Dying(Outbox):
    pass

setattr(Dying, sys.argv[2], die)

async def main():
    frontier = await RedisFrontier.open(sys.argv[1])
    frontier._settler = Settler(frontier._runner, frontier._samples, Dying(frontier._runner, frontier._samples))
    leases = (await frontier.lease(["books"], 1, worker="w", seconds=60.0, horizon=0.0)).leases
    found = [make_task(number, sys.argv[3]) for number in range(10, 20)]
    await frontier.settle([Done(lease=leases[0], found=found)])

asyncio.run(main())
"""


@pytest.mark.parametrize("step", ["deliver", pytest.param("_take_out", marks=pytest.mark.full)])
async def test_links_of_a_settler_killed_on_the_way_are_delivered_by_the_next_that_asks(
    redis: RedisServer, frontier: Frontier, step: str
) -> None:
    home, away = lanes_apart(2)
    await frontier.put(CRAWL, [make_task(1, home)])
    assert run([sys.executable, "-c", DYING, redis.url, step, away]) == -signal.SIGKILL
    progress = await frontier.progress(CRAWL)
    assert (progress.done, progress.is_finished) == (1, False)
    found: list[Lease] = []
    outbox = prefix_of(CRAWL, shard_of(home, of=SHARDS), of=SHARDS) + "outbox"

    async def has_all() -> bool:
        batch = await frontier.lease([CRAWL], 100, worker="w", seconds=60.0, horizon=0.0)
        assert batch.finished == ()
        found.extend(batch.leases)
        return len(found) >= 10 and not redis.call("EXISTS", outbox)

    await eventually(has_all, pause=0.05)
    assert sorted(lease.task.key for lease in found) == list(range(10, 20))
    await frontier.settle([Done(lease=lease) for lease in found])
    assert (await frontier.lease([CRAWL], 1, worker="w", seconds=60.0, horizon=0.0)).finished == (CRAWL,)
    assert (await frontier.progress(CRAWL)).known == 11


@pytest.fixture
async def runner(redis: RedisServer, frontier: Frontier) -> AsyncIterator[ShardRunner]:
    """Runs the scripts one step at a time, as another process would."""
    connections = RedisConnections(sharded(redis.url))
    repair = Repair(connections).run
    yield ShardRunner(connections, repair, repair)
    await connections.close()


async def test_a_shard_that_moved_after_the_first_look_is_not_finished_by_the_second(
    frontier: Frontier, runner: ShardRunner
) -> None:
    """The end is told by two looks. Between the first looks at two shards a link goes from the second to the first."""
    first, second = lanes_apart(2)
    await frontier.put(CRAWL, [make_task(1, second)])
    (lease,) = await take(frontier)
    shards = {lane: (await runner.shards(CRAWL))[shard_of(lane, of=SHARDS)] for lane in (first, second)}

    async def look(lane: str) -> bytes:
        ending: bytes = (await runner.change_in(shards[lane], "survey", 1, 0.0))[3]
        return ending

    async def look_again(lane: str, seen: bytes) -> bool:
        return bool((await runner.change_in(shards[lane], "finish", seen.removeprefix(b"q")))[1] == b"1")

    seen_first = await look(first)
    await frontier.settle([Done(lease=lease, found=[make_task(2, first)])])
    seen_second = await look(second)
    assert (seen_first[:1], seen_second[:1]) == (b"q", b"q")
    assert not await look_again(first, seen_first)
    await frontier.settle([Done(lease=lease) for lease in await take(frontier)])
    assert not await look_again(first, seen_first)
    assert await look_again(second, seen_second)
    assert (await frontier.progress(CRAWL)).state == CrawlState.RUNNING
    assert await look_again(first, await look(first))


async def test_an_allowance_that_comes_late_counts_for_nothing(redis: RedisServer, runner: ShardRunner) -> None:
    other = await opened(sharded(redis.url), pages=10)
    a, b = lanes_apart(2)
    late = [make_task(number, a) for number in range(10)]
    shards = await runner.shards(CRAWL)
    served, grants = await ask_for_allowance(runner, shards, late)
    assert served == 10
    assert (await other.put(CRAWL, [make_task(100 + number, b) for number in range(12)])).new == 10
    shard = shards[shard_of(a, of=SHARDS)]
    batch = Batch(shard)
    tasks = batch.encode(late)
    answer = await runner.change_in(shard, "put", 0, *batch.labels, *tasks, 0, *grants[shard.number])
    assert (answer[2], len(answer[6])) == (0, 10)
    assert (await other.put(CRAWL, late)).refused == {task.key: "max_pages" for task in late}
    await other.close()
