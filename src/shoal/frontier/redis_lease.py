"""Lending tasks: one script for one crawl; for several, a look at all of them and then a script for each."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec

from shoal.frontier.fairness import share_out
from shoal.frontier.redis_desk import CRAWLS, Desk, needs_repair, prefix_of
from shoal.frontier.redis_link import Argument
from shoal.frontier.redis_wire import decode_task, number
from shoal.model import Lease, LeaseBatch

MAX_LEASES = 100  # per script: a script holds up everybody else

_LENT = struct.Struct(">dII")
_PER_LANE = 7


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker asks for."""

    limit: int
    worker: str
    seconds: float
    horizon: float


async def lease(desk: Desk, crawls: Sequence[str], terms: Terms) -> LeaseBatch:
    """As many rounds as the limit needs."""
    names = list(dict.fromkeys(crawls))
    leases: list[Lease] = []
    while True:
        part = msgspec.structs.replace(terms, limit=min(MAX_LEASES, terms.limit - len(leases)))
        batch = await (_lease_one(desk, names[0], part) if len(names) == 1 else _lease_many(desk, names, part))
        leases += batch.leases
        if len(batch.leases) < part.limit or len(leases) >= terms.limit:
            break
    leases.sort(key=lambda lease: lease.wait)
    return msgspec.structs.replace(batch, leases=leases)


async def evict(desk: Desk, worker: str) -> int:
    """Take back everything this worker holds, in every crawl."""
    taken = 0
    async with desk.link.line() as line:
        names = [name.decode() for name in await line.call("SMEMBERS", CRAWLS)]
    for crawl in names:
        cursor = b"0"
        while True:
            async with desk.link.line() as line:
                answer = await line.run("evict", prefix_of(crawl), worker, cursor)
            if needs_repair(answer):
                await desk.repair(crawl)
                continue
            if answer[0] == b"none":
                break
            cursor, taken = answer[1], taken + answer[2]
            if cursor == b"0":
                break
    return taken


async def _lease_one(desk: Desk, crawl: str, terms: Terms) -> LeaseBatch:
    args = (terms.limit, terms.worker, number(terms.seconds), number(terms.horizon))
    while True:
        async with desk.link.line() as line:
            answer = await line.run("lease", prefix_of(crawl), *args)
        if not needs_repair(answer):
            return _batch([(crawl, answer)])
        await desk.repair(crawl)


async def _lease_many(desk: Desk, crawls: Sequence[str], terms: Terms) -> LeaseBatch:
    surveys = await _ask_each(desk, {crawl: ("survey", (terms.limit, number(terms.horizon))) for crawl in crawls})
    ready = []
    for crawl, answer in surveys.items():
        for start, age, lane, room in zip(*(answer[1 + column :: 4] for column in range(4)), strict=True):
            ready.append((float(start), age, crawl, lane, int(room)))
    ready.sort(key=lambda entry: entry[:2])
    del ready[terms.limit :]
    shares = share_out([entry[4] for entry in ready], terms.limit)
    wanted: dict[str, list[Argument]] = {crawl: [] for crawl in crawls}
    for (_, _, crawl, lane, _), share in zip(ready, shares, strict=True):
        if share:
            wanted[crawl] += (lane, share)
    shared = (terms.worker, number(terms.seconds), number(terms.horizon))
    answers = await _ask_each(desk, {crawl: ("lend", (*shared, *lanes)) for crawl, lanes in wanted.items()})
    batch = _batch(list(answers.items()))
    turns = {(crawl, lane.decode()): turn for turn, (_, _, crawl, lane, _) in enumerate(ready)}
    batch.leases.sort(key=lambda lease: turns[lease.crawl, lease.task.lane])
    return batch


async def _ask_each(desk: Desk, calls: dict[str, tuple[str, Sequence[Argument]]]) -> dict[str, list[Any]]:
    """One script per crawl, in one round trip."""
    while True:
        async with desk.link.line() as line:
            for crawl, (verb, args) in calls.items():
                await line.send_script(verb, prefix_of(crawl), args)
            answers = dict(zip(calls, await line.answers(), strict=True))
        broken = [crawl for crawl, answer in answers.items() if needs_repair(answer)]
        if not broken:
            return answers
        for crawl in broken:
            await desk.repair(crawl)


def _batch(answers: Sequence[tuple[str, list[Any]]]) -> LeaseBatch:
    """What the scripts lent. A crawl that was deleted has nothing left to do."""
    leases: list[Lease] = []
    ask_again, epoch = 1.0, 0
    finished = []
    for crawl, answer in answers:
        if answer[0] == b"none":
            finished.append(crawl)
            continue
        epoch += int(answer[1])
        ask_again = min(ask_again, float(answer[2]))
        if answer[3] == b"1":
            finished.append(crawl)
        for start in range(4, len(answer), _PER_LANE):
            leases += _leases(crawl, answer[start : start + _PER_LANE])
    return LeaseBatch(leases=leases, ask_again=ask_again, epoch=epoch, finished=tuple(finished))


def _leases(crawl: str, answer: list[Any]) -> list[Lease]:
    """The leases of one lane."""
    name, interval, base_interval, opens, version, token, lent = answer
    lane, first, pace, base, rules_version = (
        name.decode(),
        int(token),
        float(interval),
        float(base_interval),
        int(version),
    )
    leases = []
    for place, data in enumerate(lent):
        wait, attempt, free_retries = _LENT.unpack_from(data)
        leases.append(
            Lease(
                crawl=crawl,
                task=decode_task(data, lane, _LENT.size),
                token=first + place,
                attempt=attempt,
                free_retries=free_retries,
                wait=wait,
                interval=pace,
                base_interval=base,
                opens_lane=opens == b"1",
                rules_version=rules_version,
            )
        )
    return leases
