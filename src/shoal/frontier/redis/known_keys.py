"""Keys that are known without a task, chunk by chunk: each chunk is one step, and all of them may be repeated."""

from __future__ import annotations

from collections.abc import Sequence

from shoal.frontier.redis.connection import Argument
from shoal.frontier.redis.shard_runner import ShardRunner, checked
from shoal.frontier.redis.shards import Shard
from shoal.frontier.redis.wire import KEY

MAX_KEYS = 200  # per script: all other clients wait for a script
SCRIPTS_AT_ONCE = 20  # per round trip

Chunk = Sequence[tuple[int, bytes]]


async def know(runner: ShardRunner, crawl: str, keys: Sequence[int]) -> int:
    """Tell every shard: only a task's lane would say which one. Gives how many keys were new."""
    shards = await runner.existing_shards(crawl)
    # All of them are packed before the first is sent: one that is no key leaves nothing behind.
    packed = [(key, KEY.pack(key)) for key in dict.fromkeys(keys)]
    chunks = [packed[start : start + MAX_KEYS] for start in range(0, len(packed), MAX_KEYS)]
    new = 0
    for start in range(0, len(chunks), SCRIPTS_AT_ONCE):
        some = chunks[start : start + SCRIPTS_AT_ONCE]
        unknown = await _unknown(runner, shards, some) if len(shards) > 1 else None
        # The first shard counts, so it is told first: after a failure in between, no key is known and not counted.
        new += sum(await _learn(runner, shards[0], some, counted=unknown))
        for shard in shards[1:]:
            await _learn(runner, shard, some, counted=set())
    return new


async def _learn(runner: ShardRunner, shard: Shard, chunks: Sequence[Chunk], *, counted: set[int] | None) -> list[int]:
    """Gives how many keys of each chunk were counted; `counted`: only these keys may be, None: all."""
    calls = [(shard, "know", _args("learn", chunk, counted)) for chunk in chunks]
    return [checked(answer, shard.crawl)[2] for answer in await runner.run(calls)]


async def _unknown(runner: ShardRunner, shards: Sequence[Shard], chunks: Sequence[Chunk]) -> set[int]:
    """The keys that no shard knows."""
    unknown = {key for chunk in chunks for key, _ in chunk}
    for shard in shards:
        answers = await runner.run([(shard, "know", _args("ask", chunk)) for chunk in chunks], unchecked=True)
        for chunk, answer in zip(chunks, answers, strict=True):
            flags = checked(answer, shard.crawl)[1]
            unknown -= {key for (key, _), is_new in zip(chunk, flags, strict=True) if is_new == b"0"}
    return unknown


def _args(mode: str, chunk: Chunk, counted: set[int] | None = None) -> list[Argument]:
    args: list[Argument] = [mode]
    for key, packed in chunk:
        args += (key, packed, int(counted is None or key in counted))
    return args
