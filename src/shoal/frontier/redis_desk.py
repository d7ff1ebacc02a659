"""Scripts on crawls: where a crawl's keys lie, and what to do when a script says no."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

from shoal.errors import UsageError
from shoal.frontier.redis_link import Argument, RedisLink

CRAWLS = "shoal:crawls"
LAST_NUMBER = "shoal:crawls:last"
WORKERS = "shoal:{workers}:"


def prefix_of(crawl: str, shard: int = 0) -> str:
    """What all keys of one shard of a crawl begin with. The braces keep them in one slot of a Cluster."""
    return f"shoal:{{{quote(crawl, safe=' ')}.{shard}}}:"


def no_such_crawl(crawl: str) -> UsageError:
    return UsageError(f"there is no crawl {crawl!r}; `shoal status` lists them")


class Desk:
    """Runs scripts on crawls. A crawl whose server was restarted is repaired before anything changes in it."""

    def __init__(self, link: RedisLink, repair: Callable[[str], Awaitable[None]]) -> None:
        self.link = link
        self.repair = repair

    async def look(self, crawl: str, verb: str, *args: Argument) -> list[Any]:
        """A script that changes nothing."""
        async with self.link.line() as line:
            await line.send_script(verb, prefix_of(crawl), args, looks=True)
            (answer,) = await line.answers()
        return checked(answer, crawl)

    async def change(self, crawl: str, verb: str, *args: Argument) -> list[Any]:
        """A script that changes the crawl."""
        while True:
            async with self.link.line() as line:
                answer = await line.run(verb, prefix_of(crawl), *args)
            if not needs_repair(answer):
                return checked(answer, crawl)
            await self.repair(crawl)


def checked(answer: list[Any], crawl: str) -> list[Any]:
    """The answer of a crawl that exists."""
    if answer[0] == b"none":
        raise no_such_crawl(crawl)
    return answer


def needs_repair(answer: list[Any]) -> bool:
    return bool(answer[0] == b"repair")
