"""Messages to Redis: appended to a list, or to a stream."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    RedisError,
    ResponseError,
)
from redis.exceptions import (
    ConnectionError as LineError,
)
from redis.exceptions import (
    TimeoutError as LineTimeout,
)

from shoal.errors import ServerUnreachable, UsageError
from shoal.sinks.base import Message
from shoal.sinks.urls import SinkUrl
from shoal.text.secrets import without

MOST = 500
CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 10.0
LONGEST_REASON = 200
OWN_OPTIONS = ("list", "stream", "maxlen")
EXAMPLE = "redis://host:6379/0?list=NAME or ?stream=NAME"


class RedisSink:
    """RPUSH of JSON texts to a list, or XADD of an entry per message to a stream. A batch arrives whole or not at
    all."""

    most = MOST

    def __init__(self, url: SinkUrl) -> None:
        options = url.options
        self._shown = url.shown
        self._secrets = [url.password] if url.password else []
        self._stream = "stream" in options
        self._key = options.get("stream") or options.get("list") or ""
        if not self._key or ("list" in options) == ("stream" in options):
            raise UsageError(f"the sink {url.shown} names no list and no stream: write {EXAMPLE}")
        self._longest = _number(url)
        if self._longest and not self._stream:
            raise UsageError(f"the sink {url.shown} is a list, and maxlen is for streams: leave it out")
        try:
            self._redis = Redis.from_url(
                url.whole(without=OWN_OPTIONS),
                socket_timeout=ANSWER_SECONDS,
                socket_connect_timeout=CONNECT_SECONDS,
                # The caller retries: a retry here would send a batch twice if only the answer was lost.
                retry=Retry(NoBackoff(), 0),
            )
            # Makes the driver refuse unknown options now instead of at the first message.
            pool = self._redis.connection_pool
            pool.connection_class(**pool.connection_kwargs)
        except (ValueError, TypeError) as error:
            raise UsageError(f"{url.shown} is not a usable Redis URL: {self._line(error)}") from None

    async def check(self) -> None:
        """Read the type of the key."""
        with self._errors():
            answer = await self._redis.type(self._key)
        found = answer.decode() if isinstance(answer, bytes) else answer
        wanted = "stream" if self._stream else "list"
        if found not in (wanted, "none"):
            raise self._wrong_type(found)

    async def deliver(self, messages: Sequence[Message]) -> None:
        """Append all messages in one command or transaction."""
        with self._errors():
            if not self._stream:
                await self._redis.rpush(self._key, *map(msgspec.json.encode, messages))
                return
            async with self._redis.pipeline(transaction=True) as steps:
                for message in messages:
                    steps.xadd(self._key, _fields(message), maxlen=self._longest or None, approximate=True)
                await steps.execute()

    async def close(self) -> None:
        """Disconnect."""
        await self._redis.aclose()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Translates the driver's errors."""
        try:
            yield
        except (AuthenticationError, AuthorizationError, NoPermissionError) as error:
            raise UsageError(
                f"Redis at {self._shown} refuses us: {self._line(error)}; check user and password in the URL"
            ) from None
        except (LineError, LineTimeout, OSError) as error:
            raise ServerUnreachable(f"cannot reach Redis at {self._shown}: {self._line(error)}") from None
        except ResponseError as error:
            if "WRONGTYPE" in str(error):
                raise self._wrong_type("something else") from None
            raise ServerUnreachable(f"Redis at {self._shown} takes nothing now: {self._line(error)}") from None
        except RedisError as error:
            raise ServerUnreachable(f"no answer from Redis at {self._shown}: {self._line(error)}") from None

    def _wrong_type(self, found: str) -> UsageError:
        wanted = "stream" if self._stream else "list"
        return UsageError(
            f"the key {self._key!r} in Redis at {self._shown} holds {_article(found)}, not a {wanted}: name another, or"
            " delete it"
        )

    def _line(self, error: Exception) -> str:
        return without(self._secrets, " ".join(str(error).split()))[:LONGEST_REASON] or type(error).__name__


def _article(found: str) -> str:
    return found if " " in found else f"a {found}"


def _fields(message: Message) -> dict[Any, Any]:
    fields = msgspec.structs.asdict(message)
    return {**fields, "item": bytes(message.item)}


def _number(url: SinkUrl) -> int:
    given = url.options.get("maxlen", "0")
    if not (given.isascii() and given.isdigit()):
        raise UsageError(f"the sink {url.shown}: maxlen is a number of entries, such as 100000")
    return int(given)
