"""Ending leases: many results per script, each applied whole or not at all."""

from __future__ import annotations

import struct
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any

from shoal.frontier.redis_desk import Desk, needs_repair, prefix_of
from shoal.frontier.redis_link import Argument
from shoal.frontier.redis_put import MAX_TASKS, Samples, refusals
from shoal.frontier.redis_wire import KEY, Batch, encode_counts, encode_update, number
from shoal.model import Dead, Done, LaneUpdate, Lease, Released, Result, Retry, SettleReport

MAX_RESULTS = 100
FLAWS = (TypeError, ValueError, OverflowError, AttributeError, struct.error)


class Chunk:
    """The results of one crawl that go into one script."""

    def __init__(self, crawl: str) -> None:
        self.crawl = crawl
        self.batch = Batch()
        self.places: list[tuple[int, Result]] = []
        self.flaws: dict[int, str] = {}
        self._args: list[Argument] = []

    @property
    def args(self) -> list[Argument]:
        return [*self.batch.kinds, len(self.places), *self._args]

    def has_room(self, found: int) -> bool:
        return len(self.places) < MAX_RESULTS and (not self.places or len(self.batch.tasks) + found <= MAX_TASKS)

    def add(self, place: int, result: Result) -> None:
        """Take a result in. One that cannot be written is sent as a question whether its lease still stands."""
        try:
            args = self._encode(result)
        except FLAWS as error:
            self.flaws[place] = f"{type(error).__name__}: {error}"
            args = ["check", *_lease(result.lease), 0]
        self._append(place, result, args)

    def add_part(self, result: Done, part: slice) -> None:
        """A part of a long list of found tasks, sent ahead of its result."""
        found = self.batch.encode(result.found[part])
        self._append(-1, result, ["found", *_lease(result.lease), 0, len(found) // 3, *found])

    def _append(self, place: int, result: Result, args: Sequence[Argument]) -> None:
        self.places.append((place, result))
        self._args += args

    def _encode(self, result: Result) -> list[Argument]:
        lease, update = _lease(result.lease), _update(result.lane)
        match result:
            case Done():
                _check_samples(result)
                counts = encode_counts(result.rejected)
                result.outcome.encode()
                found = self.batch.encode(result.found[_last_part(result)])
                return ["done", *lease, *update, result.outcome, *counts, len(found) // 3, *found]
            case Retry():
                result.reason.encode()
                return ["retry", *lease, *update, result.reason, number(result.delay), int(result.free)]
            case Dead():
                result.reason.encode(), result.detail.encode()
                return ["dead", *lease, *update, result.reason, result.detail]
            case Released():
                return ["release", *lease, *update]


class Settlement:
    """One settle call: its results in chunks, and what became of them."""

    def __init__(self, results: Sequence[Result], *, applied: Container[tuple[str, int]]) -> None:
        self._results = results
        self._applied = applied
        self._epochs: dict[str, int] = {}
        self._stale: list[Lease] = []
        self._refused: dict[int, str] = {}
        self._failed: dict[int, str] = {}
        self.samples: dict[str, list[tuple[str, str]]] = {}

    def chunks(self) -> Iterator[Chunk]:
        """The results in order, each chunk as soon as it is full."""
        open_chunks: dict[str, Chunk] = {}
        for place, result in enumerate(self._results):
            if not isinstance(result, Result):
                self._failed[place] = f"{type(result).__name__} is not a result"
                continue
            crawl = result.lease.crawl
            if (crawl, result.lease.token) in self._applied:
                continue
            found = len(result.found) if isinstance(result, Done) else 0
            chunk = open_chunks.get(crawl)
            if chunk is not None and not chunk.has_room(found):
                yield open_chunks.pop(crawl)
                chunk = None
            if found > MAX_TASKS and isinstance(result, Done):
                yield from self._parts(result)
            if chunk is None:
                chunk = open_chunks[crawl] = Chunk(crawl)
            chunk.add(place, result)
        yield from open_chunks.values()

    def take(self, chunk: Chunk, answer: list[Any]) -> None:
        """Note the answer to a chunk."""
        if answer[0] == b"none":
            self._stale += [result.lease for place, result in chunk.places if place >= 0]
            return
        _, epoch, fates, refused, merged = answer
        samples = self.samples.setdefault(chunk.crawl, [])
        for (place, result), fate in zip(chunk.places, fates.decode(), strict=True):
            if place < 0:
                continue
            if fate == "s":
                self._stale.append(result.lease)
            elif place in chunk.flaws:
                self._failed[place] = chunk.flaws[place]
                continue
            elif isinstance(result, Done):
                samples += result.samples
            self._epochs[chunk.crawl] = int(epoch)
        kept_out, more = refusals(chunk.batch, refused, merged)
        self._refused |= kept_out
        samples += more

    def report(self) -> SettleReport:
        return SettleReport(
            stale=self._stale, refused=self._refused, epoch=sum(self._epochs.values()), failed=self._failed
        )

    def epoch_of(self, crawl: str) -> int:
        return self._epochs.get(crawl, 0)

    def _parts(self, result: Done) -> Iterator[Chunk]:
        """All but the last of a long list, fenced by the lease. A flaw is left for the result itself to meet."""
        ahead = _last_part(result).start
        for start in range(0, ahead, MAX_TASKS):
            chunk = Chunk(result.lease.crawl)
            try:
                chunk.add_part(result, slice(start, min(start + MAX_TASKS, ahead)))
            except FLAWS:
                return
            yield chunk


class Settler:
    """Sends results. Remembers those that went through in a call that failed as a whole: it will be repeated."""

    def __init__(self, desk: Desk, samples: Samples) -> None:
        self._desk = desk
        self._samples = samples
        self._applied: set[tuple[str, int]] = set()

    async def settle(self, results: Sequence[Result]) -> SettleReport:
        """Send each chunk as soon as it is encoded: the server works on one while the next is made."""
        settlement = Settlement(results, applied=self._applied)
        pending: Iterable[Chunk] = settlement.chunks()
        while pending:
            pending = await self._send(pending, settlement)
            for crawl in dict.fromkeys(chunk.crawl for chunk in pending):
                await self._desk.repair(crawl)
        for crawl, kept in settlement.samples.items():
            if kept:
                await self._samples.add(crawl, settlement.epoch_of(crawl), kept)
        if self._applied:
            self._applied -= {(one.lease.crawl, one.lease.token) for one in results if isinstance(one, Result)}
        return settlement.report()

    async def _send(self, chunks: Iterable[Chunk], settlement: Settlement) -> list[Chunk]:
        """One round trip; gives the chunks whose crawl needs to be repaired first."""
        sent: list[Chunk] = []
        async with self._desk.link.line() as line:
            for chunk in chunks:
                await line.send_script("settle", prefix_of(chunk.crawl), chunk.args)
                sent.append(chunk)
            answers = await line.answers_or_errors()
            failures = [answer for answer in answers if isinstance(answer, Exception)]
            if failures:
                self._remember(sent, answers)
                raise failures[0]
        for chunk, answer in zip(sent, answers, strict=True):
            if not needs_repair(answer):
                settlement.take(chunk, answer)
        return [chunk for chunk, answer in zip(sent, answers, strict=True) if needs_repair(answer)]

    def _remember(self, sent: Sequence[Chunk], answers: Sequence[Any]) -> None:
        for chunk, answer in zip(sent, answers, strict=True):
            if not isinstance(answer, Exception) and answer[0] == b"ok":
                fates = zip(chunk.places, answer[2].decode(), strict=True)
                self._applied |= {
                    (chunk.crawl, result.lease.token)
                    for (place, result), fate in fates
                    if fate == "a" and place >= 0 and place not in chunk.flaws
                }


async def extend(desk: Desk, leases: Sequence[Lease], *, seconds: float) -> list[Lease]:
    """Move the end of these leases; gives those already lost."""
    lost: list[Lease] = []
    for crawl in dict.fromkeys(lease.crawl for lease in leases):
        group = [lease for lease in leases if lease.crawl == crawl]
        for start in range(0, len(group), MAX_TASKS):
            part = group[start : start + MAX_TASKS]
            lost += await _extend_part(desk, crawl, part, seconds)
    return lost


async def _extend_part(desk: Desk, crawl: str, leases: Sequence[Lease], seconds: float) -> list[Lease]:
    args: list[Argument] = [number(seconds)]
    for lease in leases:
        args += _lease(lease)
    while True:
        async with desk.link.line() as line:
            answer = await line.run("extend", prefix_of(crawl), *args)
        if answer[0] == b"none":
            return list(leases)
        if not needs_repair(answer):
            return [lease for lease, fate in zip(leases, answer[1].decode(), strict=True) if fate == "s"]
        await desk.repair(crawl)


def _lease(lease: Lease) -> tuple[Argument, Argument]:
    return KEY.pack(lease.task.key), lease.token


def _update(update: LaneUpdate | None) -> list[Argument]:
    return [0] if update is None else [1, *encode_update(update)]


def _last_part(result: Done) -> slice:
    """The found tasks that go with the result itself."""
    whole = len(result.found)
    return slice(max(0, whole - 1) // MAX_TASKS * MAX_TASKS, whole)


def _check_samples(result: Done) -> None:
    for reason, url in result.samples:
        reason.encode(), url.encode()
