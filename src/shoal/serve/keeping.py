"""Keeps the history of every running crawl, watches for alerts and starts the runs of schedules."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

from shoal.crawl.opening import inbox_at
from shoal.duties.alerts.watcher import Watchman, alerts_now, local_paths
from shoal.duties.clearing import Clearing
from shoal.duties.history import Historian
from shoal.duties.schedules.scheduler import Timekeeper
from shoal.errors import ServerUnreachable, ShoalError
from shoal.frontier.base import Frontier
from shoal.frontier.rules.constants import POINT_SECONDS
from shoal.model import CrawlState
from shoal.serve.parts import Parts
from shoal.serve.shapes import Alert
from shoal.serve.sinks_seen import states_of_sinks
from shoal.text.errors import line_of

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
