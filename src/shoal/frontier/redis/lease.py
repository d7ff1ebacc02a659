"""Lending tasks: one script for one crawl; for several crawls or shards, a survey of all, then a script for some.

Exits that workers offer at the Redis frontier: said with each lease call; new ones are made known to all lanes.
"""

from __future__ import annotations

import contextlib
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from shoal.errors import StorageError
from shoal.frontier.redis.connection import Argument
from shoal.frontier.redis.control import stop, walk
from shoal.frontier.redis.mend import UNREADABLE
from shoal.frontier.redis.outbox import Outbox
from shoal.frontier.redis.runner import Call, ShardRunner
from shoal.frontier.redis.shards import Shard, shard_named, shard_of
from shoal.frontier.redis.wire import KEY, decode_task, encode_limits, encode_offers, encode_pools, number
from shoal.frontier.rules.constants import LOOK_AGAIN_SECONDS
from shoal.frontier.rules.lanes import share_out
from shoal.frontier.rules.tasks import decoded, is_suspect
from shoal.model import DIRECT, HTTP, VIA, Lease, LeaseBatch, Pool


def offering(shards: Sequence[Shard], offers: Sequence[Pool]) -> list[Call]:
    """The scripts that say what a worker offers, to go before those that lend."""
    args = encode_limits(offers)
    return [(shard, "offer", args) for shard in shards] if offers else []


async def offer_first(runner: ShardRunner, shards: Sequence[Shard], offers: Sequence[Pool]) -> None:
    """Offer what this process has not offered before, so that the same call lends through it."""
    calls = [call for call in offering(shards, offers) if runner.offered.get(call[0]) != list(call[2])]
    if calls:
        await take_over(runner, calls, await runner.run(calls))


async def take_over(runner: ShardRunner, calls: Sequence[Call], answers: Sequence[list[Any]]) -> bool:
    """Make known which exits came or are gone, where the answers ask for it; gives whether that was needed.

    If this process dies in between, the next call of any worker that offers something does it."""
    changed = [shard for (shard, _, _), answer in zip(calls, answers, strict=True) if answer[1:] == [b"1"]]
    for shard in changed:
        async with runner.connections.borrow_at(shard.prefix) as connection:
            record = await connection.call("HGET", shard.prefix + "crawl", "pools")
        pools = msgspec.json.decode(record, type=tuple[Pool, ...]) if record else ()
        await runner.change_in(shard, "pools", *encode_pools(pools))
        await walk(runner, shard, "pools")
        await runner.change_in(shard, "offered")
    runner.offered |= {shard: list(args) for shard, _, args in calls}
    return bool(changed)


MAX_LEASES = 100  # per script: all other clients wait for a script
LEAST_LANES = 32  # that each of several shards names, even if few of them can be served

_LENT = struct.Struct(">dIHH")
_PER_LANE = 8


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a worker asks for."""

    limit: int
    worker: str
    seconds: float
    horizon: float
    may_be_alone: bool = True
    landed: Sequence[Lease] = ()
    kinds: Sequence[str] = (HTTP,)
    offers: Sequence[Pool] = ()
    room: int = 0
    wanted_in_all: int = 0

    @property
    def asked(self) -> str:
        """The kinds as scripts read them."""
        return "" if tuple(self.kinds) == (HTTP,) else ",".join(self.kinds)


async def lease(runner: ShardRunner, outbox: Outbox, crawls: Sequence[str], terms: Terms) -> LeaseBatch:
    """As many rounds as the limit needs."""
    names = list(dict.fromkeys(crawls))
    leases: list[Lease] = []
    landed = terms.landed
    at = 0.0
    while True:
        limit = min(MAX_LEASES, terms.limit - len(leases))
        wanted_in_all = max(terms.limit, terms.room) - len(leases)
        part = msgspec.structs.replace(
            terms, limit=limit, may_be_alone=not leases, landed=landed, wanted_in_all=wanted_in_all
        )
        landed = ()
        shards = [shard for name in names for shard in await runner.shards(name)]
        if terms.offers:
            await offer_first(runner, shards, terms.offers)
        batch = await (_lease_one(runner, shards[0], part) if len(shards) == 1 else _lease_many(runner, shards, part))
        at = at or batch.answered
        leases += batch.leases if at == batch.answered else _later(batch.leases, batch.answered - at)
        for shard in dict.fromkeys(batch.unreadable):
            await runner.mend(shard)
        if leases and leases[0].alone:
            break
        if await take_over(runner, *batch.offering) and not leases:
            continue
        if await _has_news(runner, outbox, batch, seconds=terms.seconds, has_leases=bool(leases)):
            continue
        if len(leases) >= terms.limit or (len(batch.leases) < part.limit and not batch.was_overtaken):
            break
    leases.sort(key=lambda lease: lease.wait)
    return LeaseBatch(
        leases=leases,
        ask_again=batch.ask_again,
        at=at,
        epoch=batch.epoch,
        finished=tuple(await _finished(runner, names, batch)),
    )


async def _has_news(runner: ShardRunner, outbox: Outbox, batch: _Lent, *, seconds: float, has_leases: bool) -> bool:
    """Do what the scripts could not do themselves; gives whether a call without leases may get some now."""
    if batch.gone and any([await runner.learn(crawl) for crawl in batch.gone]):
        return True
    for crawl in batch.gone:
        await runner.check_lost(crawl)
    if batch.overdue:
        if await _reclaim_overdue(runner, batch.overdue, seconds=seconds) and not has_leases:
            return True
        batch.ask_again = max(batch.ask_again, LOOK_AGAIN_SECONDS)
    return bool(batch.posted) and bool(await outbox.deliver_left_behind(batch.posted)) and not has_leases


def _later(leases: Sequence[Lease], seconds: float) -> list[Lease]:
    """Leases of a later round: their waits begin later than those of the first."""
    return [
        msgspec.structs.replace(lease, wait=lease.wait + seconds) if lease.interval or lease.exit_interval else lease
        for lease in leases
    ]


async def evict(
    runner: ShardRunner, worker: str, *, suspects: Sequence[int], cause: str, known: Sequence[int] | None
) -> int:
    """Reclaim the leases of this worker in every crawl; with `known`, those that it does not know of."""
    how: tuple[Argument, ...] = ("dead", *suspects) if known is None else ("alive", *known)
    taken = 0
    for crawl in await runner.usable_crawls():
        for shard in await runner.shards(crawl):
            cursor = b"0"
            while True:
                (answer,) = await runner.run([(shard, "evict", (worker, cursor, cause, *how))])
                if answer[0] == b"none":
                    break
                cursor, taken = answer[1], taken + answer[2]
                if cursor == b"0":
                    break
    return taken


class _Lent(msgspec.Struct, kw_only=True):
    """The leases that scripts gave, and what they said of their shards. Stopped: crawls and lanes whose next task is a
    suspect, which must not be lent in company. Overtaken: other workers took some of the tasks between the survey and
    the script. Answered: when the answer came, or should have come, not when the server lent: a start may come late by
    the way of an answer, never early."""

    leases: list[Lease] = msgspec.field(default_factory=list)
    ask_again: float = 1.0
    answered: float = 0.0
    epoch: int = 0
    gone: list[str] = msgspec.field(default_factory=list)
    posted: list[Shard] = msgspec.field(default_factory=list)
    overdue: list[Shard] = msgspec.field(default_factory=list)
    finished: list[str] = msgspec.field(default_factory=list)
    quiet: dict[Shard, bytes] = msgspec.field(default_factory=dict)
    stopped: set[tuple[str, str]] = msgspec.field(default_factory=set)
    was_overtaken: bool = False
    unreadable: list[Shard] = msgspec.field(default_factory=list)
    offering: tuple[Sequence[Call], Sequence[list[Any]]] = ((), ())


async def _lease_one(runner: ShardRunner, shard: Shard, terms: Terms) -> _Lent:
    may_be_alone = int(terms.may_be_alone)
    args = (
        terms.limit,
        terms.worker,
        number(terms.seconds),
        number(terms.horizon),
        may_be_alone,
        terms.asked,
        encode_offers(terms.offers),
        terms.wanted_in_all,
    )
    asked = runner.connections.times.now()
    offers = offering([shard], terms.offers)
    *answers, answer = await runner.run([*offers, *_land([shard], terms.landed), (shard, "lease", args)])
    lent = _lent(runner, {shard: answer}, asked=asked)
    lent.offering = offers, answers[: len(offers)]
    return lent


async def _lease_many(runner: ShardRunner, shards: Sequence[Shard], terms: Terms) -> _Lent:
    """A survey of all shards, then a script for each shard whose lanes are the next to be served. If a suspect waits
    longest, its lane is asked before all others, which lend nothing when it is lent."""
    limit = min(terms.limit, max(LEAST_LANES, 2 * terms.limit // len(shards)))
    asked = runner.connections.times.now()
    survey = (limit, number(terms.horizon), terms.limit, number(terms.seconds), terms.asked)
    offers = offering(shards, terms.offers)
    before = [*offers, *_land(shards, terms.landed)]
    answered = await runner.run([*before, *((shard, "survey", survey) for shard in shards)])
    if await take_over(runner, offers, answered[: len(offers)]):
        return await _lease_many(runner, shards, msgspec.structs.replace(terms, landed=()))
    surveys = dict(zip(shards, answered[len(before) :], strict=True))
    if await _stop_if_reached(runner, surveys):
        surveys = await _ask_each(runner, dict.fromkeys(shards, ("survey", survey)))
    ready = []
    for shard, answer in surveys.items():
        for start, age, lane, room, shares in zip(*(answer[6 + column :: 5] for column in range(5)), strict=True):
            ready.append((float(start), age, shard, lane, int(room), shares == b"1"))
    ready.sort(key=lambda entry: entry[:2])
    del ready[terms.limit :]
    ready = _one_per_host(ready)
    parts = share_out([entry[4] for entry in ready], terms.limit)
    wanted = [(shard, lane, part) for (_, _, shard, lane, _, _), part in zip(ready, parts, strict=True) if part]
    answers = {shard: answer[:4] for shard, answer in surveys.items()}
    first = 0
    if wanted and terms.may_be_alone and surveys[wanted[0][0]][4] == b"1":
        first = 1
        answers |= await _ask_lanes(runner, wanted[:1], terms, may_be_alone=True)
        lent = _lent(runner, answers, asked=asked)
        if any(lease.alone for lease in lent.leases):
            return lent
    for shard, answer in (await _ask_lanes(runner, wanted[first:], terms, may_be_alone=False)).items():
        answers[shard] = answer + answers[shard][4:]
    lent = _lent(runner, answers, asked=asked)
    ranks = {(shard.crawl, lane.decode()): rank for rank, (shard, lane, _) in enumerate(wanted)}
    # A lane whose exits rest, or that a suspect stops, lends less than it has room for: that is no reason to ask again.
    direct = {lane for lane in ranks.keys() - lent.stopped if VIA not in lane[1]}
    shared_out = sum(share for shard, lane, share in wanted if (shard.crawl, lane.decode()) in direct)
    lent.was_overtaken = sum((lease.crawl, lease.task.lane) in direct for lease in lent.leases) < shared_out
    lent.leases.sort(key=lambda lease: ranks[lease.crawl, lease.task.lane])
    return lent


_Ready = tuple[float, bytes, Shard, bytes, int, bool]


def _one_per_host(ready: Sequence[_Ready]) -> list[_Ready]:
    """Of lanes that share a host, the first one: the others are for the next call."""
    first: dict[bytes, Shard] = {}
    for _, _, shard, lane, _, shares in ready:
        if shares:
            first.setdefault(lane, shard)
    return [entry for entry in ready if not entry[5] or first[entry[3]] is entry[2]]


async def _reclaim_overdue(runner: ShardRunner, shards: Sequence[Shard], *, seconds: float) -> bool:
    """End leases of other crawls that have been over for as long as a lease lasts; gives whether there were any. A
    crawl whose data cannot be read is for its own workers to mend."""
    is_any = False
    for shard in dict.fromkeys(shards):
        with contextlib.suppress(StorageError):
            (answer,) = await runner.run([(shard, "lapse", (number(seconds),))])
            is_any = is_any or (answer[0] == b"ok" and answer[1] > 0)
    return is_any


async def _stop_if_reached(runner: ShardRunner, surveys: Mapping[Shard, list[Any]]) -> bool:
    """Stop the crawls that have reached a limit over all their shards; gives whether there are any."""
    looks: dict[Shard, bytes] = {shard: answer[5] for shard, answer in surveys.items() if len(answer) > 5 and answer[5]}
    are_stopped = False
    for crawl in {shard.crawl for shard in looks}:
        shards = [shard for shard in surveys if shard.crawl == crawl]
        found = [looks[shard] for shard in shards if shard in looks]
        limits = decoded(found[0].partition(b"\n")[2])
        columns = zip(*(map(float, look.partition(b"\n")[0].split()) for look in found), strict=True)
        left, *values = columns
        come_to = [sum(each) if limit.of == "note" else max(each) for limit, each in zip(limits, values, strict=True)]
        why = next((limit.why for limit, value in zip(limits, come_to, strict=True) if value >= limit.most), "")
        if why and sum(left):
            await stop(runner, shards, reason=why)
            are_stopped = True
    return are_stopped


async def _ask_lanes(
    runner: ShardRunner, wanted: Sequence[tuple[Shard, bytes, int]], terms: Terms, *, may_be_alone: bool
) -> dict[Shard, list[Any]]:
    """Ask lanes for a number of leases each."""
    lanes: dict[Shard, list[Argument]] = {}
    for shard, lane, share in wanted:
        lanes.setdefault(shard, []).extend((lane, share))
    shared = (
        terms.worker, number(terms.seconds), number(terms.horizon), int(may_be_alone), terms.asked,
        encode_offers(terms.offers), int(sum(share for _, _, share in wanted) >= terms.wanted_in_all),
    )  # fmt: skip
    return await _ask_each(runner, {shard: ("lend", (*shared, *args)) for shard, args in lanes.items()})


def _land(shards: Sequence[Shard], leases: Sequence[Lease]) -> list[Call]:
    """The scripts that free the places of these leases, a bounded number in each."""
    if not leases:
        return []
    crawls: dict[str, list[Shard]] = {}
    for shard in shards:
        crawls.setdefault(shard.crawl, []).append(shard)
    args: dict[Shard, list[Argument]] = {}
    for lease in leases:
        if layout := crawls.get(lease.crawl):
            shard = layout[shard_of(lease.task.lane, of=len(layout))]
            args.setdefault(shard, []).extend((KEY.pack(lease.task.key), lease.token))
    return [
        (shard, "land", listed[start : start + 2 * MAX_LEASES])
        for shard, listed in args.items()
        for start in range(0, len(listed), 2 * MAX_LEASES)
    ]


async def _ask_each(runner: ShardRunner, calls: dict[Shard, tuple[str, Sequence[Argument]]]) -> dict[Shard, list[Any]]:
    """One script per shard, in one round trip."""
    answers = await runner.run([(shard, verb, args) for shard, (verb, args) in calls.items()])
    return dict(zip(calls, answers, strict=True))


async def _finished(runner: ShardRunner, crawls: Sequence[str], lent: _Lent) -> list[str]:
    """The crawls that have nothing left to do, deleted ones too. A crawl in several shards has nothing left when all
    of them were quiet at the same moment: quiet in a first look, and in a second look that finds that nothing moved."""
    finished = {*lent.finished, *lent.gone}
    for crawl in crawls:
        shards = await runner.shards(crawl)
        if crawl in finished or not all(shard in lent.quiet for shard in shards):
            continue
        answers = await runner.run([(shard, "finish", (lent.quiet[shard],)) for shard in shards])
        if all(answer[0] == b"none" or answer[1] == b"1" for answer in answers):
            finished.add(crawl)
    return [crawl for crawl in crawls if crawl in finished]


def _lent(runner: ShardRunner, answers: Mapping[Shard, list[Any]], *, asked: float) -> _Lent:
    lent = _Lent()
    for shard, answer in answers.items():
        if answer[0] == b"none":
            if shard.crawl not in lent.gone:
                lent.gone.append(shard.crawl)
            continue
        runner.see_epoch(shard, int(answer[1]))
        lent.epoch += int(answer[1])
        times, *overdue = answer[2].split(b"\n")
        ask_again, now, shift = map(float, times.split())
        lent.overdue += [shard_named(crawl.decode(), shard) for crawl in overdue]
        runner.connections.times.note(shard.prefix, now, shift=shift, asked=asked)
        age = runner.connections.times.age(shard.prefix, now - shift, asked=asked)
        # Before the leases are decoded: that takes time, too.
        lent.answered = max(lent.answered, time.monotonic() - age)
        lent.ask_again = min(lent.ask_again, ask_again)
        ending = answer[3]
        if ending == b"1":
            lent.finished.append(shard.crawl)
        elif ending == b"o":
            lent.posted.append(shard)
        elif ending[:1] == b"q":
            lent.quiet[shard] = ending[1:]
        for start in range(4, len(answer), _PER_LANE):
            part = answer[start : start + _PER_LANE]
            try:
                lent.leases += _leases(shard, part)
            except UNREADABLE:
                lent.leases += _readable_leases(shard, part)
                lent.unreadable.append(shard)
            if b"s" in part[3]:
                lent.stopped.add((shard.crawl, part[0].decode()))
    return lent


def _leases(shard: Shard, answer: list[Any]) -> list[Lease]:
    """The leases of one lane."""
    name, interval, base_interval, letters, version, token, lent, via = answer
    lane, first, pace, base, rules_version = (
        name.decode(),
        int(token),
        float(interval),
        float(base_interval),
        int(version),
    )
    exit_interval, exits, versions = _exits(via)
    leases = []
    for index, data in enumerate(lent):
        wait, attempt, losses, free_retries = _LENT.unpack_from(data)
        leases.append(
            Lease(
                crawl=shard.crawl,
                task=decode_task(data, lane, _LENT.size),
                token=first + index * shard.of,
                attempt=attempt,
                free_retries=free_retries,
                exit=exits[index] if exits else DIRECT,
                wait=wait,
                interval=pace,
                base_interval=base,
                exit_interval=exit_interval,
                opens_lane=b"o" in letters,
                rules_version=rules_version,
                session_version=versions[index] if versions else 0,
                alone=is_suspect(losses),
            )
        )
    return leases


def _readable_leases(shard: Shard, answer: list[Any]) -> list[Lease]:
    """The leases of a lane of which some cannot be decoded."""
    *head, token, lent, via = answer
    line, _, names = via.partition(b"\n")
    interval, *versions = line.split() or [b""]
    exits, leases = names.split(b"\n"), list[Lease]()
    for index, data in enumerate(lent):
        alone = b" ".join([interval, *versions[index : index + 1]]) + b"\n" + exits[index] if via else b""
        with contextlib.suppress(*UNREADABLE):
            leases += _leases(shard, [*head, int(token) + index * shard.of, [data], alone])
    return leases


def _exits(via: bytes) -> tuple[float, list[str], list[int]]:
    """The interval of a pool's exits, and for each lease its exit and the version of its session; empty: none."""
    if not via:
        return 0.0, [], []
    head, _, exits = via.partition(b"\n")
    interval, _, versions = head.partition(b" ")
    return float(interval), exits.decode().split("\n"), list(map(int, versions.split()))
