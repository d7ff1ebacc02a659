"""Scripts on crawls: in which shards a crawl lies, and what to do when a script says no."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from shoal.errors import UsageError
from shoal.frontier.redis.connection import Argument, RedisLink
from shoal.frontier.redis.shards import Shard, shard_of, shards_of

CRAWLS = "shoal:crawls"
LAST_NUMBER = "shoal:crawls:last"
SHARDS = (
    "shoal:shards"  # crawl → number of its shards, negative while it is being deleted; only where there are several
)
WORKERS = "shoal:{workers}:"
# The version of the keys of a crawl and of what is in them: field `layout` of its record, which records made before
# there were versions lack. Raised whenever scripts of the former version could not go on with a crawl of the new one.
LAYOUT_VERSION = 1

Call = tuple[Shard, str, Sequence[Argument]]


def no_such_crawl(crawl: str) -> UsageError:
    return UsageError(f"there is no crawl {crawl!r}; `shoal status` lists them")


def other_layout(crawl: str, version: int, *, shown: str) -> UsageError:
    """A crawl that these scripts would damage."""
    written = f"crawl {crawl!r} at {shown} was written by"
    versions = f"(layout {version or 'without a version'}, this one has {LAYOUT_VERSION})"
    if version > LAYOUT_VERSION:
        return UsageError(f"{written} a newer shoal {versions}: upgrade shoal, or use another database or server")
    return UsageError(
        f"{written} an older shoal {versions}: finish it with that shoal, or drop it with `shoal run FILE --fresh`,"
        " or use another database or server"
    )


class ShardRunner:
    """Runs scripts on crawls. A shard whose server was restarted is repaired before anything changes in it.

    A crawl is taken to lie in one shard until somebody says otherwise: its record, or the lack of one."""

    def __init__(self, link: RedisLink, repair: Callable[[Shard], Awaitable[None]]) -> None:
        self.link = link
        self.repair = repair
        self._layouts: dict[str, list[Shard]] = {}
        self._found: set[str] = set()
        self._usable: set[str] = set()
        self._epochs: dict[Shard, int] = {}

    async def shards(self, crawl: str) -> list[Shard]:
        """The shards of a crawl. A crawl of another layout version is refused; asked once for each crawl."""
        shards = await self.all_shards(crawl)
        if crawl not in self._usable:
            version = await self.version_of(crawl)
            if version == LAYOUT_VERSION:
                self._usable.add(crawl)
            elif version is not None:
                raise other_layout(crawl, version, shown=self.link.shown)
        return shards

    async def version_of(self, crawl: str) -> int | None:
        """The layout version of a crawl, 0 when its record has none; None when there is no such crawl."""
        first = (await self.all_shards(crawl))[0]
        async with self.link.line() as line:
            state, version = await line.call("HMGET", first.prefix + "crawl", "state", "layout")
        return None if state in (None, b"deleting") else int(version or 0)

    async def all_shards(self, crawl: str) -> list[Shard]:
        """The shards of a crawl, whatever its layout version. Asks for their number only where crawls have several."""
        layout = self._layouts.get(crawl)
        if layout is None:
            if self.link.shards > 1:
                await self.learn(crawl)
            else:
                self.lay_out(crawl, 1)
            layout = self._layouts[crawl]
        return layout

    async def found(self, crawl: str) -> list[Shard]:
        """The shards of a crawl that exists."""
        if crawl not in self._found:
            await self.look(crawl, "progress")
        return await self.shards(crawl)

    async def all_crawls(self) -> list[str]:
        """The names of all crawls; in how many shards each one lies is known from here on."""
        async with self.link.line() as line:
            await line.send("SMEMBERS", CRAWLS)
            await line.send("HGETALL", SHARDS)
            names, numbers = await line.answers()
        several = {name: abs(int(number)) for name, number in zip(numbers[::2], numbers[1::2], strict=True)}
        for name in names:
            self.lay_out(name.decode(), several.get(name, 1))
        return [name.decode() for name in sorted(names)]

    async def learn(self, crawl: str) -> bool:
        """Ask in how many shards the crawl lies; whether that is news."""
        async with self.link.line() as line:
            recorded = await line.call("HGET", SHARDS, crawl)
        return self.lay_out(crawl, abs(int(recorded or 1)))

    def lay_out(self, crawl: str, number: int) -> bool:
        """From here on the crawl lies in so many shards; whether that is news."""
        layout = self._layouts.get(crawl)
        if layout is not None and len(layout) == number:
            return False
        self._layouts[crawl] = shards_of(crawl, number)
        return True

    def forget_layout(self, crawl: str) -> None:
        """The crawl is gone; another one of its name may lie elsewhere."""
        self._layouts.pop(crawl, None)
        self._found.discard(crawl)
        self._usable.discard(crawl)

    async def look(self, crawl: str, verb: str, *args: Argument, lane: str | None = None) -> list[Any]:
        """A script that changes nothing, in the shard of the lane, or in the first one."""
        return (await self._ask(crawl, verb, args, lane=lane, looks=True))[0]

    async def look_at_all(self, crawl: str, verb: str, *args: Argument) -> list[list[Any]]:
        """A script that changes nothing, in every shard; their answers in order."""
        return await self._ask(crawl, verb, args, in_all=True, looks=True)

    async def change(self, crawl: str, verb: str, *args: Argument, lane: str | None = None) -> list[Any]:
        """A script that changes the crawl, in the shard of the lane, or in the first one."""
        return (await self._ask(crawl, verb, args, lane=lane))[0]

    async def look_into(self, shard: Shard, verb: str, *args: Argument) -> list[Any]:
        """A script that changes nothing in this shard."""
        return self._checked((await self.run([(shard, verb, args)], looks=True))[0], shard.crawl)

    async def change_in(self, shard: Shard, verb: str, *args: Argument) -> list[Any]:
        """A script that changes this shard."""
        return self._checked((await self.run([(shard, verb, args)]))[0], shard.crawl)

    async def run(self, calls: Sequence[Call], *, looks: bool = False) -> list[Any]:
        """Scripts in one round trip, again those that met a shard in need of repair. An answer may be {"none"}."""
        answers: dict[int, Any] = {}
        pending = list(range(len(calls)))
        while pending:
            async with self.link.line() as line:
                for place in pending:
                    shard, verb, args = calls[place]
                    await line.send_script(verb, shard.prefix, args, looks=looks)
                answers.update(zip(pending, await line.answers(), strict=True))
            pending = [place for place in pending if needs_repair(answers[place])]
            for shard in dict.fromkeys(calls[place][0] for place in pending):
                await self.repair(shard)
        return [answers[place] for place in range(len(calls))]

    def see_epoch(self, shard: Shard, epoch: int) -> None:
        """What a script said of its shard's epoch."""
        self._epochs[shard] = epoch

    async def epoch_of(self, crawl: str) -> int:
        """The crawl's epoch: another one as soon as that of any shard is another one."""
        shards = await self.shards(crawl)
        unknown = [shard for shard in shards if shard not in self._epochs]
        if unknown:
            async with self.link.line() as line:
                for shard in unknown:
                    await line.send("HGET", shard.prefix + "crawl", "epoch")
                for shard, epoch in zip(unknown, await line.answers(), strict=True):
                    self.see_epoch(shard, int(epoch or 0))
        return sum(self._epochs[shard] for shard in shards)

    def _checked(self, answer: list[Any], crawl: str) -> list[Any]:
        if answer[0] == b"none":
            self._found.discard(crawl)
        return checked(answer, crawl)

    async def _ask(
        self,
        crawl: str,
        verb: str,
        args: Sequence[Argument],
        *,
        lane: str | None = None,
        in_all: bool = False,
        looks: bool = False,
    ) -> list[list[Any]]:
        while True:
            shards = await self.shards(crawl)
            asked = shards if in_all else [shards[0 if lane is None else shard_of(lane, of=len(shards))]]
            answers = await self.run([(shard, verb, args) for shard in asked], looks=looks)
            if all(answer[0] != b"none" for answer in answers):
                self._found.add(crawl)
                return answers
            self._found.discard(crawl)
            if not await self.learn(crawl):
                raise no_such_crawl(crawl)


def checked(answer: list[Any], crawl: str) -> list[Any]:
    """The answer of a crawl that exists."""
    if answer[0] == b"none":
        raise no_such_crawl(crawl)
    return answer


def needs_repair(answer: list[Any]) -> bool:
    return bool(answer[0] == b"repair")
