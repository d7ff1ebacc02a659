"""The outbox's contract: changes of items that wait in the store until their sinks have them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, Protocol

import msgspec

# `gone` is for items that are not seen any more; no store writes it yet.
Change = Literal["new", "changed", "gone"]
# About how many bytes of items one read gives.
READ_BYTES = 4 * 1024 * 1024


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """One change of an item that a sink is to get. Positions rise in the order in which an item changed."""

    position: int
    key: str
    version: int
    change: Change
    at: float
    url: str
    crawl: str
    data: bytes


class SinkPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where the changes of a spider's items go: a URL without secrets.

    `host`: the machine of a file or of a server at a loopback address; empty: every machine reaches it. `has_secret`:
    its URL was given with a password."""

    spider: str
    url: str
    host: str = ""
    has_secret: bool = False


# How many waiting changes of a sink a process counts that looks again and again.
COUNTED: Final = 100_000


class SinkState(msgspec.Struct, frozen=True, kw_only=True):
    """A sink as the store knows it. `sent` counts delivered changes; `trouble` says why the latest ones are not;
    `holder` is who had the duty last.

    `waiting` changes are not delivered yet, and have waited since `oldest` at most; 0.0: none does."""

    id: int
    place: SinkPlace
    added: float
    sent: int = 0
    sent_at: float = 0.0
    trouble: str = ""
    trouble_since: float = 0.0
    holder: str = ""
    waiting: int = 0
    oldest: float = 0.0


class Outbox(Protocol):
    """Part of every store. A change is in it from the step on that stores the item: none is lost between the two.

    Nothing is kept while a spider has no sink."""

    async def add(self, place: SinkPlace) -> int:
        """Keep every change from now on for this sink; gives its id. One that is there already stays as it is."""

    async def sinks(self, spider: str | None = None, *, counted: int | None = None) -> list[SinkState]:
        """The sinks of a spider, or all, in the order in which they were added. `counted`: of the changes that wait for
        a sink no more are counted, where counting all would take long."""

    async def hold(self, sink: int, holder: str, *, seconds: float) -> bool:
        """Hold the duty to send to a sink, for so long from now; gives whether it is ours. 0: leave it to others."""

    async def read(self, sink: int, *, limit: int) -> list[Outgoing]:
        """The oldest changes that wait, at most `limit`, and few enough for memory. Those of one item come in order.

        A change that another writer commits later is given by a later call, whatever its position."""

    async def passed(self, sink: int, changes: Sequence[Outgoing]) -> None:
        """The sink has these changes, which `read` gave: drop them. Its trouble is over."""

    async def failed(self, sink: int, why: str) -> None:
        """Note why the sink did not get its changes. They stay."""

    async def replay(self, sink: int, *, since: float | None = None) -> int:
        """Queue all items of the sink's spider once more, as they are now, or those that changed at a time or later;
        gives how many. They come as new, behind what waits."""

    async def remove(self, sink: int) -> None:
        """Forget a sink with all that waits for it."""
