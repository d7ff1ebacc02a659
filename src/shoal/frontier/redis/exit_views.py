"""Exits at the Redis frontier: what is known of each."""

from __future__ import annotations

import struct

from shoal.errors import UsageError
from shoal.frontier.redis.shard_runner import ShardRunner
from shoal.frontier.redis.shards import Shard
from shoal.frontier.redis.views import lane_names
from shoal.frontier.rules.exits import Ended, status_of
from shoal.model import VIA, Crawl, ExitStatus

MAX_LANES, MAX_ROWS = 50, 2000  # per script: all other clients wait for a script

_USE = struct.Struct("<9d")
_EXIT = struct.Struct("<6d")


def check_pools(crawl: Crawl, *, shards: int) -> None:
    """Accounts and a budget of cost are counted in one shard: refuse them in a crawl of several shards."""
    if shards > 1 and (crawl.budgets.cost or any(pool.exclusive for pool in crawl.pools)):
        raise UsageError(
            f"crawl {crawl.id!r}: accounts and a budget of cost need a crawl in one shard: leave out ?shards"
        )


async def exits(runner: ShardRunner, crawl: str, *, limit: int) -> list[ExitStatus]:
    """Every exit towards every host it was used for, in the order of their names."""
    found = [status for shard in await runner.existing_shards(crawl) for status in await _exits_in(runner, shard)]
    found.sort(key=lambda status: (status.exit, status.lane))
    return found[:limit]


async def _exits_in(runner: ShardRunner, shard: Shard) -> list[ExitStatus]:
    pooled = [name for name in await lane_names(runner.connections, shard) if VIA.encode() in name]
    found: list[ExitStatus] = []
    start, lanes = 0, 1
    while start < len(pooled):
        answer = await runner.read_in(shard, "uses", *pooled[start : start + lanes])
        now, start = float(answer[1]), start + lanes
        # As many lanes as will fit if the next ones have as many exits as these.
        lanes = max(1, min(MAX_LANES, MAX_ROWS * lanes // max(1, len(answer) // 5)))
        for lane, name, use, in_flight, row in zip(*(answer[2 + column :: 5] for column in range(5)), strict=True):
            parked_until = _EXIT.unpack_from(row)[1] if row else 0.0
            names = name.decode(), lane.decode()
            found.append(status_of(*names, _ended(use), in_flight=in_flight, parked_until=parked_until, now=now))
    return found


def _ended(use: bytes) -> Ended:
    if not use:
        return Ended()
    ok, size, elapsed, cost, blocked, failed, unknown, streak, rests_until = _USE.unpack(use)
    requests = int(ok + blocked + failed + unknown)
    counts = requests, int(ok), int(blocked), int(failed), int(size)
    return Ended(*counts, elapsed, cost, int(streak), rests_until)


async def session(runner: ShardRunner, crawl: str, name: str) -> tuple[int, bytes]:
    """The session that is kept for an exit, and its version."""
    shard = (await runner.existing_shards(crawl))[0]
    async with runner.connections.borrow_at(shard.prefix) as connection:
        await connection.send("HGET", shard.prefix + "exits", name)
        await connection.send("HGET", shard.prefix + "sessions", name)
        row, kept = await connection.answers()
    return (int(_EXIT.unpack_from(row)[5]), kept) if row and kept else (0, b"")


async def keep_session(
    runner: ShardRunner, crawl: str, name: str, session: bytes, *, version: int
) -> tuple[int, bytes]:
    """Keep a session if the version is still this one; gives what is kept now."""
    answer = await runner.change(crawl, "keep_session", name, version, session)
    return int(answer[1]), answer[2]
