"""The keys that an earlier crawl has done, made known in another one.

The two may lie on different nodes of a cluster, so that the keys travel through this process, some at a time."""

from __future__ import annotations

from shoal.frontier.redis.known_keys import know
from shoal.frontier.redis.shard_runner import ShardRunner
from shoal.frontier.redis.shards import Shard
from shoal.frontier.redis.views import queue_names
from shoal.frontier.redis.wire import KEY
from shoal.frontier.rules.dropped_keys import BLOOM, DROPPED, no_keys_to_know


async def know_from(runner: ShardRunner, crawl: str, earlier: str) -> int:
    """Mark what the earlier crawl has done as known; gives how many keys were new."""
    await runner.existing_shards(crawl)
    shards = await runner.existing_shards(earlier)
    await _check(runner, shards)
    undone: set[int] = set()
    for shard in shards:
        undone |= await _undone_in(runner, shard)
    new = 0
    for shard in shards:
        at = b"0"
        while at:
            _, at, found = await runner.read_in(shard, "done_keys", at)
            new += await know(runner, crawl, [key for key in map(int, found) if key not in undone])
    # They may have been dropped meanwhile: then some are missing.
    await _check(runner, shards)
    return new


async def _check(runner: ShardRunner, shards: list[Shard]) -> None:
    """Refuse a crawl that cannot list its keys."""
    async with runner.connections.borrow() as connection:
        for shard in shards:
            await connection.send("HMGET", shard.prefix + "crawl", "keys", "dedup")
        answers = await connection.answers()
    for keys, dedup in answers:
        if keys is not None:
            raise no_keys_to_know(shards[0].crawl, DROPPED)
        if (dedup or b"").startswith(b"bloom"):
            raise no_keys_to_know(shards[0].crawl, BLOOM)


async def _undone_in(runner: ShardRunner, shard: Shard) -> set[int]:
    """The keys of a shard's tasks that are not done. First those that wait: such a task may be lent meanwhile, but not
    the other way round and be missed."""
    queues = await queue_names(runner.connections, shard)
    found: set[int] = set()
    for where in (*queues, b"later", b"held", b"dead"):
        at = b"0" if where in (b"later", b"held", b"dead") else b"-inf"
        while at:
            _, at, keys = await runner.read_in(shard, "undone", where, at)
            found.update(KEY.unpack(key)[0] for key in keys)
    return found
