"""The sink's contract: where the changes of items flow on to, beside the store.

Messages cut into rounds, for brokers that may take some of a batch and not others. Pure.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One change of an item as receivers get it, encoded as a JSON object.

    `id` is the same each time the change is delivered; a higher `version` of one `key` is newer. `change` is new,
    changed or gone; `at` the time of the scrape in seconds since 1970; `item` the item's fields."""

    id: str
    spider: str
    key: str
    version: int
    change: str
    at: float
    url: str
    crawl: str
    item: msgspec.Raw


class Sink(Protocol):
    """One place. Errors are ServerUnreachable if it is away, UsageError if it refuses until somebody mends something:
    one line each, without secrets."""

    @property
    def most(self) -> int:
        """How many messages one call may have."""

    async def check(self) -> None:
        """Find out whether it would take messages, without sending any."""

    async def deliver(self, messages: Sequence[Message]) -> None:
        """Deliver all messages in their order: they are in safe keeping when this returns. If it raises, any first part
        of them may have been delivered."""

    async def close(self) -> None:
        """Let go of connections. Closing again is harmless."""


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
