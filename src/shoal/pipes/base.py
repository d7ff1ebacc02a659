"""The contract of a pipe: queues of a broker between workers and their coordinator.

A message is received at least once unless it expires; it may come twice and out of order. Callers must cope with that.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from shoal.errors import ServerUnreachable, UsageError

# Largest message. In base64, for brokers that take only text, it has less than 60,000 bytes.
MOST_BYTES: Final = 44_000
DEFAULT_PREFIX: Final = "shoal"
# A message that was received so often without being confirmed probably crashes its receivers: it is set aside.
MOST_DELIVERIES: Final = 5
UNREADABLE: Final = "unreadable"  # the queue of messages that were set aside

_PREFIX: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")


class QueueGone(ServerUnreachable):
    """The queue does not exist, or was removed. Its reader opens it again."""


class Delivery(msgspec.Struct, frozen=True):
    """A received message. `times`: how often it was received so far, as the broker counts. `receipt` is for the pipe
    alone."""

    queue: str
    body: bytes
    times: int
    receipt: object


class Pipe(Protocol):
    """Queues of one broker under one prefix, which is not part of the names here. A method raises ServerUnreachable if
    the broker cannot do it now, and may be called again: the pipe reconnects by itself."""

    shown: str
    """The URL for messages, without secrets."""

    async def open_queue(self, queue: str, *, passing: bool = False) -> None:
        """Create the queue unless it exists. `passing`: one process's own queue, removed when nobody reads it."""

    async def send(self, queue: str, messages: Sequence[bytes], *, seconds: float) -> None:
        """Send messages of at most MOST_BYTES each; returns when the broker has stored them. A message that is not
        received within `seconds` is dropped. QueueGone: there is no such queue, nothing was sent."""

    async def receive(self, queue: str, *, most: int, seconds: float) -> list[Delivery]:
        """Up to `most` messages; an empty list after `seconds` without one. A message that is neither confirmed nor set
        aside is received again, by any process, after the connection ends or the broker's time limit."""

    async def confirm(self, deliveries: Sequence[Delivery]) -> None:
        """Remove these messages from their queues. One whose connection has ended is received again."""

    async def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Return these messages to their queues: any process may receive them now."""

    async def set_aside(self, deliveries: Sequence[Delivery]) -> None:
        """Move these messages to the queue `unreadable`, where they stay until a person removes them."""

    async def count(self, queue: str) -> int:
        """About how many messages wait in the queue; 0 if there is no such queue."""

    async def remove_queue(self, queue: str) -> None:
        """Remove the queue with all its messages, if it exists."""

    async def sweep(self, *, used: Sequence[str], seconds: float) -> None:
        """Remove passing queues that are not in `used` and are older than `seconds`, if the broker does not remove
        unused queues by itself."""

    async def close(self) -> None:
        """Close the connections. Unconfirmed messages are received again by other processes."""


def checked_prefix(prefix: str, shown: str) -> str:
    """The prefix; UsageError unless every broker takes it in the names of queues."""
    if not _PREFIX.fullmatch(prefix):
        raise UsageError(f"{shown}: {prefix!r} is no prefix for queues: up to 40 letters, digits, - and _")
    return prefix
