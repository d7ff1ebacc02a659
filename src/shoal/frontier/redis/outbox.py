"""Links from one shard to another: written to the shard's outbox by the settle that found them, then delivered.

An entry leaves its outbox only when its shard has it: after a kill it is in one of the two, or in both, where dedup
makes it harmless. The settler delivers its entries at once; entries left behind by a killed one are delivered by the
next worker that asks for leases. Delivered entries are kept for a while, and sent again when a server that may have
lost its last second is repaired.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import msgspec

from shoal.errors import ServerUnreachable, StorageError, UsageError
from shoal.frontier.redis.connection import Argument
from shoal.frontier.redis.put import Samples, Tally, deliver
from shoal.frontier.redis.runner import ShardRunner
from shoal.frontier.redis.shards import Shard
from shoal.frontier.redis.wire import decode_task
from shoal.model import Task

MAX_ENTRIES = 200

_ENTRY = struct.Struct(">ddH")


class OutboxEntry(msgspec.Struct, frozen=True):
    """A task in an outbox, and its number there."""

    shard: Shard
    number: int
    task: Task


class Outbox:
    """Delivers entries of outboxes to their shards."""

    def __init__(self, runner: ShardRunner, samples: Samples) -> None:
        self._runner = runner
        self._samples = samples

    async def deliver(self, crawl: str, posted: Sequence[OutboxEntry]) -> dict[int, str] | None:
        """Put these entries into their shards; gives the keys that a budget refused. None: not possible now; the
        entries stay in the outbox for the next worker that asks for leases."""
        tally = Tally()
        try:
            if not await deliver(self._runner, crawl, [entry.task for entry in posted], tally=tally):
                return None
            await self._take_out(posted)
            await self._samples.add(crawl, await self._runner.epoch_of(crawl), tally.samples)
        except (ServerUnreachable, StorageError, UsageError):
            return None
        return tally.refused

    async def deliver_left_behind(self, shards: Sequence[Shard]) -> int:
        """Deliver entries that other workers left behind, at most MAX_ENTRIES per shard; gives how many."""
        answers = await self._runner.run([(shard, "posted", (MAX_ENTRIES,)) for shard in shards], unchecked=True)
        found = [_read(shard, entry) for shard, answer in zip(shards, answers, strict=True) for entry in answer[1:]]
        delivered = 0
        for crawl in dict.fromkeys(entry.shard.crawl for entry in found):
            ours = [entry for entry in found if entry.shard.crawl == crawl]
            if await self.deliver(crawl, ours) is not None:
                delivered += len(ours)
        return delivered

    async def _take_out(self, posted: Sequence[OutboxEntry]) -> None:
        numbers: dict[Shard, list[int]] = {}
        for entry in posted:
            numbers.setdefault(entry.shard, []).append(entry.number)
        await self._runner.run([(shard, "delivered", _ranges(ours)) for shard, ours in numbers.items()])


def _ranges(numbers: Sequence[int]) -> list[Argument]:
    """First and last number of each range; a range has at most MAX_ENTRIES."""
    ranges: list[Argument] = []
    first = last = None
    for number in sorted(numbers):
        if first is None or last is None or number > last + 1 or number >= first + MAX_ENTRIES:
            ranges += () if first is None or last is None else (first, last)
            first = number
        last = number
    return ranges if first is None or last is None else [*ranges, first, last]


def _read(shard: Shard, entry: bytes) -> OutboxEntry:
    number, _, length = _ENTRY.unpack_from(entry)
    lane = entry[_ENTRY.size : _ENTRY.size + length].decode()
    return OutboxEntry(shard, int(number), decode_task(entry, lane, _ENTRY.size + length))
