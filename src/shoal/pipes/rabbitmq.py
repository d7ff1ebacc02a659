"""A pipe through RabbitMQ: quorum queues, sends that the broker confirms, messages confirmed by hand."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlencode

import aiormq
from aiormq import exceptions, spec
from aiormq.abc import AbstractChannel, AbstractConnection, DeliveredMessage
from pamqp.common import FieldTable
from pamqp.exceptions import PAMQPException

from shoal.errors import ServerUnreachable, ShoalError, UsageError
from shoal.pipes.base import DEFAULT_PREFIX, UNREADABLE, Delivery, QueueGone, checked_prefix
from shoal.text.secrets import masked, without

T = TypeVar("T")

CONNECT_SECONDS: Final = 5.0
# For every step: a broker with a memory or disk alarm does not answer publishers.
STEP_SECONDS: Final = 10.0
CLOSE_SECONDS: Final = 2.0
# The heartbeat of the connection, which is lost after about three times as long in silence.
SILENT_SECONDS: Final = 10
PREFETCH: Final = 100
PASSING_MILLISECONDS: Final = 600_000
EXAMPLE: Final = "amqp://user:password@host:5672/vhost?prefix=shoal"

_OPTIONS: Final = frozenset({"cafile", "capath", "certfile", "keyfile", "no_verify_ssl"})
# What the driver raises when a connection ends or carries noise.
_FAULTS: Final = (
    exceptions.AMQPError,
    PAMQPException,
    OSError,
    EOFError,
    TimeoutError,
    RuntimeError,
    StopAsyncIteration,
    struct.error,
)
# Replicated: several nodes of a cluster write every message to disk.
_LASTING: Final[FieldTable] = {"x-queue-type": "quorum"}
# Not replicated: its messages are useless without its reader, which would ask again.
_PASSING: Final[FieldTable] = {"x-queue-type": "classic", "x-expires": PASSING_MILLISECONDS}


class Address(NamedTuple):
    """The broker's URL for the driver, and without secrets for messages."""

    url: str
    shown: str
    prefix: str
    password: str


def parse_address(url: str) -> Address:
    """Parse the URL of a pipe. Nothing is connected yet."""
    shown = re.split("[?#]", masked(url))[0]
    scheme, _, rest = url.partition("://")
    place, _, query = rest.partition("?")
    netloc, slash, vhost = place.partition("/")
    who, _, host = netloc.rpartition("@")
    if "@" not in netloc and "@" in rest:
        raise UsageError(f"{shown} is not a URL of RabbitMQ: write / ? # @ inside a password as %2F %3F %23 %40")
    if not host or not re.fullmatch(r"(\[[^\]]+\]|[^:]+)(:\d+)?", host):
        raise UsageError(f"{shown} names no host, or no port that is a number: write {EXAMPLE}")
    options = dict(parse_qsl(query, keep_blank_values=True))
    prefix = checked_prefix(options.pop("prefix", DEFAULT_PREFIX), shown)
    if unknown := sorted(options.keys() - _OPTIONS):
        raise UsageError(f"{shown} has an option that is not known: {unknown[0]}; known: prefix, {_listed()}")
    # The driver takes the vhost "/" for a URL without a path.
    path = f"/{quote(unquote(vhost), safe='')}" if vhost else slash and ""
    driver_url = f"{scheme}://{netloc}{path}?{urlencode(dict(options, heartbeat=SILENT_SECONDS))}"
    named = shown if prefix == DEFAULT_PREFIX else f"{shown}?prefix={prefix}"
    return Address(driver_url, named, prefix, unquote(who.partition(":")[2]))


class _Reader:
    """Messages that the broker has pushed from one queue and `receive` has not returned yet."""

    def __init__(self, channel: AbstractChannel) -> None:
        self.channel = channel
        self.messages: deque[DeliveredMessage] = deque()
        self.has_more = asyncio.Event()
        self.is_cancelled = False

    async def add(self, message: DeliveredMessage) -> None:
        self.messages.append(message)
        self.has_more.set()

    def wake(self, *_: object) -> None:
        """Wake the waiting `receive`: the channel was closed."""
        self.has_more.set()

    async def end(self, *_: object) -> None:
        """The broker cancelled the consumer: the queue is gone."""
        self.is_cancelled = True
        self.has_more.set()


class _Link(NamedTuple):
    """One connection: a channel for sending, and one for each queue that is read."""

    connection: AbstractConnection
    sending: AbstractChannel
    readers: dict[str, _Reader]


class RabbitPipe:
    """Queues in one virtual host, over one connection that is opened when needed, and again after it was lost."""

    def __init__(self, url: str) -> None:
        self._address = parse_address(url)
        self.shown = self._address.shown
        self._link: _Link | None = None
        self._connecting = asyncio.Lock()
        # Errors are raised with lines of our own: the driver's log would repeat them.
        logging.getLogger("aiormq").addHandler(logging.NullHandler())

    async def open_queue(self, queue: str, *, passing: bool = False) -> None:
        kind = _PASSING if passing else _LASTING
        await self._step(lambda link: link.sending.queue_declare(self._name(queue), durable=True, arguments=kind))

    async def send(self, queue: str, messages: Sequence[bytes], *, seconds: float) -> None:
        await self._send(queue, messages, expiration=str(max(1, int(seconds * 1000))))

    async def receive(self, queue: str, *, most: int, seconds: float) -> list[Delivery]:
        link, reader = await self._step(partial(self._reader, queue))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await reader.has_more.wait()
        found = [reader.messages.popleft() for _ in range(min(most, len(reader.messages)))]
        if not found and (reader.is_cancelled or reader.channel.is_closed):
            link.readers.pop(queue, None)
            if link.connection.is_closed:
                await self._drop(link)
                raise self._lost()
            raise self._gone(queue)
        if not reader.messages and not reader.is_cancelled:
            reader.has_more.clear()
        return [_delivery(queue, message) for message in found]

    async def confirm(self, deliveries: Sequence[Delivery]) -> None:
        for message in _messages(deliveries):
            # If its connection has ended the message is received again.
            with contextlib.suppress(*_FAULTS):
                await message.channel.basic_ack(message.delivery_tag or 0)

    async def give_back(self, deliveries: Sequence[Delivery]) -> None:
        for message in _messages(deliveries):
            with contextlib.suppress(*_FAULTS):
                await message.channel.basic_nack(message.delivery_tag or 0, requeue=True)

    async def set_aside(self, deliveries: Sequence[Delivery]) -> None:
        await self.open_queue(UNREADABLE)
        await self._send(UNREADABLE, [delivery.body for delivery in deliveries])
        await self.confirm(deliveries)

    async def count(self, queue: str) -> int:
        return await self._step(partial(self._count, queue))

    async def remove_queue(self, queue: str) -> None:
        await self._step(lambda link: link.sending.queue_delete(self._name(queue)))

    async def sweep(self, *, used: Sequence[str], seconds: float) -> None:
        """Nothing: the broker removes unused queues itself (`x-expires`)."""

    async def close(self) -> None:
        await self._drop(self._link)

    def _name(self, queue: str) -> str:
        return f"{self._address.prefix}.{queue}"

    def _gone(self, queue: str) -> QueueGone:
        return QueueGone(f"the queue {self._name(queue)} is gone from RabbitMQ at {self.shown}")

    async def _send(self, queue: str, messages: Sequence[bytes], *, expiration: str | None = None) -> None:
        async def publish(link: _Link) -> None:
            sends = [
                link.sending.basic_publish(
                    body,
                    routing_key=self._name(queue),
                    mandatory=True,
                    # Quorum queues write every message to disk, whatever its delivery mode.
                    properties=spec.Basic.Properties(delivery_mode=1, expiration=expiration),
                )
                for body in messages
            ]
            try:
                await asyncio.gather(*sends)
            except exceptions.DeliveryError:
                raise self._gone(queue) from None

        await self._step(publish)

    async def _count(self, queue: str, link: _Link) -> int:
        # A channel of its own: the broker closes it if the queue does not exist.
        channel = await link.connection.channel()
        try:
            return (await channel.queue_declare(self._name(queue), passive=True)).message_count or 0
        except exceptions.ChannelNotFoundEntity:
            return 0
        finally:
            await channel.close()

    async def _reader(self, queue: str, link: _Link) -> tuple[_Link, _Reader]:
        """The reader of the queue, started if needed."""
        reader = link.readers.get(queue)
        if reader is None:
            channel = await link.connection.channel()
            reader = _Reader(channel)
            channel.on_consumer_cancel_callbacks.add(reader.end)
            channel.closing.add_done_callback(reader.wake)
            await channel.basic_qos(prefetch_count=PREFETCH)
            await channel.basic_consume(self._name(queue), reader.add)
            link.readers[queue] = reader
        return link, reader

    async def _step(self, work: Callable[[_Link], Awaitable[T]]) -> T:
        """Run one step on the connection. After an error it is closed: the next step opens another one."""
        link = None
        try:
            async with asyncio.timeout(STEP_SECONDS):
                link = await self._linked()
                return await work(link)
        except QueueGone:
            raise
        except asyncio.CancelledError:
            # The driver cancels waiting tasks when the connection ends: this is not a cancellation by the caller.
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            await self._drop(link)
            raise self._lost() from None
        except _FAULTS as error:
            await self._drop(link)
            raise self._in_our_words(error) from None

    async def _linked(self) -> _Link:
        async with self._connecting:
            link = self._link
            if link is None or link.connection.is_closed or link.sending.is_closed:
                if link is not None:
                    await self._drop(link)
                self._link = link = await self._connect()
            return link

    async def _connect(self) -> _Link:
        async with asyncio.timeout(CONNECT_SECONDS):
            connection = await aiormq.connect(self._address.url)
        try:
            sending = await connection.channel(publisher_confirms=True, on_return_raises=True)
        except BaseException:
            await _close(connection)
            raise
        return _Link(connection, sending, {})

    async def _drop(self, link: _Link | None) -> None:
        if self._link is link:
            self._link = None
        if link is not None:
            await _close(link.connection)

    def _lost(self) -> ServerUnreachable:
        return ServerUnreachable(f"the connection to RabbitMQ at {self.shown} was lost")

    def _in_our_words(self, error: Exception) -> ShoalError:
        text = without([self._address.password], " ".join(str(error).split())) or type(error).__name__
        return _translated(error, text, self.shown)


async def _close(connection: AbstractConnection) -> None:
    # A broker with an alarm reads nothing, so closing may hang.
    with contextlib.suppress(*_FAULTS):
        async with asyncio.timeout(CLOSE_SECONDS):
            await connection.close()


def _delivery(queue: str, message: DeliveredMessage) -> Delivery:
    headers = message.header.properties.headers or {}
    earlier = headers.get("x-delivery-count")
    return Delivery(queue, message.body, 1 + (earlier if isinstance(earlier, int) else 0), message)


def _messages(deliveries: Sequence[Delivery]) -> list[DeliveredMessage]:
    return [one.receipt for one in deliveries if isinstance(one.receipt, DeliveredMessage)]


def _listed() -> str:
    return ", ".join(sorted(_OPTIONS))


def _translated(error: Exception, text: str, at: str) -> ShoalError:
    if isinstance(error, (exceptions.ProbableAuthenticationError, exceptions.AuthenticationError)):
        return UsageError(f"RabbitMQ at {at} refuses us: check user and password in the URL")
    # The driver's message when the broker closes the connection instead of opening the virtual host.
    if isinstance(error, exceptions.ConnectionNotAllowed) or ("Connection.OpenOk" in text and ".Close" in text):
        return UsageError(f"RabbitMQ at {at} refuses us: check the virtual host in the URL, and who may use it")
    if isinstance(error, exceptions.ChannelAccessRefused):
        return UsageError(f"RabbitMQ at {at} refuses us: {text}; this user may not use the queues")
    if isinstance(error, exceptions.ChannelPreconditionFailed):
        return UsageError(
            f"a queue at {at} is of another kind: {text}; remove it, or give a prefix of your own: ?prefix=NAME"
        )
    if isinstance(error, exceptions.ChannelNotFoundEntity):
        return QueueGone(f"a queue is gone from RabbitMQ at {at}: {text}")
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return UsageError(
            f"the certificate of RabbitMQ at {at} is not trusted: name its CA with ?cafile=/path/to/ca.pem"
        )
    if isinstance(error, (exceptions.IncompatibleProtocolError, exceptions.ProtocolSyntaxError)):
        return ServerUnreachable(
            f"cannot reach RabbitMQ at {at}: what answers there does not speak AMQP; check the port"
        )
    if isinstance(error, TimeoutError):
        return ServerUnreachable(
            f"RabbitMQ at {at} gives no answer within {STEP_SECONDS:.0f} s: away, or its memory or disk alarm is on"
        )
    return ServerUnreachable(f"cannot reach RabbitMQ at {at}: {text}")
