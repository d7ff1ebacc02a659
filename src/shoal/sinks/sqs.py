"""Messages to a queue of Amazon SQS, or of a compatible service."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import msgspec
from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore import exceptions

from shoal.errors import ServerUnreachable, UsageError
from shoal.sinks.base import Message, rounds_of
from shoal.sinks.urls import SinkUrl

MOST: Final = 100
BATCH: Final = 10
BATCH_BYTES: Final = 240_000  # of SQS's 262,144, for all messages of a batch
CONNECT_SECONDS: Final = 5.0
STEP_SECONDS: Final = 15.0
LONGEST_REASON: Final = 200
OWN_OPTIONS: Final = ("region", "endpoint")
EXAMPLE: Final = "sqs://QUEUE?region=eu-central-1"
NOTHING: Final = msgspec.Raw(b"null")

_FAULTS: Final = (exceptions.BotoCoreError, exceptions.ClientError, OSError, TimeoutError)
_MISSING: Final = ("NonExistentQueue", "QueueDoesNotExist")
_REFUSED: Final = (
    "AccessDenied", "InvalidClientTokenId", "SignatureDoesNotMatch", "AuthFailure", "UnrecognizedClient",
    "InvalidSecurity", "MissingAuthenticationToken", "OptInRequired",
)  # fmt: skip


class SqsSink:
    """Sends to one queue. A queue whose name ends in .fifo keeps the order of each key; others have no order.
    Credentials come from AWS's usual chain. An item that is too large for SQS is sent as null."""

    most = MOST

    def __init__(self, url: SinkUrl) -> None:
        url.refuse_unknown(*OWN_OPTIONS)
        if url.user or url.password:
            raise UsageError(f"{url.shown}: credentials come from AWS's usual chain, not from the URL: write {EXAMPLE}")
        if not url.host or url.path.strip("/"):
            raise UsageError(f"the sink {url.shown} names no queue: write {EXAMPLE}")
        self._queue = url.host
        self._region, self._endpoint = url.options.get("region"), url.options.get("endpoint")
        if self._endpoint is not None and not self._endpoint.startswith(("http://", "https://")):
            raise UsageError(f"{url.shown}: endpoint is the URL of a service, such as http://host:9324")
        self._shown = url.shown
        self._stack = AsyncExitStack()
        self._client: Any = None
        self._queue_url = ""

    async def check(self) -> None:
        """Check that the queue is there."""
        async with self._asking() as client:
            await self._find(client)

    async def deliver(self, messages: Sequence[Message]) -> None:
        """Send the messages, ten per call."""
        async with self._asking() as client:
            url = await self._find(client)
            for batch in rounds_of(messages, most=BATCH):
                for entries in entries_of(batch, is_fifo=self._queue.endswith(".fifo")):
                    answer = await client.send_message_batch(QueueUrl=url, Entries=entries)
                    if failed := answer.get("Failed"):
                        why = f"{failed[0].get('Code', '')}: {failed[0].get('Message', '')}"
                        raise ServerUnreachable(f"the queue {self._shown} did not take a message: {_line(why)}")

    async def close(self) -> None:
        """Close the connections."""
        self._client = None
        with contextlib.suppress(*_FAULTS):
            await self._stack.aclose()

    async def _find(self, client: Any) -> str:
        if not self._queue_url:
            answer = await client.get_queue_url(QueueName=self._queue)
            self._queue_url = answer["QueueUrl"]
        return self._queue_url

    @asynccontextmanager
    async def _asking(self) -> AsyncIterator[Any]:
        """The client, created if needed. Translates the driver's errors."""
        try:
            if self._client is None:
                config = AioConfig(
                    connect_timeout=CONNECT_SECONDS, read_timeout=STEP_SECONDS, retries={"total_max_attempts": 1}
                )
                made = get_session().create_client(
                    "sqs", region_name=self._region, endpoint_url=self._endpoint, config=config
                )
                self._client = await self._stack.enter_async_context(made)
            async with asyncio.timeout(MOST / BATCH * STEP_SECONDS):
                yield self._client
        except (exceptions.NoRegionError, exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as error:
            raise UsageError(f"the sink {self._shown} cannot be used: {_line(str(error))}") from None
        except exceptions.ClientError as error:
            raise self._refused(error) from None
        except _FAULTS as error:
            raise ServerUnreachable(f"cannot reach SQS for {self._shown}: {_line(str(error))}") from None

    def _refused(self, error: Any) -> Exception:
        code, text = error.response.get("Error", {}).get("Code", ""), _line(str(error))
        if any(word in code for word in _MISSING):
            self._queue_url = ""
            return UsageError(f"there is no queue {self._queue!r} for the sink {self._shown}: make it, or name another")
        if any(word in code for word in _REFUSED):
            return UsageError(f"SQS refuses us for {self._shown}: {text}; check the credentials of this process")
        return ServerUnreachable(f"SQS takes nothing now for {self._shown}: {text}")


def entries_of(messages: Sequence[Message], *, is_fifo: bool) -> Iterator[list[dict[str, str]]]:
    """The messages as entries of SendMessageBatch, in as few calls as their sizes allow."""
    entries: list[dict[str, str]] = []
    size = 0
    for number, message in enumerate(messages):
        body = msgspec.json.encode(message)
        if len(body) > BATCH_BYTES:
            body = msgspec.json.encode(msgspec.structs.replace(message, item=NOTHING))
        if entries and size + len(body) > BATCH_BYTES:
            yield entries
            entries, size = [], 0
        entry = {"Id": str(number), "MessageBody": body.decode()}
        if is_fifo:
            entry["MessageGroupId"] = _digest(f"{message.spider}/{message.key}")
            entry["MessageDeduplicationId"] = _digest(message.id)
        entries.append(entry)
        size += len(body)
    if entries:
        yield entries


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _line(text: str) -> str:
    return " ".join(text.split())[:LONGEST_REASON] or "no answer"
