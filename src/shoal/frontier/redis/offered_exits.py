"""Exits that workers offer at the Redis frontier: said with each lease call; new ones are made known to all lanes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from shoal.frontier.redis.control import walk
from shoal.frontier.redis.shard_runner import Call, ShardRunner
from shoal.frontier.redis.shards import Shard
from shoal.frontier.redis.wire import encode_limits, encode_pools
from shoal.model import Pool


def offering(shards: Sequence[Shard], offers: Sequence[Pool]) -> list[Call]:
    """The scripts that say what a worker offers, to go before those that lend."""
    args = encode_limits(offers)
    return [(shard, "offer", args) for shard in shards] if offers else []


async def offer_first(runner: ShardRunner, shards: Sequence[Shard], offers: Sequence[Pool]) -> None:
    """Offer what this process has not offered before, so that the same call lends through it."""
    calls = [call for call in offering(shards, offers) if runner.offered.get(call[0]) != list(call[2])]
    if calls:
        await take_over(runner, calls, await runner.run(calls))


async def take_over(runner: ShardRunner, calls: Sequence[Call], answers: Sequence[list[Any]]) -> bool:
    """Make known which exits came or are gone, where the answers ask for it; gives whether that was needed.

    If this process dies in between, the next call of any worker that offers something does it."""
    changed = [shard for (shard, _, _), answer in zip(calls, answers, strict=True) if answer[1:] == [b"1"]]
    for shard in changed:
        async with runner.connections.borrow_at(shard.prefix) as connection:
            record = await connection.call("HGET", shard.prefix + "crawl", "pools")
        pools = msgspec.json.decode(record, type=tuple[Pool, ...]) if record else ()
        await runner.change_in(shard, "pools", *encode_pools(pools))
        await walk(runner, shard, "pools")
        await runner.change_in(shard, "offered")
    runner.offered |= {shard: list(args) for shard, _, args in calls}
    return bool(changed)
