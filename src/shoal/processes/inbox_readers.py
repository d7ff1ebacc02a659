"""Which inboxes are read here: what workers note that wait for a crawl, so that a slip in a name can be told."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from shoal.frontier.base import Frontier
from shoal.processes.duty_notes import change_noted, read_noted

DUTY: Final = "readers of inboxes"
READ_SECONDS: Final = 90.0  # so long after its note a name counts as read
RENEW_SECONDS: Final = 30.0
KEPT_SECONDS: Final = 30 * 86_400.0  # a folder that lies elsewhere is still known so long after its last reader


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """When the inbox of a spider was noted as read, and its folder if that lies elsewhere."""

    noted: float
    folder: str = ""


async def read_readers(frontier: Frontier) -> dict[str, Reader]:
    """What is noted, by the names of spiders."""
    _, data = await read_noted(frontier, DUTY)
    return _readers(data)


def read_now(readers: Mapping[str, Reader], *, now: float) -> list[str]:
    """The names that are read."""
    return sorted(name for name, reader in readers.items() if abs(now - reader.noted) < READ_SECONDS)


class ReaderNotes:
    """Notes for a process that it reads inboxes. Processes that read the same ones share a note: few of them write."""

    def __init__(self, frontier: Frontier, *, clock: Callable[[], float] = time.time) -> None:
        self._frontier = frontier
        self._clock = clock
        self._looked = float("-inf")

    async def renew(self, folders: Mapping[str, str]) -> None:
        """Note these names, each with its folder if that lies elsewhere, unless they were noted a moment ago."""
        folders, now = _whole(folders), self._clock()
        if not folders or abs(now - self._looked) < RENEW_SECONDS:
            return
        self._looked = now
        noted = await read_readers(self._frontier)
        if any(self._is_old(noted.get(name), folder, now) for name, folder in folders.items()):
            await change_noted(self._frontier, DUTY, lambda data: _with(data, folders, now), busy=f"{DUTY} are noted")

    def _is_old(self, reader: Reader | None, folder: str, now: float) -> bool:
        return reader is None or reader.folder != folder or abs(now - reader.noted) >= RENEW_SECONDS


def _whole(folders: Mapping[str, str]) -> dict[str, str]:
    """With whole paths: people look from other folders."""
    return {name: folder and os.path.abspath(folder) for name, folder in folders.items()}


def _with(data: bytes, folders: Mapping[str, str], now: float) -> bytes:
    kept = {name: reader for name, reader in _readers(data).items() if now - reader.noted < KEPT_SECONDS}
    return msgspec.json.encode(kept | {name: Reader(noted=now, folder=folder) for name, folder in folders.items()})


def _readers(data: bytes) -> dict[str, Reader]:
    try:
        return msgspec.json.decode(data, type=dict[str, Reader]) if data else {}
    except msgspec.DecodeError:
        # Of another version: they are noted anew.
        return {}
