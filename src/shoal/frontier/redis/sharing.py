"""Crawls that share hosts lie in the same number of shards: a script finds all lanes of a host in one slot."""

from __future__ import annotations

from shoal.errors import UsageError
from shoal.frontier.redis.lost_crawl import CRAWLS
from shoal.frontier.redis.shard_runner import ShardRunner
from shoal.model import Crawl
from shoal.text.errors import several

SHARING = "shoal:sharing"  # crawl → number of its shards; only crawls that share hosts


async def shards_for(runner: ShardRunner, crawl: Crawl) -> int:
    """In how many shards this crawl is to be cut if it is a new one; 0: nobody said. The first of the crawls that share
    hosts decides for all."""
    asked = runner.connections.shards
    if crawl.pace_scope == "crawl":
        return asked
    async with runner.connections.borrow() as connection:
        await connection.send("SISMEMBER", CRAWLS, crawl.id)
        await connection.send("HGETALL", SHARING)
        is_known, numbers = await connection.answers()
        if is_known:
            return asked
        number = asked or int(numbers[1] if numbers else 1)
        _check(crawl, number, numbers)
        await connection.call("HSET", SHARING, crawl.id, number)
        try:
            # Two that begin at once may both have seen no other.
            _check(crawl, number, await connection.call("HGETALL", SHARING))
        except UsageError:
            await connection.call("HDEL", SHARING, crawl.id)
            raise
    return number


def _check(crawl: Crawl, number: int, numbers: list[bytes]) -> None:
    for other, its_number in zip(numbers[::2], map(int, numbers[1::2]), strict=True):
        if its_number != number and other.decode() != crawl.id:
            raise UsageError(
                f"crawl {crawl.id!r} cannot lie in {several(number, 'shard')}: it would share hosts with crawl"
                f" {other.decode()!r}, which lies in {its_number}. Write ?shards={its_number} behind the frontier's"
                ' URL, or give it hosts of its own with pace_scope = "crawl"'
            )
