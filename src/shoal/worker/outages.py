"""Repeats calls while their server or file cannot be reached, and says so."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TypeVar

from shoal.errors import ServerUnreachable, StorageBroken, StorageError
from shoal.exits.troubles import LONGEST_LINE, is_trouble
from shoal.logs import Events

STORAGE_PATIENCE_SECONDS = 10.0
LONGEST_PAUSE_SECONDS = 5.0
QUIET_SECONDS = 60.0
SLOW_SECONDS = 3.0
WAITING = "; waiting"
DISK_FULL = ("disk is full", "No space left on device")

T = TypeVar("T")


class Outage:
    """How long the parts of a worker have waited for one server or file, and why."""

    def __init__(self, what: str, *, clock: Callable[[], float] = time.monotonic, events: Events | None = None) -> None:
        self._what = what
        self._clock = clock
        self._events = events or Events()
        self._waits = 0
        self._since = 0.0
        self._error = ""
        self._asked: dict[object, float] = {}

    @contextmanager
    def asking(self) -> Iterator[None]:
        """A call waits for its answer inside this block: a server that hangs raises no error."""
        call = object()
        self._asked[call] = self._clock()
        try:
            yield
        finally:
            del self._asked[call]

    def begin(self, error: Exception) -> None:
        """One more part waits."""
        if not self._waits:
            self._since = self._clock()
            self._events.tell_said(logging.WARNING, "outage begun", what=self._what, reason=str(error))
        self._waits += 1
        self._error = str(error)

    def end(self) -> None:
        """One part waits no more."""
        self._waits -= 1
        if not self._waits:
            seconds = round(self._clock() - self._since, 3)
            self._events.tell(logging.INFO, "outage ended", what=self._what, seconds=seconds)

    @property
    def line(self) -> str:
        """The outage in one line; empty: none."""
        if not self._waits:
            asked = self._clock() - min(self._asked.values(), default=self._clock())
            return f"{self._what}: waiting for {asked:.0f} s: no answer yet" if asked > SLOW_SECONDS else ""
        waited = f"waiting for {self._clock() - self._since:.0f} s"
        if any(words in self._error for words in DISK_FULL):
            return f"the disk of {self._what} is full: {waited}: {self._error}"
        return f"{self._what}: {waited}: {self._error}"


class Outages:
    """The outages of a worker's frontier, store and archive."""

    def __init__(self, events: Events | None = None) -> None:
        self.frontier = Outage("the frontier", events=events)
        self.store = Outage("the store", events=events)
        self.archive = Outage("the archive", events=events)

    def lines(self) -> tuple[str, ...]:
        """One line for each current outage."""
        found = [outage.line[:LONGEST_LINE] for outage in (self.store, self.archive, self.frontier)]
        return tuple(line for line in found if line)


def is_outage(line: str) -> bool:
    """Whether a worker's trouble is an outage."""
    return line.startswith("the ") and "waiting for " in line


async def until_reachable(
    step: Callable[[], Awaitable[T]],
    *,
    say: Callable[[str], None],
    stop: asyncio.Event | None = None,
    outage: Outage | None = None,
) -> T:
    """Repeat `step` until it works: without limit while a server cannot be reached, for 10 s while a file refuses, not
    at all if the file is gone or damaged. Says that it waits, at once and every minute, and notes it in `outage`.

    Once `stop` is set the error is raised, without another attempt."""
    loop = asyncio.get_running_loop()
    began, pause, waits, said = loop.time(), 0.1, False, -QUIET_SECONDS
    try:
        while True:
            try:
                with outage.asking() if outage is not None else nullcontext():
                    return await step()
            except (StorageError, ServerUnreachable) as error:
                if isinstance(error, StorageError) and loop.time() - began > STORAGE_PATIENCE_SECONDS:
                    raise
                if isinstance(error, StorageBroken) or (stop is not None and stop.is_set()):
                    raise
                if loop.time() - said >= QUIET_SECONDS:
                    said = loop.time()
                    say(f"{error}{WAITING}")
                if not waits:
                    waits = True
                    if outage is not None:
                        outage.begin(error)
                failure = error
            await _sleep(pause, stop)
            if stop is not None and stop.is_set():
                raise failure
            pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
    finally:
        if waits and outage is not None:
            outage.end()


async def _sleep(seconds: float, stop: asyncio.Event | None) -> None:
    """Sleep; ends early when `stop` is set."""
    if stop is None:
        await asyncio.sleep(seconds)
        return
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()


class SaidOnce:
    """Passes lines on; lines about the same server that cannot be reached, or the same trouble with an exit, at most
    once a minute.

    Lines are about the same server if they are equal up to their first colon."""

    def __init__(self, say: Callable[[str], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._say = say
        self._clock = clock
        self._said: dict[str, float] = {}
        self._last_wait = ("", 0.0)

    def __call__(self, line: str) -> None:
        about = line.partition(": ")[0] if line.endswith(WAITING) else line if is_trouble(line) else ""
        if about:
            now = self._clock()
            was = self._said.get(about)
            if was is not None and now - was < QUIET_SECONDS:
                return
            self._said[about] = now
        if line.endswith(WAITING):
            self._last_wait = (line, self._clock())
        self._say(line)

    def waiting(self) -> str:
        """The last line about waiting, if from the last minute; the wait may have ended since."""
        line, said = self._last_wait
        return line if line and self._clock() - said < QUIET_SECONDS else ""
