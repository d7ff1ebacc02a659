"""The background work of `shoal serve`: histories, alerts, schedules, sinks, gone items, and clearing the frontier.
Each part has a duty, so that one process of several does it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from shoal.crawl.opening import inbox_at
from shoal.crawl.record import is_readable
from shoal.duties.alerts.watcher import AlertWatcher, alerts_now, local_paths
from shoal.duties.clearing import Clearing
from shoal.duties.gone import GoneMarker
from shoal.duties.history import Historian
from shoal.duties.schedules.scheduler import Scheduler
from shoal.errors import ServerUnreachable, ShoalError, StorageBroken, StorageError
from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import POINT_SECONDS
from shoal.model import Crawl, CrawlState
from shoal.serve.answers import Refusal
from shoal.serve.api.shapes import Alert
from shoal.serve.parts import Connection, Parts
from shoal.sinks.pump import SinkPump, open_sinks_of
from shoal.store.base import COUNTED, SinkState, Store
from shoal.text.errors import line_of
from shoal.text.secrets import masked
from shoal.worker.workers import SILENT_SECONDS, is_at_work

MOST_SINKS: Final = 100
# How often new sinks and reopened stores are looked for.
FEED_SECONDS: Final = 5.0
DUTY: Final = "gone"
# The duty of a killed process expires after this time.
DUTY_SECONDS: Final = 30.0
GONE_SECONDS: Final = 5.0
# A store marks in steps: the rest is marked the next time.
MARKING_SECONDS: Final = 20.0
# Includes sending messages; each sender has its own deadline.
LOOK_SECONDS = 120.0
# Shorter than the duty, which must not expire during a check.
SCHEDULE_SECONDS = 10.0
TICK_SECONDS = 1.0
STAND_BY_SECONDS = 3.0
CLEARING_SECONDS = 60.0


class SinkSeen(NamedTuple):
    """A sink and the URL of its store, without secrets."""

    store: str
    state: SinkState


async def known_stores(parts: Parts) -> list[Connection[Store]]:
    """The stores of the frontier's crawls, each once."""
    async with parts.frontier.using() as frontier:
        crawls = await parts.board.crawls(frontier)
    found: dict[int, Connection[Store]] = {}
    for crawl in crawls:
        if not crawl.refusal:
            # A store that is missing or cannot be reached: requests for its items report that.
            with contextlib.suppress(ShoalError, Refusal):
                connection = parts.store_of(crawl)
                found[id(connection)] = connection
    return list(found.values())


async def sinks_seen(parts: Parts) -> list[SinkSeen]:
    """The sinks of the stores that answer."""
    stores = await known_stores(parts)
    names = {id(connection): masked(url) for url, connection in parts.stores.items()}
    found: list[SinkSeen] = []
    for connection in stores:
        with contextlib.suppress(ShoalError, OSError):
            async with connection.using() as store:
                found += [SinkSeen(names[id(connection)], state) for state in await store.outbox.sinks(counted=COUNTED)]
    return found[:MOST_SINKS]


async def states_of_sinks(parts: Parts) -> list[SinkState]:
    """The sinks of all stores. Raises if one of them does not answer."""
    found: list[SinkState] = []
    for connection in await known_stores(parts):
        async with connection.using() as store:
            found += await store.outbox.sinks(counted=COUNTED)
    return found


class Feeding:
    """The pumps of one serving process, by store and sink."""

    def __init__(self, parts: Parts, *, say: Callable[[str], None]) -> None:
        self._parts = parts
        self._say = say
        self._said: set[str] = set()
        self._pumps: dict[tuple[Store, int], tuple[SinkPump, asyncio.Task[None]]] = {}

    async def look(self) -> None:
        """Start pumps for new sinks, and end those of removed sinks."""
        living: set[tuple[Store, int]] = set()
        for connection in await known_stores(self._parts):
            with contextlib.suppress(ShoalError, OSError):
                async with connection.using() as store:
                    living |= await self._feed(store)
        for name in self._pumps.keys() - living:
            await self._end(name)

    async def close(self) -> None:
        """End all pumps; a delivery in progress gets a moment."""
        for pump, _ in self._pumps.values():
            pump.end()
        for name in list(self._pumps):
            await self._end(name)

    async def _feed(self, store: Store) -> set[tuple[Store, int]]:
        known = {sink for at, sink in self._pumps if at is store}
        states = {state.id for state in await store.outbox.sinks()}
        found = await open_sinks_of(store.outbox, None, self._parts.sinks, only=states - known)
        for line in set(found.refusals) - self._said:
            self._said.add(line)
            self._say(line)
        for opened in found.open:
            pump = SinkPump(opened, outbox=store.outbox, say=self._say)
            self._pumps[store, opened.id] = pump, asyncio.create_task(pump.run())
        return {(store, sink) for sink in states}

    async def _end(self, name: tuple[Store, int]) -> None:
        pump, task = self._pumps.pop(name)
        pump.end()
        await asyncio.wait([task], timeout=1.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await pump.close()


async def feed_sinks(parts: Parts, *, say: Callable[[str], None]) -> None:
    """Send to sinks until cancelled. Of several processes one sends to each sink."""
    if not parts.feeds_sinks:
        return
    feeding = Feeding(parts, say=say)
    try:
        while True:
            # A connection notes its own problem.
            with contextlib.suppress(ShoalError, OSError):
                await feeding.look()
            await asyncio.sleep(FEED_SECONDS)
    finally:
        await feeding.close()


class GoneKeeping:
    """Marks items as gone in the stores of running crawls that revisit pages."""

    def __init__(
        self,
        parts: Parts,
        *,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.time,
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._parts = parts
        self._say = say
        self._clock = clock
        self._steady = steady
        self._holder = f"{os.getpid()}-{uuid.uuid4().hex}"
        self._next: dict[str, float] = {}
        self._troubles: dict[str, str] = {}

    async def look(self) -> None:
        """Mark gone items now, if the duty is ours."""
        async with self._parts.frontier.using() as frontier:
            held = await frontier.hold_duty(DUTY, self._holder, seconds=DUTY_SECONDS)
            if not held.is_ours:
                return
            crawls = await self._parts.board.crawls(frontier)
            workers = await frontier.workers(within=SILENT_SECONDS)
        # Without workers no page is visited: a missing item may have moved to a page that was not visited yet.
        worked_on = {beat.crawl for beat in workers if is_at_work(beat)}
        for crawl in crawls:
            if crawl.id in worked_on and crawl.state is CrawlState.RUNNING and is_readable(crawl):
                await self._look_at(crawl)

    async def finish(self) -> None:
        """Release the duty."""
        async with self._parts.frontier.using() as frontier:
            await frontier.hold_duty(DUTY, self._holder, seconds=0.0)

    async def _look_at(self, crawl: Crawl) -> None:
        marker, now = GoneMarker(crawl, say=self._say, clock=self._clock), self._steady()
        if not marker.every or now < self._next.get(crawl.id, now):
            return
        self._next[crawl.id] = now + marker.every
        trouble = ""
        try:
            trouble = await self._mark(crawl, marker)
        except (ShoalError, Refusal, OSError) as error:
            trouble = str(error)
        if trouble and trouble != self._troubles.get(crawl.id):
            self._say(f"items of {crawl.id} that are gone cannot be marked: {trouble}; trying again")
        self._troubles[crawl.id] = trouble

    async def _mark(self, crawl: Crawl, marker: GoneMarker) -> str:
        """Mark once; returns why the store refused."""
        async with self._parts.store_of(crawl).using(seconds=MARKING_SECONDS) as store:
            try:
                await marker.mark(store)
            except StorageBroken:
                raise
            except StorageError as error:
                # Such as a role that may not change items: readers must not be told that the store is away.
                return str(error)
        return ""


async def mark_gone(parts: Parts, *, say: Callable[[str], None]) -> None:
    """Mark items as gone until cancelled. Of several processes one does it."""
    if not parts.marks_gone:
        return
    keeping = GoneKeeping(parts, say=say)
    try:
        while True:
            # A connection notes its own problem.
            with contextlib.suppress(ShoalError, OSError):
                await keeping.look()
            await asyncio.sleep(GONE_SECONDS)
    finally:
        with contextlib.suppress(ShoalError, OSError):
            await keeping.finish()


async def keep_histories(parts: Parts) -> None:
    """Keep a point of each running crawl every 10 s, until cancelled. Several processes may: nothing counts twice."""
    while True:
        # A connection notes its own problem; the next point is kept when it works again.
        with contextlib.suppress(ShoalError, OSError):
            await keep_points(parts)
        await asyncio.sleep(POINT_SECONDS)


async def keep_points(parts: Parts) -> None:
    """Keep a point of each running crawl. An error with one crawl does not affect others."""
    async with parts.frontier.using() as frontier:
        crawls = await parts.board.crawls(frontier)
    for crawl in crawls:
        if crawl.state is CrawlState.RUNNING and not crawl.refusal:
            with contextlib.suppress(ShoalError, OSError):
                async with parts.frontier.using() as frontier:
                    await Historian(frontier, crawl.id).keep()


async def keep_watch(parts: Parts, *, say: Callable[[str], None]) -> None:
    """Check the alerts of shoal.toml, if any, until cancelled. Of several processes one sends."""
    if parts.alerts is None:
        return
    watcher: AlertWatcher | None = None
    watched: Frontier | None = None
    try:
        while True:
            # A connection notes its own problem.
            with contextlib.suppress(ShoalError, OSError):
                async with parts.frontier.using(seconds=LOOK_SECONDS) as frontier:
                    if watcher is None or frontier is not watched:
                        paths = local_paths(parts.places)
                        sinks = partial(states_of_sinks, parts)
                        watcher = AlertWatcher(parts.alerts, frontier=frontier, say=say, paths=paths, sinks=sinks)
                        watched = frontier
                    await watcher.look()
            await asyncio.sleep(parts.alerts.every)
    finally:
        if watcher is not None:
            await watcher.finish(looks=False)


async def keep_schedules(parts: Parts, *, say: Callable[[str], None]) -> None:
    """Start the runs of schedules until cancelled, if spiders may be started here. Of several processes one starts each
    run. Started runs go on afterwards."""
    if parts.schedules is None or not parts.spiders.has_folder:
        return
    scheduler = Scheduler(parts.schedules, starter=parts.spiders, place=parts.places.frontier, say=say)
    trouble = ""
    try:
        while True:
            has_duty = False
            try:
                async with parts.frontier.using(seconds=SCHEDULE_SECONDS) as frontier:
                    has_duty = await scheduler.look(frontier)
                trouble = ""
            except Exception as error:
                # Any error is retried: runs that are due meanwhile are late or missed.
                line = str(error) if isinstance(error, ShoalError) else line_of(error)
                if line != trouble:
                    say(f"schedules: {line}; trying again")
                trouble = line
            await asyncio.sleep(TICK_SECONDS if has_duty else STAND_BY_SECONDS)
    finally:
        with contextlib.suppress(ShoalError, OSError):
            async with parts.frontier.using() as frontier:
                await scheduler.finish(frontier)


async def keep_clear(parts: Parts, *, say: Callable[[str], None]) -> None:
    """Clear ended crawls from the frontier until cancelled. Of several processes one does it."""
    said = ""
    while True:
        try:
            # After a time-out the next call goes on with the rest.
            async with parts.frontier.using(seconds=LOOK_SECONDS) as frontier:
                await Clearing(frontier, inbox=partial(inbox_at, parts.places), say=say).look()
            said = ""
        except (ShoalError, OSError) as error:
            line = f"ended crawls are not cleared away: {error}"
            if not isinstance(error, ServerUnreachable) and line != said:
                say(line)
            said = line
        await asyncio.sleep(CLEARING_SECONDS)


async def firing(parts: Parts) -> list[Alert]:
    """The firing alerts; none if the frontier does not answer, which is reported as a problem."""
    try:
        async with parts.frontier.using() as frontier:
            found = await alerts_now(frontier)
    except (ShoalError, OSError):
        return []
    return [Alert(name=one.alert, crawl=one.crawl, line=one.text, since=one.fired) for one in found if one.is_firing]
