"""The frontier and the stores of `serve`: opened when they are first needed, and again after they were lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from shoal.crawl.opening import Closable
from shoal.errors import ServerUnreachable, ShoalError, StorageBroken, StorageError

# So long is an answer waited for; people who look want to be told soon.
ANSWER_SECONDS = 2.0

Part = TypeVar("Part", bound=Closable)


class Reached(Generic[Part]):
    """One server or file. `problem` is why it could not be used when it was last asked; empty: it answered."""

    def __init__(self, what: str, opening: Callable[[], Awaitable[Part]]) -> None:
        self._what = what
        self._opening = opening
        self._part: Part | None = None
        self._lock = asyncio.Lock()
        self.problem = ""

    @asynccontextmanager
    async def asking(self, *, seconds: float | None = ANSWER_SECONDS) -> AsyncIterator[Part]:
        """The part, for a few calls that together take no longer than `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                yield await self.opened()
        except TimeoutError:
            self.problem = f"{self._what} gives no answer within {seconds:g} s"
            raise ServerUnreachable(self.problem) from None
        except StorageBroken as error:
            self.problem = str(error)
            await self.close()
            raise
        except (ServerUnreachable, StorageError, OSError) as error:
            self.problem = str(error)
            raise
        else:
            self.problem = ""

    async def opened(self) -> Part:
        """The part itself, for callers that have a time limit of their own."""
        async with self._lock:
            if self._part is None:
                self._part = await self._opening()
            return self._part

    async def probe(self, look: Callable[[Part], Awaitable[object]]) -> str:
        """The problem after one look; empty: it answers."""
        try:
            async with self.asking() as part:
                await look(part)
        except (ShoalError, OSError) as error:
            self.problem = str(error)
        return self.problem

    async def close(self) -> None:
        """Close it. It is opened again when it is asked for."""
        part, self._part = self._part, None
        if part is not None:
            await part.close()
