"""Repair of a crawl after a restart of the server: one worker repairs while the others wait.

A crash can cut the append-only file inside a script's writes, and Redis keeps the torn part in the file and replays it
at the next restart. So first the file is rewritten, then the data is made consistent, and the lanes rest for one
horizon, because starts of the lost second may be missing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from redis.exceptions import ResponseError

from shoal.errors import ServerUnreachable, StorageError
from shoal.frontier.redis.connection import Argument, Connection
from shoal.frontier.redis.connections import ANSWER_SECONDS, RedisConnections
from shoal.frontier.redis.server_checks import info, warn
from shoal.frontier.redis.shards import Shard, shards_of
from shoal.frontier.redis.views import lane_names, queue_names
from shoal.frontier.redis.wire import encode_pools
from shoal.model import VIA, Pool

REWRITTEN = "shoal:rewritten"  # the run id of the server whose append-only file was rewritten
LOOK_AGAIN_SECONDS = 0.1
PATIENCE_SECONDS = 10.0
SHORTEST_REST_SECONDS = 1.0
SHORTEST_LEASE_SECONDS = 10.0
LANES_PER_STEP = 200
POOLED_LANES_PER_STEP = 20
NOTE_SECONDS = 86_400


class _Lost(Exception):  # noqa: N818 -- reads as what happened
    """Another client repairs now, or the crawl is gone: this repair ends."""


class Repair:
    """Repairs the shards of crawls, one at a time."""

    def __init__(self, connections: RedisConnections) -> None:
        self._connections = connections
        self._owner = os.urandom(8).hex()
        self._rest = SHORTEST_REST_SECONDS
        self._lease_seconds = SHORTEST_LEASE_SECONDS
        self._lock = asyncio.Lock()

    def note_lease_call(self, *, horizon: float, seconds: float) -> None:
        """Remember the longest horizon and lease length: lanes rest, and leases are renewed, for that long."""
        self._rest = max(self._rest, horizon)
        self._lease_seconds = max(self._lease_seconds, seconds)

    async def run(self, shard: Shard) -> None:
        """Repair the shard, or wait until another client has."""
        async with self._lock:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + PATIENCE_SECONDS
            while loop.time() < deadline:
                async with self._connections.borrow_at(shard.prefix, seconds=None) as connection:
                    answer = await self._step(connection, shard, "begin", connection.run_id)
                    if answer[0] == b"mine":
                        await self._repair(connection, shard)
                        return
                if answer[0] != b"locked":
                    return
                await asyncio.sleep(LOOK_AGAIN_SECONDS)
        raise ServerUnreachable(
            f"crawl {shard.crawl!r} is being repaired after a restart of Redis at {self._connections.shown}"
        )

    async def after_mending(self, shard: Shard, mend: Callable[[Shard], Awaitable[None]]) -> None:
        """Repair the shard; if it holds records that cannot be read, set those aside first."""
        try:
            await self.run(shard)
        except StorageError:
            await mend(shard)
            await self.run(shard)

    async def _repair(self, connection: Connection, shard: Shard) -> None:
        """All steps, unless another client took over or the crawl was deleted meanwhile."""
        with contextlib.suppress(_Lost):
            await self._rewrite(connection, shard)
            await self._pools(connection, shard)
            await self._lanes(connection, shard, "reset", "0")
            await self._pages(connection, shard, "exits")
            await self._pages(connection, shard, "held", repr(self._lease_seconds))
            await self._pages(connection, shard, "leases")
            last = max(await self._pages(connection, shard, "later"))
            for step in ("dead", "graves"):
                await self._pages(connection, shard, step)
            last = max(last, await self._queues(connection, shard))
            keys = sum(await self._pages(connection, shard, "seen"))
            await self._pages(connection, shard, "kinds")
            await self._step(connection, shard, "clear")
            waiting = await self._lanes(connection, shard, "lanes", repr(self._rest))
            await self._have_links_resent(connection, shard)
            await self._step(connection, shard, "finish", connection.run_id, waiting, keys, last)

    async def _have_links_resent(self, connection: Connection, shard: Shard) -> None:
        """Have other shards send their delivered links again: this shard may have lost them with its last second."""
        for other in shards_of(shard.crawl, shard.of) if shard.of > 1 else ():
            is_done = False
            while not is_done:
                await self._step(connection, shard, "renew")
                async with self._connections.borrow() as any_node:
                    await any_node.send_script("resend", other.prefix, (), unchecked=True)
                    (answer,) = await any_node.answers()
                is_done = answer[0] == b"none" or answer[1] == b"0"

    async def _pools(self, connection: Connection, shard: Shard) -> None:
        """Write the pools again from the crawl's record: a crash may have cut the write."""
        record = await connection.call("HGET", shard.prefix + "crawl", "pools")
        if record or await connection.call("EXISTS", shard.prefix + "offers"):
            args = encode_pools(msgspec.json.decode(record or b"[]", type=tuple[Pool, ...]))
            async with asyncio.timeout(ANSWER_SECONDS):
                await connection.send_script("pools", shard.prefix, args, unchecked=True)
                await connection.answers()
            await self._step(connection, shard, "renew")

    async def _pages(self, connection: Connection, shard: Shard, step: str, *args: Argument) -> list[int]:
        """Run a step until its cursor ends; gives the number that each call counted."""
        cursor: Argument = "0"
        counted = []
        while True:
            _, cursor, number = await self._step(connection, shard, step, cursor, *args)
            counted.append(number)
            if cursor == b"0":
                return counted

    async def _lanes(self, connection: Connection, shard: Shard, step: str, argument: str) -> int:
        """Run a step over all lanes; gives the sum of the counted numbers."""
        names = await lane_names(self._connections, shard)
        # A lane of a large pool takes long.
        size = POOLED_LANES_PER_STEP if any(VIA.encode() in name for name in names) else LANES_PER_STEP
        counted = 0
        for start in range(0, len(names), size):
            answer = await self._step(connection, shard, step, argument, *names[start : start + size])
            counted += answer[2]
        return counted

    async def _queues(self, connection: Connection, shard: Shard) -> int:
        """Check every waiting task; gives the highest sequence."""
        names = await queue_names(self._connections, shard)
        order: Argument = "-inf"
        last = 0
        while names:
            _, done, sequence, order = await self._step(connection, shard, "queues", order, *names[:LANES_PER_STEP])
            last = max(last, sequence)
            del names[:done]
        return last

    async def _rewrite(self, connection: Connection, shard: Shard) -> None:
        """Rewrite the append-only file, once per run of the server."""
        if await self._was_rewritten(connection):
            return
        if (await info(connection, "persistence")).get("aof_enabled") == "1":
            try:
                await connection.call("BGREWRITEAOF")
            except ResponseError as error:
                if "in progress" not in str(error):
                    warn(f"Redis at {self._connections.shown} does not let us write its append-only file anew: {error}")
                    return
            while await self._is_rewriting(connection):
                await self._step(connection, shard, "renew")
                await asyncio.sleep(LOOK_AGAIN_SECONDS)
        await self._note_rewritten(connection)

    async def _was_rewritten(self, connection: Connection) -> bool:
        if not self._connections.is_cluster:
            return bool(await connection.call("GET", REWRITTEN) == connection.run_id.encode())
        async with self._connections.borrow() as any_node:
            return await any_node.call("GET", f"{REWRITTEN}:{connection.run_id}") is not None

    async def _note_rewritten(self, connection: Connection) -> None:
        """In a cluster the note has a key per run: it may be on another node than the server it is about."""
        if not self._connections.is_cluster:
            await connection.call("SET", REWRITTEN, connection.run_id)
            return
        async with self._connections.borrow() as any_node:
            await any_node.call("SET", f"{REWRITTEN}:{connection.run_id}", 1, "EX", NOTE_SECONDS)

    async def _is_rewriting(self, connection: Connection) -> bool:
        state = await info(connection, "persistence")
        return "1" in (state.get("aof_rewrite_in_progress"), state.get("aof_rewrite_scheduled"))

    async def _step(self, connection: Connection, shard: Shard, step: str, *args: Argument) -> list[Any]:
        owner = f"{connection.run_id} {self._owner}"
        async with asyncio.timeout(ANSWER_SECONDS):
            await connection.send_script("repair", shard.prefix, (owner, step, *(args or ("0",))), unchecked=True)
            answer: list[Any] = (await connection.answers())[0]
        if answer[0] in (b"lost", b"none") and step != "begin":
            raise _Lost
        return answer
