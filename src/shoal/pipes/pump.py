"""The coordinator's side of a pipe: the pump answers the calls of workers with the results of its frontier, and notes
there the frontier's name and the number of unreadable messages."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import msgspec

from shoal import errors
from shoal.crawl.duty_notes import change_noted, read_noted
from shoal.crawl.opening import frontier_at, waiting_for
from shoal.errors import ServerUnreachable, ShoalError, UsageError
from shoal.frontier.base import Frontier
from shoal.frontier.clock import steady_seconds
from shoal.model import Duty, LeaseBatch
from shoal.pipes import open_pipe
from shoal.pipes.base import MOST_DELIVERIES, UNREADABLE, Delivery, Pipe, QueueGone
from shoal.pipes.frontier import ALL_VERBS, WORKER_VERBS, called_with
from shoal.pipes.messages import (
    HELLO,
    REQUESTS,
    VERSION,
    Answer,
    Assembly,
    Call,
    Envelope,
    Head,
    Unreadable,
    encoded,
    envelope_of,
    head_of,
    other_version,
    packed,
)
from shoal.text.errors import line_of, several
from shoal.worker.outages import until_reachable

DUTY: Final = "notes on pipes"
DUTY_SECONDS: Final = 5.0
LOOKS_PER_DUTY: Final = 4  # how often the duty is renewed, or asked for, while it lasts
# Shorter than the time that a worker waits: so the worker gets an answer that names the server.
FRONTIER_SECONDS: Final = 15.0
ANSWER_SECONDS: Final = 20.0
LOOK_SECONDS: Final = 1.0
UPKEEP_SECONDS: Final = 30.0
UNUSED_SECONDS: Final = 900.0
MOST_AT_ONCE: Final = 100
MOST_SENDERS: Final = 4_096
_CALLS: Final = msgspec.msgpack.Decoder(Call)


class PipeNotes(msgspec.Struct, frozen=True, kw_only=True):
    """`name` identifies the frontier: workers notice when it is another one. `unreadable` counts messages by pipe."""

    name: str
    unreadable: dict[str, int] = {}


async def read_notes(frontier: Frontier) -> PipeNotes | None:
    """The notes; None: no coordinator has used a pipe with this frontier."""
    _, data = await read_noted(frontier, DUTY)
    return _notes(data)


async def name_of(frontier: Frontier) -> str:
    """The name of the frontier; the first coordinator creates it."""
    known = await read_notes(frontier)
    return known.name if known else (await _change(frontier, lambda notes: notes)).name


async def note_unreadable(frontier: Frontier, *, pipe: str, number: int) -> None:
    """Note the number of unreadable messages of a pipe, if it has changed."""
    known = await read_notes(frontier)
    if known is not None and known.unreadable.get(pipe, 0) != number:
        await _change(
            frontier,
            lambda notes: msgspec.structs.replace(notes, unreadable={**notes.unreadable, pipe: number}),
        )


async def unreadable_lines(frontier: Frontier) -> list[str]:
    """A line for each pipe with unreadable messages."""
    notes = await read_notes(frontier)
    return [
        f"{several(number, 'message')} at {pipe} could not be read: kept in its queue {UNREADABLE}; look at them with"
        " the broker's tools, then remove that queue"
        for pipe, number in (notes.unreadable.items() if notes else ())
        if number
    ]


async def _change(frontier: Frontier, change: Callable[[PipeNotes], PipeNotes]) -> PipeNotes:
    """Change the notes, or create them with a new name; returns the new notes."""

    def changed(data: bytes) -> bytes:
        return msgspec.json.encode(change(_notes(data) or PipeNotes(name=uuid.uuid4().hex)))

    data = await change_noted(
        frontier, DUTY, changed, busy="another coordinator changes the notes on pipes all the time"
    )
    return msgspec.json.decode(data, type=PipeNotes)


def _notes(data: bytes) -> PipeNotes | None:
    return msgspec.json.decode(data, type=PipeNotes) if data else None


class _Sender:
    """One process that sends requests: its answered requests, and the oldest that it still waits for."""

    def __init__(self) -> None:
        self.oldest = 0
        # None: in progress, or answered. Messages: an answer that could not be sent yet.
        self.answers: dict[int, list[bytes] | None] = {}
        self.seen = time.monotonic()

    def is_over(self, envelope: Envelope) -> bool:
        """Whether the sender has stopped waiting for this request."""
        self.seen = time.monotonic()
        if envelope.oldest > self.oldest:
            self.oldest = envelope.oldest
            self.answers = {number: kept for number, kept in self.answers.items() if number >= self.oldest}
        return envelope.number < self.oldest


class Pump:
    """Answers requests while it has the duty at its pipe: one coordinator of several. `allows` are the verbs that it
    calls."""

    def __init__(
        self,
        frontier: Frontier,
        pipe: Pipe,
        *,
        say: Callable[[str], None],
        allows: frozenset[str] = WORKER_VERBS,
        duty_seconds: float = DUTY_SECONDS,
    ) -> None:
        self._frontier = frontier
        self._pipe = pipe
        self._say = say
        self._allows = allows
        self._duty = f"pipe {pipe.shown}"
        self._duty_seconds = duty_seconds
        self._term = uuid.uuid4().hex[:16]
        self._name = ""  # of the frontier
        self._has_duty = asyncio.Event()
        self._is_open = False
        self._senders: OrderedDict[str, _Sender] = OrderedDict()
        self._assembly = Assembly()
        self._untaken: deque[Delivery] = deque()
        self._handling: dict[asyncio.Task[None], Delivery] = {}
        self._at_once = asyncio.Semaphore(MOST_AT_ONCE)
        self._said: set[str] = set()
        self._is_new_unreadable = asyncio.Event()

    async def connect(self) -> None:
        """Open the queue of requests: a wrong URL is reported before anything else begins."""
        await self._pipe.open_queue(REQUESTS)

    async def run(self) -> None:
        """Answer requests until cancelled."""
        parts = [asyncio.create_task(part) for part in (self._keep_duty(), self._serve(), self._keep_up())]
        try:
            await asyncio.wait(parts, return_when=asyncio.FIRST_COMPLETED)
            for part in parts:
                if part.done():
                    part.result()
        finally:
            is_broken = any(part.done() for part in parts)
            await _cancelled(parts)
            await self._leave(is_broken=is_broken)

    async def _leave(self, *, is_broken: bool) -> None:
        """Finish the requests in progress within a moment; return the others to the queue."""
        if self._handling:
            await asyncio.wait(self._handling, timeout=self._duty_seconds / LOOKS_PER_DUTY)
        # After an error the requests keep their count of deliveries: one of them may be the cause.
        is_ours = self._has_duty.is_set() and not is_broken
        left = [*self._untaken, *self._handling.values()] if is_ours else []
        await _cancelled(list(self._handling))
        with contextlib.suppress(ShoalError, TimeoutError):
            async with asyncio.timeout(LOOK_SECONDS):
                await self._pass_on(left)
                await self._frontier.hold_duty(self._duty, self._term, seconds=0.0)
        await self._pipe.close()

    async def _pass_on(self, left: list[Delivery]) -> None:
        """Send requests as new messages, with a new count of deliveries."""
        if left:
            await self._pipe.send(REQUESTS, [delivery.body for delivery in left], seconds=ANSWER_SECONDS)
            await self._pipe.confirm(left)

    async def _keep_duty(self) -> None:
        """Take the duty when it is free, and keep it."""
        held_until = 0.0
        while True:
            try:
                asked = time.monotonic()
                held = await until_reachable(self._hold, say=self._say)
                held_until = asked + self._duty_seconds if held.is_ours else 0.0
            except ShoalError as error:
                self._say_once(f"the duty at {self._pipe.shown} cannot be held: {error}")
            if time.monotonic() < held_until:
                self._begin_duty()
            elif self._has_duty.is_set():
                await self._end_duty()
            else:
                self._say_once(f"another coordinator works at {self._pipe.shown}: this one stands by")
            await asyncio.sleep(self._duty_seconds / LOOKS_PER_DUTY)

    async def _hold(self) -> Duty:
        if not self._name:
            self._name = await name_of(self._frontier)
        return await self._frontier.hold_duty(self._duty, self._term, seconds=self._duty_seconds)

    def _begin_duty(self) -> None:
        if not self._has_duty.is_set():
            self._has_duty.set()
            self._say(f"workers are served at {self._pipe.shown}")

    async def _end_duty(self) -> None:
        """Close the pipe, so that another coordinator receives the requests that this one has not answered."""
        self._has_duty.clear()
        self._is_open = False
        self._say(f"another coordinator works at {self._pipe.shown} now: this one stands by")
        await self._pipe.close()

    async def _serve(self) -> None:
        while True:
            await self._has_duty.wait()
            self._untaken.extend(await until_reachable(self._receive, say=self._say))
            while self._untaken:
                await self._take(self._untaken[0])
                self._untaken.popleft()

    async def _receive(self) -> list[Delivery]:
        try:
            if not self._is_open:
                await self._pipe.open_queue(REQUESTS)
                self._is_open = True
            return await self._pipe.receive(REQUESTS, most=MOST_AT_ONCE, seconds=LOOK_SECONDS)
        except ServerUnreachable:
            self._is_open = False
            raise

    async def _take(self, delivery: Delivery) -> None:
        """Begin to answer a request, refuse it, or set it aside."""
        try:
            head = head_of(delivery.body)
            if head.version != VERSION:
                line = other_version(self._pipe.shown, worker=head.version, coordinator=VERSION)
                await self._refuse(delivery, head, line)
                return
            if delivery.times > MOST_DELIVERIES:
                raise Unreadable(f"it was received {delivery.times} times without an answer")
            envelope = envelope_of(delivery.body)
            if envelope.frontier not in ("", self._name):
                await self._refuse(delivery, head, self._other_frontier())
                return
            await self._take_part(delivery, envelope)
        except Unreadable as error:
            await self._set_aside(delivery, str(error))

    async def _take_part(self, delivery: Delivery, envelope: Envelope) -> None:
        sender = self._sender(envelope.sender)
        body = None
        if not sender.is_over(envelope) and envelope.number not in sender.answers:
            body = self._assembly.add(envelope)
        elif unsent := sender.answers.get(envelope.number):
            await self._send(delivery, envelope, unsent)
            return
        if body is None:
            # A part of a request, a request in progress, or one that nobody waits for.
            await self._pipe.confirm([delivery])
            return
        try:
            call = _CALLS.decode(body)
        except msgspec.MsgspecError as error:
            raise Unreadable(str(error)) from None
        sender.answers[envelope.number] = None
        await self._at_once.acquire()
        handling = asyncio.create_task(self._handle(delivery, envelope, call))
        self._handling[handling] = delivery
        handling.add_done_callback(self._handled)

    def _handled(self, handling: asyncio.Task[None]) -> None:
        del self._handling[handling]
        self._at_once.release()
        if not handling.cancelled() and (error := handling.exception()) is not None:
            self._say_once(f"a request at {self._pipe.shown} could not be answered: {line_of(error)}")

    def _sender(self, name: str) -> _Sender:
        sender = self._senders.setdefault(name, _Sender())
        self._senders.move_to_end(name)
        if len(self._senders) > MOST_SENDERS:
            self._senders.popitem(last=False)
        return sender

    async def _handle(self, delivery: Delivery, envelope: Envelope, call: Call) -> None:
        answer = await self._answer(call)
        head = Envelope(VERSION, "answer", self._term, envelope.number, crawl=envelope.crawl, frontier=self._name)
        await self._send(delivery, envelope, packed(head, answer))

    async def _send(self, delivery: Delivery, envelope: Envelope, messages: list[bytes]) -> None:
        """Send an answer and confirm its request. An answer that cannot be sent now is kept until the request is
        received again."""
        sender = self._sender(envelope.sender)
        try:
            await self._pipe.send(envelope.sender, messages, seconds=ANSWER_SECONDS)
        except QueueGone:
            # The sender is gone. Its leases expire.
            messages = []
        except ServerUnreachable:
            sender.answers[envelope.number] = messages
            return
        sender.answers[envelope.number] = None
        await self._pipe.confirm([delivery])

    async def _answer(self, call: Call) -> Answer:
        try:
            value, told = await self._done(call)
        except ShoalError as error:
            return Answer(call.verb, steady_seconds(), _kind_of(error), str(error))
        except TimeoutError:
            text = f"the frontier of the coordinator at {self._pipe.shown} gives no answer"
            return Answer(call.verb, steady_seconds(), "ServerUnreachable", text)
        except msgspec.MsgspecError as error:
            return Answer(
                call.verb, steady_seconds(), "UsageError", f"the coordinator cannot read {call.verb}: {error}"
            )
        except Exception as error:
            line = f"{call.verb} failed at the coordinator: {line_of(error)}"
            self._say_once(line)
            return Answer(call.verb, steady_seconds(), "ShoalError", line)
        return Answer(call.verb, told, value=encoded(value))

    async def _done(self, call: Call) -> tuple[Any, float]:
        """The result of the frontier, and when it returned."""
        if call.verb == HELLO:
            return None, steady_seconds()
        if call.verb not in ALL_VERBS:
            raise UsageError(f"the coordinator at {self._pipe.shown} knows no {call.verb}: run the same shoal on both")
        if call.verb not in self._allows:
            raise UsageError(
                f"{call.verb} is not for workers behind a pipe: do it where the frontier is, with --frontier"
            )
        arguments = called_with(call.verb, call.arguments)
        async with asyncio.timeout(FRONTIER_SECONDS):
            if call.verb == "open_crawl" and self._allows is not ALL_VERBS:
                await self._check_is_known(arguments["crawl"].id)
            value = await getattr(self._frontier, call.verb)(**arguments)
        told = steady_seconds()
        if isinstance(value, LeaseBatch):
            told -= time.monotonic() - value.at
        return value, told

    async def _check_is_known(self, crawl: str) -> None:
        if all(known.id != crawl for known in await self._frontier.crawls()):
            raise UsageError(f"{crawl} is not known to the coordinator: crawls begin where the frontier is")

    async def _refuse(self, delivery: Delivery, head: Head, line: str) -> None:
        self._say_once(line)
        answer = Answer("", steady_seconds(), "UsageError", line)
        envelope = Envelope(VERSION, "answer", self._term, head.number, frontier=self._name)
        with contextlib.suppress(ServerUnreachable):
            # The sender may be gone: confirm the request all the same.
            with contextlib.suppress(QueueGone):
                await self._pipe.send(head.sender, packed(envelope, answer), seconds=ANSWER_SECONDS)
            await self._pipe.confirm([delivery])

    def _other_frontier(self) -> str:
        return (
            f"workers at {self._pipe.shown} know another frontier than this coordinator's: run one coordinator there,"
            " or give each a prefix of its own (?prefix=NAME); after a change of the frontier, start the workers again"
        )

    async def _set_aside(self, delivery: Delivery, why: str) -> None:
        with contextlib.suppress(ServerUnreachable):
            await self._pipe.set_aside([delivery])
            self._say(f"a message at {self._pipe.shown} cannot be read and is kept in the queue {UNREADABLE}: {why}")
            self._is_new_unreadable.set()

    async def _keep_up(self) -> None:
        """Note the number of unreadable messages, and remove the queues of workers that are gone."""
        begun = time.monotonic()
        while True:
            await self._has_duty.wait()
            with contextlib.suppress(ShoalError):
                number = await self._pipe.count(UNREADABLE)
                await note_unreadable(self._frontier, pipe=self._pipe.shown, number=number)
                recent = time.monotonic() - UNUSED_SECONDS
                # A new coordinator does not know yet which queues are in use.
                if begun < recent:
                    used = [name for name, sender in self._senders.items() if sender.seen > recent]
                    await self._pipe.sweep(used=used, seconds=UNUSED_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(UPKEEP_SECONDS):
                    await self._is_new_unreadable.wait()
            self._is_new_unreadable.clear()

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._say(line)


@contextlib.asynccontextmanager
async def pumping(
    pipe: str, frontier: str, *, say: Callable[[str], None], stop: asyncio.Event
) -> AsyncIterator[Frontier]:
    """Runs a pump during the block, which gets the frontier. A pump that fails sets `stop`; its error is raised at the
    end."""
    async with frontier_at(frontier, wait=waiting_for(frontier, say), stop=stop) as opened:
        pump = Pump(opened, open_pipe(pipe), say=say)
        # A wrong URL is an error now; a broker that is away is waited for in the background.
        with contextlib.suppress(ServerUnreachable):
            await pump.connect()
        running = asyncio.create_task(pump.run())
        running.add_done_callback(lambda _: stop.set())
        try:
            yield opened
        finally:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


async def _cancelled(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _kind_of(error: ShoalError) -> str:
    """The name of the nearest class of the error that shoal.errors has: workers know only these."""
    known = vars(errors)
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in known)
