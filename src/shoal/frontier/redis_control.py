"""Steering crawls: open, pause, resume, cancel, delete, forget, dead letters. Long work goes in bounded steps."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from shoal.errors import UsageError
from shoal.frontier.redis_desk import CRAWLS, LAST_NUMBER, WORKERS, Desk, prefix_of
from shoal.frontier.redis_link import Argument
from shoal.frontier.redis_views import beats, waiting_among
from shoal.frontier.redis_wire import KEY, decode_crawl, decode_dead, number, pairs
from shoal.model import Crawl, CrawlState, DeadFilter, DeadLetter
from shoal.settings import check_dedup

MAX_KEYS = 200


async def open_crawl(desk: Desk, crawl: Crawl) -> Crawl:
    """Create the crawl, or let the one that exists take over what may change."""
    check_dedup(crawl.dedup, ttl=crawl.dedup_ttl)
    settings = msgspec.json.encode(crawl.settings)
    fields: list[Argument] = [
        number(crawl.interval), crawl.cap, int(crawl.needs_rules), crawl.budgets.pages, crawl.budgets.per_lane,
        crawl.budgets.per_shape, settings, crawl.id, crawl.spider, str(crawl.state), int(crawl.feeding),
        number(crawl.created), crawl.dedup, number(crawl.dedup_ttl),
    ]  # fmt: skip
    given, walked = "", 0
    while True:
        async with desk.link.line() as line:
            answer = await line.run("open", prefix_of(crawl.id), given, walked, *fields)
            if answer[0] == b"none":
                # Listed before it is there: a crawl that nobody lists could not be deleted.
                await line.call("SADD", CRAWLS, crawl.id)
                given = str(await line.call("INCR", LAST_NUMBER))
        match answer[0]:
            case b"ok":
                return decode_crawl(pairs(answer[1]))
            case b"deleting":
                await delete_crawl(desk, crawl.id)
            case b"pace":
                pace = (answer[1], number(crawl.interval), answer[2], crawl.cap)
                await _walk(desk, crawl.id, "pace", *pace)
                walked = 1
            case b"ttl":
                await desk.change(crawl.id, "ttl", number(crawl.dedup_ttl))


async def crawls(desk: Desk) -> list[Crawl]:
    """All crawls, newest first."""
    async with desk.link.line() as line:
        names = sorted(await line.call("SMEMBERS", CRAWLS))
        for name in names:
            await line.send("HGETALL", prefix_of(name.decode()) + "crawl")
        records = [pairs(flat) for flat in await line.answers()] if names else []
    found = [
        (int(record[b"number"]), decode_crawl(record))
        for record in records
        if b"id" in record and record[b"state"] != b"deleting"
    ]
    found.sort(key=lambda entry: (entry[1].created, entry[0]), reverse=True)
    return [crawl for _, crawl in found]


async def set_state(desk: Desk, crawl: str, state: CrawlState) -> None:
    if state == CrawlState.FINISHED:
        raise UsageError("a crawl finishes by itself: pause, resume or cancel it")
    walked = 0
    while True:
        answer = await desk.change(crawl, "state", str(state), walked)
        if answer[0] == b"ok":
            return
        if answer[0] == b"walk":
            await _walk(desk, crawl, "resume", answer[1])
            walked = 1


async def delete_crawl(desk: Desk, crawl: str) -> None:
    async with desk.link.line(seconds=None) as line:
        while await line.run("delete", prefix_of(crawl)) == b"1":
            pass
        await line.call("SREM", CRAWLS, crawl)
        gone = [beat.worker for beat in await beats(line) if beat.crawl == crawl]
        for worker in gone:
            await line.call("ZREM", WORKERS + "seen", worker)
            await line.call("HDEL", WORKERS + "beats", worker)


async def forget(desk: Desk, crawl: str, keys: Sequence[int]) -> None:
    """Done keys become unknown; so do dead ones, and their letters are dropped."""
    distinct = list(dict.fromkeys(keys))
    waiting = await waiting_among(desk, crawl, distinct)
    free = [key for key in distinct if key not in waiting]
    for start in range(0, max(1, len(free)), MAX_KEYS):
        args: list[Argument] = []
        for key in free[start : start + MAX_KEYS]:
            args += (key, KEY.pack(key))
        if (await desk.change(crawl, "forget", *args))[0] == b"bloom":
            raise UsageError(f"crawl {crawl!r} keeps its keys in a Bloom filter, which cannot forget")


async def dead(desk: Desk, crawl: str, which: DeadFilter, *, limit: int) -> list[DeadLetter]:
    letters: dict[int, DeadLetter] = {}
    skip, is_last = 0, False
    while not is_last and len(letters) < limit:
        answer = await desk.look(crawl, "dead", "list", skip, limit - len(letters), *_filter(which))
        skip, is_last = answer[1], answer[2] == b"1"
        for value in answer[4]:
            letter = decode_dead(value)
            letters.setdefault(letter.task.key, letter)
    return list(letters.values())


async def clear_dead(desk: Desk, crawl: str, verb: str, which: DeadFilter, *, limit: int) -> int:
    """Requeue or drop up to `limit` letters that match."""
    cleared, skip, is_last = 0, 0, False
    while not is_last and cleared < limit:
        answer = await desk.change(crawl, "dead", verb, skip, limit - cleared, *_filter(which))
        skip, is_last, cleared = answer[1], answer[2] == b"1", cleared + answer[3]
    return cleared


async def _walk(desk: Desk, crawl: str, how: str, *args: Argument) -> None:
    """Change all lanes."""
    place: bytes | str = "0"
    while True:
        place = (await desk.change(crawl, "walk", how, place, *args))[1]
        if place == b"0":
            return


def _filter(which: DeadFilter) -> tuple[Argument, Argument, Argument, Argument]:
    return (
        "" if which.lane is None else f"={which.lane}",
        "" if which.reason is None else f"={which.reason}",
        "-inf" if which.since is None else number(which.since),
        "" if which.key is None else KEY.pack(which.key),
    )
