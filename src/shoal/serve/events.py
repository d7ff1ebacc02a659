"""Server-sent events for browsers: crawls are read once a second, for any number of browsers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import msgspec

from shoal.errors import ShoalError
from shoal.serve.answers import Refusal
from shoal.serve.api.shapes import Crawls
from shoal.serve.parts import Parts

POLL_SECONDS = 1.0
STORE_POLLS = 5
KEEP_ALIVE_SECONDS = 15.0
MOST_LISTENERS = 500
CRAWLS_SENT = 50
POINT_SECONDS = 30.0
MOST_POINTS = 10

Read = Callable[[], Awaitable[dict[str, Any]]]


class Channel:
    """One source of events, read while it has listeners. `latest` has the last event of each name."""

    def __init__(self, read: Read) -> None:
        self._read = read
        self._wakes: set[asyncio.Event] = set()
        self._task: asyncio.Task[None] | None = None
        self.latest: dict[str, bytes] = {}

    @contextlib.contextmanager
    def heard_by(self, wake: asyncio.Event) -> Iterator[None]:
        """During the block, set `wake` at every change."""
        self._wakes.add(wake)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll())
        try:
            yield
        finally:
            self._wakes.discard(wake)

    @property
    def is_heard(self) -> bool:
        return bool(self._wakes)

    async def _poll(self) -> None:
        while self._wakes:
            found = {name: msgspec.json.encode(value) for name, value in (await self._read()).items()}
            if any(self.latest.get(name) != text for name, text in found.items()):
                self.latest |= found
                for wake in self._wakes:
                    wake.set()
            await asyncio.sleep(POLL_SECONDS)
        self.latest.clear()

    async def close(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task


class Watching:
    """All channels of one process: one for the list of crawls, and one for each watched crawl."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._all = Channel(self._read_all)
        self._crawls: dict[str, Channel] = {}
        self._listeners = 0
        self._polls = 0

    async def stream(self, crawl: str | None) -> AsyncIterator[bytes]:
        """The events for one browser, until it disconnects or the process ends."""
        if self._listeners >= MOST_LISTENERS:
            raise Refusal(503, f"{MOST_LISTENERS} browsers watch already: close some of them")
        return self._events(crawl)

    async def _events(self, crawl: str | None) -> AsyncIterator[bytes]:
        channels = [self._all, *([self._crawl(crawl)] if crawl is not None else [])]
        wake, sent = asyncio.Event(), dict[tuple[int, str], bytes]()
        self._listeners += 1
        try:
            with contextlib.ExitStack() as stack:
                for channel in channels:
                    stack.enter_context(channel.heard_by(wake))
                yield b"retry: 2000\n: shoal\n\n"
                if any(channel.latest for channel in channels):
                    wake.set()
                while not self._parts.stopping.is_set():
                    await self._waited(wake)
                    fresh = [
                        (number, name, text)
                        for number, channel in enumerate(channels)
                        for name, text in channel.latest.items()
                        if sent.get((number, name)) != text
                    ]
                    for number, name, text in fresh:
                        sent[number, name] = text
                    yield b"".join(event(name, text) for _, name, text in fresh) or b": still here\n\n"
        finally:
            self._listeners -= 1
            if crawl is not None and not self._crawl(crawl).is_heard:
                await self._crawls.pop(crawl).close()

    async def _waited(self, wake: asyncio.Event) -> None:
        """Wait for a change, the end of the process, or the time of a keep-alive."""
        steps = [asyncio.create_task(wake.wait()), asyncio.create_task(self._parts.stopping.wait())]
        try:
            await asyncio.wait(steps, timeout=KEEP_ALIVE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for step in steps:
                step.cancel()
        wake.clear()

    def _crawl(self, crawl: str) -> Channel:
        if crawl not in self._crawls:
            self._crawls[crawl] = Channel(lambda: self._read_crawl(crawl))
        return self._crawls[crawl]

    async def _read_all(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        with contextlib.suppress(ShoalError, OSError):
            async with self._parts.frontier.using() as frontier:
                crawls = await self._parts.board.crawls(frontier)
                found["crawls"] = Crawls(crawls=await self._parts.board.summaries(crawls[:CRAWLS_SENT], frontier))
        if self._polls % STORE_POLLS == 0:
            await self._parts.probe_stores()
        self._polls += 1
        return {**found, "problems": self._parts.problems()}

    async def _read_crawl(self, name: str) -> dict[str, Any]:
        with contextlib.suppress(ShoalError, OSError):
            async with self._parts.frontier.using() as frontier:
                crawls = await self._parts.board.crawls(frontier)
                crawl = next((one for one in crawls if one.id == name), None)
                if crawl is not None and not crawl.refusal:
                    points = await frontier.points(name, seconds=POINT_SECONDS, most=MOST_POINTS)
                    latest = {"point": points[-1]} if points else {}
                    return {"crawl": await self._parts.board.detail(crawl, frontier), **latest}
        return {}


def event(name: str, text: bytes) -> bytes:
    """One event as bytes. JSON has no line breaks."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), text)
