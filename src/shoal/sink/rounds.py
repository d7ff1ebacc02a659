"""Messages cut into rounds, for brokers that may take some of a batch and not others. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from shoal.sink.base import Message


def rounds_of(messages: Sequence[Message], *, most: int) -> Iterator[list[Message]]:
    """The messages in their order, each key once per round: a change is sent after the one before it was taken."""
    batch: dict[tuple[str, str], Message] = {}
    for message in messages:
        if (message.spider, message.key) in batch or len(batch) == most:
            yield list(batch.values())
            batch = {}
        batch[message.spider, message.key] = message
    if batch:
        yield list(batch.values())


def short_id(message: Message, *, longest: int) -> str:
    """The message's id, or its hash if it is longer or has characters that a broker does not take."""
    if len(message.id) <= longest and message.id.isascii() and message.id.isprintable():
        return message.id
    return hashlib.sha256(message.id.encode()).hexdigest()
