"""The contract of a pipe: queues of a broker, through which workers and their coordinator send messages.

A pipe promises little, so that every broker can keep it: a message that was sent is received at least once unless its
time is over, perhaps twice, perhaps out of order. What is built on it must bear that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from shoal.errors import ServerUnreachable, UsageError

# Of one message. As text, for brokers that take nothing else, it has less than 60,000.
MOST_BYTES: Final = 44_000
DEFAULT_PREFIX: Final = "shoal"
# A message that was received so often, and neither confirmed nor given back, ends its receivers: it is set aside.
MOST_DELIVERIES: Final = 5
UNREADABLE: Final = "unreadable"  # the queue of messages that were set aside

_PREFIX: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")


class QueueGone(ServerUnreachable):
    """A queue that was there, or should be, is not. The one who reads from it opens it again."""


class Delivery(msgspec.Struct, frozen=True):
    """A message as it was received. `times`: how often it was received, this time included, as far as the broker
    tells. `receipt` is the pipe's own."""

    queue: str
    body: bytes
    times: int
    receipt: object


class Pipe(Protocol):
    """Queues of one broker under one prefix; their names are without it. A step that the broker cannot do now raises
    ServerUnreachable, and may be repeated: the pipe connects again by itself."""

    shown: str
    """The pipe as people may see it."""

    async def open_queue(self, queue: str, *, passing: bool = False) -> None:
        """Make the queue unless it is there. `passing`: it is one process's own, and goes when nobody reads it."""

    async def send(self, queue: str, messages: Sequence[bytes], *, seconds: float) -> None:
        """Send messages of at most MOST_BYTES each. Returns when the broker has them for good. Those that are not
        received within `seconds` are dropped. QueueGone: there is no such queue, and none of them was sent."""

    async def receive(self, queue: str, *, most: int, seconds: float) -> list[Delivery]:
        """Up to `most` messages; none after `seconds` without any. Each is received again, by this process or another,
        if it is neither confirmed nor set aside before the connection ends, or within a time that the broker has."""

    async def confirm(self, deliveries: Sequence[Delivery]) -> None:
        """These are done with. One whose connection has ended meanwhile is received again."""

    async def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Let others receive these."""

    async def set_aside(self, deliveries: Sequence[Delivery]) -> None:
        """Move these to the queue of unreadable messages, where they stay until people look."""

    async def count(self, queue: str) -> int:
        """How many messages wait in the queue, about; 0 if there is no such queue."""

    async def remove_queue(self, queue: str) -> None:
        """Remove the queue with all its messages, if it is there."""

    async def sweep(self, *, used: Sequence[str], seconds: float) -> None:
        """Remove passing queues that nobody reads: those that are not among `used` and are older than `seconds`, where
        the broker does not do that by itself."""

    async def close(self) -> None:
        """Close the connections. What was received and not confirmed is received again by others."""


def checked_prefix(prefix: str, shown: str) -> str:
    """The prefix of a pipe's queues; refused unless every broker takes it."""
    if not _PREFIX.fullmatch(prefix):
        raise UsageError(f"{shown}: {prefix!r} is no prefix for queues: up to 40 letters, digits, - and _")
    return prefix
