"""After a restart of the server: one worker checks and repairs a crawl while the others wait.

A crash can cut the append-only file inside a script's writes, and Redis then keeps the torn part in the file, to be
replayed by the next restart. So first the file is written anew, then the data is made to agree with itself, and the
lanes rest one horizon, because the lost second may have lent start slots.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import Any

import msgspec
from redis.exceptions import ResponseError

from shoal.errors import ServerUnreachable
from shoal.frontier.redis.connection import ANSWER_SECONDS, Argument, Line, RedisLink
from shoal.frontier.redis.server_checks import info, warn
from shoal.frontier.redis.shards import Shard, shards_of
from shoal.frontier.redis.views import lane_names
from shoal.frontier.redis.wire import encode_pools
from shoal.model import VIA, Pool

REWRITTEN = "shoal:rewritten"  # the run of the server whose append-only file was written anew
LOOK_AGAIN_SECONDS = 0.1
PATIENCE_SECONDS = 10.0
SHORTEST_REST_SECONDS = 1.0
LANES_PER_STEP = 200
POOLED_LANES_PER_STEP = 20
NOTE_SECONDS = 86_400


class _Lost(Exception):  # noqa: N818 -- reads as what happened
    """Somebody else repairs now, or the crawl is gone."""


class Repair:
    """Repairs the shards of crawls, one at a time."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._owner = os.urandom(8).hex()
        self._rest = SHORTEST_REST_SECONDS
        self._lock = asyncio.Lock()

    def see_horizon(self, seconds: float) -> None:
        """Lanes rest as long as any lease call looked ahead."""
        self._rest = max(self._rest, seconds)

    async def run(self, shard: Shard) -> None:
        """Come back when the shard is in order, whoever did it."""
        async with self._lock:
            loop = asyncio.get_running_loop()
            deadline = loop.time() + PATIENCE_SECONDS
            while loop.time() < deadline:
                async with self._link.line_at(shard.prefix, seconds=None) as line:
                    answer = await self._step(line, shard, "begin", line.run_id)
                    if answer[0] == b"mine":
                        await self._repair(line, shard)
                        return
                if answer[0] != b"locked":
                    return
                await asyncio.sleep(LOOK_AGAIN_SECONDS)
        raise ServerUnreachable(
            f"crawl {shard.crawl!r} is being repaired after a restart of Redis at {self._link.shown}"
        )

    async def _repair(self, line: Line, shard: Shard) -> None:
        """All steps, unless somebody else took over or the crawl was deleted meanwhile."""
        with contextlib.suppress(_Lost):
            await self._rewrite(line, shard)
            await self._pools(line, shard)
            await self._lanes(line, shard, "reset", "0")
            for step in ("exits", "held", "leases"):
                await self._pages(line, shard, step)
            last = max(await self._pages(line, shard, "later"))
            for step in ("dead", "graves"):
                await self._pages(line, shard, step)
            last = max(last, await self._queues(line, shard))
            keys = sum(await self._pages(line, shard, "seen"))
            await self._step(line, shard, "clear")
            waiting = await self._lanes(line, shard, "lanes", repr(self._rest))
            await self._have_links_resent(line, shard)
            await self._step(line, shard, "finish", line.run_id, waiting, keys, last)

    async def _have_links_resent(self, line: Line, shard: Shard) -> None:
        """The lost second may have held links from other shards."""
        for other in shards_of(shard.crawl, shard.of) if shard.of > 1 else ():
            is_done = False
            while not is_done:
                await self._step(line, shard, "renew")
                async with self._link.line() as any_node:
                    await any_node.send_script("resend", other.prefix, (), looks=True)
                    (answer,) = await any_node.answers()
                is_done = answer[0] == b"none" or answer[1] == b"0"

    async def _pools(self, line: Line, shard: Shard) -> None:
        """Write the pools again from the crawl's record: a crash may have cut them off."""
        record = await line.call("HGET", shard.prefix + "crawl", "pools")
        if record:
            args = encode_pools(msgspec.json.decode(record, type=tuple[Pool, ...]))
            async with asyncio.timeout(ANSWER_SECONDS):
                await line.send_script("pools", shard.prefix, args, looks=True)
                await line.answers()
            await self._step(line, shard, "renew")

    async def _pages(self, line: Line, shard: Shard, step: str) -> list[int]:
        """A step from its beginning to its end; gives what each page counted."""
        place: Argument = "0"
        counted = []
        while True:
            _, place, number = await self._step(line, shard, step, place)
            counted.append(number)
            if place == b"0":
                return counted

    async def _lanes(self, line: Line, shard: Shard, step: str, place: str) -> int:
        """A step over all lanes; gives what they counted together."""
        names = await lane_names(self._link, shard)
        # A lane of a large pool is much work.
        size = POOLED_LANES_PER_STEP if any(VIA.encode() in name for name in names) else LANES_PER_STEP
        counted = 0
        for start in range(0, len(names), size):
            answer = await self._step(line, shard, step, place, *names[start : start + size])
            counted += answer[2]
        return counted

    async def _queues(self, line: Line, shard: Shard) -> int:
        """Look at every waiting task; gives the last sequence."""
        names = await lane_names(self._link, shard)
        order: Argument = "-inf"
        last = 0
        while names:
            _, done, sequence, order = await self._step(line, shard, "queues", order, *names[:LANES_PER_STEP])
            last = max(last, sequence)
            del names[:done]
        return last

    async def _rewrite(self, line: Line, shard: Shard) -> None:
        """Write the append-only file anew, once per run of the server."""
        if await self._was_rewritten(line):
            return
        if (await info(line, "persistence")).get("aof_enabled") == "1":
            try:
                await line.call("BGREWRITEAOF")
            except ResponseError as error:
                if "in progress" not in str(error):
                    warn(f"Redis at {self._link.shown} does not let us write its append-only file anew: {error}")
                    return
            while await self._is_rewriting(line):
                await self._step(line, shard, "renew")
                await asyncio.sleep(LOOK_AGAIN_SECONDS)
        await self._note_rewritten(line)

    async def _was_rewritten(self, line: Line) -> bool:
        if not self._link.is_cluster:
            return bool(await line.call("GET", REWRITTEN) == line.run_id.encode())
        async with self._link.line() as any_node:
            return await any_node.call("GET", f"{REWRITTEN}:{line.run_id}") is not None

    async def _note_rewritten(self, line: Line) -> None:
        """In a cluster the note has a key per run: it may lie on another node than the one it is about."""
        if not self._link.is_cluster:
            await line.call("SET", REWRITTEN, line.run_id)
            return
        async with self._link.line() as any_node:
            await any_node.call("SET", f"{REWRITTEN}:{line.run_id}", 1, "EX", NOTE_SECONDS)

    async def _is_rewriting(self, line: Line) -> bool:
        state = await info(line, "persistence")
        return "1" in (state.get("aof_rewrite_in_progress"), state.get("aof_rewrite_scheduled"))

    async def _step(self, line: Line, shard: Shard, step: str, *args: Argument) -> list[Any]:
        owner = f"{line.run_id} {self._owner}"
        async with asyncio.timeout(ANSWER_SECONDS):
            await line.send_script("repair", shard.prefix, (owner, step, *(args or ("0",))), looks=True)
            answer: list[Any] = (await line.answers())[0]
        if answer[0] in (b"lost", b"none") and step != "begin":
            raise _Lost
        return answer
