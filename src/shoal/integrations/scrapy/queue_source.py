"""The queue and the filter of scrapy-redis in Redis, read in bounded steps. Nothing there changes but by `remove`."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec

from shoal.errors import UsageError
from shoal.frontier.redis.connections import RedisConnections
from shoal.integrations.scrapy.fingerprints import KEY_BYTES, key_of

READ_AT_ONCE = 200
SCANNED_AT_ONCE = 2_000

# Removes the keys unless the queue or the filter has changed: scrapy-redis may have come back.
_REMOVE = """
local kind = redis.call('TYPE', KEYS[1]).ok
local waiting = kind == 'list' and redis.call('LLEN', KEYS[1]) or kind == 'zset' and redis.call('ZCARD', KEYS[1]) or 0
if waiting ~= tonumber(ARGV[1]) or redis.call('SCARD', KEYS[2]) ~= tonumber(ARGV[2]) then return 0 end
return 1 + redis.call('UNLINK', KEYS[1], KEYS[2])
"""


class SourceKeys(msgspec.Struct, frozen=True, kw_only=True):
    """The names of the keys. `start` holds start URLs, which need no import."""

    queue: str
    filter: str
    start: str


class SourceState(msgspec.Struct, frozen=True, kw_only=True):
    """What is there at one moment. `ends`: the first and the last entry, of which every push and pop changes one or
    their number."""

    kind: str
    waiting: int
    ends: tuple[bytes, ...]
    known: int


class FilterKeys(msgspec.Struct, kw_only=True):
    """The keys of a filter's fingerprints, eight bytes each; how many members are none, and the last of these."""

    keys: array[int]
    others: int = 0
    example: bytes = b""

    def take(self, member: bytes) -> None:
        """Note one member."""
        try:
            fingerprint = bytes.fromhex(member.decode())
        except ValueError:
            fingerprint = b""
        if len(fingerprint) >= KEY_BYTES:
            self.keys.append(key_of(fingerprint))
        else:
            self.others, self.example = self.others + 1, member


class QueueSource:
    """Reads from one server."""

    def __init__(self, url: str, keys: SourceKeys) -> None:
        self._connections = RedisConnections(url)
        self.shown = self._connections.shown
        self.keys = keys

    async def state(self) -> SourceState:
        """What waits and what is known now. Refuses keys that are neither a queue nor a filter."""
        kind, filter_kind = await self._kind(self.keys.queue), await self._kind(self.keys.filter)
        if kind not in ("list", "zset", "none"):
            raise UsageError(f"{self.keys.queue} is a {kind}, no queue of scrapy-redis: --queue-key names another")
        if filter_kind not in ("set", "none"):
            raise UsageError(
                f"{self.keys.filter} is a {filter_kind}, no filter of scrapy-redis: --dupefilter-key names another"
            )
        ends = [*await self._read(0, 0, kind), *await self._read(-1, -1, kind)]
        waiting = await self._length(kind, self.keys.queue)
        known = await self._length(filter_kind, self.keys.filter)
        return SourceState(kind=kind, waiting=waiting, ends=tuple(ends), known=known)

    async def start_urls(self) -> int:
        """How many start URLs wait."""
        return await self._length(await self._kind(self.keys.start), self.keys.start)

    async def entries(self, state: SourceState) -> AsyncIterator[list[bytes]]:
        """All entries, in the order in which scrapy-redis would take them; of a list, the oldest first."""
        for start in range(0, state.waiting, READ_AT_ONCE):
            if state.kind == "zset":
                yield await self._read(start, start + READ_AT_ONCE - 1, state.kind)
            else:
                # From the right, where the oldest are: what is pushed meanwhile moves nothing.
                yield (await self._read(-start - READ_AT_ONCE, -start - 1, state.kind))[::-1]

    async def filter_keys(self, show: Callable[[int], None]) -> FilterKeys:
        """All of the filter. A member may be given twice."""
        found = FilterKeys(keys=array("q"))
        cursor = b"0"
        while True:
            cursor, members = await self._call("SSCAN", self.keys.filter, cursor, "COUNT", SCANNED_AT_ONCE)
            for member in members:
                found.take(member)
            show(len(found.keys))
            if cursor == b"0":
                return found

    async def known_among(self, fingerprints: Sequence[bytes]) -> int:
        """How many of these fingerprints the filter has."""
        async with self._connections.borrow() as connection:
            for fingerprint in fingerprints:
                await connection.send("SISMEMBER", self.keys.filter, fingerprint.hex())
            return sum(await connection.answers())

    async def remove(self, state: SourceState) -> bool:
        """Remove queue and filter, if they are still as they were; gives whether they were."""
        keys = (self.keys.queue, self.keys.filter)
        return bool(await self._call("EVAL", _REMOVE, 2, *keys, state.waiting, state.known))

    async def close(self) -> None:
        await self._connections.close()

    async def _read(self, first: int, last: int, kind: str) -> list[bytes]:
        if kind == "none":
            return []
        return list(await self._call("ZRANGE" if kind == "zset" else "LRANGE", self.keys.queue, first, last))

    async def _kind(self, key: str) -> str:
        kind = await self._call("TYPE", key)
        return kind.decode() if isinstance(kind, bytes) else str(kind)

    async def _length(self, kind: str, key: str) -> int:
        command = {"list": "LLEN", "zset": "ZCARD", "set": "SCARD"}.get(kind)
        return 0 if command is None else int(await self._call(command, key))

    async def _call(self, *command: str | bytes | int) -> Any:
        async with self._connections.borrow() as connection:
            return await connection.call(*command)
