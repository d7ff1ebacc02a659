"""Runs scripts on the shards of crawls, repairs shards that need it, and tells deleted crawls from lost ones."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from redis.exceptions import ResponseError

from shoal.errors import CrawlLost, StorageError, UsageError
from shoal.frontier.redis.connection import Argument, Connection
from shoal.frontier.redis.connections import RedisConnections, is_passing
from shoal.frontier.redis.mend import UNREADABLE
from shoal.frontier.redis.scripts import LAYOUT_VERSION, UNKNOWN_LAYOUT
from shoal.frontier.redis.server_checks import info, warn
from shoal.frontier.redis.shards import Shard, prefix_of, shard_of, shards_of
from shoal.frontier.rules.keys import keys_dropped
from shoal.frontier.rules.tasks import unreadable_crawl

CRAWLS = "shoal:crawls"
LAST_NUMBER = "shoal:crawls:last"
SHARDS = "shoal:shards"  # crawl → number of its shards, if several; negative while it is being deleted


async def lost_crawl(connections: RedisConnections, crawl: str, *, run_id: str) -> CrawlLost | None:
    """The error for a crawl whose data are gone; None: it was deleted on purpose. `run_id`: of the server when the
    crawl was last seen."""
    async with connections.borrow() as any_node:
        # Deleting a crawl removes it from the list; the number of the newest crawl stays.
        await any_node.send("SISMEMBER", CRAWLS, crawl)
        await any_node.send("EXISTS", LAST_NUMBER)
        await any_node.send("HGET", SHARDS, crawl)
        await any_node.send("HGET", prefix_of(crawl) + "crawl", "state")
        is_listed, has_number, shards, state = await any_node.answers()
    is_being_deleted = state == b"deleting" or (shards or b"").startswith(b"-")
    if is_being_deleted or (not is_listed and has_number):
        return None
    async with connections.borrow_at(prefix_of(crawl)) as connection:
        why = await _cause(connection, run_id=run_id)
    return CrawlLost(f"the data of crawl {crawl} are gone from {connections.shown}: {why}")


async def _cause(connection: Connection, *, run_id: str) -> str:
    """The probable cause, from the server's INFO."""
    server, disk = await info(connection, "server"), await info(connection, "persistence")
    stats, memory = await info(connection, "stats"), await info(connection, "memory")
    left = await connection.call("DBSIZE")
    if run_id and server.get("run_id") != run_id:
        ago = server.get("uptime_in_seconds", "?")
        return f"the server was restarted {ago} s ago{await _kept(connection, disk)}, or it is another server"
    if int(stats.get("evicted_keys", 0)) and memory.get("maxmemory_policy", "noeviction") != "noeviction":
        policy = memory["maxmemory_policy"]
        return f"the server evicts keys when its memory is full (maxmemory-policy {policy}): set it to noeviction"
    others = f"; {left} other keys are there" if left else ""
    return f"the server was not restarted, so somebody emptied it (FLUSHALL, FLUSHDB, DEL){others}"


async def _kept(connection: Connection, disk: dict[str, str]) -> str:
    """What the server keeps on disk, as part of a sentence."""
    if disk.get("aof_enabled") == "1":
        return " and lost its append-only file"
    try:
        points = await connection.call("CONFIG", "GET", "save")
    except ResponseError:
        return " and keeps no append-only file"
    if points and points[1]:
        return f" and keeps only snapshots (appendonly no, save {points[1].decode('utf-8', 'replace')!r})"
    return " and keeps nothing on disk (appendonly no, save '')"


WORKERS = "shoal:{workers}:"

WRONG_TYPE = "WRONGTYPE"  # in the server's answer to a command on a key of another type

T = TypeVar("T")
_NUMBER = re.compile(rb"[1-9]\d{0,8}")
Call = tuple[Shard, str, Sequence[Argument]]


def layout_of(field: bytes | None) -> int:
    """The layout version in a crawl's record."""
    return int(field) if field is not None and _NUMBER.fullmatch(field) else UNKNOWN_LAYOUT


def _version_in(record: list[bytes | None]) -> int | None:
    """The layout version of a crawl with this [state, layout]; None: there is no such crawl."""
    state, version = record
    return None if state in (None, b"deleting") else layout_of(version)


def no_such_crawl(crawl: str) -> UsageError:
    return UsageError(f"there is no crawl {crawl!r}; `shoal status` lists them")


def other_layout(crawl: str, version: int, *, shown: str) -> UsageError:
    """The error for a crawl of another layout version, which these scripts would damage."""
    if version == UNKNOWN_LAYOUT:
        return UsageError(unreadable_crawl(crawl, shown, "its layout version is missing or no number"))
    return UsageError(
        f"crawl {crawl!r} at {shown} was written by a newer shoal (layout {version}, this one has {LAYOUT_VERSION}):"
        " upgrade shoal, or use another database or server"
    )


class ShardRunner:
    """Runs scripts on crawls. A shard whose server was restarted is repaired before anything changes in it.

    A crawl is assumed to have one shard until its record, or a missing record, shows otherwise."""

    def __init__(
        self,
        connections: RedisConnections,
        repair: Callable[[Shard], Awaitable[None]],
        mend: Callable[[Shard], Awaitable[None]],
    ) -> None:
        self.connections = connections
        self.repair = repair
        self.mend = mend
        self.offered: dict[Shard, list[Argument]] = {}  # the latest offers of this process, by shard
        self._layouts: dict[str, list[Shard]] = {}
        self._existing: set[str] = set()
        self._usable: set[str] = set()
        self._epochs: dict[Shard, int] = {}
        self._warned: set[str] = set()
        self._unreadable: set[str] = set()
        self._seen: dict[str, str] = {}

    async def mend_once(self, crawl: str) -> bool:
        """Set aside unreadable records of a crawl, unless this process has tried before; gives whether it tried."""
        if crawl in self._unreadable:
            return False
        self._unreadable.add(crawl)
        for shard in await self.all_shards(crawl):
            await self.mend(shard)
        return True

    def see(self, crawl: str, *, is_usable: bool = False) -> None:
        """Note that the crawl exists in this run of its server. `is_usable`: its layout version is this one's."""
        self._seen[crawl] = self.connections.run_id
        if is_usable:
            self._usable.add(crawl)

    async def check_lost(self, crawl: str) -> None:
        """Raises CrawlLost if a crawl that existed is gone without having been deleted."""
        if crawl in self._seen:
            error = await lost_crawl(self.connections, crawl, run_id=self._seen[crawl])
            if error is not None:
                raise error

    def warn_once(self, text: str) -> None:
        """A warning for people; workers look at all crawls every second."""
        if text not in self._warned:
            self._warned.add(text)
            warn(text)

    async def shards(self, crawl: str) -> list[Shard]:
        """The shards of a crawl. Raises UsageError for another layout version, which is read once per crawl."""
        shards = await self.all_shards(crawl)
        if crawl not in self._usable:
            version = await self.version_of(crawl)
            if version == LAYOUT_VERSION:
                self._usable.add(crawl)
            elif version is not None:
                raise other_layout(crawl, version, shown=self.connections.shown)
        return shards

    async def version_of(self, crawl: str) -> int | None:
        """The layout version of a crawl; None: there is no such crawl."""
        first, *_ = await self.all_shards(crawl)
        async with self.connections.borrow() as connection:
            await connection.send("HMGET", first.prefix + "crawl", "state", "layout")
            (answer,) = await connection.answers_or_errors()
            if isinstance(answer, ResponseError) and WRONG_TYPE in str(answer):
                return UNKNOWN_LAYOUT
            if isinstance(answer, Exception):
                # Inside `borrow`, which translates the errors of the driver.
                raise answer
            return _version_in(answer)

    async def all_shards(self, crawl: str) -> list[Shard]:
        """The shards of a crawl of any layout version. Asks for their number only if the URL names several shards."""
        layout = self._layouts.get(crawl)
        if layout is None:
            if self.connections.shards > 1:
                await self.learn(crawl)
            else:
                self.lay_out(crawl, 1)
            layout = self._layouts[crawl]
        return layout

    async def existing_shards(self, crawl: str) -> list[Shard]:
        """The shards of a crawl that exists."""
        if crawl not in self._existing:
            await self.read(crawl, "progress")
        return await self.shards(crawl)

    async def all_crawls(self) -> list[str]:
        """The names of all crawls. Notes the number of shards of each."""
        async with self.connections.borrow() as connection:
            await connection.send("SMEMBERS", CRAWLS)
            await connection.send("HGETALL", SHARDS)
            names, numbers = await connection.answers()
        several = {name: _shards_in(number) for name, number in zip(numbers[::2], numbers[1::2], strict=True)}
        # A name that is no UTF-8 is not from shoal.
        shown = {name: name.decode("utf-8", "replace") for name in sorted(names)}
        known = {name: text for name, text in shown.items() if text.encode() == name}
        for name, text in known.items():
            self.lay_out(text, several.get(name, 1))
        return list(known.values())

    async def usable_crawls(self) -> list[str]:
        """The names of the crawls of this layout version, without those whose record cannot be read."""
        names = await self.all_crawls()
        async with self.connections.borrow() as connection:
            for name in names:
                await connection.send("HMGET", self._layouts[name][0].prefix + "crawl", "state", "layout")
            answers = await connection.answers_or_errors()
        return [
            name
            for name, answer in zip(names, answers, strict=True)
            if not isinstance(answer, ResponseError) and _version_in(answer) == LAYOUT_VERSION
        ]

    async def learn(self, crawl: str) -> bool:
        """Ask for the number of the crawl's shards; gives whether it differs from the noted one."""
        async with self.connections.borrow() as connection:
            recorded = await connection.call("HGET", SHARDS, crawl)
        return self.lay_out(crawl, _shards_in(recorded))

    def lay_out(self, crawl: str, number: int) -> bool:
        """Note the number of the crawl's shards; gives whether it differs from the one noted before."""
        layout = self._layouts.get(crawl)
        if layout is not None and len(layout) == number:
            return False
        self._layouts[crawl] = shards_of(crawl, number)
        return True

    def forget_layout(self, crawl: str) -> None:
        """Forget a deleted crawl; another crawl of its name may have another number of shards."""
        self._layouts.pop(crawl, None)
        self._existing.discard(crawl)
        self._usable.discard(crawl)
        self._seen.pop(crawl, None)

    async def read(self, crawl: str, verb: str, *args: Argument, lane: str | None = None) -> list[Any]:
        """A script that changes nothing, in the shard of the lane, or in the first one."""
        return (await self._ask(crawl, verb, args, lane=lane, unchecked=True))[0]

    async def read_all(self, crawl: str, verb: str, *args: Argument) -> list[list[Any]]:
        """A script that changes nothing, in every shard; their answers in order."""
        return await self._ask(crawl, verb, args, in_all=True, unchecked=True)

    async def change(self, crawl: str, verb: str, *args: Argument, lane: str | None = None) -> list[Any]:
        """A script that changes the crawl, in the shard of the lane, or in the first one."""
        return (await self._ask(crawl, verb, args, lane=lane))[0]

    async def read_in(self, shard: Shard, verb: str, *args: Argument) -> list[Any]:
        """A script that changes nothing in this shard."""
        return self._checked((await self.run([(shard, verb, args)], unchecked=True))[0], shard.crawl)

    async def change_in(self, shard: Shard, verb: str, *args: Argument) -> list[Any]:
        """A script that changes this shard."""
        return self._checked((await self.run([(shard, verb, args)]))[0], shard.crawl)

    async def run(self, calls: Sequence[Call], *, unchecked: bool = False) -> list[Any]:
        """Run scripts in one round trip. A script whose shard needs repair runs again after the repair.

        An answer may be {"none"}: there is no such crawl. A script that fails on the data of its shard runs again,
        once, after unreadable records were set aside."""
        answers: dict[int, Any] = {}
        pending = list(range(len(calls)))
        mended: set[Shard] = set()
        while pending:
            async with self.connections.borrow() as connection:
                for index in pending:
                    shard, verb, args = calls[index]
                    await connection.send_script(verb, shard.prefix, args, unchecked=unchecked)
                answers.update(zip(pending, await connection.answers_or_errors(), strict=True))
                failed = [index for index in pending if isinstance(answers[index], Exception)]
                for index in failed:
                    if calls[index][0] in mended or not is_damage(answers[index]):
                        raise answers[index]
            if failed:
                for shard in dict.fromkeys(calls[index][0] for index in failed):
                    await self.mend(shard)
                    mended.add(shard)
                pending = [index for index in pending if index in failed or needs_repair(answers[index])]
                continue
            pending = [index for index in pending if needs_repair(answers[index])]
            for shard in dict.fromkeys(calls[index][0] for index in pending):
                await self.repair(shard)
        for index, (shard, _, _) in enumerate(calls):
            if answers[index][0] == b"keys":
                raise keys_dropped(shard.crawl)
        return [answers[index] for index in range(len(calls))]

    async def readable(self, crawl: str, read: Callable[[], Awaitable[T]]) -> T:
        """Call `read`; if a record cannot be decoded, set aside such records and call it again."""
        try:
            return await read()
        except (*UNREADABLE, StorageError) as error:
            if isinstance(error, StorageError) and WRONG_TYPE not in str(error):
                raise
            for shard in await self.shards(crawl):
                await self.mend(shard)
        return await read()

    def see_epoch(self, shard: Shard, epoch: int) -> None:
        """Note the epoch of a shard from a script's answer."""
        self._epochs[shard] = epoch

    async def epoch_of(self, crawl: str) -> int:
        """The crawl's epoch: the sum of the epochs of its shards."""
        shards = await self.shards(crawl)
        unknown = [shard for shard in shards if shard not in self._epochs]
        if unknown:
            async with self.connections.borrow() as connection:
                for shard in unknown:
                    await connection.send("HGET", shard.prefix + "crawl", "epoch")
                for shard, epoch in zip(unknown, await connection.answers(), strict=True):
                    self.see_epoch(shard, int(epoch or 0))
        return sum(self._epochs[shard] for shard in shards)

    def _checked(self, answer: list[Any], crawl: str) -> list[Any]:
        if answer[0] == b"none":
            self._existing.discard(crawl)
        return checked(answer, crawl)

    async def _ask(
        self,
        crawl: str,
        verb: str,
        args: Sequence[Argument],
        *,
        lane: str | None = None,
        in_all: bool = False,
        unchecked: bool = False,
    ) -> list[list[Any]]:
        while True:
            shards = await self.shards(crawl)
            asked = shards if in_all else [shards[0 if lane is None else shard_of(lane, of=len(shards))]]
            answers = await self.run([(shard, verb, args) for shard in asked], unchecked=unchecked)
            if all(answer[0] != b"none" for answer in answers):
                self._existing.add(crawl)
                self.see(crawl)
                return answers
            self._existing.discard(crawl)
            if not await self.learn(crawl):
                await self.check_lost(crawl)
                raise no_such_crawl(crawl)


def _shards_in(field: bytes | None) -> int:
    """The number of shards in this field of SHARDS; 1 if it is missing or damaged."""
    number = (field or b"1").removeprefix(b"-")
    return int(number) if _NUMBER.fullmatch(number) else 1


def checked(answer: list[Any], crawl: str) -> list[Any]:
    """The answer; raises UsageError if there is no such crawl."""
    if answer[0] == b"none":
        raise no_such_crawl(crawl)
    return answer


def is_damage(answer: Any) -> bool:
    """Whether a script failed on the data of its shard, not because of the server's state."""
    return isinstance(answer, ResponseError) and "user_script" in str(answer) and not is_passing(answer)


def needs_repair(answer: list[Any]) -> bool:
    return bool(answer[0] == b"repair")
