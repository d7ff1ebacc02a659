"""Ending leases by results: many per script, each applied whole or not at all; and renewing leases."""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from shoal.frontier.redis.connection import Argument
from shoal.frontier.redis.outbox import Outbox, OutboxEntry
from shoal.frontier.redis.put import MAX_TASKS, Samples, refusals
from shoal.frontier.redis.runner import ShardRunner, is_damage, needs_repair
from shoal.frontier.redis.shards import Shard, shard_of
from shoal.frontier.redis.wire import KEY, Batch, encode_counts, encode_task, encode_update, encode_use, number
from shoal.frontier.rules.tasks import TOO_MANY_KINDS
from shoal.model import HTTP, Dead, Done, Handed, LaneUpdate, Lease, Released, Result, Retry, SettleReport, Task

MAX_RESULTS = 100
FLAWS = (TypeError, ValueError, OverflowError, AttributeError, struct.error)


_Token = tuple[str, int]


class Chunk:
    """The results of one shard that go into one script."""

    def __init__(self, shard: Shard) -> None:
        self.shard = shard
        self.crawl = shard.crawl
        self.batch = Batch(shard)
        self.results: list[tuple[int, Result]] = []
        self.flaws: dict[int, str] = {}
        self.origins: list[int] = []
        self._args: list[Argument] = []
        self._notes: dict[tuple[Argument, ...], list[int]] = {}

    @property
    def args(self) -> list[Argument]:
        args = [*self.batch.labels, len(self.results), *self._args, len(self._notes)]
        for notes, carriers in self._notes.items():
            args += (struct.pack(f">{len(carriers)}H", *carriers), *notes)
        return args

    def has_room(self, found: int) -> bool:
        return len(self.results) < MAX_RESULTS and (not self.results or len(self.batch.tasks) + found <= MAX_TASKS)

    def add(self, index: int, result: Result) -> None:
        """Add a result. For a result that cannot be encoded, the script only checks whether its lease still stands."""
        try:
            args = self._encode(result)
        except FLAWS as error:
            self.flaws[index] = f"{type(error).__name__}: {error}"
            args = ["check", *_lease(result.lease), 0, ""]
        self._append(index, result, args, of=index)

    def add_part(self, result: Done, part: slice, *, of: int) -> None:
        """Add a part of a long list of found tasks, sent before its result."""
        found = self.batch.encode(result.found[part])
        self._append(-1, result, ["found", *_lease(result.lease), 0, "", *found], of=of)

    def _append(self, index: int, result: Result, args: Sequence[Argument], *, of: int) -> None:
        self.results.append((index, result))
        self._args += args
        # The index of the result to which each found task belongs.
        self.origins += [of] * (len(self.batch.tasks) - len(self.origins))

    def _encode(self, result: Result) -> list[Argument]:
        lease, update = _lease(result.lease), [*_update(result.lane), encode_use(result.exit)]
        match result:
            case Done():
                _check_samples(result)
                notes, counts = encode_counts(result.notes), encode_counts(result.rejected)
                result.outcome.encode()
                again = None if result.again is None else [*_following(result.again), number(result.again_in)]
                # Last: the batch keeps its tasks even if a later encoding fails.
                found = self.batch.encode(result.found[_last_part(result)])
                self._carry(notes)
                ended = [*lease, *update, result.outcome, *counts, *found]
                return ["done", *ended] if again is None else ["again", *ended, *again]
            case Retry():
                result.reason.encode()
                delay = number(result.delay)
                self._carry(encode_counts(result.notes))
                return ["retry", *lease, *update, result.reason, delay, int(result.free)]
            case Dead():
                result.reason.encode(), result.detail.encode()
                self._carry(encode_counts(result.notes))
                return ["dead", *lease, *update, result.reason, result.detail]
            case Released():
                return ["release", *lease, *update]
            case Handed():
                following = _following(result.task)
                self._carry(encode_counts(result.notes))
                return ["hand", *lease, *update, *following]

    def _carry(self, notes: list[Argument]) -> None:
        """Add notes for the next result."""
        if len(notes) > 1:
            self._notes.setdefault(tuple(notes), []).append(len(self.results) + 1)


class Settlement:
    """One settle call: its results in chunks, and their outcome."""

    def __init__(
        self, results: Sequence[Result], *, layouts: Mapping[str, Sequence[Shard]], applied: Container[_Token]
    ) -> None:
        self._results = results
        self._layouts = layouts
        self._applied = applied
        self._stale: list[Lease] = []
        self._refused: dict[int, str] = {}
        self._failed: dict[int, str] = {}
        self._duplicates: list[tuple[int, int]] = []
        self._posted: dict[str, list[tuple[tuple[int, int, int], OutboxEntry]]] = {}
        self._answers = 0
        self.crawls: dict[str, None] = {}
        self.samples: dict[str, list[tuple[str, str]]] = {}

    def chunks(self) -> Iterator[Chunk]:
        """The results in order, each chunk as soon as it is full."""
        open_chunks: dict[Shard, Chunk] = {}
        for index, result in enumerate(self._results):
            if not isinstance(result, Result):
                self._failed[index] = f"{type(result).__name__} is not a result"
                continue
            if _token(result.lease) in self._applied:
                continue
            shard = _shard(result.lease, self._layouts)
            found = len(result.found) if isinstance(result, Done) else 0
            chunk = open_chunks.get(shard)
            if chunk is not None and not chunk.has_room(found):
                yield open_chunks.pop(shard)
                chunk = None
            if found > MAX_TASKS and isinstance(result, Done):
                yield from self._parts(result, shard, index)
            if chunk is None:
                chunk = open_chunks[shard] = Chunk(shard)
            chunk.add(index, result)
        yield from open_chunks.values()

    def take(self, chunk: Chunk, answer: list[Any]) -> None:
        """Note the answer to a chunk."""
        if answer[0] == b"none":
            self._stale += [result.lease for index, result in chunk.results if index >= 0]
            return
        _, _, fates, refused, merged, passed_on, last, known = answer
        samples = self.samples.setdefault(chunk.crawl, [])
        for (index, result), fate in zip(chunk.results, fates.decode(), strict=True):
            if index < 0:
                continue
            if fate == "s":
                self._stale.append(result.lease)
            elif fate == "k":
                self._failed[index] = TOO_MANY_KINDS
                continue
            elif index in chunk.flaws:
                self._failed[index] = chunk.flaws[index]
                continue
            elif isinstance(result, Done):
                samples += result.samples
            self.crawls[chunk.crawl] = None
        self._note_posted(chunk, passed_on, last)
        kept_out, more = refusals(chunk.batch, refused, merged)
        self._refused |= kept_out
        samples += more
        if known:
            results, origins, tasks = self._results, chunk.origins, chunk.batch.tasks
            self._duplicates += [(results[origins[index]].lease.token, tasks[index].key) for index in known]

    def posted(self) -> Iterator[tuple[str, list[OutboxEntry]]]:
        """The entries written to outboxes, by crawl, in the order in which they were found."""
        for crawl, posted in self._posted.items():
            posted.sort(key=lambda entry: entry[0])
            yield crawl, [entry for _, entry in posted]

    def refuse(self, keys: Mapping[int, str]) -> None:
        """Note keys that a budget refused on delivery to their shard."""
        self._refused |= keys

    def report(self, epoch: int) -> SettleReport:
        return SettleReport(
            stale=self._stale, refused=self._refused, epoch=epoch, failed=self._failed, duplicates=self._duplicates
        )

    def _note_posted(self, chunk: Chunk, passed_on: Sequence[int], last: int) -> None:
        ours = self._posted.setdefault(chunk.crawl, []) if passed_on else []
        self._answers += 1
        for entry, index in enumerate(passed_on, start=last - len(passed_on) + 1):
            order = (chunk.origins[index], self._answers, index)
            ours.append((order, OutboxEntry(chunk.shard, entry, chunk.batch.tasks[index])))

    def _parts(self, result: Done, shard: Shard, index: int) -> Iterator[Chunk]:
        """All parts but the last of a long list, fenced by the lease. A flaw is noted with the result itself."""
        ahead = _last_part(result).start
        for start in range(0, ahead, MAX_TASKS):
            chunk = Chunk(shard)
            try:
                chunk.add_part(result, slice(start, min(start + MAX_TASKS, ahead)), of=index)
            except FLAWS:
                return
            yield chunk


class Settler:
    """Sends results. Remembers those applied in a call that failed as a whole: the caller will repeat it."""

    def __init__(self, runner: ShardRunner, samples: Samples, outbox: Outbox) -> None:
        self._runner = runner
        self._samples = samples
        self._outbox = outbox
        self._applied: set[_Token] = set()

    async def settle(self, results: Sequence[Result]) -> SettleReport:
        """Send each chunk as soon as it is encoded: the server works on one while the next is made."""
        crawls = dict.fromkeys(result.lease.crawl for result in results if isinstance(result, Result))
        layouts = {crawl: await self._runner.shards(crawl) for crawl in crawls}
        settlement = Settlement(results, layouts=layouts, applied=self._applied)
        pending: Iterable[Chunk] = settlement.chunks()
        mended: set[Shard] = set()
        while pending:
            pending, damaged = await self._send(pending, settlement, mended)
            for shard in dict.fromkeys(chunk.shard for chunk in pending):
                await (self._runner.mend(shard) if shard in damaged else self._runner.repair(shard))
            mended |= damaged
        for crawl, posted in settlement.posted():
            settlement.refuse(await self._outbox.deliver(crawl, posted) or {})
        for crawl, kept in settlement.samples.items():
            if kept:
                await self._samples.add(crawl, await self._runner.epoch_of(crawl), kept)
        if self._applied:
            self._applied -= {_token(one.lease) for one in results if isinstance(one, Result)}
        return settlement.report(sum([await self._runner.epoch_of(crawl) for crawl in settlement.crawls]))

    async def _send(
        self, chunks: Iterable[Chunk], settlement: Settlement, mended: set[Shard]
    ) -> tuple[list[Chunk], set[Shard]]:
        """One round trip; gives the chunks to send again after a repair of their shard, and the shards with records
        that cannot be read, without those in `mended`."""
        sent: list[Chunk] = []
        async with self._runner.connections.borrow() as connection:
            for chunk in chunks:
                await connection.send_script("settle", chunk.shard.prefix, chunk.args)
                sent.append(chunk)
            answers = await connection.answers_or_errors()
            failures = [answer for answer in answers if isinstance(answer, Exception)]
            damaged = {chunk.shard for chunk, answer in zip(sent, answers, strict=True) if is_damage(answer)} - mended
            # A call over several shards, or with a repair, may still fail as a whole and be repeated.
            if failures or len(sent) > 1 or any(map(needs_repair, answers)):
                self._remember(sent, answers)
            for chunk, answer in zip(sent, answers, strict=True):
                if isinstance(answer, Exception) and chunk.shard not in damaged:
                    raise answer
        again = [
            chunk for chunk, answer in zip(sent, answers, strict=True) if is_damage(answer) or needs_repair(answer)
        ]
        for chunk, answer in zip(sent, answers, strict=True):
            if not is_damage(answer) and not needs_repair(answer):
                settlement.take(chunk, answer)
                if answer[0] == b"ok":
                    self._runner.see_epoch(chunk.shard, int(answer[1]))
        return again, damaged

    def _remember(self, sent: Sequence[Chunk], answers: Sequence[Any]) -> None:
        for chunk, answer in zip(sent, answers, strict=True):
            if not isinstance(answer, Exception) and answer[0] == b"ok":
                fates = zip(chunk.results, answer[2].decode(), strict=True)
                self._applied |= {
                    _token(result.lease)
                    for (index, result), fate in fates
                    if fate == "a" and index >= 0 and index not in chunk.flaws
                }


async def extend(runner: ShardRunner, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
    """Renew these leases; gives those that were lost."""
    lost: list[Lease] = []
    layouts = {crawl: await runner.shards(crawl) for crawl in dict.fromkeys(lease.crawl for lease in leases)}
    groups: dict[Shard, list[Lease]] = {}
    for lease in leases:
        groups.setdefault(_shard(lease, layouts), []).append(lease)
    for shard, group in groups.items():
        for start in range(0, len(group), MAX_TASKS):
            part = group[start : start + MAX_TASKS]
            lost += await _extend_part(runner, shard, part, seconds)
    return lost


async def _extend_part(runner: ShardRunner, shard: Shard, leases: Sequence[Lease], seconds: float) -> list[Lease]:
    args: list[Argument] = [number(seconds)]
    for lease in leases:
        args += _lease(lease)
    (answer,) = await runner.run([(shard, "extend", args)])
    if answer[0] == b"none":
        return list(leases)
    return [lease for lease, fate in zip(leases, answer[1].decode(), strict=True) if fate == "s"]


def _shard(lease: Lease, layouts: Mapping[str, Sequence[Shard]]) -> Shard:
    """The shard in which the lease's lane lives."""
    shards = layouts[lease.crawl]
    return shards[shard_of(lease.task.lane, of=len(shards))]


def _token(lease: Lease) -> _Token:
    return lease.crawl, lease.token


def _lease(lease: Lease) -> tuple[Argument, Argument]:
    return KEY.pack(lease.task.key), lease.token


def _update(update: LaneUpdate | None) -> list[Argument]:
    if update is None:
        return [0]
    return [3 if update.learnt is not None else 2 if update.why else 1, *encode_update(update)]


def _following(task: Task) -> tuple[Argument, Argument, Argument]:
    """The arguments of the task that replaces a leased one."""
    task.lane.encode()
    return task.lane, "" if task.kind == HTTP else task.kind, encode_task(task)


def _last_part(result: Done) -> slice:
    """The found tasks that go with the result itself."""
    whole = len(result.found)
    return slice(max(0, whole - 1) // MAX_TASKS * MAX_TASKS, whole)


def _check_samples(result: Done) -> None:
    for reason, url in result.samples:
        reason.encode(), url.encode()
