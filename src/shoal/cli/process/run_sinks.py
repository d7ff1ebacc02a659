"""The sinks of a run: checked before it, fed during it, reported after it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager

from shoal.cli.display.next_commands import pasted
from shoal.crawl.opening import Places
from shoal.crawl.places import DEFAULT_FILE
from shoal.errors import ServerUnreachable, UsageError
from shoal.settings.table import STORE_VARIABLE
from shoal.sinks import open_sink
from shoal.sinks.pump import (
    SinkPump,
    SinkReport,
    begin_sinks,
    forget_stdout,
    open_sinks_of,
    pumping,
    sinks_given,
    waiting_line,
)
from shoal.sinks.urls import STDOUT, SinkUrl
from shoal.store.base import Outbox
from shoal.worker.outages import WAITING, until_reachable

Say = Callable[[str], None]


class RunSinks:
    """The sinks given to a run, and those of its spider from earlier runs."""

    def __init__(self, given: Sequence[SinkUrl]) -> None:
        self._given = given
        self._pumps: list[SinkPump] = []

    @classmethod
    async def checked(cls, urls: Sequence[str], *, output: Sequence[str], as_json: bool, say: Say) -> RunSinks:
        """The sinks with these URLs. Refuses unusable ones; an unreachable sink does not stop the run."""
        if STDOUT in urls and (as_json or STDOUT in output):
            raise UsageError("--sink - and -o - or --json would both write to standard output: give one of them a file")
        given = sinks_given(urls)
        for url in given:
            sink = open_sink(url)
            try:
                await sink.check()
            except ServerUnreachable as error:
                say(f"{error}{WAITING}")
            finally:
                await sink.close()
        return cls(given)

    async def begin(self, spider: str, *, outbox: Outbox, say: Say) -> None:
        """Register the sinks: changes wait for them from now on. Says which ones cannot be fed from here."""
        await until_reachable(lambda: begin_sinks(outbox, spider, self._given), say=say)
        found = await until_reachable(lambda: open_sinks_of(outbox, spider, self._given), say=say)
        for line in found.refusals:
            say(line)
        known = {url.shown for url in self._given}
        if others := [opened.shown for opened in found.open if opened.shown not in known]:
            say(f"changes also go to {', '.join(others)}, as in earlier runs: `shoal sink remove` removes them")
        self._pumps = [SinkPump(opened, outbox=outbox, say=say) for opened in found.open]

    def feeding(self, *, stop: asyncio.Event, grace_seconds: float) -> AbstractAsyncContextManager[None]:
        """Send changes to the sinks inside the block, and the rest at its end."""
        return pumping(self._pumps, stop=stop, grace_seconds=grace_seconds)

    async def ends(self, spider: str, *, outbox: Outbox, say: Say) -> list[SinkReport]:
        """The result for each sink that this process fed. Standard output ends with the run."""
        if not self._pumps:
            return []
        states = {state.id: state for state in await until_reachable(lambda: outbox.sinks(spider), say=say)}
        await until_reachable(lambda: forget_stdout(outbox, spider), say=say)
        return [
            SinkReport(
                sink=pump.to.shown,
                sent=pump.sent,
                waiting=states[pump.to.id].waiting,
                trouble=states[pump.to.id].trouble,
                is_ours=pump.has_duty,
            )
            for pump in self._pumps
            if pump.to.id in states
        ]


def sink_faults(ends: Sequence[SinkReport], places: Places) -> list[str]:
    """A fault for each sink with unsent changes, with the command that sends them."""
    named = [] if places.store == (os.environ.get(STORE_VARIABLE) or DEFAULT_FILE) else [("--store", places.store)]
    send = pasted([("sink send", named)])
    return [
        f"{waiting_line(end.waiting, end.sink, end.trouble)}; when it is reachable: {send}"
        for end in ends
        if end.waiting and end.is_ours
    ]
