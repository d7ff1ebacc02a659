"""Looking at crawls: progress, lanes, one task, samples, workers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from shoal.frontier.redis_desk import WORKERS, Desk, checked, prefix_of
from shoal.frontier.redis_link import Line, RedisLink
from shoal.frontier.redis_wire import (
    KEY,
    decode_dead,
    decode_held,
    decode_task,
    decode_tries,
    number,
    pairs,
)
from shoal.model import CrawlState, LaneStatus, Progress, TaskState, TaskStatus, WorkerBeat

LANES_PER_PAGE = 500
COUNTERS = ("queued", "delayed", "leased", "done", "dead", "cancelled", "duplicates", "stale", "retried", "lost")


async def progress(desk: Desk, crawl: str) -> Progress:
    _, state, feeding, epoch, counts, outcomes, rejected = await desk.look(crawl, "progress")
    counters = _numbers(counts)
    return Progress(
        state=CrawlState(state.decode()),
        feeding=feeding == b"1",
        **{name: counters.get(name, 0) for name in COUNTERS},
        outcomes={name: value for name, value in _numbers(outcomes).items() if value},
        rejected={name: value for name, value in _numbers(rejected).items() if value},
        epoch=int(epoch),
    )


async def lanes(desk: Desk, crawl: str, *, limit: int) -> list[LaneStatus]:
    """Most waiting first. Where nothing waits, as in a cancelled crawl, that is: most in flight first."""
    found: list[LaneStatus] = []
    rank, is_sorted = 0, True
    while len(found) < limit or not is_sorted:
        answer = await desk.look(crawl, "busy", rank, LANES_PER_PAGE)
        rank += answer[1]
        page = [_lane_status(answer[start : start + 8]) for start in range(2, len(answer), 8)]
        busy = [lane for lane in page if lane.waiting or lane.in_flight]
        is_sorted = is_sorted and len(busy) == len(page)
        found += busy
        if answer[1] < LANES_PER_PAGE:
            break
    if not is_sorted:
        found.sort(key=lambda lane: (-lane.waiting, -lane.in_flight))
    return found[:limit]


async def rules(desk: Desk, crawl: str, lane: str) -> tuple[int, bytes]:
    answer = await desk.look(crawl, "rules", lane)
    return answer[1], answer[2]


async def look_up(desk: Desk, crawl: str, key: int) -> TaskStatus:
    answer = await desk.look(crawl, "look_up", key, KEY.pack(key))
    if answer[1] == b"known":
        waiting = await waiting_among(desk, crawl, [key])
        if key in waiting:
            return waiting[key]
        # It may have been lent, or have ended, while we looked through those that wait.
        answer = await desk.look(crawl, "look_up", key, KEY.pack(key))
    match answer[1]:
        case b"unknown":
            return TaskStatus(state=TaskState.UNKNOWN)
        case b"held":
            held = decode_held(answer[3])
            return TaskStatus(
                state=TaskState.LEASED,
                task=held.task,
                attempts=held.attempts,
                reason=held.reason,
                worker=held.worker,
                due_in=float(answer[2]),
            )
        case b"dead":
            letter = decode_dead(answer[2])
            return TaskStatus(
                state=TaskState.DEAD,
                task=letter.task,
                attempts=letter.attempts,
                reason=letter.reason,
                detail=letter.detail,
            )
    return TaskStatus(state=TaskState.DONE)


async def waiting_among(desk: Desk, crawl: str, keys: Sequence[int]) -> dict[int, TaskStatus]:
    """Those of the keys whose tasks wait. Looks through all that wait, in bounded steps: for people, not for crawls."""
    current = await progress(desk, crawl)
    if not keys or not current.queued + current.delayed + current.cancelled:
        return {}
    is_cancelled = current.state == CrawlState.CANCELLED
    wanted = [KEY.pack(key) for key in keys]
    found: dict[int, TaskStatus] = {}
    place: bytes | str = "0"
    while True:
        _, place, hits = await desk.look(crawl, "find", "later", place, 0, *wanted)
        found |= _waiting(hits, TaskState.CANCELLED if is_cancelled else TaskState.DELAYED)
        if place == b"0":
            break
    state = TaskState.CANCELLED if is_cancelled else TaskState.QUEUED
    lanes = await lane_names(desk.link, crawl)
    order: bytes | str = "-inf"
    while lanes and len(found) < len(keys):
        page = lanes[:LANES_PER_PAGE]
        _, done, order, hits = await desk.look(crawl, "find", "queues", order, len(page), *page, *wanted)
        found |= _waiting(hits, state)
        del lanes[:done]
    return found


async def lane_names(link: RedisLink, crawl: str) -> list[bytes]:
    """All lanes of a crawl, each once."""
    names: dict[bytes, None] = {}
    place = b"0"
    async with link.line() as line:
        while True:
            place, page = await line.call("HSCAN", prefix_of(crawl) + "lanes", place, "COUNT", LANES_PER_PAGE)
            names.update(dict.fromkeys(page[::2]))
            if place == b"0":
                return list(names)


async def samples(desk: Desk, crawl: str, reason: str) -> list[str]:
    async with desk.link.line() as line:
        await line.send_script("progress", prefix_of(crawl), (), looks=True)
        await line.send("HGET", prefix_of(crawl) + "samples", reason)
        answer, value = await line.answers()
    checked(answer, crawl)
    urls, at = [], 0
    while value and at < len(value):
        length = int.from_bytes(value[at : at + 4], "big")
        urls.append(value[at + 4 : at + 4 + length].decode())
        at += 4 + length
    return urls


async def beat(desk: Desk, sign: WorkerBeat) -> None:
    async with desk.link.line() as line:
        await line.send_bare_script("beat", WORKERS, (sign.worker, msgspec.json.encode(sign)))
        await line.answers()


async def workers(desk: Desk, *, within: float) -> list[WorkerBeat]:
    async with desk.link.line() as line:
        return await beats(line, within=within)


async def beats(line: Line, *, within: float = 2 * 86_400.0) -> list[WorkerBeat]:
    """The latest signs of life, by name."""
    await line.send_bare_script("workers", WORKERS, (number(within),))
    (flat,) = await line.answers()
    found = [
        msgspec.structs.replace(msgspec.json.decode(sign, type=WorkerBeat), seen=float(seen))
        for seen, sign in zip(flat[::2], flat[1::2], strict=True)
    ]
    return sorted(found, key=lambda sign: sign.worker)


def _numbers(flat: Sequence[bytes]) -> dict[str, int]:
    return {name.decode(): int(value) for name, value in pairs(flat).items()}


def _lane_status(answer: list[Any]) -> LaneStatus:
    name, waiting, in_flight, interval, cap, starts_in, known, has_rules = answer
    return LaneStatus(
        lane=name.decode(),
        waiting=int(waiting),
        in_flight=int(in_flight),
        interval=float(interval),
        cap=int(cap),
        starts_in=float(starts_in),
        known=int(known),
        has_rules=has_rules == b"1",
    )


def _waiting(hits: list[bytes], state: TaskState) -> dict[int, TaskStatus]:
    found = {}
    for start in range(0, len(hits), 5):
        key, lane, due_in, tries, data = hits[start : start + 5]
        attempts, reason = decode_tries(tries)
        found[KEY.unpack(key)[0]] = TaskStatus(
            state=state,
            task=decode_task(data, lane.decode()),
            attempts=attempts,
            reason=reason,
            due_in=float(due_in) if state == TaskState.DELAYED else 0.0,
        )
    return found
