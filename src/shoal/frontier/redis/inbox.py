"""The inbox beside the Redis frontier: `redis-cli LPUSH shoal:inbox:NAME https://…` from any language."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from shoal.frontier.redis.connections import RedisConnections
from shoal.frontier.redis.scripts import shipped_scripts
from shoal.frontier.redis.server_checks import warn

PREFIX = "shoal:inbox:"
TAKEN = (f"shoal:{{{PREFIX}", "}:taken")  # before the name, and after it
TAKER_SECONDS = 30.0
ANY_INBOX = "shoal:*inbox:*"  # matches also the taken entries of a dead taker
KEYS_PER_STEP = 1000
LOOKED_SECONDS = 10.0
MOST_NAMES = 1000


def inbox_keys(name: str) -> tuple[str, str, str]:
    """The inbox, its taken entries and their taker. The braces keep the three keys in one slot of a Cluster."""
    inbox = f"{PREFIX}{name}"
    return inbox, name.join(TAKEN), f"shoal:{{{inbox}}}:taker"


class RedisInbox:
    """Implements `Inbox`: one taker at a time; the entries of a dead taker go to the next one."""

    def __init__(self, url: str, *, taker_seconds: float = TAKER_SECONDS) -> None:
        self._connections = RedisConnections(url)
        self._me = os.urandom(8).hex()
        self._milliseconds = int(taker_seconds * 1000)
        self._warned: set[str] = set()
        scripts = shipped_scripts()
        self._take, self._forget = scripts["inbox_take"].text, scripts["inbox_forget"].text
        self._give_back = scripts["inbox_give_back"].text

    def place(self, name: str) -> str:
        return inbox_keys(name)[0]

    async def names(self) -> list[str]:
        found: dict[str, None] = {}
        until = time.monotonic() + LOOKED_SECONDS
        for node in await self._connections.nodes():
            async with self._connections.borrow_from(node) as connection:
                cursor: bytes | int = -1
                while cursor not in (b"0", 0) and len(found) < MOST_NAMES and time.monotonic() < until:
                    step = 0 if cursor == -1 else cursor
                    cursor, keys = await connection.call("SCAN", step, "MATCH", ANY_INBOX, "COUNT", KEYS_PER_STEP)
                    found |= dict.fromkeys(name for key in keys if (name := _name_of(key.decode(errors="replace"))))
        return await self.waiting(sorted(found))

    async def waiting(self, names: Sequence[str]) -> list[str]:
        if not names:
            return []
        async with self._connections.borrow() as connection:
            for name in names:
                for key in inbox_keys(name)[:2]:
                    await connection.send("TYPE", key)
            kinds = await connection.answers()
        found = []
        for name, pushed, taken in zip(names, kinds[::2], kinds[1::2], strict=True):
            if _text(pushed) not in ("list", "none"):
                self._complain(inbox_keys(name)[0], _text(pushed))
            elif "list" in (_text(pushed), _text(taken)):
                found.append(name)
        return found

    async def count(self, names: Sequence[str]) -> dict[str, int]:
        found = await self.waiting(names)
        if not found:
            return {}
        async with self._connections.borrow() as connection:
            for name in found:
                for key in inbox_keys(name)[:2]:
                    await connection.send("LLEN", key)
            lengths = await connection.answers()
        numbers = (pushed + taken for pushed, taken in zip(lengths[::2], lengths[1::2], strict=True))
        return {name: number for name, number in zip(found, numbers, strict=True) if number}

    async def take(self, name: str, limit: int) -> list[bytes]:
        async with self._connections.borrow() as connection:
            answer: list[bytes] = await connection.call(
                "EVAL", self._take, 3, *inbox_keys(name), self._me, self._milliseconds, limit
            )
        return answer[::-1]

    async def forget(self, name: str) -> None:
        async with self._connections.borrow() as connection:
            await connection.call("EVAL", self._forget, 2, *inbox_keys(name)[1:], self._me)

    async def give_back(self, name: str) -> None:
        async with self._connections.borrow() as connection:
            await connection.call("EVAL", self._give_back, 1, inbox_keys(name)[2], self._me)

    async def delete(self, name: str) -> None:
        async with self._connections.borrow() as connection:
            await connection.call("DEL", *inbox_keys(name))

    async def close(self) -> None:
        await self._connections.close()

    def _complain(self, key: str, kind: str) -> None:
        if key not in self._warned:
            self._warned.add(key)
            warn(f"{key} is a {kind}, not a list: DEL it and push with LPUSH")


def _name_of(key: str) -> str:
    """The name of the inbox to which this key belongs, or its taken entries; empty: another key."""
    if key.startswith(PREFIX):
        return key.removeprefix(PREFIX)
    before, after = TAKEN
    return key[len(before) : -len(after)] if key.startswith(before) and key.endswith(after) else ""


def _text(kind: bytes | str) -> str:
    return kind.decode() if isinstance(kind, bytes) else kind
