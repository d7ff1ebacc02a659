"""Deleting crawls and dropping keys, in bounded steps of one script each; the number of shards of new crawls."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import Literal

from redis.exceptions import ResponseError

from shoal.errors import UsageError
from shoal.frontier.redis.runner import CRAWLS, SHARDS, WORKERS, ShardRunner, other_layout
from shoal.frontier.redis.scripts import LAYOUT_VERSION
from shoal.frontier.redis.shards import prefix_of
from shoal.frontier.redis.views import beats, state_of
from shoal.frontier.rules.keys import not_finished
from shoal.model import Crawl, CrawlState
from shoal.text.errors import several

SHARING = "shoal:sharing"  # crawl → number of its shards; only crawls that share hosts


async def shards_for(runner: ShardRunner, crawl: Crawl) -> int:
    """The number of shards for a new crawl; 0: not specified. Crawls that share hosts must have the same number, so
    that a script finds all lanes of a host in one slot: the first of them decides."""
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
            # Two crawls that begin at the same time may both have seen no other.
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


async def delete_crawl(runner: ShardRunner, crawl: str, *, seconds: float = math.inf) -> bool:
    """See `Frontier.delete_crawl`. A crawl of a newer layout is refused: it may have other keys."""
    began = time.monotonic()
    await runner.learn(crawl)
    shards = await runner.all_shards(crawl)
    version = await runner.version_of(crawl)
    if version is not None and version > LAYOUT_VERSION:
        raise other_layout(crawl, version, shown=runner.connections.shown)
    async with runner.connections.borrow(seconds=None) as connection:
        if len(shards) > 1:
            # If this process dies half way, the next client that opens the crawl deletes the rest first.
            await connection.call("HSET", SHARDS, crawl, -len(shards))
        # One step in each shard first: from then on no shard leases anything.
        left = [shard for shard in shards if await connection.run("delete", shard.prefix) == b"1"]
        while left:
            if time.monotonic() - began >= seconds:
                runner.forget_layout(crawl)
                return False
            if await connection.run("delete", left[0].prefix) != b"1":
                left.pop(0)
        if len(shards) > 1:
            await connection.call("HDEL", SHARDS, crawl)
        await connection.call("HDEL", SHARING, crawl)
        await connection.call("SREM", CRAWLS, crawl)
        gone = [beat.worker for beat in await beats(connection) if beat.crawl == crawl]
        for worker in gone:
            await connection.call("ZREM", WORKERS + "seen", worker)
            await connection.call("HDEL", WORKERS + "beats", worker)
        await connection.call("UNLINK", f"{WORKERS}beats:{crawl}", f"{WORKERS}seen:{crawl}")
    runner.forget_layout(crawl)
    return True


async def half_deleted(runner: ShardRunner) -> list[str]:
    """Crawls whose record says so, or whose negative number of shards does: their first shards may be gone."""
    names = await runner.all_crawls()
    async with runner.connections.borrow() as connection:
        for name in names:
            of = len(await runner.all_shards(name))
            await connection.send("HGET", prefix_of(name, of=of) + "crawl", "state")
            await connection.send("HGET", SHARDS, name)
        answers = await connection.answers_or_errors()
    return [
        name
        for name, state, number in zip(names, answers[::2], answers[1::2], strict=True)
        if not isinstance(state, ResponseError) and (state == b"deleting" or (number or b"").startswith(b"-"))
    ]


async def drop_keys(runner: ShardRunner, crawl: str, *, seconds: float) -> bool:
    """Mark every shard, so that none can run again, then drop the keys. If the process dies while marking, no key is
    dropped, and the next call removes the marks if the crawl is not finished."""
    began = time.monotonic()
    shards = await runner.existing_shards(crawl)
    marked = [await runner.change_in(shard, "drop_keys", "mark") for shard in shards]
    if any(answer[2] == b"0" for answer in marked):
        for shard in shards:
            await runner.change_in(shard, "drop_keys", "unmark")
        state = state_of([answer[1] for answer in marked])
        raise not_finished(crawl, CrawlState.RUNNING if state is CrawlState.FINISHED else state)
    for shard in shards:
        while (await runner.change_in(shard, "drop_keys", "drop"))[3] == b"1":
            if time.monotonic() - began >= seconds:
                return False
    return True


def keys_of(records: Sequence[Mapping[bytes, bytes]]) -> Literal["known", "dropping", "dropped"]:
    """Whether a crawl's keys are known, from the records of its shards."""
    found = {record.get(b"keys", b"known") for record in records}
    if found == {b"dropped"}:
        return "dropped"
    return "known" if found == {b"known"} else "dropping"
