"""Sets aside records of the Redis frontier that cannot be read, and restores what other records tell.

Runs only after a script has failed on a crawl's data, or an answer could not be decoded. The shard is then repaired as
after a restart (`Repair`), which recounts it.
"""

from __future__ import annotations

import math
import re
import struct
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import msgspec

from shoal.frontier.redis.connection import Connection
from shoal.frontier.redis.connections import RedisConnections
from shoal.frontier.redis.server_checks import warn
from shoal.frontier.redis.shards import Shard
from shoal.frontier.redis.wire import decode_dead, decode_held, decode_later, decode_task, decode_tries, pairs
from shoal.frontier.rules.constants import LATEST_TIME, PARKED
from shoal.frontier.rules.tasks import aside_line, bad_record_key, decoded
from shoal.model import Crawl, CrawlState, Pool, Task

PER_PAGE = 500
LARGEST = 1e17  # bound of numbers in a lane's record that are no times: tokens and age are the largest
# The errors that decoding a damaged record causes.
UNREADABLE = (struct.error, ValueError, IndexError, KeyError, TypeError, OverflowError, msgspec.MsgspecError)
_HASHES = (
    "notes", "count", "crawl", "lanes", "held", "tries", "dead", "outcomes", "rejected", "samples", "rules", "whys",
    "shared", "turns", "exits", "sessions", "pools", "offers", "grants", "turns:via", "visits",
)  # fmt: skip
_TYPES = {
    "bad": b"list", **dict.fromkeys(_HASHES, b"hash"),
    **dict.fromkeys(
        ("leases", "later", "graves", "ready", "busy", "outbox", "sent", "feeders", "points", "points:long"), b"zset"
    ),
    "repair": b"string",
}  # fmt: skip
_KIND = re.compile(rb"[^,:]+")
_OF_A_LANE = {"q": b"zset", "rests": b"zset", "uses": b"hash", "shape": b"hash"}
_OF_KEYS = {"seen:": b"set", "past:": b"set", "bloom:": b"string"}
_MAY_LACK = {
    b"clock_shift",
    b"clock_last",
    b"dedup_ttl",
    b"max_cost",
    b"cost",
    b"filters",
    b"spent",
    b"finished",
    b"ran",
    b"weight",
    b"share",
}
_OF_TASKS = ("held", "later", "dead")
_LANE = struct.Struct(">17d")
_SHARED = 1.0  # always safe: such a lane only reads other crawls once more than needed
_ROSTER, _MORE, _FLIGHT_BYTES, _NEXT_BYTES = struct.Struct("<III"), struct.Struct("<IIIIddd"), 5, 12
_EXIT_BYTES = 48
_USE_BYTES = 72
_WHOLE = re.compile(rb"-?\d+")
_POOLS = msgspec.json.Decoder(tuple[Pool, ...])
_URL = re.compile(rb"https?://[^\x00-\x20\x7f]+\Z")


class Mend:
    """Checks shards with records that cannot be read."""

    def __init__(self, connections: RedisConnections) -> None:
        self._connections = connections

    async def run(self, shard: Shard) -> list[Task]:
        """Set aside all records of the shard that cannot be read, and mark it for repair; gives a task for each URL
        that could still be read."""
        async with self._connections.borrow_at(shard.prefix, seconds=None) as connection:
            check = _ShardCheck(connection, shard)
            await check.at_types()
            await check.at_known_keys()
            await check.at_crawl()
            await check.at_counters()
            for name, read in _READERS.items():
                await check.at_hash(name, read)
            await check.at_zset("later", decode_later)
            await check.at_lanes()
            # From here on, every script that changes something waits until the shard is repaired.
            await connection.call("HSET", shard.prefix + "crawl", "run", "")
        if check.places:
            warn(aside_line(shard.crawl, check.places, kept=f"the list {shard.prefix}bad"))
        return list(check.urls.values())


class _ShardCheck:
    """One check of a shard. `places`: how many records were set aside, by key; `urls`: the URLs read from them."""

    def __init__(self, connection: Connection, shard: Shard) -> None:
        self._connection = connection
        self._prefix = shard.prefix
        self.places = Counter[str]()
        self.urls: dict[str, Task] = {}
        self._kinds: list[str] = []

    async def at_types(self) -> None:
        """Set aside whole keys of a wrong type."""
        kinds = await self._all("TYPE", list(_TYPES))
        for (name, wanted), kind in zip(_TYPES.items(), kinds, strict=True):
            if kind not in (wanted, b"none"):
                await self._aside(name, b"", b"")

    async def at_known_keys(self) -> None:
        """Set aside sets of known keys of a wrong type; the repair adds the keys of waiting tasks again."""
        for start, wanted in _OF_KEYS.items():
            names = [start + name.decode("utf-8", "surrogateescape") for name in await self._named(start)]
            for at in range(0, len(names), PER_PAGE):
                page = names[at : at + PER_PAGE]
                for name, kind in zip(page, await self._all("TYPE", page), strict=True):
                    if kind not in (wanted, b"none"):
                        await self._aside(name, b"", b"")

    async def at_crawl(self) -> None:
        """Replace fields that should be numbers by those of a new crawl."""
        fields = pairs(await self._connection.call("HGETALL", self._prefix + "crawl"))
        for name, value in _defaults().items():
            given = fields.get(name.encode())
            if given is None or not _is_number(given):
                await self._replace("crawl", name, given, value)
        for field in _MAY_LACK & fields.keys():
            if not _is_number(fields[field]):
                await self._aside("crawl", field, fields[field])
        if fields.get(b"state", b"").decode("utf-8", "replace") not in {*CrawlState, "deleting"}:
            await self._replace("crawl", "state", fields.get(b"state"), str(CrawlState.RUNNING))
        if fields.get(b"pace_scope", b"host") not in (b"host", b"crawl"):
            await self._replace("crawl", "pace_scope", fields[b"pace_scope"], "host")
        if b"pools" in fields and not _reads(_POOLS.decode, fields[b"pools"]):
            await self._aside("crawl", b"pools", fields[b"pools"])
        if not _reads(decoded, fields.get(b"limits", b"")):
            await self._aside("crawl", b"limits", fields[b"limits"])
        if not _is_number(fields.get(b"buckets", b"1")):
            await self._replace("crawl", "buckets", fields[b"buckets"], str(await self._buckets()))
        await self._at_kinds(fields.get(b"kinds", b""))

    async def _at_kinds(self, given: bytes) -> None:
        """Add the kinds that queues name to the crawl's record."""
        named = [name for name in given.split(b",") if name]
        sound = [name for name in named if _KIND.fullmatch(name) and name.isascii()]
        queued = sorted({name.partition(b":")[0] for name in await self._named("kq:")} - set(sound))
        kinds = b",".join([*sound, *queued])
        if kinds != given:
            await self._replace("crawl", "kinds", given or None, kinds.decode("ascii", "replace"))
        self._kinds = [name.decode("ascii", "replace") for name in (*sound, *queued)]
        for kind, found in zip(
            self._kinds, await self._all("TYPE", [f"ready:{kind}" for kind in self._kinds]), strict=True
        ):
            if found not in (b"zset", b"none"):
                await self._aside(f"ready:{kind}", b"", b"")

    async def at_counters(self) -> None:
        """Drop counters that are no whole numbers; the repair recounts those of tasks."""
        for name in ("count", "outcomes", "rejected", "notes"):
            for field, value in pairs(await self._connection.call("HGETALL", self._prefix + name)).items():
                if not _WHOLE.fullmatch(value):
                    await self._aside(name, field, value)

    async def at_hash(self, name: str, read: Callable[[bytes, bytes], Any]) -> None:
        async for field, value in self._pages("HSCAN", name):
            if not _reads(partial(read, field), value):
                await self._aside(name, field, value)

    async def at_zset(self, name: str, read: Callable[[bytes], Any]) -> None:
        async for member, _ in self._pages("ZSCAN", name):
            if not _reads(read, member):
                await self._aside(name, member, b"")

    async def at_lanes(self) -> None:
        """Give lanes whose record is damaged or missing a new one with the crawl's pace; then check their queues."""
        interval, cap = map(float, await self._connection.call("HMGET", self._prefix + "crawl", "interval", "cap"))
        # Also lanes whose record is missing.
        names = {*await self._named("q:"), *(name.partition(b":")[2] for name in await self._named("kq:"))}
        async for lane, record in self._pages("HSCAN", "lanes"):
            names.add(lane)
            if not _is_lane(record):
                await self._aside("lanes", lane, record)
            elif not _reads(_check_roster, record):
                await self._aside("lanes", lane, record)
                # The pace stays; an exit is free now; the lane begins a new roster.
                sound = record[: _LANE.size - 8] + bytes(8)
                await self._connection.call("HSETNX", self._prefix + "lanes", lane, sound)
        seconds, micros = map(int, await self._connection.call("TIME"))
        # Due now: the repair lets every lane rest.
        fresh = _LANE.pack(seconds * 1e6 + micros, 0, 0, 0, interval, interval, cap, 0, 0, 0, 0, 0, _SHARED, 0, 0, 0, 0)
        for lane in names:
            await self._at_lane(lane, fresh)

    async def _at_lane(self, lane: bytes, fresh: bytes) -> None:
        name = lane.decode("utf-8", "surrogateescape")
        keys = {f"{kind}:{name}": wanted for kind, wanted in _OF_A_LANE.items()}
        queues = [f"q:{name}", *(f"kq:{kind}:{name}" for kind in self._kinds)]
        keys |= dict.fromkeys(queues, b"zset")
        for (key, wanted), found in zip(keys.items(), await self._all("TYPE", list(keys)), strict=True):
            if found not in (wanted, b"none"):
                await self._aside(key, b"", b"", is_task=key in queues)
        await self._connection.call("HSETNX", self._prefix + "lanes", lane, fresh)
        for queue in queues:
            await self.at_zset(queue, lambda data: decode_task(data, ""))
        await self.at_zset(f"rests:{name}", lambda data: _sized(data, 4))
        await self.at_hash(f"uses:{name}", lambda _, data: _sized(data, _USE_BYTES))

    async def _named(self, start: str) -> list[bytes]:
        """The names of keys that begin with `start`, without it."""
        whole = (self._prefix + start).encode()
        pattern = re.sub(rb"([\\*?\[\]])", rb"\\\1", whole) + b"*"
        found: list[bytes] = []
        cursor = b"0"
        while True:
            cursor, keys = await self._connection.call("SCAN", cursor, "MATCH", pattern, "COUNT", PER_PAGE)
            found += [key[len(whole) :] for key in keys]
            if cursor == b"0":
                return found

    async def _buckets(self) -> int:
        """The number of buckets of known keys: the highest index plus one."""
        return max([0, *(int(name) for name in await self._named("seen:") if name.isdigit())]) + 1

    async def _all(self, command: str, names: list[str]) -> list[Any]:
        for name in names:
            await self._connection.send(command, self._prefix + name)
        return await self._connection.answers()

    async def _pages(self, command: str, name: str) -> AsyncIterator[tuple[bytes, bytes]]:
        cursor = b"0"
        while True:
            cursor, page = await self._connection.call(command, self._prefix + name, cursor, "COUNT", PER_PAGE)
            for field, value in zip(page[::2], page[1::2], strict=True):
                yield field, value
            if cursor == b"0":
                return

    async def _replace(self, name: str, field: str, seen: bytes | None, value: str) -> None:
        if seen is not None:
            await self._aside(name, field.encode(), seen)
        await self._connection.call("HSET", self._prefix + name, field, value)

    async def _aside(self, name: str, field: bytes, seen: bytes, *, is_task: bool = False) -> None:
        lane = _lane_of_queue(name)
        is_task = is_task or name in _OF_TASKS or (lane != "" and field != b"")
        key = name.encode("utf-8", "surrogateescape")
        await self._connection.send_bare_script("aside", self._prefix, ("", key, field, seen, int(is_task)))
        (taken,) = await self._connection.answers()
        if taken:
            self.places[name.partition(":")[0]] += taken
        if taken and is_task:
            self._keep_url(field + seen, lane=lane.encode("utf-8", "surrogateescape"))

    def _keep_url(self, raw: bytes, *, lane: bytes) -> None:
        """Keep the URL at the end of a damaged record: it becomes a dead letter."""
        if (found := _URL.search(raw)) is None:
            return
        try:
            url = found[0].decode()
            host = lane.decode() or urlsplit(url).netloc
        except ValueError:
            return
        self.urls[url] = Task(url=url, key=bad_record_key(url), lane=host)


def _lane_of_queue(name: str) -> str:
    """The lane of the queue with this key; empty: the key is no queue."""
    if name.startswith("kq:"):
        return name.split(":", 2)[2]
    return name[2:] if name.startswith("q:") else ""


def _defaults() -> dict[str, str]:
    fresh = Crawl(id="", spider="")
    return {
        "interval": repr(fresh.interval), "cap": str(fresh.cap), "needs_rules": "0", "pages": "0", "per_lane": "0",
        "per_shape": "0", "feeding": "0", "epoch": "0", "created": "0.0",
    }  # fmt: skip


def _is_number(value: bytes) -> bool:
    return _reads(lambda data: _finite(float(data)), value)


def _finite(*values: float, below: float = LARGEST) -> None:
    if not all(abs(value) < below for value in values):
        raise ValueError(values)


def _is_lane(record: bytes) -> bool:
    """Whether these are a lane's numbers. Only `exits_next` may be infinite: all exits of its pool are in use. Times
    are bounded as in `find_lane` of lanes.lua: else a script would fail again on a record that passes here."""

    def read(data: bytes) -> None:
        age, next_start, last_start, blocked_until, *numbers, exits_next = _LANE.unpack_from(data)
        _finite(age, *numbers, 0.0 if exits_next == math.inf else exits_next)
        _finite(next_start, last_start, blocked_until, below=LATEST_TIME)

    return _reads(read, record)


def _check_roster(record: bytes) -> None:
    """Raise one of UNREADABLE if no valid roster follows the lane's numbers: see `roster_record.lua`."""
    if len(record) == _LANE.size:
        return
    size, next_index, flights = _ROSTER.unpack_from(record, _LANE.size)
    at = _LANE.size + _ROSTER.size + flights
    if flights % _FLIGHT_BYTES or len(record) < at or next_index > size:
        raise ValueError(size)
    if len(record) > at:
        starts = _MORE.unpack_from(record, at)[3]
        marks = record[at + _MORE.size + starts * _NEXT_BYTES :]
        if len(record) < at + _MORE.size + starts * _NEXT_BYTES or len(marks) > size or max(marks, default=0) > PARKED:
            raise ValueError(starts)


def _sized(data: bytes, size: int) -> None:
    if len(data) < size:
        raise ValueError(len(data))


def _reads(read: Callable[[bytes], Any], data: bytes) -> bool:
    try:
        read(data)
    except UNREADABLE:
        return False
    return True


def _keyed(field: bytes, task: Task) -> None:
    if int.from_bytes(field, "big", signed=True) != task.key:
        raise ValueError(task.key)


_READERS: dict[str, Callable[[bytes, bytes], Any]] = {
    "held": lambda field, data: _keyed(field, decode_held(data).task),
    "dead": lambda field, data: _keyed(field, decode_dead(data).task),
    "tries": lambda _, data: decode_tries(data or b"-"),
    "exits": lambda _, data: _sized(data, _EXIT_BYTES),
}
