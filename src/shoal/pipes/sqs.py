"""A pipe through Amazon SQS or a compatible service: a message that is not deleted in time is received again."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl

from aiobotocore.config import AioConfig
from aiobotocore.session import get_session
from botocore import exceptions

from shoal.errors import ServerUnreachable, ShoalError, UsageError
from shoal.pipes.base import DEFAULT_PREFIX, UNREADABLE, Delivery, QueueGone, checked_prefix
from shoal.text.secrets import masked

STEP_SECONDS: Final = 15.0
CONNECT_SECONDS: Final = 5.0
LONGEST_POLL_SECONDS: Final = 20
# After this time a received message that was not confirmed is received again.
HIDDEN_SECONDS: Final = 30
MOST_HIDDEN_SECONDS: Final = 300
KEPT_SECONDS: Final = 300  # longer than any caller waits for an answer
UNREADABLE_SECONDS: Final = 14 * 86_400
BATCH: Final = 10
BATCH_BYTES: Final = 240_000  # of SQS's 262,144, for all messages of a batch
EXAMPLE: Final = "sqs://shoal?region=eu-central-1"

_FAULTS: Final = (exceptions.BotoCoreError, exceptions.ClientError, OSError, TimeoutError)
_GONE: Final = frozenset({"AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist"})
_REFUSED: Final = frozenset(
    {
        "AccessDenied", "AccessDeniedException", "InvalidClientTokenId", "SignatureDoesNotMatch", "AuthFailure",
        "UnrecognizedClientException", "InvalidSecurity", "MissingAuthenticationToken", "OptInRequired",
    }
)  # fmt: skip


class Address(NamedTuple):
    """The prefix, region and endpoint of the queues. Credentials come from AWS's usual chain."""

    prefix: str
    region: str | None
    endpoint: str | None
    shown: str
    redelivery: int = HIDDEN_SECONDS


class _Receipt(NamedTuple):
    handle: str
    number: int


def parse_address(url: str) -> Address:
    """Parse the URL of a pipe. Nothing is connected yet."""
    shown = masked(url)
    place, _, query = url.partition("://")[2].partition("?")
    if "@" in place:
        raise UsageError(f"{shown}: credentials come from AWS's usual chain, not from the URL: write {EXAMPLE}")
    if "/" in place.rstrip("/"):
        raise UsageError(f"{shown} is not a URL of queues: write {EXAMPLE}")
    options = dict(parse_qsl(query, keep_blank_values=True))
    region, endpoint = options.pop("region", None), options.pop("endpoint", None)
    redelivery = options.pop("redelivery", str(HIDDEN_SECONDS))
    if not redelivery.isdigit() or not 1 <= int(redelivery) <= MOST_HIDDEN_SECONDS:
        raise UsageError(f"{shown}: redelivery is a number of seconds from 1 to {MOST_HIDDEN_SECONDS}")
    if options:
        raise UsageError(f"{shown} has an unknown option: {min(options)}; known: region, endpoint, redelivery")
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise UsageError(f"{shown}: endpoint is the URL of a service, such as http://host:9324")
    prefix = checked_prefix(place.rstrip("/") or DEFAULT_PREFIX, shown)
    return Address(prefix, region, endpoint, shown, int(redelivery))


class SqsPipe:
    """Standard queues: no order, and a message may come twice. The client is created when needed."""

    def __init__(self, url: str) -> None:
        self._address = parse_address(url)
        self.shown = self._address.shown
        self._stack = AsyncExitStack()
        self._client: Any = None
        self._connecting = asyncio.Lock()
        self._urls: dict[str, str] = {}

    async def open_queue(self, queue: str, *, passing: bool = False) -> None:
        kept = UNREADABLE_SECONDS if queue == UNREADABLE else KEPT_SECONDS
        attributes = {"VisibilityTimeout": str(self._address.redelivery), "MessageRetentionPeriod": str(kept)}
        async with self._step(queue) as client:
            made = await client.create_queue(QueueName=self._name(queue), Attributes=attributes)
            self._urls[queue] = made["QueueUrl"]

    async def send(self, queue: str, messages: Sequence[bytes], *, seconds: float) -> None:
        until = {"seconds": {"DataType": "Number", "StringValue": str(seconds)}}
        await self._send(queue, messages, attributes=until)

    async def receive(self, queue: str, *, most: int, seconds: float) -> list[Delivery]:
        poll = min(int(seconds), LONGEST_POLL_SECONDS)
        async with self._step(queue, seconds=STEP_SECONDS + poll) as client:
            answer = await client.receive_message(
                QueueUrl=await self._url(client, queue),
                MaxNumberOfMessages=min(most, BATCH),
                WaitTimeSeconds=poll,
                MessageSystemAttributeNames=["SentTimestamp", "ApproximateReceiveCount"],
                MessageAttributeNames=["seconds"],
            )
        found = answer.get("Messages", [])
        if not found and poll < seconds < 1:
            await asyncio.sleep(seconds)
        deliveries = [_delivery(queue, message, number) for number, message in enumerate(found)]
        late = [
            one for one, message in zip(deliveries, found, strict=True) if _is_late(message, answer["ResponseMetadata"])
        ]
        await self.confirm(late)
        return [one for one in deliveries if one not in late]

    async def confirm(self, deliveries: Sequence[Delivery]) -> None:
        await self._change("delete_message_batch", deliveries, {})

    async def give_back(self, deliveries: Sequence[Delivery]) -> None:
        await self._change("change_message_visibility_batch", deliveries, {"VisibilityTimeout": 0})

    async def set_aside(self, deliveries: Sequence[Delivery]) -> None:
        await self.open_queue(UNREADABLE)
        await self._send(UNREADABLE, [delivery.body for delivery in deliveries], attributes={})
        await self.confirm(deliveries)

    async def count(self, queue: str) -> int:
        name = "ApproximateNumberOfMessages"
        try:
            async with self._step(queue) as client:
                url = await self._url(client, queue)
                answer = await client.get_queue_attributes(QueueUrl=url, AttributeNames=[name])
        except QueueGone:
            return 0
        return int(answer["Attributes"][name])

    async def remove_queue(self, queue: str) -> None:
        with contextlib.suppress(QueueGone):
            async with self._step(queue) as client:
                await client.delete_queue(QueueUrl=await self._url(client, queue))
        self._urls.pop(queue, None)

    async def sweep(self, *, used: Sequence[str], seconds: float) -> None:
        name = "CreatedTimestamp"
        async with self._step("") as client:
            answer = await client.list_queues(QueueNamePrefix=self._name("answers-"), MaxResults=1000)
            now = _time_of(answer["ResponseMetadata"])
            for url in answer.get("QueueUrls", []):
                queue = url.rpartition("/")[2].removeprefix(self._name(""))
                if queue in used:
                    continue
                made = await client.get_queue_attributes(QueueUrl=url, AttributeNames=[name])
                if now - float(made["Attributes"][name]) > seconds:
                    await client.delete_queue(QueueUrl=url)

    async def close(self) -> None:
        stack, self._stack, self._client = self._stack, AsyncExitStack(), None
        self._urls.clear()
        await stack.aclose()

    def _name(self, queue: str) -> str:
        return f"{self._address.prefix}-{queue}"

    async def _send(self, queue: str, messages: Sequence[bytes], *, attributes: dict[str, Any]) -> None:
        texts = [base64.b64encode(message).decode() for message in messages]
        async with self._step(queue) as client:
            url = await self._url(client, queue)
            for batch in _batches(texts):
                entries = [
                    {"Id": str(number), "MessageBody": text, "MessageAttributes": attributes}
                    for number, text in enumerate(batch)
                ]
                answer = await client.send_message_batch(QueueUrl=url, Entries=entries)
                if failed := answer.get("Failed"):
                    raise ServerUnreachable(
                        f"SQS at {self.shown} takes no messages now: {failed[0].get('Message', '')}"
                    )

    async def _change(self, verb: str, deliveries: Sequence[Delivery], more: dict[str, Any]) -> None:
        """Change or delete received messages, in batches. If the call fails they are received again."""
        for start in range(0, len(deliveries), BATCH):
            some = deliveries[start : start + BATCH]
            entries = [
                {"Id": str(number), "ReceiptHandle": one.receipt.handle, **more}
                for number, one in enumerate(some)
                if isinstance(one.receipt, _Receipt)
            ]
            with contextlib.suppress(ServerUnreachable):
                async with self._step(some[0].queue) as client:
                    url = await self._url(client, some[0].queue)
                    await getattr(client, verb)(QueueUrl=url, Entries=entries)

    async def _url(self, client: Any, queue: str) -> str:
        if queue not in self._urls:
            self._urls[queue] = (await client.get_queue_url(QueueName=self._name(queue)))["QueueUrl"]
        return self._urls[queue]

    @contextlib.asynccontextmanager
    async def _step(self, queue: str, *, seconds: float = STEP_SECONDS) -> AsyncIterator[Any]:
        try:
            async with asyncio.timeout(seconds):
                yield await self._connected()
        except _FAULTS as error:
            translated = self._in_our_words(error, queue)
            if isinstance(translated, QueueGone):
                self._urls.pop(queue, None)
            raise translated from None

    async def _connected(self) -> Any:
        async with self._connecting:
            if self._client is None:
                # Callers retry. The answer to a long poll takes longer than the poll.
                config = AioConfig(
                    connect_timeout=CONNECT_SECONDS,
                    read_timeout=LONGEST_POLL_SECONDS + STEP_SECONDS,
                    retries={"total_max_attempts": 1},
                    max_pool_connections=100,
                )
                session = get_session()
                session.register_component("data_loader", _models())
                made = session.create_client(
                    "sqs", region_name=self._address.region, endpoint_url=self._address.endpoint, config=config
                )
                self._client = await self._stack.enter_async_context(made)
            return self._client

    def _in_our_words(self, error: Exception, queue: str) -> ShoalError:
        text, at = " ".join(str(error).split()) or "no answer", self.shown
        if isinstance(error, exceptions.ClientError):
            code = str(error.response.get("Error", {}).get("Code", ""))
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            if code in _GONE:
                return QueueGone(f"the queue {self._name(queue)} is gone from SQS at {at}")
            if code in _REFUSED or status == 403:
                return UsageError(f"SQS at {at} refuses us: {text}; check the credentials of AWS's usual chain")
            if status < 500 and code in ("QueueNameExists", "QueueAlreadyExists"):
                return UsageError(f"a queue at {at} is of another kind: {text}; remove it, or give another prefix")
            return ServerUnreachable(f"SQS at {at} does not do it now: {text}")
        if isinstance(error, (exceptions.NoCredentialsError, exceptions.PartialCredentialsError)):
            return UsageError(f"{at}: no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile")
        if isinstance(error, exceptions.NoRegionError):
            return UsageError(f"{at} names no region: write {EXAMPLE}, or set AWS_DEFAULT_REGION")
        if isinstance(error, (exceptions.ProfileNotFound, exceptions.InvalidRegionError)):
            return UsageError(f"{at}: {text}")
        return ServerUnreachable(f"cannot reach SQS at {at}: {text}")


@lru_cache(maxsize=1)
def _models() -> Any:
    """The driver's session, which reads megabytes of JSON about AWS: one for the whole process."""
    return get_session().get_component("data_loader")


def _batches(texts: Sequence[str]) -> list[list[str]]:
    """The messages in as few batches as the limits of SQS on messages and bytes allow."""
    batches: list[list[str]] = [[]]
    size = 0
    for text in texts:
        if len(batches[-1]) == BATCH or size + len(text) > BATCH_BYTES:
            batches.append([])
            size = 0
        batches[-1].append(text)
        size += len(text)
    return [batch for batch in batches if batch]


def _delivery(queue: str, message: dict[str, Any], number: int) -> Delivery:
    try:
        body = base64.b64decode(message["Body"], validate=True)
    except (binascii.Error, ValueError):
        # Not sent by shoal: the reader finds that it cannot be decoded.
        body = message["Body"].encode()
    times = int(message.get("Attributes", {}).get("ApproximateReceiveCount", 1))
    return Delivery(queue, body, times, _Receipt(message["ReceiptHandle"], number))


def _is_late(message: dict[str, Any], answer: dict[str, Any]) -> bool:
    """Whether the message has expired, by the clock of the service alone."""
    wanted = message.get("MessageAttributes", {}).get("seconds", {}).get("StringValue")
    sent = float(message.get("Attributes", {}).get("SentTimestamp", 0)) / 1000
    return wanted is not None and _time_of(answer) - sent > float(wanted) + 1


def _time_of(answer: dict[str, Any]) -> float:
    """The service's time of its answer, in whole seconds; 0 if it does not send one."""
    date = answer.get("HTTPHeaders", {}).get("date", "")
    return parsedate_to_datetime(date).timestamp() if date else 0.0
