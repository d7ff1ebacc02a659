"""Letting tasks in, chunk by chunk: each chunk is one step, and all of them may be repeated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from shoal.errors import UsageError
from shoal.frontier.redis.allowance import ask_for_allowance
from shoal.frontier.redis.connection import Argument
from shoal.frontier.redis.shard_runner import ShardRunner, no_such_crawl
from shoal.frontier.redis.shards import Shard, shard_of
from shoal.frontier.redis.wire import Batch, encode_counts
from shoal.model import PutReport, Task

MAX_TASKS = 200  # per script: all other clients wait for a script


class Samples:
    """Rejected URLs for people to see. URLs of a reason that has enough of them are not sent."""

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
    """The keys that a budget kept out, and the samples that follow from a script's answer."""
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
        """Note the answer to a chunk; gives the indexes of tasks that need an allowance first."""
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
    """Put each task into its shard, or bury it there when reasons are given; false when the crawl turned out to lie in
    other shards."""
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
        # Only the tasks that were served are sent: a shard would give an allowance that is not used to its next task.
        sent = set(wanted[:served] if served else waiting)
        chunks = _chunks(shards, [(index, tasks[index]) for index in sorted(sent)], reasons)
        calls = [chunk.args(grant=grants[chunk.shard.number]) for chunk in chunks]
        waiting = [index for index in waiting if index not in sent]


def _chunks(shards: Sequence[Shard], numbered: Sequence[tuple[int, Task]], reasons: Sequence[str] = ()) -> list[Chunk]:
    """The tasks by shard, in bounded parts; at least one, which carries the counts."""
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
