"""Keeps the history of every running crawl, watches for alerts and starts the runs of schedules.

The sinks of every store that this process knows: for alerts and for metrics.

Feeds the sinks of every store that this process knows, as long as it serves and has the duty.

Items that are gone, marked by a serving process while it has the duty: workers alone do not.
"""

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
from shoal.duties.alerts.watcher import Watchman, alerts_now, local_paths
from shoal.duties.clearing import Clearing
from shoal.duties.gone import GoneMarker
from shoal.duties.history import Historian
from shoal.duties.schedules.scheduler import Timekeeper
from shoal.errors import ServerUnreachable, ShoalError, StorageBroken, StorageError
from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import POINT_SECONDS
from shoal.model import Crawl, CrawlState
from shoal.serve.answers import Refusal
from shoal.serve.api.shapes import Alert
from shoal.serve.parts import Parts, Reached
from shoal.sinks.pump import SinkPump, open_sinks_of
from shoal.store.base import COUNTED, SinkState, Store
from shoal.text.errors import line_of
from shoal.text.secrets import masked
from shoal.worker.workers import SILENT_SECONDS, is_at_work

MOST_SINKS: Final = 100


class SinkSeen(NamedTuple):
    """A sink, and the store that feeds it, without secrets."""

    store: str
    state: SinkState


async def known_stores(parts: Parts) -> list[Reached[Store]]:
    """The stores of the frontier's crawls, each once."""
    async with parts.frontier.asking() as frontier:
        crawls = await parts.board.crawls(frontier)
    found: dict[int, Reached[Store]] = {}
    for crawl in crawls:
        if not crawl.refusal:
            # A store that is not there, or out of reach: who asks for its items is told so.
            with contextlib.suppress(ShoalError, Refusal):
                reached = parts.store_of(crawl)
                found[id(reached)] = reached
    return list(found.values())


async def sinks_seen(parts: Parts) -> list[SinkSeen]:
    """The sinks of the stores that answer."""
    stores = await known_stores(parts)
    names = {id(reached): masked(url) for url, reached in parts.stores.items()}
    found: list[SinkSeen] = []
    for reached in stores:
        with contextlib.suppress(ShoalError, OSError):
            async with reached.asking() as store:
                found += [SinkSeen(names[id(reached)], state) for state in await store.outbox.sinks(counted=COUNTED)]
    return found[:MOST_SINKS]


async def states_of_sinks(parts: Parts) -> list[SinkState]:
    """The sinks of all stores. An error where one of them gives no answer."""
    found: list[SinkState] = []
    for reached in await known_stores(parts):
        async with reached.asking() as store:
            found += await store.outbox.sinks(counted=COUNTED)
    return found


# How often it is looked for sinks that were added, and for stores that were opened again.
FEED_SECONDS: Final = 5.0


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
    """Feed sinks until cancelled. Of several processes that do, one sends to each."""
    if not parts.feeds_sinks:
        return
    feeding = Feeding(parts, say=say)
    try:
        while True:
            # What cannot be reached is noted where it is asked for.
            with contextlib.suppress(ShoalError, OSError):
                await feeding.look()
            await asyncio.sleep(FEED_SECONDS)
    finally:
        await feeding.close()


DUTY: Final = "gone"
# How long a process that died keeps the others from its duty.
DUTY_SECONDS: Final = 30.0
GONE_SECONDS: Final = 5.0
# What is not marked within it is marked at the next look: a store marks in steps.
MARKING_SECONDS: Final = 20.0


class GoneKeeping:
    """Marks items as gone in the stores of the running crawls that visit pages again."""

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
        """Mark what is due now, if the duty is ours."""
        async with self._parts.frontier.asking() as frontier:
            held = await frontier.hold_duty(DUTY, self._holder, seconds=DUTY_SECONDS)
            if not held.is_ours:
                return
            crawls = await self._parts.board.crawls(frontier)
            workers = await frontier.workers(within=SILENT_SECONDS)
        # While nobody works no page is visited: an item may have moved to one that nobody has seen yet.
        worked_on = {beat.crawl for beat in workers if is_at_work(beat)}
        for crawl in crawls:
            if crawl.id in worked_on and crawl.state is CrawlState.RUNNING and is_readable(crawl):
                await self._look_at(crawl)

    async def finish(self) -> None:
        """Leave the duty to others."""
        async with self._parts.frontier.asking() as frontier:
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
        """Mark once; gives why the store refused."""
        async with self._parts.store_of(crawl).asking(seconds=MARKING_SECONDS) as store:
            try:
                await marker.mark(store)
            except StorageBroken:
                raise
            except StorageError as error:
                # Such as a role that may not change items. Who reads them is not to be told that the store is away.
                return str(error)
        return ""


async def mark_gone(parts: Parts, *, say: Callable[[str], None]) -> None:
    """Mark items as gone until cancelled. Of several processes that do, one marks."""
    if not parts.marks_gone:
        return
    keeping = GoneKeeping(parts, say=say)
    try:
        while True:
            # What cannot be reached is noted where it is asked for.
            with contextlib.suppress(ShoalError, OSError):
                await keeping.look()
            await asyncio.sleep(GONE_SECONDS)
    finally:
        with contextlib.suppress(ShoalError, OSError):
            await keeping.finish()


# Messages are sent meanwhile, and each sender has its own deadline.
LOOK_SECONDS = 120.0
# Shorter than the duty: what was read at the beginning of a look still holds at its end.
SCHEDULE_SECONDS = 10.0
TICK_SECONDS = 1.0
STAND_BY_SECONDS = 3.0
CLEARING_SECONDS = 60.0


async def keep_histories(parts: Parts) -> None:
    """Keep a point of each running crawl every 10 s, until cancelled. Others may do so as well: none counts twice."""
    while True:
        # What cannot be reached is noted where it is asked for: the next point is kept when it is back.
        with contextlib.suppress(ShoalError, OSError):
            await keep_points(parts)
        await asyncio.sleep(POINT_SECONDS)


async def keep_points(parts: Parts) -> None:
    """Keep a point of each running crawl. One that cannot be read does not keep the others from theirs."""
    async with parts.frontier.asking() as frontier:
        crawls = await parts.board.crawls(frontier)
    for crawl in crawls:
        if crawl.state is CrawlState.RUNNING and not crawl.refusal:
            with contextlib.suppress(ShoalError, OSError):
                async with parts.frontier.asking() as frontier:
                    await Historian(frontier, crawl.id).keep()


async def keep_watch(parts: Parts, *, say: Callable[[str], None]) -> None:
    """Watch for the alerts of shoal.toml until cancelled, if there are any. Of several processes that do, one sends."""
    if parts.alerts is None:
        return
    watchman: Watchman | None = None
    watched: Frontier | None = None
    try:
        while True:
            # What cannot be reached is noted where it is asked for.
            with contextlib.suppress(ShoalError, OSError):
                async with parts.frontier.asking(seconds=LOOK_SECONDS) as frontier:
                    if watchman is None or frontier is not watched:
                        paths = local_paths(parts.places)
                        sinks = partial(states_of_sinks, parts)
                        watchman = Watchman(parts.alerts, frontier=frontier, say=say, paths=paths, sinks=sinks)
                        watched = frontier
                    await watchman.look()
            await asyncio.sleep(parts.alerts.every)
    finally:
        if watchman is not None:
            await watchman.finish(looks=False)


async def keep_schedules(parts: Parts, *, say: Callable[[str], None]) -> None:
    """Start the runs of schedules until cancelled, where spiders may be started. Of several processes that do, one
    starts each run. What was started goes on afterwards."""
    if parts.schedules is None or not parts.spiders.has_folder:
        return
    timekeeper = Timekeeper(parts.schedules, starter=parts.spiders, place=parts.places.frontier, say=say)
    trouble = ""
    try:
        while True:
            has_duty = False
            try:
                async with parts.frontier.asking(seconds=SCHEDULE_SECONDS) as frontier:
                    has_duty = await timekeeper.look(frontier)
                trouble = ""
            except Exception as error:
                # Runs that fall due meanwhile are late, or missed. Nothing may end this for good.
                line = str(error) if isinstance(error, ShoalError) else line_of(error)
                if line != trouble:
                    say(f"schedules: {line}; trying again")
                trouble = line
            await asyncio.sleep(TICK_SECONDS if has_duty else STAND_BY_SECONDS)
    finally:
        with contextlib.suppress(ShoalError, OSError):
            async with parts.frontier.asking() as frontier:
                await timekeeper.finish(frontier)


async def keep_clear(parts: Parts, *, say: Callable[[str], None]) -> None:
    """Remove what ended crawls leave in the frontier, until cancelled. Of several processes that do, one does it."""
    said = ""
    while True:
        try:
            # One that takes longer goes on with the rest at the next look.
            async with parts.frontier.asking(seconds=LOOK_SECONDS) as frontier:
                await Clearing(frontier, inbox=partial(inbox_at, parts.places), say=say).look()
            said = ""
        except (ShoalError, OSError) as error:
            line = f"ended crawls are not cleared away: {error}"
            if not isinstance(error, ServerUnreachable) and line != said:
                say(line)
            said = line
        await asyncio.sleep(CLEARING_SECONDS)


async def firing(parts: Parts) -> list[Alert]:
    """The alerts that fire; none where the frontier does not answer, which is a problem of its own."""
    try:
        async with parts.frontier.asking() as frontier:
            found = await alerts_now(frontier)
    except (ShoalError, OSError):
        return []
    return [Alert(name=one.alert, crawl=one.crawl, line=one.text, since=one.fired) for one in found if one.is_firing]
