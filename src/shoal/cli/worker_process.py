"""One worker process: finds its crawls, works on them, and waits for the next ones if it is to stay."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import sys
import time
from asyncio import FIRST_COMPLETED
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TextIO

from shoal.archive.base import Archive
from shoal.cli.display.lines import Say, say_on
from shoal.cli.main import INTERRUPTED
from shoal.cli.stopping import Stopping
from shoal.cli.which import choose
from shoal.crawl import Places, archive_of, listener_at, opened, settings_of, worker_for
from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.model import Crawl
from shoal.processes.crawl_record import is_unfinished
from shoal.processes.listener import Listener
from shoal.processes.patience import SaidOnce, patiently
from shoal.settings import Settings
from shoal.spider import Spider, spider_name
from shoal.spider_file import load_spiders
from shoal.store import STORE_CONNECTIONS
from shoal.store.base import Store

LOOK_SECONDS = 1.0
LONGEST_LOOK_SECONDS = 15.0
LOOK_SHARE = 0.05


@dataclass(frozen=True, kw_only=True)
class Duty:
    """What a worker is told."""

    reference: str
    places: Places
    crawl_id: str | None = None
    name: str | None = None
    store_connections: int | None = None
    parent: int | None = None
    burst: bool = False


async def work(duty: Duty) -> int:
    """Work until told to stop, or with `burst` until the crawls are finished."""
    spiders = {spider_name(spider): spider for spider in load_spiders(duty.reference)}
    say = SaidOnce(say_on(sys.stderr))
    stopping = Stopping(say=say if duty.parent is None else _silent, grace_seconds=Settings().grace_seconds)
    watching = asyncio.create_task(_watch(duty.parent, stopping.stop))
    try:
        voice = Voice(sys.stderr)
        with stopping.listening(), contextlib.redirect_stdout(voice), contextlib.redirect_stderr(voice):
            async with (
                opened(
                    duty.places,
                    wait=None if duty.parent is None else say,
                    store_connections=duty.store_connections or _connections(spiders.values()),
                ) as (frontier, store),
                archive_of(duty.places, wait=None if duty.parent is None else say) as archive,
                listener_at(duty.places, frontier=frontier, say=say) as listener,
            ):
                shift = Shift(duty, spiders=spiders, frontier=frontier, store=store, say=say, archive=archive)
                await shift.run(stopping.stop, listener=listener)
    finally:
        watching.cancel()
    # To stop a worker that stays is its normal end; one of a fleet is missed.
    return INTERRUPTED if duty.burst and stopping.stop.is_set() else 0


def _connections(spiders: Iterable[type[Spider]]) -> int:
    return max((settings_of(spider, {}).values.store_connections for spider in spiders), default=STORE_CONNECTIONS)


class Voice(io.TextIOBase):
    """Where a spider's prints go. When nobody listens any more, a print must not fail its page."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(BrokenPipeError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._stream.flush()


class Shift:
    """Works on every unfinished crawl of its spiders, side by side, and on those that begin meanwhile."""

    def __init__(
        self,
        duty: Duty,
        *,
        spiders: dict[str, type[Spider]],
        frontier: Frontier,
        store: Store,
        say: Say,
        archive: Archive | None,
    ) -> None:
        self._duty = duty
        self._archive = archive
        self._spiders = spiders
        self._frontier = frontier
        self._store = store
        self._say = say
        self._running: dict[str, asyncio.Task[None]] = {}
        self._has_worked = False

    async def run(self, stop: asyncio.Event, *, listener: Listener) -> None:
        """Until told to stop, or with `burst` until there is nothing left. What is pushed meanwhile is taken in."""
        stopped = asyncio.create_task(stop.wait())
        has_waited = False
        try:
            while not stop.is_set():
                began = time.monotonic()
                for crawl in self._unfinished(await self._look(listener)):
                    if crawl.id not in self._running:
                        self._running[crawl.id] = asyncio.create_task(self._work_on(crawl, stop))
                        self._has_worked = True
                if not self._running and self._duty.burst:
                    return
                if not self._running and not has_waited:
                    self._say(f"waiting for a crawl of {self._names()}")
                    has_waited = True
                pause = pause_after(time.monotonic() - began)
                await asyncio.wait([stopped, *self._running.values()], timeout=pause, return_when=FIRST_COMPLETED)
                self._let_go()
            await asyncio.gather(*self._running.values())
        finally:
            stopped.cancel()
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(stopped, *self._running.values(), return_exceptions=True)

    async def _look(self, listener: Listener) -> list[Crawl]:
        """The crawls there are, once what was pushed is taken in. A fleet's coordinator takes in by itself."""
        crawls = await self._crawls()
        if self._duty.parent is not None:
            return crawls
        # Also for crawls that are finished: a push sets them running again.
        taken = await listener.take_in([crawl for crawl in crawls if crawl.spider in self._spiders])
        return await self._crawls() if taken else crawls

    async def _work_on(self, crawl: Crawl, stop: asyncio.Event) -> None:
        spider = self._spiders[crawl.spider]()
        async with worker_for(
            crawl,
            spider,
            frontier=self._frontier,
            store=self._store,
            say=self._say,
            name=self._duty.name,
            archive=self._archive,
        ) as worker:
            await worker.run(stop)

    def _let_go(self) -> None:
        """Forget the crawls that ended; one that failed ends the shift."""
        for name, task in list(self._running.items()):
            if task.done():
                del self._running[name]
                task.result()

    async def _crawls(self) -> list[Crawl]:
        crawls = await patiently(self._frontier.crawls, say=_silent)
        named = self._duty.crawl_id
        if named is None:
            return crawls
        crawls = [choose(crawls, named)] if self._duty.burst else [one for one in crawls if one.id == named]
        return [self._as_served(crawl) for crawl in crawls]

    def _unfinished(self, crawls: list[Crawl]) -> list[Crawl]:
        mine = [crawl for crawl in crawls if crawl.spider in self._spiders]
        unfinished = [crawl for crawl in mine if is_unfinished(crawl.state)]
        if self._duty.burst and self._duty.crawl_id is None and not unfinished and not self._has_worked:
            raise UsageError(f"no crawl of {self._names()} is unfinished: `shoal run` begins one")
        return unfinished

    def _as_served(self, crawl: Crawl) -> Crawl:
        """A crawl that is asked for by its id is served by the file's only spider, whatever that one is called."""
        if crawl.spider not in self._spiders and len(self._spiders) == 1:
            self._spiders[crawl.spider] = next(iter(self._spiders.values()))
        return crawl

    def _names(self) -> str:
        return " or ".join(repr(name) for name in self._spiders)


def pause_after(look: float) -> float:
    """How long to wait after a look that took so long: where thousands of crawls lie, looking is no small work."""
    return min(max(LOOK_SECONDS, look / LOOK_SHARE), LONGEST_LOOK_SECONDS)


async def _watch(parent: int | None, stop: asyncio.Event) -> None:
    """Stop in good order when whoever started this worker is gone."""
    if parent is None:
        return
    while os.getppid() == parent:  # noqa: ASYNC110 -- the system tells nobody when a parent ends
        await asyncio.sleep(LOOK_SECONDS)
    stop.set()


def _silent(line: str) -> None:
    """The coordinator has said it already."""
