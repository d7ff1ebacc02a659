"""Messages to an exchange of RabbitMQ, each confirmed by the broker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import quote, unquote

import aiormq
import msgspec
from aiormq import exceptions, spec
from aiormq.abc import AbstractChannel, AbstractConnection

from shoal.errors import ServerUnreachable, UsageError
from shoal.sinks.base import Message, rounds_of, short_id
from shoal.sinks.urls import SinkUrl
from shoal.text.secrets import without

MOST: Final = 200
CONNECT_SECONDS: Final = 5.0
# A broker with a memory or disk alarm does not answer publishers.
STEP_SECONDS: Final = 15.0
CLOSE_SECONDS: Final = 2.0
LONGEST_NAME: Final = 255
LONGEST_REASON: Final = 200
OWN_OPTIONS: Final = ("exchange", "routing_key", "queue")
DRIVER_OPTIONS: Final = ("cafile", "capath", "certfile", "keyfile", "no_verify_ssl")
EXAMPLE: Final = "amqp://user:password@host:5672/vhost?exchange=NAME or ?queue=NAME"
PERSISTENT: Final = 2

_FAULTS: Final = (exceptions.AMQPError, exceptions.ChannelInvalidStateError, OSError, EOFError, TimeoutError)
_REFUSED: Final = (
    exceptions.AuthenticationError,
    exceptions.ProbableAuthenticationError,
    exceptions.ChannelAccessRefused,
    exceptions.ConnectionNotAllowed,
)

# The driver's message when the broker closes the connection instead of opening the vhost.
_NO_VHOST: Final = "Expected one of ['Connection.OpenOk'], got"


class AmqpSink:
    """Publishes to an exchange, with the routing key SPIDER.CHANGE or a given one, or to a queue. A message that
    reaches no queue is an error: the broker would drop it."""

    most = MOST

    def __init__(self, url: SinkUrl) -> None:
        url.refuse_unknown(*OWN_OPTIONS, *DRIVER_OPTIONS)
        options = url.options
        self._exchange, self._queue = options.get("exchange", ""), options.get("queue", "")
        if bool(self._exchange) == bool(self._queue):
            raise UsageError(f"the sink {url.shown} names no exchange and no queue: write {EXAMPLE}")
        if len(options.get("routing_key", "").encode()) > LONGEST_NAME:
            raise UsageError(f"the routing key of the sink {url.shown} is longer than {LONGEST_NAME} bytes")
        self._routing_key = self._queue or options.get("routing_key", "")
        self._shown = url.shown
        self._secrets = [word for word in {url.password, unquote(url.password)} if word]
        vhost = url.path.removeprefix("/")
        path = f"/{quote(unquote(vhost), safe='')}" if vhost else ""
        self._url = msgspec.structs.replace(url, path=path).whole(without=OWN_OPTIONS)
        self._connection: AbstractConnection | None = None
        self._channel: AbstractChannel | None = None
        # Errors are raised with lines of our own: the driver's log would repeat them.
        logging.getLogger("aiormq").addHandler(logging.NullHandler())

    async def check(self) -> None:
        """Check that the exchange or the queue is there."""
        async with self._sending() as channel:
            if self._exchange:
                await channel.exchange_declare(self._exchange, passive=True, timeout=STEP_SECONDS)
            else:
                await channel.queue_declare(self._queue, passive=True, timeout=STEP_SECONDS)

    async def deliver(self, messages: Sequence[Message]) -> None:
        """Publish the messages; a change of a key is published after the one before it was confirmed."""
        async with self._sending() as channel:
            for batch in rounds_of(messages, most=MOST):
                async with asyncio.timeout(STEP_SECONDS):
                    await asyncio.gather(*(self._publish(channel, message) for message in batch))

    async def close(self) -> None:
        """Close the connection."""
        connection, self._connection, self._channel = self._connection, None, None
        if connection is not None:
            with contextlib.suppress(*_FAULTS):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await connection.close()

    async def _publish(self, channel: AbstractChannel, message: Message) -> None:
        await channel.basic_publish(
            msgspec.json.encode(message),
            exchange=self._exchange,
            routing_key=self._routing_key or f"{message.spider}.{message.change}"[:LONGEST_NAME],
            mandatory=True,
            properties=spec.Basic.Properties(
                content_type="application/json",
                delivery_mode=PERSISTENT,
                message_id=short_id(message, longest=LONGEST_NAME),
                message_type=message.change,
            ),
        )

    @asynccontextmanager
    async def _sending(self) -> AsyncIterator[AbstractChannel]:
        """The channel, connected if needed; after an error it is dropped. Translates the driver's errors."""
        try:
            if self._channel is None or self._channel.is_closed:
                await self.close()
                async with asyncio.timeout(CONNECT_SECONDS):
                    self._connection = await aiormq.connect(self._url)
                    self._channel = await self._connection.channel(publisher_confirms=True, on_return_raises=True)
            yield self._channel
        except (UsageError, asyncio.CancelledError):
            await self.close()
            raise
        except (exceptions.PublishError, exceptions.ChannelNotFoundEntity, *_REFUSED) as error:
            await self.close()
            raise self._refusal(error) from None
        except _FAULTS as error:
            await self.close()
            if _NO_VHOST in str(error):
                raise self._refusal(
                    exceptions.ConnectionNotAllowed("there is no such vhost, or it is not for us")
                ) from None
            raise ServerUnreachable(f"cannot reach RabbitMQ at {self._shown}: {self._line(error)}") from None

    def _refusal(self, error: Exception) -> UsageError:
        what = f"the exchange {self._exchange!r}" if self._exchange else f"the queue {self._queue!r}"
        if isinstance(error, exceptions.ChannelNotFoundEntity):
            return UsageError(f"RabbitMQ at {self._shown} does not have {what}: make it, or name another")
        if isinstance(error, exceptions.PublishError):
            return UsageError(f"RabbitMQ at {self._shown} has no queue for messages to {what}: bind one, or make it")
        return UsageError(f"RabbitMQ at {self._shown} refuses us: {self._line(error)}; check user, password and vhost")

    def _line(self, error: Exception) -> str:
        text = " ".join(str(error).split()) or type(error).__name__
        return without(self._secrets, text)[:LONGEST_REASON]
