"""The outbox of a `files:` store, kept in its index, which gets the items when they are read from the JSON Lines.

The index may be deleted at any time, so the sinks are also listed in a file beside it: a new index queues all items for
them again."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import msgspec

from shoal.errors import StorageError
from shoal.store.base import Outgoing, SinkPlace, SinkState, Store

SINKS = "sinks.json"

IndexOf = Callable[[], Awaitable[Store]]


class FilesOutbox:
    """Implements `Outbox`. `up_to_date` returns the index with all items so far, `opened` the index as it is."""

    def __init__(self, folder: Path, *, up_to_date: IndexOf, opened: IndexOf) -> None:
        self._folder = folder
        self._up_to_date = up_to_date
        self._opened = opened

    async def add(self, place: SinkPlace) -> int:
        """Store changes for this sink, beginning with the next item that is written."""
        index = await self._up_to_date()
        sink = await index.outbox.add(place)
        await self._list([state.place for state in await index.outbox.sinks()])
        return sink

    async def sinks(self, spider: str | None = None, *, counted: int | None = None) -> list[SinkState]:
        """The sinks of a spider, or all. Without a sink, no item is read."""
        if not await asyncio.to_thread((self._folder / SINKS).exists):
            return []
        return await (await self._up_to_date()).outbox.sinks(spider, counted=counted)

    async def hold(self, sink: int, holder: str, *, seconds: float) -> bool:
        """Lock the sink."""
        return await (await self._opened()).outbox.hold(sink, holder, seconds=seconds)

    async def read(self, sink: int, *, limit: int) -> list[Outgoing]:
        """The oldest waiting changes."""
        return await (await self._up_to_date()).outbox.read(sink, limit=limit)

    async def passed(self, sink: int, changes: Sequence[Outgoing]) -> None:
        """Delete delivered changes."""
        await (await self._opened()).outbox.passed(sink, changes)

    async def failed(self, sink: int, why: str) -> None:
        """Note the trouble of a sink."""
        await (await self._opened()).outbox.failed(sink, why)

    async def replay(self, sink: int, *, since: float | None = None) -> int:
        """Queue the items again."""
        return await (await self._up_to_date()).outbox.replay(sink, since=since)

    async def remove(self, sink: int) -> None:
        """Delete a sink."""
        index = await self._opened()
        # The file first: a sink that it lists is added again to a new index.
        await self._list([state.place for state in await index.outbox.sinks() if state.id != sink])
        await index.outbox.remove(sink)

    async def _list(self, places: Sequence[SinkPlace]) -> None:
        await asyncio.to_thread(write_sinks, self._folder, places)


def write_sinks(folder: Path, places: Sequence[SinkPlace]) -> None:
    """Write the list of sinks of a folder, whole or not at all."""
    path, new = folder / SINKS, folder / f"{SINKS}.{os.getpid()}"
    try:
        with new.open("wb") as file:
            file.write(msgspec.json.encode(places))
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror or error}; fix that and run again") from error


def read_sinks(folder: Path) -> list[SinkPlace]:
    """The sinks that a folder lists."""
    path = folder / SINKS
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[SinkPlace])
    except FileNotFoundError:
        return []
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise StorageError(f"{path} is damaged: restore a copy; or delete it and add its sinks again") from None
