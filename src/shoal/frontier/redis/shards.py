"""Where a crawl's keys lie: in one shard or in several, each of them in one slot of a cluster."""

from __future__ import annotations

import zlib
from urllib.parse import quote, unquote

import msgspec

from shoal.model import STAGE, VIA


def prefix_of(crawl: str, shard: int = 0, *, of: int = 1) -> str:
    """What all keys of one shard of a crawl begin with. The braces keep them in one slot of a Cluster, together with
    those of the shards of all other crawls that have the same number: there a script finds all lanes of a host.

    The number of shards is part of it: a client with a stale shard count finds no keys, not part of a crawl."""
    return f"{slot_of(shard, of=of)}{quote(crawl, safe=' ')}:"


class Shard(msgspec.Struct, frozen=True):
    """One part of a crawl. A lane lives in one shard for good."""

    crawl: str
    number: int
    of: int
    prefix: str

    def has(self, lane: str) -> bool:
        """Whether the lane lives here."""
        return self.of == 1 or shard_of(lane, of=self.of) == self.number


def shard_of(lane: str, *, of: int) -> int:
    """The shard in which a lane lives. Never to be changed: crawls are laid out by it.

    All lanes of a host live together, via whatever pool and in whatever stage: a key is known to its shard alone."""
    return zlib.crc32(lane.partition(VIA)[0].partition(STAGE)[0].encode()) % of if of > 1 else 0


def shards_of(crawl: str, of: int) -> list[Shard]:
    """All shards of a crawl, the first one first."""
    return [Shard(crawl, number, of, prefix_of(crawl, number, of=of)) for number in range(of)]


def shard_named(crawl: str, beside: Shard) -> Shard:
    """The shard of another crawl that lies in the same slot, by the crawl's name as keys have it."""
    return Shard(unquote(crawl), beside.number, beside.of, f"{slot_of(beside.number, of=beside.of)}{crawl}:")


def slot_of(shard: int, *, of: int) -> str:
    """What the keys of the shards of this number begin with, whatever their crawl."""
    return f"shoal:{{{shard}-{of}}}:"
