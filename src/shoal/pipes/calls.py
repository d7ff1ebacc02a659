"""Calls through a pipe: sent to the coordinator's queue, answered in a queue of the calling process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from shoal import errors
from shoal.errors import ServerUnreachable, ShoalError, UsageError
from shoal.frontier.clock import SteadyTimes, steady_seconds
from shoal.pipes.base import MOST_DELIVERIES, Delivery, Pipe
from shoal.pipes.messages import (
    ANSWERS,
    HELLO,
    REQUESTS,
    VERSION,
    Answer,
    Assembly,
    Call,
    Envelope,
    Unreadable,
    encoded,
    envelope_of,
    head_of,
    other_version,
    packed,
)

# How long a call waits for its answer, and a request for the coordinator.
ANSWER_SECONDS: Final = 20.0
HELLO_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 5.0
MOST_AT_ONCE: Final = 100
MOST_REMEMBERED: Final = 1_000

_ANSWERS: Final = msgspec.msgpack.Decoder(Answer)
_ERRORS: Final = {
    name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, ShoalError)
}


class Reply(NamedTuple):
    """The result of a verb, and how old it is: seconds in the pipe beyond the shortest time that was seen."""

    value: msgspec.Raw
    age: float


class PipeCalls:
    """The calls of one process. After an outage the next call opens the queues again.

    `stray` is called with the verb and the answer of a call that has timed out."""

    def __init__(
        self, pipe: Pipe, *, stray: Callable[[str, Reply], None], steady: Callable[[], float] | None = steady_seconds
    ) -> None:
        self._pipe = pipe
        self._stray = stray
        self._times = SteadyTimes(steady)
        self._queue = ""
        self._frontier = ""
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._opening = asyncio.Lock()
        self._reading: asyncio.Task[None] | None = None
        self._assembly = Assembly()
        # The times of the latest answers, by call: the broker may deliver one answer twice.
        self._given: dict[int, float] = {}

    async def open(self) -> None:
        """Open the queues and wait for a first answer of the coordinator."""
        await self._open_queues()
        await self.call(HELLO, None, seconds=HELLO_SECONDS)

    async def call(self, verb: str, arguments: object, *, crawl: str = "", seconds: float = ANSWER_SECONDS) -> Reply:
        """Call a verb of the coordinator's frontier and return its result."""
        await self._open_queues()
        number = next(self._numbers)
        answered: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answered
        envelope = Envelope(
            VERSION, "request", self._queue, number, crawl=crawl, oldest=min(self._waiting), frontier=self._frontier
        )
        try:
            async with asyncio.timeout(seconds):
                await self._pipe.send(REQUESTS, packed(envelope, Call(verb, encoded(arguments))), seconds=seconds)
                return await answered
        except TimeoutError:
            raise ServerUnreachable(
                f"no coordinator answers at {self._pipe.shown}: is `shoal serve --pipe` running there"
            ) from None
        finally:
            self._waiting.pop(number, None)
            # Else asyncio would warn about an error that nobody has read.
            answered.cancel()

    async def close(self) -> None:
        """Remove this process's queue and close the connections."""
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        if self._queue:
            with contextlib.suppress(ShoalError):
                await self._pipe.remove_queue(self._queue)
        await self._pipe.close()

    async def _open_queues(self) -> None:
        async with self._opening:
            if self._reading is not None and not self._reading.done():
                return
            if not self._queue:
                self._queue = f"{ANSWERS}-{uuid.uuid4().hex[:16]}"
            await self._pipe.open_queue(REQUESTS)
            await self._pipe.open_queue(self._queue, passing=True)
            self._reading = asyncio.create_task(self._read())

    async def _read(self) -> None:
        """Pass answers to the calls that wait for them until the pipe fails; then these calls fail too."""
        try:
            while True:
                found = await self._pipe.receive(self._queue, most=MOST_AT_ONCE, seconds=LOOK_SECONDS)
                bad = [delivery for delivery in found if not self._takes(delivery)]
                if bad:
                    await self._pipe.set_aside(bad)
                await self._pipe.confirm([delivery for delivery in found if delivery not in bad])
        except ShoalError as error:
            self._fail(error)
        except Exception as error:
            self._fail(ServerUnreachable(f"the pipe {self._pipe.shown} broke: {error}"))

    def _fail(self, error: ShoalError) -> None:
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(error)

    def _takes(self, delivery: Delivery) -> bool:
        """Whether the message can be read; its answer is passed to the call that waits for it."""
        try:
            head = head_of(delivery.body)
            waiting = self._waiting.get(head.number)
            if head.version != VERSION:
                if waiting is not None and not waiting.done():
                    line = other_version(self._pipe.shown, worker=VERSION, coordinator=head.version)
                    waiting.set_exception(UsageError(line))
                return True
            envelope = envelope_of(delivery.body)
            body = self._assembly.add(envelope)
            if body is not None:
                self._hand_out(_ANSWERS.decode(body), envelope, waiting)
        except (Unreadable, msgspec.MsgspecError):
            return False
        return delivery.times < MOST_DELIVERIES

    def _hand_out(self, answer: Answer, envelope: Envelope, waiting: asyncio.Future[Reply] | None) -> None:
        told = Reply(answer.value, self._times.age(envelope.sender, answer.told))
        is_known = self._given.get(envelope.number) == answer.told
        self._given[envelope.number] = answer.told
        if len(self._given) > MOST_REMEMBERED:
            del self._given[next(iter(self._given))]
        if waiting is None or waiting.done():
            if not answer.error and not is_known:
                self._stray(answer.verb, told)
        elif answer.error:
            waiting.set_exception(_error_of(answer))
        else:
            self._frontier = envelope.frontier
            waiting.set_result(told)


def _error_of(answer: Answer) -> ShoalError:
    return _ERRORS.get(answer.error, ShoalError)(answer.text)
