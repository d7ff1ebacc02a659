"""Feeds the sinks of every store that this process knows, as long as it serves and has the duty."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final

from shoal.errors import ShoalError
from shoal.serve.parts import Parts
from shoal.serve.sinks_seen import known_stores
from shoal.sinks.pump import SinkPump, outlets_of
from shoal.store.base import Store

# How often it is looked for sinks that were added, and for stores that were opened again.
LOOK_SECONDS: Final = 5.0


class Feeding:
    """The pumps of one serving process, by store and sink."""

    def __init__(self, parts: Parts, *, say: Callable[[str], None]) -> None:
        self._parts = parts
        self._say = say
        self._said: set[str] = set()
        self._pumps: dict[tuple[Store, int], tuple[SinkPump, asyncio.Task[None]]] = {}

    async def look(self) -> None:
        """Begin to feed the sinks that are new, and end with those that are gone."""
        living: set[tuple[Store, int]] = set()
        for reached in await known_stores(self._parts):
            with contextlib.suppress(ShoalError, OSError):
                async with reached.asking() as store:
                    living |= await self._feed(store)
        for name in self._pumps.keys() - living:
            await self._end(name)

    async def close(self) -> None:
        """End all pumps; a batch on its way is given a moment."""
        for pump, _ in self._pumps.values():
            pump.end()
        for name in list(self._pumps):
            await self._end(name)

    async def _feed(self, store: Store) -> set[tuple[Store, int]]:
        known = {sink for at, sink in self._pumps if at is store}
        states = {state.id for state in await store.outbox.sinks()}
        found = await outlets_of(store.outbox, None, self._parts.sinks, only=states - known)
        for line in set(found.closed) - self._said:
            self._said.add(line)
            self._say(line)
        for outlet in found.open:
            pump = SinkPump(outlet, outbox=store.outbox, say=self._say)
            self._pumps[store, outlet.id] = pump, asyncio.create_task(pump.run())
        return {(store, sink) for sink in states}

    async def _end(self, name: tuple[Store, int]) -> None:
        pump, task = self._pumps.pop(name)
        pump.end()
        await asyncio.wait([task], timeout=1.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await pump.close()


async def feed_sinks(parts: Parts, *, say: Callable[[str], None]) -> None:
    """Feed sinks until cancelled. Of several processes that do, one sends to each."""
    if not parts.feeds_sinks:
        return
    feeding = Feeding(parts, say=say)
    try:
        while True:
            # What cannot be reached is noted where it is asked for.
            with contextlib.suppress(ShoalError, OSError):
                await feeding.look()
            await asyncio.sleep(LOOK_SECONDS)
    finally:
        await feeding.close()
