"""Reads for people: progress, lanes, exits, one task, samples, workers; and the sessions of exits."""

from __future__ import annotations

import contextlib
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from shoal.errors import UsageError
from shoal.frontier.redis.connections import AnyConnection, RedisConnections
from shoal.frontier.redis.runner import WORKERS, ShardRunner, checked
from shoal.frontier.redis.shards import Shard
from shoal.frontier.redis.wire import (
    KEY,
    decode_dead,
    decode_held,
    decode_other,
    decode_task,
    decode_tries,
    number,
    pairs,
)
from shoal.frontier.rules.constants import WORKERS_KEPT_SECONDS
from shoal.frontier.rules.exits import Ended, status_of
from shoal.frontier.rules.hosts import held_by
from shoal.frontier.rules.lanes import Pace
from shoal.model import (
    HTTP,
    VIA,
    Crawl,
    CrawlState,
    ExitStatus,
    Heartbeat,
    LaneStatus,
    Progress,
    TaskState,
    TaskStatus,
)

MAX_LANES, MAX_ROWS = 50, 2000  # per script: all other clients wait for a script

_USE = struct.Struct("<9d")
_EXIT = struct.Struct("<6d")


def check_pools(crawl: Crawl, *, shards: int) -> None:
    """Refuse accounts and a budget of cost in a crawl of several shards: they are counted in one shard."""
    if shards > 1 and (crawl.budgets.cost or any(pool.exclusive for pool in crawl.pools)):
        raise UsageError(
            f"crawl {crawl.id!r}: accounts and a budget of cost need a crawl in one shard: leave out ?shards"
        )


async def exits(runner: ShardRunner, crawl: str, *, limit: int) -> list[ExitStatus]:
    """Every exit towards every host it was used for, in the order of their names."""
    found = [status for shard in await runner.existing_shards(crawl) for status in await _exits_in(runner, shard)]
    found.sort(key=lambda status: (status.exit, status.lane))
    return found[:limit]


async def _exits_in(runner: ShardRunner, shard: Shard) -> list[ExitStatus]:
    pooled = [name for name in await lane_names(runner.connections, shard) if VIA.encode() in name]
    found: list[ExitStatus] = []
    start, lanes = 0, 1
    while start < len(pooled):
        answer = await runner.read_in(shard, "uses", *pooled[start : start + lanes])
        now, start = float(answer[1]), start + lanes
        # As many lanes as fit if the next ones have as many exits as these.
        lanes = max(1, min(MAX_LANES, MAX_ROWS * lanes // max(1, len(answer) // 5)))
        for lane, name, use, in_flight, row in zip(*(answer[2 + column :: 5] for column in range(5)), strict=True):
            parked_until = _EXIT.unpack_from(row)[1] if row else 0.0
            names = name.decode(), lane.decode()
            found.append(status_of(*names, _ended(use), in_flight=in_flight, parked_until=parked_until, now=now))
    return found


def _ended(use: bytes) -> Ended:
    if not use:
        return Ended()
    ok, size, elapsed, cost, blocked, failed, unknown, streak, rests_until = _USE.unpack(use)
    requests = int(ok + blocked + failed + unknown)
    counts = requests, int(ok), int(blocked), int(failed), int(size)
    return Ended(*counts, elapsed, cost, int(streak), rests_until)


async def session(runner: ShardRunner, crawl: str, name: str) -> tuple[int, bytes]:
    """The version of the session kept for an exit, and the session."""
    shard = (await runner.existing_shards(crawl))[0]
    async with runner.connections.borrow_at(shard.prefix) as connection:
        await connection.send("HGET", shard.prefix + "exits", name)
        await connection.send("HGET", shard.prefix + "sessions", name)
        row, kept = await connection.answers()
    return (int(_EXIT.unpack_from(row)[5]), kept) if row and kept else (0, b"")


async def keep_session(
    runner: ShardRunner, crawl: str, name: str, session: bytes, *, version: int
) -> tuple[int, bytes]:
    """Keep a session if the version is still `version`; gives the kept version and session."""
    answer = await runner.change(crawl, "keep_session", name, version, session)
    return int(answer[1]), answer[2]


LANES_PER_PAGE = 500
_BY_WEIGHT = (b"unknown", b"known", b"dead", b"held")  # a shard's answers about a key: the last one found decides
PER_LANE = 17  # values in the answer of `busy`
COUNTERS = ("queued", "delayed", "leased", "done", "dead", "cancelled", "duplicates", "stale", "retried", "lost")


async def progress(runner: ShardRunner, crawl: str) -> Progress:
    """The sum over all shards. Links in outboxes, on their way to another shard, count as queued."""
    answers = await runner.read_all(crawl, "progress")
    while len(answers) > 1:
        # The shards are read one after the other: "nothing is left" holds only if nothing moved meanwhile.
        if _is_left(answers):
            break
        before = [_moves(answer) for answer in answers]
        answers = await runner.read_all(crawl, "progress")
        if before == [_moves(answer) for answer in answers]:
            break
    counters = Counter[str]()
    outcomes, rejected, notes = Counter[str](), Counter[str](), Counter[str]()
    for answer in answers:
        counters.update(_numbers(answer[4]))
        outcomes.update(_numbers(answer[5]))
        rejected.update(_numbers(answer[6]))
        notes.update(_numbers(answer[9]))
        counters["queued"] += answer[7]
    state = state_of([answer[1] for answer in answers])
    is_held = state in (CrawlState.PAUSED, CrawlState.CANCELLED, CrawlState.STOPPED)
    return Progress(
        state=state,
        feeding=answers[0][2] == b"1",
        **{name: counters.get(name, 0) for name in COUNTERS},
        outcomes={name: value for name, value in outcomes.items() if value},
        rejected={name: value for name, value in rejected.items() if value},
        epoch=sum(int(answer[3]) for answer in answers),
        cost=sum(float(answer[8]) for answer in answers),
        notes={name: value for name, value in notes.items() if value},
        reason=answers[0][10].decode() if is_held else "",
        feeders_lost=answers[0][11],
        kinds=_kinds(answers, counters, is_cancelled=state == CrawlState.CANCELLED),
        due_in=min((float(answer[13]) for answer in answers if answer[13]), default=0.0)
        if counters["delayed"]
        else 0.0,
        ran=max(float(answer[14]) for answer in answers),
    )


def _kinds(answers: Sequence[list[Any]], counters: Mapping[str, int], *, is_cancelled: bool) -> dict[str, int]:
    """How many tasks of each kind wait; empty if the crawl never had another kind than http."""
    names = dict.fromkeys(name for answer in answers for name in answer[12].decode().split(",") if name)
    if not names:
        return {}
    others = {name: 0 if is_cancelled else counters.get(f"kind:{name}", 0) for name in names}
    waiting = counters.get("queued", 0) + counters.get("delayed", 0)
    return {HTTP: waiting - sum(others.values()), **others}


def state_of(states: Sequence[bytes]) -> CrawlState:
    """A crawl's state from the states of its shards: finished when all are. Raises ValueError for an unknown state."""
    found = [CrawlState(state.decode()) for state in states]
    return next((state for state in found if state is not CrawlState.FINISHED), CrawlState.FINISHED)


def _is_left(answers: Sequence[list[Any]]) -> bool:
    numbers = [_numbers(answer[4]) for answer in answers]
    return any(answer[7] for answer in answers) or any(
        count.get(name, 0) for count in numbers for name in ("queued", "delayed", "leased")
    )


def _moves(answer: list[Any]) -> tuple[int, int]:
    """Two numbers, one of which changes when a task comes into the shard, or when the shard is repaired."""
    return _numbers(answer[4]).get("moves", 0), int(answer[3])


async def lanes(runner: ShardRunner, crawl: str, *, limit: int, skip: int, search: str) -> list[LaneStatus]:
    """Most waiting first, among equals the older lane."""
    shards = await runner.existing_shards(crawl)
    if len(shards) == 1:
        return [lane for _, lane in await _lanes_in(runner, shards[0], limit=limit, skip=skip, search=search)]
    # Which lanes to skip is known only when all shards are read.
    end = skip + limit
    found = [entry for shard in shards for entry in await _lanes_in(runner, shard, limit=end, skip=0, search=search)]
    found.sort(key=lambda entry: (-entry[1].waiting, -entry[1].in_flight, entry[0]))
    return [lane for _, lane in found[skip:end]]


async def _lanes_in(
    runner: ShardRunner, shard: Shard, *, limit: int, skip: int, search: str
) -> list[tuple[bytes, LaneStatus]]:
    """Most waiting first; if nothing waits, as in a cancelled crawl, most in flight first."""
    found: list[tuple[bytes, LaneStatus]] = []
    rank, left_to_skip, is_sorted = 0, skip, True
    while len(found) < limit or not is_sorted:
        answer = await runner.read_in(shard, "busy", rank, LANES_PER_PAGE, left_to_skip, search)
        rank, left_to_skip = answer[1], answer[3]
        is_sorted = is_sorted and answer[2] == b"1"
        page = [_lane_status(answer[start : start + PER_LANE]) for start in range(5, len(answer), PER_LANE)]
        found += [entry for entry in page if entry[1].waiting or entry[1].in_flight]
        if answer[4] == b"1":
            break
    if is_sorted:
        return found[:limit]
    found.sort(key=lambda entry: (-entry[1].waiting, -entry[1].in_flight, entry[0]))
    return found[skip : skip + limit]


async def rules(runner: ShardRunner, crawl: str, lane: str) -> tuple[int, bytes]:
    answer = await runner.read(crawl, "rules", lane, lane=lane)
    return answer[1], answer[2]


async def look_up(runner: ShardRunner, crawl: str, key: int) -> TaskStatus:
    answer = await _look_up(runner, crawl, key)
    if answer[1] == b"known":
        waiting = await waiting_among(runner, crawl, [key])
        if key in waiting:
            return waiting[key]
        # The task may have been leased, or have ended, while the waiting tasks were read.
        answer = await _look_up(runner, crawl, key)
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
                losses=held.losses,
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


async def _look_up(runner: ShardRunner, crawl: str, key: int) -> list[Any]:
    """Ask all shards, as only a task's lane would name one. One of them has or had the task; a key without a task is
    known to all."""
    answers = await runner.read_all(crawl, "look_up", key, KEY.pack(key))
    return max(answers, key=lambda answer: _BY_WEIGHT.index(answer[1]))


async def waiting_among(runner: ShardRunner, crawl: str, keys: Sequence[int]) -> dict[int, TaskStatus]:
    """The keys whose tasks wait. Reads all waiting tasks, in bounded steps: for people, not for crawls."""
    current = await progress(runner, crawl)
    if not keys or not current.queued + current.delayed + current.cancelled:
        return {}
    found: dict[int, TaskStatus] = {}
    for shard in await runner.shards(crawl):
        found |= await _waiting_in(runner, shard, keys, is_cancelled=current.state == CrawlState.CANCELLED)
    return found


async def _waiting_in(
    runner: ShardRunner, shard: Shard, keys: Sequence[int], *, is_cancelled: bool
) -> dict[int, TaskStatus]:
    wanted = [KEY.pack(key) for key in keys]
    found: dict[int, TaskStatus] = {}
    cursor: bytes | str = "0"
    while True:
        _, cursor, hits = await runner.read_in(shard, "find", "later", cursor, 0, *wanted)
        found |= _waiting(hits, TaskState.CANCELLED if is_cancelled else TaskState.DELAYED)
        if cursor == b"0":
            break
    state = TaskState.CANCELLED if is_cancelled else TaskState.QUEUED
    queues = await queue_names(runner.connections, shard)
    order: bytes | str = "-inf"
    while queues and len(found) < len(keys):
        page = queues[:LANES_PER_PAGE]
        _, done, order, hits = await runner.read_in(shard, "find", "queues", order, len(page), *page, *wanted)
        found |= _waiting(hits, state)
        del queues[:done]
    return found


async def tasks_of(runner: ShardRunner, crawl: str, url: str, *, lanes: Sequence[str]) -> list[TaskStatus]:
    """The tasks with this URL; leased and dead ones are then looked up by their keys."""
    is_cancelled = (await progress(runner, crawl)).state == CrawlState.CANCELLED
    queued, delayed = TaskState.QUEUED, TaskState.DELAYED
    found: dict[int, TaskStatus] = {}
    keys: list[bytes] = []
    for shard in await runner.shards(crawl):
        mine = [lane for lane in lanes if shard.has(lane)]
        if not mine:
            continue
        hits = await _found_in(runner, shard, "later", url)
        found |= _waiting(hits, TaskState.CANCELLED if is_cancelled else delayed)
        for queue in await queue_names(runner.connections, shard, lanes=[lane.encode() for lane in mine]):
            hits = await _found_in(runner, shard, "queue", url, queue)
            found |= _waiting(hits, TaskState.CANCELLED if is_cancelled else queued)
        for where in ("held", "dead"):
            keys += await _found_in(runner, shard, where, url)
    for key in dict.fromkeys(KEY.unpack(key)[0] for key in keys):
        # Looked up last: a task that was leased meanwhile is leased, not queued.
        found[key] = await look_up(runner, crawl, key)
    return [status for status in found.values() if status.task and status.task.url == url and status.task.lane in lanes]


async def _found_in(runner: ShardRunner, shard: Shard, where: str, url: str, queue: bytes = b"") -> list[bytes]:
    """The matches of the script `find_url` in one collection of a shard."""
    found: list[bytes] = []
    at: bytes | str = "-inf" if where == "queue" else "0"
    while at:
        _, at, hits = await runner.read_in(shard, "find_url", where, at, url, queue)
        found += hits
    return found


async def lane_names(connections: RedisConnections, shard: Shard) -> list[bytes]:
    """All lanes of a shard, each once."""
    names: dict[bytes, None] = {}
    cursor = b"0"
    async with connections.borrow() as connection:
        while True:
            cursor, page = await connection.call("HSCAN", shard.prefix + "lanes", cursor, "COUNT", LANES_PER_PAGE)
            names.update(dict.fromkeys(page[::2]))
            if cursor == b"0":
                return list(names)


async def queue_names(
    connections: RedisConnections, shard: Shard, *, lanes: Sequence[bytes] | None = None
) -> list[bytes]:
    """The names of the queues of these lanes, or of all lanes of a shard, without the prefix."""
    names = await lane_names(connections, shard) if lanes is None else lanes
    async with connections.borrow() as connection:
        kinds = await connection.call("HGET", shard.prefix + "crawl", "kinds") or b""
    others = [kind for kind in kinds.split(b",") if kind]
    return [b"q:" + name for name in names] + [b"kq:%b:%b" % (kind, name) for kind in others for name in names]


async def samples(runner: ShardRunner, crawl: str, reason: str) -> list[str]:
    shards = await runner.existing_shards(crawl)
    async with runner.connections.borrow() as connection:
        await connection.send_script("progress", shards[0].prefix, (), unchecked=True)
        await connection.send("HGET", shards[0].prefix + "samples", reason)
        answer, value = await connection.answers()
    checked(answer, crawl)
    urls, at = [], 0
    while value and at < len(value):
        length = int.from_bytes(value[at : at + 4], "big")
        urls.append(value[at + 4 : at + 4 + length].decode())
        at += 4 + length
    return urls


async def beat(runner: ShardRunner, sign: Heartbeat) -> None:
    async with runner.connections.borrow() as connection:
        args = (sign.worker, msgspec.json.encode(sign), sign.crawl, int(bool(sign.left)))
        await connection.send_bare_script("beat", WORKERS, args)
        await connection.answers()


async def workers(runner: ShardRunner, *, within: float) -> list[Heartbeat]:
    async with runner.connections.borrow() as connection:
        return await beats(connection, within=within)


async def workers_of(runner: ShardRunner, crawl: str) -> list[Heartbeat]:
    async with runner.connections.borrow() as connection:
        found = await beats(connection, within=WORKERS_KEPT_SECONDS, crawl=crawl)
    return sorted(found, key=lambda sign: -sign.seen)


async def beats(connection: AnyConnection, *, within: float = 2 * 86_400.0, crawl: str = "") -> list[Heartbeat]:
    """The latest heartbeats, sorted by name: of all workers, or of one crawl's."""
    await connection.send_bare_script("workers", WORKERS, (number(within), crawl))
    (flat,) = await connection.answers()
    found = []
    for seen, sign in zip(flat[::2], flat[1::2], strict=True):
        # A damaged heartbeat is replaced by its worker's next one, or deleted after a day.
        with contextlib.suppress(msgspec.DecodeError):
            found.append(msgspec.structs.replace(msgspec.json.decode(sign, type=Heartbeat), seen=float(seen)))
    return sorted(found, key=lambda sign: sign.worker)


def _numbers(flat: Sequence[bytes]) -> dict[str, int]:
    return {name.decode(): int(value) for name, value in pairs(flat).items()}


def _lane_status(answer: list[Any]) -> tuple[bytes, LaneStatus]:
    """The lane's age and its status."""
    name, waiting, in_flight, interval, cap, starts_in, known, has_rules, age, exits_rest, base, *more = answer
    waits_for_exit, rests_for, why, pace_why, lacks_rules, others = more
    # All times count from now on.
    pace = Pace(0.0, 0.0, float(rests_for), float(interval), float(base), int(cap))
    held = held_by(
        pace, dict(map(decode_other, others)), in_flight=int(in_flight), lacks_rules=lacks_rules == b"1", now=0.0
    )
    return age, LaneStatus(
        lane=name.decode(),
        waiting=int(waiting),
        in_flight=int(in_flight),
        interval=float(interval),
        cap=int(cap),
        starts_in=float(starts_in),
        known=int(known),
        has_rules=has_rules == b"1",
        exits_rest=exits_rest == b"1",
        base_interval=float(base),
        waits_for_exit=waits_for_exit == b"1",
        rests_for=float(rests_for),
        why=why.decode(errors="replace"),
        pace_why=pace_why.decode(errors="replace"),
        held=held if others and int(waiting) else None,
    )


def _waiting(hits: list[bytes], state: TaskState) -> dict[int, TaskStatus]:
    found = {}
    for start in range(0, len(hits), 5):
        key, lane, due_in, tries, data = hits[start : start + 5]
        attempts, losses, reason = decode_tries(tries)
        found[KEY.unpack(key)[0]] = TaskStatus(
            state=state,
            task=decode_task(data, lane.decode()),
            attempts=attempts,
            reason=reason,
            due_in=float(due_in) if state == TaskState.DELAYED else 0.0,
            losses=losses,
        )
    return found
