"""The sink's contract: changes of items are delivered in order, all of a batch or an error."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Protocol

import msgspec


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One change of an item as receivers get it, encoded as a JSON object.

    `id` is the same each time the change is delivered; a higher `version` of one `key` is newer. `change` is new,
    changed or gone; `at` is the time of the scrape in seconds since 1970; `item` has the item's fields."""

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
    """One receiver. A method raises ServerUnreachable if a later call may succeed, UsageError if somebody must change
    something first: one line each, without secrets."""

    @property
    def most(self) -> int:
        """The largest batch of `deliver`."""

    async def check(self) -> None:
        """Raise if `deliver` would fail, as far as can be seen without sending a message."""

    async def deliver(self, messages: Sequence[Message]) -> None:
        """Deliver all messages in their order. When this returns the receiver has stored them; if it raises, any first
        part of them may have arrived."""

    async def close(self) -> None:
        """Close the connections. Closing again is harmless."""


def rounds_of(messages: Sequence[Message], *, most: int) -> Iterator[list[Message]]:
    """The messages in batches that have each key once: brokers may take part of a batch, in any order."""
    batch: dict[tuple[str, str], Message] = {}
    for message in messages:
        if (message.spider, message.key) in batch or len(batch) == most:
            yield list(batch.values())
            batch = {}
        batch[message.spider, message.key] = message
    if batch:
        yield list(batch.values())


def short_id(message: Message, *, longest: int) -> str:
    """The message's id; its hash if it is too long for the broker, or not printable ASCII."""
    if len(message.id) <= longest and message.id.isascii() and message.id.isprintable():
        return message.id
    return hashlib.sha256(message.id.encode()).hexdigest()
