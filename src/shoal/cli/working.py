"""One worker process: finds its crawl, works on it, and waits for the next one if it is to stay."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import sys
from dataclasses import dataclass
from typing import TextIO

from shoal.cli.main import INTERRUPTED
from shoal.cli.screen import Say, Screen
from shoal.cli.stopping import Stopping
from shoal.cli.which import choose, is_unfinished
from shoal.crawl import Places, opened, worker_for
from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.model import Crawl
from shoal.patience import patiently
from shoal.settings import Settings
from shoal.spider import Spider, spider_name
from shoal.spider_file import load_spider

LOOK_SECONDS = 1.0


@dataclass(frozen=True, kw_only=True)
class Duty:
    """What a worker is told."""

    reference: str
    places: Places
    crawl_id: str | None = None
    name: str | None = None
    parent: int | None = None
    burst: bool = False


async def work(duty: Duty) -> int:
    """Work until told to stop, or with `burst` until the crawl is finished."""
    voice = Voice(sys.stderr)
    with contextlib.redirect_stdout(voice), contextlib.redirect_stderr(voice):
        say = Screen().say
        stopping = Stopping(say=say if duty.parent is None else _silent, grace_seconds=Settings().grace_seconds)
        watching = asyncio.create_task(_watch(duty.parent, stopping.stop))
        try:
            with stopping.listening():
                await _serve(duty, load_spider(duty.reference), stop=stopping.stop, say=say)
        finally:
            watching.cancel()
    # To stop a worker that stays is its normal end; one of a fleet is missed.
    return INTERRUPTED if duty.burst and stopping.stop.is_set() else 0


async def _serve(duty: Duty, spider: type[Spider], *, stop: asyncio.Event, say: Say) -> None:
    async with opened(duty.places) as (frontier, store):
        while not stop.is_set():
            crawl = await _next_crawl(frontier, spider, duty, stop=stop)
            if crawl is None:
                return
            parts = worker_for(crawl, spider(), frontier=frontier, store=store, say=say, name=duty.name)
            async with parts as worker:
                await worker.run(stop)
            if duty.burst:
                return


class Voice(io.TextIOBase):
    """What a worker and its spider write. That nobody reads it any more is no fault of a page."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        with contextlib.suppress(BrokenPipeError):
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._file.flush()


async def _next_crawl(frontier: Frontier, spider: type[Spider], duty: Duty, *, stop: asyncio.Event) -> Crawl | None:
    """The crawl to work on: the one named, or the spider's newest unfinished one as soon as there is one."""
    said = False
    while not stop.is_set():
        crawls = await patiently(frontier.crawls, say=_silent)
        if duty.crawl_id is not None and duty.burst:
            return choose(crawls, duty.crawl_id)
        mine = [crawl for crawl in crawls if duty.crawl_id in (None, crawl.id)]
        if duty.crawl_id is None:
            mine = [crawl for crawl in mine if crawl.spider == spider_name(spider)]
        open_ones = [crawl for crawl in mine if is_unfinished(crawl)]
        if open_ones:
            return open_ones[0]
        if duty.burst:
            raise UsageError(f"no crawl of {spider_name(spider)!r} is unfinished: `shoal run` begins one")
        if not said:
            Screen().say(f"waiting for a crawl of {spider_name(spider)!r}")
            said = True
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await stop.wait()
    return None


async def _watch(parent: int | None, stop: asyncio.Event) -> None:
    """Stop in good order when whoever started this worker is gone."""
    if parent is None:
        return
    while os.getppid() == parent:  # noqa: ASYNC110 -- the system tells nobody when a parent ends
        await asyncio.sleep(LOOK_SECONDS)
    stop.set()


def _silent(line: str) -> None:
    """The coordinator has said it already."""
