"""The sinks of every store that this process knows: for alerts and for metrics."""

from __future__ import annotations

import contextlib
from typing import Final, NamedTuple

from shoal.errors import ShoalError
from shoal.serve.answers import Refusal
from shoal.serve.parts import Parts
from shoal.serve.reach import Reached
from shoal.store.base import COUNTED, SinkState, Store
from shoal.text.secrets import masked

MOST_SINKS: Final = 100


class SinkSeen(NamedTuple):
    """A sink, and the store that feeds it, without secrets."""

    store: str
    state: SinkState


async def known_stores(parts: Parts) -> list[Reached[Store]]:
    """The stores of the frontier's crawls, each once."""
    async with parts.frontier.asking() as frontier:
        crawls = await parts.board.crawls(frontier)
    found: dict[int, Reached[Store]] = {}
    for crawl in crawls:
        if not crawl.refusal:
            # A store that is not there, or out of reach: who asks for its items is told so.
            with contextlib.suppress(ShoalError, Refusal):
                reached = parts.store_of(crawl)
                found[id(reached)] = reached
    return list(found.values())


async def sinks_seen(parts: Parts) -> list[SinkSeen]:
    """The sinks of the stores that answer."""
    stores = await known_stores(parts)
    names = {id(reached): masked(url) for url, reached in parts.stores.items()}
    found: list[SinkSeen] = []
    for reached in stores:
        with contextlib.suppress(ShoalError, OSError):
            async with reached.asking() as store:
                found += [SinkSeen(names[id(reached)], state) for state in await store.outbox.sinks(counted=COUNTED)]
    return found[:MOST_SINKS]


async def states_of_sinks(parts: Parts) -> list[SinkState]:
    """The sinks of all stores. An error where one of them gives no answer."""
    found: list[SinkState] = []
    for reached in await known_stores(parts):
        async with reached.asking() as store:
            found += await store.outbox.sinks(counted=COUNTED)
    return found
