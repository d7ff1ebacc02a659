"""The shards of a crawl, and the prefixes of their keys: each shard is in one slot of a cluster."""

from __future__ import annotations

import zlib
from urllib.parse import quote, unquote

import msgspec

from shoal.model import STAGE, VIA


def prefix_of(crawl: str, shard: int = 0, *, of: int = 1) -> str:
    """The prefix of all keys of one shard of a crawl. Its braces put them in one slot of a Cluster, together with the
    shards of all other crawls with the same index and count: there a script finds all lanes of a host.

    The number of shards is in the prefix: a client with a stale shard count finds no keys, not part of a crawl."""
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
    """The index of the shard in which a lane lives. Must never change: existing crawls are stored by it.

    All lanes of a host, of any pool and stage, are in one shard: a key is known only in its shard."""
    return zlib.crc32(lane.partition(VIA)[0].partition(STAGE)[0].encode()) % of if of > 1 else 0


def shards_of(crawl: str, of: int) -> list[Shard]:
    """All shards of a crawl, the first one first."""
    return [Shard(crawl, number, of, prefix_of(crawl, number, of=of)) for number in range(of)]


def shard_named(crawl: str, beside: Shard) -> Shard:
    """The shard of another crawl in the same slot, by the crawl's quoted name as in keys."""
    return Shard(unquote(crawl), beside.number, beside.of, f"{slot_of(beside.number, of=beside.of)}{crawl}:")


def slot_of(shard: int, *, of: int) -> str:
    """The part of the prefix that all crawls have in common for this shard."""
    return f"shoal:{{{shard}-{of}}}:"
