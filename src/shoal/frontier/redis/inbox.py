"""The inbox beside the Redis frontier: `redis-cli LPUSH shoal:inbox:CRAWL https://…` from any language."""

from __future__ import annotations

import os
from collections.abc import Sequence

from shoal.frontier.redis.connections import RedisConnections
from shoal.frontier.redis.scripts import shipped_scripts
from shoal.frontier.redis.server_checks import warn

TAKER_SECONDS = 30.0


def inbox_keys(crawl: str) -> tuple[str, str, str]:
    """The inbox, its taken entries and their taker. The braces keep the three keys in one slot of a Cluster."""
    inbox = f"shoal:inbox:{crawl}"
    return inbox, f"shoal:{{{inbox}}}:taken", f"shoal:{{{inbox}}}:taker"


class RedisInbox:
    """Keeps the contract of `Inbox`: one taker at a time, and the entries that a dead taker took go to the next one."""

    def __init__(self, url: str, *, taker_seconds: float = TAKER_SECONDS) -> None:
        self._connections = RedisConnections(url)
        self._me = os.urandom(8).hex()
        self._milliseconds = int(taker_seconds * 1000)
        self._warned: set[str] = set()
        scripts = shipped_scripts()
        self._take, self._forget = scripts["inbox_take"].text, scripts["inbox_forget"].text

    async def waiting(self, crawls: Sequence[str]) -> list[str]:
        if not crawls:
            return []
        async with self._connections.borrow() as connection:
            for crawl in crawls:
                for key in inbox_keys(crawl)[:2]:
                    await connection.send("TYPE", key)
            kinds = await connection.answers()
        found = []
        for crawl, pushed, taken in zip(crawls, kinds[::2], kinds[1::2], strict=True):
            if _text(pushed) not in ("list", "none"):
                self._complain(inbox_keys(crawl)[0], _text(pushed))
            elif "list" in (_text(pushed), _text(taken)):
                found.append(crawl)
        return found

    async def count(self, crawls: Sequence[str]) -> dict[str, int]:
        found = await self.waiting(crawls)
        if not found:
            return {}
        async with self._connections.borrow() as connection:
            for crawl in found:
                for key in inbox_keys(crawl)[:2]:
                    await connection.send("LLEN", key)
            lengths = await connection.answers()
        numbers = (pushed + taken for pushed, taken in zip(lengths[::2], lengths[1::2], strict=True))
        return {crawl: number for crawl, number in zip(found, numbers, strict=True) if number}

    async def take(self, crawl: str, limit: int) -> list[bytes]:
        async with self._connections.borrow() as connection:
            answer: list[bytes] = await connection.call(
                "EVAL", self._take, 3, *inbox_keys(crawl), self._me, self._milliseconds, limit
            )
        return answer[::-1]

    async def forget(self, crawl: str) -> None:
        async with self._connections.borrow() as connection:
            await connection.call("EVAL", self._forget, 2, *inbox_keys(crawl)[1:], self._me)

    async def delete(self, crawl: str) -> None:
        async with self._connections.borrow() as connection:
            await connection.call("DEL", *inbox_keys(crawl))

    async def close(self) -> None:
        await self._connections.close()

    def _complain(self, key: str, kind: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            warn(f"{key} is a {kind}, not a list: DEL it and push with LPUSH")


def _text(kind: bytes | str) -> str:
    return kind.decode() if isinstance(kind, bytes) else kind
