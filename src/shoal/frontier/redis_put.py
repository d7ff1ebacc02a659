"""Letting tasks in, chunk by chunk: each chunk is one step, and all of them may be repeated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from shoal.errors import UsageError
from shoal.frontier.redis_desk import Desk, checked, needs_repair, prefix_of
from shoal.frontier.redis_link import Argument
from shoal.frontier.redis_wire import Batch, encode_counts
from shoal.model import PutReport, Task

MAX_TASKS = 200  # per script: a script holds up everybody else


class Samples:
    """Rejected URLs for people to see. Those of a reason that has enough do not travel."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk
        self._full: set[tuple[str, int, str]] = set()

    async def add(self, crawl: str, epoch: int, samples: Iterable[tuple[str, str]]) -> None:
        """Keep them, as far as they are needed."""
        full = self._full
        args: list[Argument] = []
        for reason, url in samples:
            if (crawl, epoch, reason) not in full:
                args += (reason, url)
        for start in range(0, len(args), 2 * MAX_TASKS):
            try:
                answer = await self._desk.change(crawl, "samples", *args[start : start + 2 * MAX_TASKS])
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
    samples = [("merged", batch.tasks[place].url) for place in merged]
    for place, reason in zip(refused[::2], refused[1::2], strict=True):
        task, name = batch.tasks[place], reason.decode()
        kept_out[task.key] = name
        samples.append((name, task.url))
    return kept_out, samples


async def put(
    desk: Desk,
    samples: Samples,
    crawl: str,
    tasks: Sequence[Task],
    *,
    rejected: Mapping[str, int],
    given: Sequence[tuple[str, str]],
) -> PutReport:
    """Encode everything, then send it: what cannot be stored leaves nothing behind."""
    counts = encode_counts(rejected)
    pending = []
    for start in range(0, max(1, len(tasks)), MAX_TASKS):
        batch = Batch()
        args = batch.encode(tasks[start : start + MAX_TASKS])
        pending.append((batch, [*(counts if start == 0 else [0]), *batch.kinds, len(batch.tasks), *args]))
    total = PutReport()
    kept = list(given)
    epoch = 0
    for batch, answer in await _send(desk, crawl, pending):
        kept_out, more = refusals(batch, answer[4], answer[5])
        epoch, kept = int(answer[1]), kept + more
        total = PutReport(
            new=total.new + answer[2], duplicates=total.duplicates + answer[3], refused=total.refused | kept_out
        )
    if kept:
        await samples.add(crawl, epoch, kept)
    return total


async def _send(desk: Desk, crawl: str, chunks: list[tuple[Batch, list[Argument]]]) -> list[tuple[Batch, list[Any]]]:
    """All chunks in one round trip, again those that met a crawl in need of repair."""
    answered: list[tuple[Batch, list[Any]]] = []
    while True:
        async with desk.link.line() as line:
            for _, args in chunks:
                await line.send_script("put", prefix_of(crawl), args)
            answers = await line.answers()
        unrepaired = []
        for chunk, answer in zip(chunks, answers, strict=True):
            if needs_repair(answer):
                unrepaired.append(chunk)
            else:
                answered.append((chunk[0], checked(answer, crawl)))
        if not unrepaired:
            return answered
        chunks = unrepaired
        await desk.repair(crawl)
