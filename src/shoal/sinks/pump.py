"""Sends waiting changes from a store's outbox to its sinks: in order, at least once, retried while a sink is away."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import time
import uuid
from collections.abc import AsyncIterator, Callable, Container, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple

import msgspec

from shoal.errors import ShoalError, UsageError
from shoal.sinks import open_sink
from shoal.sinks.base import Message, Sink
from shoal.sinks.urls import STDOUT, SinkUrl, parse_sink
from shoal.store.base import Outbox, Outgoing, SinkPlace, SinkState
from shoal.text.errors import line_of, several
from shoal.worker.machine import is_running, this_machine
from shoal.worker.outages import QUIET_SECONDS, WAITING

POLL_SECONDS: Final = 0.5
# How often a pump without the duty asks for it.
ASK_SECONDS: Final = 3.0
# The duty of a killed pump expires after this time. It is renewed during a long delivery.
DUTY_SECONDS: Final = 20.0
RENEW_SECONDS: Final = 5.0
FIRST_PAUSE_SECONDS: Final = 0.5
LONGEST_PAUSE_SECONDS: Final = 20.0
MOST_FAILURES: Final = 10
# How long the end of a run waits for a sink that is away.
LAST_SECONDS: Final = 5.0
_PID: Final = " process "


class OpenSink(NamedTuple):
    """A sink that this process can send to; not connected yet."""

    id: int
    spider: str
    shown: str
    sink: Sink


class OpenSinks(NamedTuple):
    """The sinks of a store that this process can send to, and why it cannot send to the others, a line each."""

    open: list[OpenSink]
    refusals: list[str]


def sinks_given(urls: Sequence[str], *, environ: Mapping[str, str] = os.environ) -> list[SinkUrl]:
    """Parse the sinks that a command names, each once. UsageError: one cannot be used."""
    found = {url.known: url for url in map(parse_sink, urls)}
    for url in found.values():
        open_sink(url, environ=environ)
    return list(found.values())


def place_of(url: SinkUrl, spider: str) -> SinkPlace:
    """The store's record of a sink."""
    host = socket.gethostname() if url.is_local else ""
    return SinkPlace(spider=spider, url=url.known, host=host, has_secret=url.has_secret)


def shown_place(place: SinkPlace) -> str:
    """How messages name a sink of the store."""
    shown = parse_sink(place.url).shown
    return f"{shown} on {place.host}" if place.host and place.host != socket.gethostname() else shown


async def begin_sinks(outbox: Outbox, spider: str, given: Sequence[SinkUrl]) -> None:
    """Add these sinks to a spider's sinks. Standard output is the sink of one run: one that a killed run left is
    removed, unless this run names it too."""
    for url in given:
        await outbox.add(place_of(url, spider))
    if STDOUT not in [url.known for url in given]:
        await forget_stdout(outbox, spider)


async def forget_stdout(outbox: Outbox, spider: str) -> None:
    """Remove the sink that is this machine's standard output."""
    for state in await outbox.sinks(spider):
        if state.place.url == STDOUT and state.place.host == socket.gethostname():
            await outbox.remove(state.id)


async def open_sinks_of(
    outbox: Outbox,
    spider: str | None,
    given: Sequence[SinkUrl],
    *,
    only: Container[int] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> OpenSinks:
    """Open the sinks of a spider, or of all; `only`: those with these ids. A URL in `given` may have secrets that the
    store does not keep."""
    found = OpenSinks([], [])
    by_name = {(place_of(url, "").url, place_of(url, "").host): url for url in given}
    for state in await outbox.sinks(spider):
        if only is not None and state.id not in only:
            continue
        url = by_name.get((state.place.url, state.place.host))
        try:
            sink = open_sink(url or _recalled(state), environ=environ)
        except UsageError as error:
            found.refusals.append(str(error))
        else:
            found.open.append(OpenSink(state.id, state.place.spider, shown_place(state.place), sink))
    return found


def _recalled(state: SinkState) -> SinkUrl:
    """The URL of a sink from the store's record. UsageError: it does not suffice to send from this process."""
    place, shown = state.place, shown_place(state.place)
    if place.host and place.host != socket.gethostname():
        raise UsageError(f"the sink {shown} is of another machine: changes wait until a run there sends them")
    if place.url == STDOUT:
        raise UsageError("the sink on standard output is of one run: changes wait until it ends")
    if place.has_secret:
        raise UsageError(f"the sink {shown} needs its password: give its whole URL, changes wait until then")
    return parse_sink(place.url)


def message_of(change: Outgoing, spider: str) -> Message:
    """The message of a change."""
    return Message(
        id=f"{spider}/{change.key}/{change.version}",
        spider=spider,
        key=change.key,
        version=change.version,
        change=change.change,
        at=change.at,
        url=change.url,
        crawl=change.crawl,
        item=msgspec.Raw(change.data),
    )


class SinkReport(msgspec.Struct, frozen=True, kw_only=True):
    """The changes that a sink got in a run, and that still wait. `is_ours`: this process had the duty to send."""

    sink: str
    sent: int
    waiting: int
    trouble: str = ""
    is_ours: bool = True


class SinkPump:
    """Sends the changes of one sink while it has the duty. A change leaves the outbox after it was delivered.

    `sent` counts delivered changes; `trouble` is why the latest delivery failed, empty if it did not."""

    def __init__(
        self,
        opened: OpenSink,
        *,
        outbox: Outbox,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.to = opened
        self.sent = 0
        self.trouble = ""
        self.has_duty = False
        self._outbox = outbox
        self._say = say
        self._clock = clock
        self._holder = f"{this_machine()}{_PID}{os.getpid()}{_PID}{uuid.uuid4().hex}"
        self._held = float("-inf")
        self._said = float("-inf")
        self._is_ending = asyncio.Event()
        self._limit = opened.sink.most  # changes per delivery; fewer after an error

    async def run(self) -> None:
        """Send until `end` is called, then send the changes that still wait. An error of the sink or the store is
        reported and retried."""
        failures = 0
        while not self._is_ending.is_set():
            number = await self.send_batch()
            if number is None:
                await self._sleep(min(FIRST_PAUSE_SECONDS * 2**failures, LONGEST_PAUSE_SECONDS))
                failures = min(failures + 1, MOST_FAILURES)
                continue
            failures = 0
            if not number:
                await self._sleep(POLL_SECONDS if self.has_duty else ASK_SECONDS)
        await self._send_the_rest()

    async def _send_the_rest(self) -> None:
        """Send until nothing waits, or until every delivery has failed for LAST_SECONDS."""
        give_up = self._clock() + LAST_SECONDS
        while (number := await self.send_batch()) != 0:
            if number is not None:
                give_up = self._clock() + LAST_SECONDS
            elif self._clock() > give_up:
                return
            else:
                await asyncio.sleep(FIRST_PAUSE_SECONDS)

    def end(self) -> None:
        """Make `run` send the rest and return."""
        self._is_ending.set()

    async def close(self) -> None:
        """Release the duty and close the sink."""
        if self.has_duty:
            with contextlib.suppress(ShoalError, OSError):
                await self._outbox.hold(self.to.id, self._holder, seconds=0.0)
        await self.to.sink.close()

    async def send_batch(self) -> int | None:
        """Send one batch; returns how many changes it had, None after an error."""
        try:
            return await self._send()
        except Exception as error:
            await self._note(str(error) if isinstance(error, ShoalError) else line_of(error))
            return None

    async def _send(self) -> int:
        if not await self._hold():
            return 0
        batch = await self._outbox.read(self.to.id, limit=self._limit)
        if not batch:
            return 0
        messages = [message_of(change, self.to.spider) for change in batch]
        try:
            async with self._keeping_duty():
                await self.to.sink.deliver(messages)
        except Exception:
            # A receiver that closes after a few messages would get the first ones of a large batch again for ever.
            self._limit = max(1, len(batch) // 4)
            raise
        await self._outbox.passed(self.to.id, batch)
        self._limit = min(2 * self._limit, self.to.sink.most)
        self.sent += len(batch)
        if self.trouble:
            self._say(f"the sink {self.to.shown} takes changes again")
            self.trouble, self._said = "", float("-inf")
        return len(batch)

    async def _hold(self) -> bool:
        """Take or renew the duty; returns whether this pump has it."""
        if self._clock() - self._held > RENEW_SECONDS:
            self.has_duty = await self._take_duty() or (await self._release_dead() and await self._take_duty())
            self._held = self._clock() if self.has_duty else float("-inf")
        return self.has_duty

    async def _take_duty(self) -> bool:
        return await self._outbox.hold(self.to.id, self._holder, seconds=DUTY_SECONDS)

    async def _release_dead(self) -> bool:
        """Release the duty of a process of this machine that has died."""
        for state in await self._outbox.sinks(self.to.spider):
            machine, _, rest = state.holder.partition(_PID)
            pid = rest.partition(_PID)[0]
            if state.id == self.to.id and machine == this_machine() and pid.isdigit() and not is_running(int(pid)):
                return await self._outbox.hold(state.id, state.holder, seconds=0.0)
        return False

    @asynccontextmanager
    async def _keeping_duty(self) -> AsyncIterator[None]:
        renewing = asyncio.create_task(self._renew())
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.gather(renewing, return_exceptions=True)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            with contextlib.suppress(ShoalError, OSError):
                await self._hold()

    async def _note(self, line: str) -> None:
        is_new, self.trouble = line != self.trouble, line
        if is_new or self._clock() - self._said >= QUIET_SECONDS:
            self._said = self._clock()
            self._say(f"{line}{WAITING}")
        # It may be the store that is away.
        with contextlib.suppress(ShoalError, OSError):
            await self._outbox.failed(self.to.id, line)

    async def _sleep(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._is_ending.wait()


@asynccontextmanager
async def pumping(pumps: Sequence[SinkPump], *, stop: asyncio.Event, grace_seconds: float) -> AsyncIterator[None]:
    """Runs the pumps during the block. At its end each sends the changes that still wait, unless its sink is away; once
    `stop` is set, for `grace_seconds` at most."""
    tasks = [asyncio.create_task(pump.run()) for pump in pumps]
    try:
        yield
        for pump in pumps:
            pump.end()
        await _finish(tasks, stop=stop, grace_seconds=grace_seconds)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for pump in pumps:
            await pump.close()


async def _finish(tasks: Sequence[asyncio.Task[None]], *, stop: asyncio.Event, grace_seconds: float) -> None:
    stopped, ended = asyncio.create_task(stop.wait()), asyncio.create_task(_all(tasks))
    try:
        both: list[asyncio.Task[Any]] = [stopped, ended]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait([ended], timeout=grace_seconds)
    finally:
        stopped.cancel()
        ended.cancel()


async def _all(tasks: Sequence[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


def waiting_line(number: int, shown: str, trouble: str) -> str:
    """The line about changes that still wait for a sink."""
    why = f": {trouble}" if trouble else ""
    return f"{several(number, 'change')} wait{'s' if number == 1 else ''} for the sink {shown}{why}"
