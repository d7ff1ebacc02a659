"""Rare changes to crawls: open, pause, resume, cancel, forget keys, clear dead letters. Long work has bounded steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from redis.exceptions import ResponseError

from shoal.errors import UsageError
from shoal.frontier.redis.connection import Argument
from shoal.frontier.redis.deletion import delete_crawl, keys_of, shards_for
from shoal.frontier.redis.mend import UNREADABLE
from shoal.frontier.redis.runner import CRAWLS, LAST_NUMBER, SHARDS, WRONG_TYPE, ShardRunner, layout_of, other_layout
from shoal.frontier.redis.scripts import LAYOUT_VERSION, UNKNOWN_LAYOUT
from shoal.frontier.redis.server_checks import warn
from shoal.frontier.redis.shards import Shard, prefix_of
from shoal.frontier.redis.views import check_pools, state_of, waiting_among
from shoal.frontier.redis.wire import KEY, decode_crawl, decode_dead, encode_pools, number, pairs
from shoal.frontier.rules.exits import check_exits
from shoal.frontier.rules.hosts import effective_weight
from shoal.frontier.rules.tasks import encoded, spider_in, unreadable_crawl
from shoal.model import Crawl, CrawlState, DeadCount, DeadFilter, DeadLetter
from shoal.settings.values import check_dedup
from shoal.text.errors import several

MAX_KEYS = 200


async def is_known(runner: ShardRunner, crawl: str) -> bool:
    """Whether a crawl with this id exists."""
    async with runner.connections.borrow() as connection:
        return bool(await connection.call("SISMEMBER", CRAWLS, crawl))


async def open_crawl(runner: ShardRunner, crawl: Crawl) -> Crawl:
    """Create the crawl, or change the fields of an existing one that may change."""
    check_dedup(crawl.dedup, ttl=crawl.dedup_ttl)
    check_exits(crawl.pools)
    settings = msgspec.json.encode(crawl.settings)
    fields: list[Argument] = [
        number(crawl.interval), crawl.cap, int(crawl.needs_rules), crawl.budgets.pages, crawl.budgets.per_lane,
        crawl.budgets.per_shape, settings, crawl.id, crawl.spider, str(crawl.state), int(crawl.feeding),
        number(crawl.created), crawl.dedup, number(crawl.dedup_ttl), number(crawl.budgets.cost),
    ]  # fmt: skip
    while True:
        shards = await _layout(runner, crawl)
        check_pools(crawl, shards=len(shards))
        # The first shard last: until it exists, no client sees the crawl.
        records = [await _open_shard(runner, shard, crawl, fields) for shard in reversed(shards)]
        if all(records):
            return _described(records[::-1])


async def _layout(runner: ShardRunner, new: Crawl) -> list[Shard]:
    """The shards of an existing crawl, or of a new one."""
    crawl = new.id
    shards, asked = await runner.shards(crawl), await shards_for(runner, new) or 1
    if len(shards) == 1 and asked <= 1:
        return shards
    async with runner.connections.borrow() as connection:
        await connection.send("HGET", SHARDS, crawl)
        await connection.send("HEXISTS", prefix_of(crawl) + "crawl", "state")
        recorded, is_whole = await connection.answers()
    if recorded is not None and int(recorded) < 0:
        await delete_crawl(runner, crawl)
        return await _layout(runner, new)
    if recorded is None and not is_whole and asked > 1:
        async with runner.connections.borrow() as connection:
            await connection.call("SADD", CRAWLS, crawl)
            await connection.call("HSETNX", SHARDS, crawl, asked)
            recorded = await connection.call("HGET", SHARDS, crawl)
    runner.lay_out(crawl, abs(int(recorded or 1)))
    shards = await runner.shards(crawl)
    wanted = runner.connections.shards
    if wanted and len(shards) != wanted:
        warn(f"crawl {crawl!r} lies in {several(len(shards), 'shard')} for good; ?shards={wanted} is for new crawls")
    return shards


async def _open_shard(
    runner: ShardRunner, shard: Shard, crawl: Crawl, fields: Sequence[Argument]
) -> dict[bytes, bytes]:
    """The shard's record; an empty one when the crawl turns out to lie in other shards."""
    given, walked = "", 0
    while True:
        async with runner.connections.borrow() as connection:
            answer = await connection.run(
                "open",
                shard.prefix,
                given,
                walked,
                *fields,
                shard.number,
                shard.of,
                LAYOUT_VERSION,
                encoded(crawl.limits),
                crawl.pace_scope,
                number(crawl.weight),
                number(crawl.fastest),
                number(effective_weight(crawl.weight, crawl.priority)),
            )
            if answer[0] == b"none" and shard.of == 1 and await runner.learn(crawl.id):
                return {}
            if answer[0] == b"none" and shard.number == 0:
                # Listed before it exists: a crawl that is not listed could not be deleted.
                await connection.call("SADD", CRAWLS, crawl.id)
                given = str(await connection.call("INCR", LAST_NUMBER))
            elif answer[0] == b"none":
                given = "0"
        match answer[0]:
            case b"ok":
                return await _with_pools(runner, shard, crawl, pairs(answer[1]))
            case b"deleting":
                await delete_crawl(runner, crawl.id)
            case b"pace":
                pace = (answer[1], number(crawl.interval), answer[2], crawl.cap, answer[3], number(crawl.fastest))
                await walk(runner, shard, "pace", *pace)
                walked = 1
            case b"ttl":
                await runner.change_in(shard, "ttl", number(crawl.dedup_ttl))


async def _with_pools(
    runner: ShardRunner, shard: Shard, crawl: Crawl, record: dict[bytes, bytes]
) -> dict[bytes, bytes]:
    """Write the shard's pools, and update the rosters of its lanes; gives the record with the pools."""
    if not crawl.pools and b"pools" not in record:
        return record
    args = encode_pools(crawl.pools)
    await runner.change_in(shard, "pools", *args)
    await walk(runner, shard, "pools")
    return {**record, b"pools": msgspec.json.encode(crawl.pools)}


async def crawls(runner: ShardRunner) -> list[Crawl]:
    """All crawls, newest first. Crawls that cannot be read, or have another layout version, have a `refusal`."""
    layouts = [await runner.all_shards(name) for name in await runner.all_crawls()]
    if not layouts:
        return []
    async with runner.connections.borrow() as connection:
        for shards in layouts:
            for shard in shards:
                await connection.send("HGETALL", shard.prefix + "crawl")
        answers = iter(await connection.answers_or_errors())
    found = []
    for shards in layouts:
        records = [_record(next(answers)) for _ in shards]
        if not _is_there(records):
            continue
        try:
            found.append((_number_of(records[0]), _listed(runner, shards[0].crawl, records)))
        except UNREADABLE as error:
            if await runner.mend_once(shards[0].crawl):
                return await crawls(runner)
            refusal = unreadable_crawl(shards[0].crawl, runner.connections.shown, error)
            found.append((0, _refused(shards[0].crawl, records[0], refusal)))
    found.sort(key=lambda entry: (entry[1].created, entry[0]), reverse=True)
    for _, crawl in found:
        if not crawl.refusal:
            runner.see(crawl.id, is_usable=True)
    return [crawl for _, crawl in found]


def _record(answer: Any) -> dict[bytes, bytes] | None:
    """The record of a shard; empty: there is none; None: the key has another type."""
    if isinstance(answer, ResponseError) and WRONG_TYPE in str(answer):
        return None
    if isinstance(answer, Exception):
        raise answer
    return pairs(answer)


def _is_there(records: Sequence[Mapping[bytes, bytes] | None]) -> bool:
    """Whether a crawl exists in all shards and is not being deleted. An unreadable record counts as existing."""
    return all(record is None or (record and record.get(b"state") != b"deleting") for record in records)


def _listed(runner: ShardRunner, crawl: str, records: Sequence[Mapping[bytes, bytes] | None]) -> Crawl:
    """The crawl for the list. Raises one of UNREADABLE if its record has this layout version and cannot be read."""
    first, shown = records[0], runner.connections.shown
    version = UNKNOWN_LAYOUT if first is None else layout_of(first.get(b"layout"))
    if version != LAYOUT_VERSION:
        return _refused(crawl, first, str(other_layout(crawl, version, shown=shown)))
    sound = [record for record in records if record is not None]
    if len(sound) < len(records):
        return _refused(crawl, first, unreadable_crawl(crawl, shown, "a shard's record is of another type"))
    described = _described(sound)
    if described.id != crawl:
        raise ValueError(f"its id is {described.id!r}")
    return described


def _refused(crawl: str, record: Mapping[bytes, bytes] | None, refusal: str) -> Crawl:
    """A crawl with a `refusal`, and the readable part of its record."""
    try:
        return msgspec.structs.replace(decode_crawl(record or {}), id=crawl, refusal=refusal)
    except UNREADABLE:
        return Crawl(id=crawl, spider=spider_in(crawl), refusal=refusal)


def _number_of(record: Mapping[bytes, bytes] | None) -> int:
    number = (record or {}).get(b"number", b"0")
    return int(number) if number.isdigit() else 0


def _described(records: Sequence[Mapping[bytes, bytes]]) -> Crawl:
    """The crawl that the records of its shards describe."""
    crawl = decode_crawl(records[0])
    if len(records) == 1:
        return crawl
    state = state_of([record[b"state"] for record in records])
    ends = [float(record.get(b"finished", 0)) for record in records]
    is_over = state in (CrawlState.FINISHED, CrawlState.CANCELLED, CrawlState.STOPPED)
    return msgspec.structs.replace(crawl, state=state, finished=max(ends) if is_over else None, keys=keys_of(records))


async def set_state(runner: ShardRunner, crawl: str, state: CrawlState, *, reason: str) -> None:
    if state == CrawlState.FINISHED:
        raise UsageError("a crawl finishes by itself: pause, resume or cancel it")
    shards = await runner.existing_shards(crawl)
    if len(shards) > 1:
        states = {answer[1] for answer in await runner.read_all(crawl, "progress")}
        is_running = state == CrawlState.RUNNING and states <= {b"running", b"finished"}
        if is_running or states == {b"finished"}:
            return
    for shard in shards:
        await _set_state(runner, shard, state, reason=reason)


async def stop(runner: ShardRunner, shards: Sequence[Shard], *, reason: str) -> None:
    """Stop a running crawl in several shards; another state, set meanwhile, stays."""
    for shard in shards:
        await _set_state(runner, shard, CrawlState.STOPPED, reason=reason, from_running=True)


async def _set_state(
    runner: ShardRunner, shard: Shard, state: CrawlState, *, reason: str, from_running: bool = False
) -> None:
    """Set a shard's state. A finished shard of an unfinished crawl takes the new state, too."""
    walked = 0
    while True:
        args = (str(state), walked, int(shard.of > 1), reason, int(from_running))
        answer = await runner.change_in(shard, "state", *args)
        if answer[0] == b"ok":
            return
        if answer[0] == b"walk":
            await walk(runner, shard, "resume", answer[1])
            walked = 1


async def forget(runner: ShardRunner, crawl: str, keys: Sequence[int]) -> None:
    """Done keys become unknown; so do dead ones, and their letters are dropped."""
    distinct = list(dict.fromkeys(keys))
    waiting = await waiting_among(runner, crawl, distinct)
    free = [key for key in distinct if key not in waiting]
    for start in range(0, max(1, len(free)), MAX_KEYS):
        args: list[Argument] = []
        for key in free[start : start + MAX_KEYS]:
            args += (key, KEY.pack(key))
        for shard in reversed(await runner.existing_shards(crawl)):
            if (await runner.change_in(shard, "forget", *args))[0] == b"bloom":
                raise UsageError(f"crawl {crawl!r} keeps its keys in a Bloom filter, which cannot forget")


async def dead(runner: ShardRunner, crawl: str, which: DeadFilter, *, limit: int) -> list[DeadLetter]:
    """The newest matching letters. Of several shards, up to `limit` letters of each are read."""
    letters: list[DeadLetter] = []
    shards = await runner.existing_shards(crawl)
    for shard in shards:
        letters += await _dead_in(runner, shard, which, limit=limit)
    if len(shards) > 1:
        letters.sort(key=lambda letter: (letter.at, letter.task.key), reverse=True)
    return letters[:limit]


async def _dead_in(runner: ShardRunner, shard: Shard, which: DeadFilter, *, limit: int) -> list[DeadLetter]:
    letters: dict[int, DeadLetter] = {}
    skip, is_last = 0, False
    while not is_last and len(letters) < limit:
        answer = await runner.read_in(shard, "dead", "list", skip, limit - len(letters), *_filter(which))
        skip, is_last = answer[1], answer[2] == b"1"
        for value in answer[4]:
            letter = decode_dead(value)
            letters.setdefault(letter.task.key, letter)
    return list(letters.values())


async def count_dead(runner: ShardRunner, crawl: str, which: DeadFilter, *, most: int) -> DeadCount:
    matching, is_least = 0, False
    for shard in await runner.existing_shards(crawl):
        skip, is_last = 0, False
        while not is_last and skip < most:
            answer = await runner.read_in(shard, "dead", "count", skip, most - skip, *_filter(which))
            skip, is_last, matching = answer[1], answer[2] == b"1", matching + answer[3]
            is_least = is_least or answer[4] > most
    return DeadCount(matching=matching, is_least=is_least)


async def clear_dead(runner: ShardRunner, crawl: str, verb: str, which: DeadFilter, *, limit: int) -> int:
    """Requeue or drop up to `limit` letters that match."""
    cleared = 0
    for shard in await runner.existing_shards(crawl):
        skip, is_last = 0, False
        while not is_last and cleared < limit:
            answer = await runner.change_in(shard, "dead", verb, skip, limit - cleared, *_filter(which))
            skip, is_last, cleared = answer[1], answer[2] == b"1", cleared + answer[3]
    return cleared


async def walk(runner: ShardRunner, shard: Shard, how: str, *args: Argument) -> None:
    """Run the script `walk` over all lanes of a shard."""
    cursor: bytes | str = "0"
    while True:
        cursor = (await runner.change_in(shard, "walk", how, cursor, *args))[1]
        if cursor == b"0":
            return


def _filter(which: DeadFilter) -> tuple[Argument, ...]:
    return (
        "" if which.lane is None else f"={which.lane}",
        "" if which.reason is None else f"={which.reason}",
        "-inf" if which.since is None else number(which.since),
        "" if which.key is None else KEY.pack(which.key),
        "+inf" if which.until is None else number(which.until),
    )
