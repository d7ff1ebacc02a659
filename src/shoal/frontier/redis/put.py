"""Storing new tasks and known keys, chunk by chunk: each chunk is one step, and every call may be repeated.

`max_pages` over several shards: each shard accepts its allowance, and all grants together are the budget. A client with
tasks for a shard without allowance reclaims the unused allowance of all shards, reports to the first shard how many
tasks each has accepted, and asks it for grants. A grant is an absolute number for one generation of a shard: after
another client has reclaimed and shared out again, it is void. So nothing is granted twice, and nothing is lost with a
client that dies in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from shoal.errors import UsageError
from shoal.frontier.redis.connection import Argument
from shoal.frontier.redis.runner import ShardRunner, checked, no_such_crawl
from shoal.frontier.redis.shards import Shard, shard_of
from shoal.frontier.redis.views import queue_names
from shoal.frontier.redis.wire import KEY, Batch, encode_counts
from shoal.frontier.rules.keys import BLOOM, DROPPED, no_keys_to_know
from shoal.model import PutReport, Task

Grant = tuple[Argument, Argument, Argument, Argument]


async def ask_for_allowance(
    runner: ShardRunner, shards: Sequence[Shard], tasks: Sequence[Task]
) -> tuple[int, list[Grant]]:
    """How many of these tasks, with distinct keys and the first ones first, fit into the budget; and the grant of each
    shard, as put sends it. 0: the budget is used up."""
    crawl = shards[0].crawl
    reports = [checked(answer, crawl) for answer in await runner.run([(shard, "reclaim", ()) for shard in shards])]
    args: list[Argument] = [len(shards)]
    for _, generation, accepted in reports:
        args += (generation, accepted)
    wants = [shard_of(task.lane, of=len(shards)) for task in tasks]
    _, served, kept, *grants = await runner.change_in(shards[0], "grant", *args, *wants)
    is_spent = int(served == 0)
    return served, [
        (generation, allowance, kept, is_spent) for generation, allowance in zip(grants[::2], grants[1::2], strict=True)
    ]


MAX_TASKS = 200  # per script: all other clients wait for a script


class Samples:
    """Rejected URLs, for people. URLs for a reason that has enough are not sent."""

    def __init__(self, runner: ShardRunner) -> None:
        self._runner = runner
        self._full: set[tuple[str, int, str]] = set()

    async def add(self, crawl: str, epoch: int, samples: Iterable[tuple[str, str]]) -> None:
        """Keep the samples that are needed."""
        full = self._full
        args: list[Argument] = []
        for reason, url in samples:
            if (crawl, epoch, reason) not in full:
                args += (reason, url)
        for start in range(0, len(args), 2 * MAX_TASKS):
            try:
                answer = await self._runner.change(crawl, "samples", *args[start : start + 2 * MAX_TASKS])
            except UsageError:
                return  # the crawl was deleted meanwhile, and its samples with it
            if len(full) > 10_000:
                full.clear()
            full.update((crawl, int(answer[1]), reason.decode()) for reason in answer[2])


def refusals(
    batch: Batch, refused: Sequence[Any], merged: Sequence[int]
) -> tuple[dict[int, str], list[tuple[str, str]]]:
    """The keys that a budget refused, and the samples, from a script's answer."""
    kept_out: dict[int, str] = {}
    samples = [("merged", batch.tasks[index].url) for index in merged]
    for index, reason in zip(refused[::2], refused[1::2], strict=True):
        task, name = batch.tasks[index], reason.decode()
        kept_out[task.key] = name
        samples.append((name, task.url))
    return kept_out, samples


class Chunk(msgspec.Struct, frozen=True):
    """Tasks of one shard that go into one script, and their indexes in the caller's list."""

    shard: Shard
    indexes: list[int]
    batch: Batch
    tasks: list[Argument]
    reasons: list[Argument]

    def args(self, counts: Sequence[Argument] = (0,), grant: Sequence[Argument] = ()) -> list[Argument]:
        return [
            *counts,
            *self.batch.labels,
            *self.tasks,
            len(self.reasons),
            *self.reasons,
            *grant,
        ]


class Tally:
    """The outcome of one put."""

    def __init__(self, samples: Iterable[tuple[str, str]] = ()) -> None:
        self.new = 0
        self.duplicates = 0
        self.refused: dict[int, str] = {}
        self.samples = list(samples)

    def take(self, chunk: Chunk, answer: list[Any]) -> list[int]:
        """Count the answer to a chunk; gives the indexes of tasks that need an allowance first."""
        kept_out, samples = refusals(chunk.batch, answer[4], answer[5])
        self.new += answer[2]
        self.duplicates += answer[3]
        self.refused |= kept_out
        self.samples += samples
        return [chunk.indexes[index] for index in answer[6]]


async def put(
    runner: ShardRunner,
    samples: Samples,
    crawl: str,
    tasks: Sequence[Task],
    *,
    rejected: Mapping[str, int],
    given: Sequence[tuple[str, str]],
) -> PutReport:
    """Encode everything, then send it: a task that cannot be stored leaves nothing behind."""
    tally = Tally(given)
    counts = encode_counts(rejected)
    while not await deliver(runner, crawl, tasks, tally=tally, counts=counts):
        pass
    return await _report(runner, samples, crawl, tally)


async def bury(runner: ShardRunner, samples: Samples, crawl: str, letters: Sequence[tuple[Task, str]]) -> PutReport:
    """Store tasks as dead letters, each with its reason."""
    tally = Tally()
    tasks, reasons = [task for task, _ in letters], [reason for _, reason in letters]
    for reason in reasons:
        reason.encode()  # raises for half a surrogate pair, before anything is sent
    while not await deliver(runner, crawl, tasks, tally=tally, reasons=reasons):
        pass
    return await _report(runner, samples, crawl, tally)


async def _report(runner: ShardRunner, samples: Samples, crawl: str, tally: Tally) -> PutReport:
    if tally.samples:
        await samples.add(crawl, await runner.epoch_of(crawl), tally.samples)
    return PutReport(new=tally.new, duplicates=tally.duplicates, refused=tally.refused)


async def deliver(
    runner: ShardRunner,
    crawl: str,
    tasks: Sequence[Task],
    *,
    tally: Tally,
    counts: Sequence[Argument] = (0,),
    reasons: Sequence[str] = (),
) -> bool:
    """Put each task into its shard, or bury it there with `reasons`; False: the crawl has another number of shards,
    call again."""
    shards = await runner.shards(crawl)
    chunks = _chunks(shards, list(enumerate(tasks)), reasons)
    calls = [chunk.args(counts if chunk is chunks[0] else (0,)) for chunk in chunks]
    waiting: list[int] = []
    while True:
        answers = await runner.run([(chunk.shard, "put", args) for chunk, args in zip(chunks, calls, strict=True)])
        if any(answer[0] == b"none" for answer in answers):
            if await runner.learn(crawl):
                return False
            raise no_such_crawl(crawl)
        for chunk, answer in zip(chunks, answers, strict=True):
            runner.see_epoch(chunk.shard, int(answer[1]))
            waiting += tally.take(chunk, answer)
        if not waiting:
            return True
        first = {tasks[index].key: index for index in sorted(waiting, reverse=True)}
        wanted = sorted(first.values())
        served, grants = await ask_for_allowance(runner, shards, [tasks[index] for index in wanted])
        # Only the served tasks are sent: a shard would give an unused allowance to its next task.
        sent = set(wanted[:served] if served else waiting)
        chunks = _chunks(shards, [(index, tasks[index]) for index in sorted(sent)], reasons)
        calls = [chunk.args(grant=grants[chunk.shard.number]) for chunk in chunks]
        waiting = [index for index in waiting if index not in sent]


def _chunks(shards: Sequence[Shard], numbered: Sequence[tuple[int, Task]], reasons: Sequence[str] = ()) -> list[Chunk]:
    """The tasks by shard, in parts of at most MAX_TASKS; at least one chunk, which carries the counts."""
    groups: dict[int, list[tuple[int, Task]]] = {}
    if len(shards) == 1:
        groups[0] = list(numbered)
    else:
        for index, task in numbered:
            groups.setdefault(shard_of(task.lane, of=len(shards)), []).append((index, task))
    chunks = []
    for number, group in (groups or {0: []}).items():
        for start in range(0, max(1, len(group)), MAX_TASKS):
            part = group[start : start + MAX_TASKS]
            batch = Batch(shards[number])
            indexes, encoded = [index for index, _ in part], batch.encode([task for _, task in part])
            theirs: list[Argument] = [reasons[index] for index in indexes] if reasons else []
            chunks.append(Chunk(shards[number], indexes, batch, encoded, theirs))
    return chunks


MAX_KEYS = 200  # per script: all other clients wait for a script
SCRIPTS_AT_ONCE = 20  # per round trip

KeyChunk = Sequence[tuple[int, bytes]]


async def know(runner: ShardRunner, crawl: str, keys: Sequence[int]) -> int:
    """Mark keys as known in every shard, as only a task's lane would name one; gives how many were new."""
    shards = await runner.existing_shards(crawl)
    # All keys are packed before the first is sent: an invalid key leaves nothing behind.
    packed = [(key, KEY.pack(key)) for key in dict.fromkeys(keys)]
    chunks = [packed[start : start + MAX_KEYS] for start in range(0, len(packed), MAX_KEYS)]
    new = 0
    for start in range(0, len(chunks), SCRIPTS_AT_ONCE):
        some = chunks[start : start + SCRIPTS_AT_ONCE]
        unknown = await _unknown(runner, shards, some) if len(shards) > 1 else None
        # The first shard counts, so it comes first: after a failure in between, no key is known but not counted.
        new += sum(await _learn(runner, shards[0], some, counted=unknown))
        for shard in shards[1:]:
            await _learn(runner, shard, some, counted=set())
    return new


async def _learn(
    runner: ShardRunner, shard: Shard, chunks: Sequence[KeyChunk], *, counted: set[int] | None
) -> list[int]:
    """Mark keys as known in one shard; gives how many of each chunk were counted. `counted`: the keys that may count;
    None: all."""
    calls = [(shard, "know", _args("learn", chunk, counted)) for chunk in chunks]
    return [checked(answer, shard.crawl)[2] for answer in await runner.run(calls)]


async def _unknown(runner: ShardRunner, shards: Sequence[Shard], chunks: Sequence[KeyChunk]) -> set[int]:
    """The keys that no shard knows."""
    unknown = {key for chunk in chunks for key, _ in chunk}
    for shard in shards:
        answers = await runner.run([(shard, "know", _args("ask", chunk)) for chunk in chunks], unchecked=True)
        for chunk, answer in zip(chunks, answers, strict=True):
            flags = checked(answer, shard.crawl)[1]
            unknown -= {key for (key, _), is_new in zip(chunk, flags, strict=True) if is_new == b"0"}
    return unknown


def _args(mode: str, chunk: KeyChunk, counted: set[int] | None = None) -> list[Argument]:
    args: list[Argument] = [mode]
    for key, packed in chunk:
        args += (key, packed, int(counted is None or key in counted))
    return args


async def know_from(runner: ShardRunner, crawl: str, earlier: str) -> int:
    """Copy the keys that the earlier crawl has done; gives how many were new. The crawls may be on different nodes of a
    cluster, so the keys pass through this process, some at a time."""
    await runner.existing_shards(crawl)
    shards = await runner.existing_shards(earlier)
    await _check(runner, shards)
    undone: set[int] = set()
    for shard in shards:
        undone |= await _undone_in(runner, shard)
    new = 0
    for shard in shards:
        at = b"0"
        while at:
            _, at, found = await runner.read_in(shard, "done_keys", at)
            new += await know(runner, crawl, [key for key in map(int, found) if key not in undone])
    # Keys that were dropped meanwhile are missing.
    await _check(runner, shards)
    return new


async def _check(runner: ShardRunner, shards: list[Shard]) -> None:
    """Refuse a crawl that cannot list its keys."""
    async with runner.connections.borrow() as connection:
        for shard in shards:
            await connection.send("HMGET", shard.prefix + "crawl", "keys", "dedup")
        answers = await connection.answers()
    for keys, dedup in answers:
        if keys is not None:
            raise no_keys_to_know(shards[0].crawl, DROPPED)
        if (dedup or b"").startswith(b"bloom"):
            raise no_keys_to_know(shards[0].crawl, BLOOM)


async def _undone_in(runner: ShardRunner, shard: Shard) -> set[int]:
    """The keys of a shard's tasks that are not done. Waiting tasks are read before leased ones: a task leased meanwhile
    is then found among the leased ones."""
    queues = await queue_names(runner.connections, shard)
    found: set[int] = set()
    for where in (*queues, b"later", b"held", b"dead"):
        at = b"0" if where in (b"later", b"held", b"dead") else b"-inf"
        while at:
            _, at, keys = await runner.read_in(shard, "undone", where, at)
            found.update(KEY.unpack(key)[0] for key in keys)
    return found
