"""A record in Redis that cannot be read is set aside: no worker stops, the crawl ends, and its end says so."""

from __future__ import annotations

import math
import struct
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import pytest

from shoal.frontier.redis.frontier import RedisFrontier
from shoal.frontier.redis.shards import prefix_of, shard_of, shards_of
from shoal.frontier.rules.tasks import BAD_RECORD, SET_ASIDE
from shoal.model import Crawl, CrawlState, DeadFilter, Done, ExitUse, LaneUpdate, Lease, LeaseBatch, Pool, Retry
from shoal.policy.failures import faults_of
from shoal.testing.contract.frontier.case import CRAWL, check_counts, make_task
from shoal.testing.contract.frontier.control_promises import beat_of
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.waiting import eventually

TASKS = 12
P = prefix_of(CRAWL)
POOL = Pool(name="proxies", exits=("x", "y"), interval=0.0, host_interval=0.0, host_cap=100)
VIA_POOL = "b.test via proxies"


class Place(NamedTuple):
    """The shard of a crawl in which records are damaged."""

    redis: RedisServer
    prefix: str

    def call(self, *command: Any) -> Any:
        return self.redis.call(*command)


Damage = Callable[[Place], object]


@pytest.fixture
async def frontier(redis: RedisServer) -> AsyncIterator[RedisFrontier]:
    frontier = await RedisFrontier.open(redis.url)
    await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=100))
    yield frontier
    await frontier.close()


async def lend(frontier: RedisFrontier, limit: int = 100, *, seconds: float = 3.0) -> LeaseBatch:
    return await frontier.lease([CRAWL], limit, worker="w", seconds=seconds, horizon=1.0)


def first_of(at: Place, key: str) -> bytes:
    """The first field of a hash, or member of a sorted set."""
    found = (
        at.call("HKEYS", at.prefix + key)
        if at.call("TYPE", at.prefix + key) == b"hash"
        else at.call("ZRANGE", at.prefix + key, 0, 0)
    )
    member: bytes = found[0]
    return member


def cut(at: Place, key: str, size: int) -> None:
    field = first_of(at, key)
    at.call("HSET", at.prefix + key, field, at.call("HGET", at.prefix + key, field)[:size])


def in_queue(entry: bytes) -> Damage:
    """A waiting task becomes these bytes."""

    def damage(at: Place) -> None:
        at.call("ZREM", at.prefix + "q:a.test", at.call("ZRANGE", at.prefix + "q:a.test", 0, 0)[0])
        at.call("ZADD", at.prefix + "q:a.test", 1, entry)

    return damage


def later_of(entry: bytes) -> Damage:
    def damage(at: Place) -> None:
        at.call("ZREM", at.prefix + "later", first_of(at, "later"))
        at.call("ZADD", at.prefix + "later", 1, entry)

    return damage


def of_type(key: str) -> Damage:
    def damage(at: Place) -> None:
        at.call("DEL", at.prefix + key)
        at.call("SET", at.prefix + key, "not yours")

    return damage


def field(key: str, name: str, value: str = "garbage") -> Damage:
    return lambda at: at.call("HSET", at.prefix + key, name, value)


def lost_lane(at: Place) -> None:
    at.call("HDEL", at.prefix + "lanes", "a.test")


def lane_time(index: int) -> Damage:
    """One of the times in the record of a lane lies millions of years ahead."""

    def damage(at: Place) -> None:
        numbers = list(struct.unpack(">17d", at.call("HGET", at.prefix + "lanes", "a.test")))
        numbers[index] = 1e15
        at.call("HSET", at.prefix + "lanes", "a.test", struct.pack(">17d", *numbers))

    return damage


def roster(at: Place, changed: Callable[[bytes], bytes]) -> None:
    """The lane that goes via a pool has its roster behind its record."""
    record = at.call("HGET", at.prefix + "lanes", VIA_POOL)
    assert len(record) > 136
    at.call("HSET", at.prefix + "lanes", VIA_POOL, changed(record))


DAMAGES: dict[str, tuple[Damage, int]] = {
    # The damage, and how many tasks it costs.
    "a short task": (in_queue(b"abc"), 1),
    "a task that python cannot decode": (in_queue(b"\x00" * 18 + b"\x02" + b"\xff" * 40), 1),
    "a task whose url is no text": (in_queue(b"\x00" * 7 + b"\x63" + b"\x00" * 29 + b"https://a.test/\xff\xfe"), 1),
    "a held record cut short": (lambda at: cut(at, "held", 20), 1),
    "a held record without its task": (lambda at: cut(at, "held", 44), 1),
    "a tries record cut short": (lambda at: cut(at, "tries", 3), 0),
    "a later entry cut short": (later_of(b"\x00\x01"), 1),
    "a later entry of a long lane": (later_of(b"\x00" * 8 + b"\xff\xff" + b"a.test"), 1),
    "a lane record cut short": (lambda at: cut(at, "lanes", 50), 0),
    "a lane record that is lost": (lost_lane, 0),
    "a lane record of no numbers": (field("lanes", "a.test", "x" * 136), 0),
    "a lane record whose next start is no time": (lane_time(1), 0),
    "a lane record whose last start is no time": (lane_time(2), 0),
    "a lane record whose rest is no time": (lane_time(3), 0),
    "a lease without its task": (lambda at: at.call("ZADD", at.prefix + "leases", 1, "abcdefgh"), 0),
    "a task without its lease": (lambda at: at.call("DEL", at.prefix + "leases"), 0),
    "a dead letter cut short": (lambda at: cut(at, "dead", 12), 1),
    "a cap that is no number": (field("crawl", "cap"), 0),
    "an interval that is no number": (field("crawl", "interval"), 0),
    "a page budget that is no number": (field("crawl", "pages"), 0),
    "a missing cap": (lambda at: at.call("HDEL", at.prefix + "crawl", "cap"), 0),
    "a state that is none": (field("crawl", "state"), 0),
    "a number of buckets that is none": (field("crawl", "buckets"), 0),
    "a counter that is no number": (field("count", "queued"), 0),
    "an outcome that is no number": (field("outcomes", "ok"), 0),
    "a note that is no number": (field("notes", "items"), 0),
    "a token that is no number": (field("count", "token"), 0),
    "leases of another type": (of_type("leases"), 0),
    "tries of another type": (of_type("tries"), 0),
    "ready of another type": (of_type("ready"), 0),
    "busy of another type": (of_type("busy"), 0),
    "counters of another type": (of_type("count"), 0),
    "notes of another type": (of_type("notes"), 0),
    "rules of another type": (of_type("rules"), 0),
    "seen keys of another type": (of_type("seen:0"), 1),  # how many tasks are done is told by the known keys
    "samples of another type": (of_type("samples"), 0),
    "feeders of another type": (of_type("feeders"), 0),
    "sessions of another type": (of_type("sessions"), 0),
    "a feeder that is not there": (lambda at: at.call("DEL", at.prefix + "feeders"), 0),
    "a clock shift that is no number": (field("crawl", "clock_shift"), 0),
    "a last time that is no number": (field("crawl", "clock_last"), 0),
    "rules that are garbage": (lambda at: at.call("HSET", at.prefix + "rules", "a.test", b"\xff\x00garbage"), 0),
    "a session that is garbage": (lambda at: at.call("HSET", at.prefix + "sessions", "proxies/x", b"\xff\x00"), 0),
    "an exit that is garbage": (lambda at: at.call("HSET", at.prefix + "exits", "proxies/x", b"\xff\x00"), 0),
    "a roster cut short": (lambda at: roster(at, lambda record: record[:107]), 0),
    "a roster of garbage": (lambda at: roster(at, lambda record: record[:136] + b"\xff" * 60), 0),
    "rests of another type": (of_type(f"rests:{VIA_POOL}"), 0),
    "uses that are garbage": (lambda at: at.call("HSET", f"{at.prefix}uses:{VIA_POOL}", b"\0\0\0\0", b"abc"), 0),
    "a shape of another type": (of_type("shape:a.test"), 0),
    "a beat that is no heartbeat": (lambda at: at.call("HSET", "shoal:{workers}:beats", "w", "{garbage"), 0),
}


async def prepare(frontier: RedisFrontier) -> list[Lease]:
    """A crawl with tasks in every state, some via a pool; gives the leases."""
    via = [make_task(number, VIA_POOL, pool="proxies") for number in range(1, 4)]
    await frontier.put(CRAWL, via + [make_task(number, max_attempts=9) for number in range(4, TASKS + 1)])
    await frontier.beat(beat_of("w"))
    await frontier.set_feeding(CRAWL, "feeder", seconds=60.0)
    await frontier.set_feeding(CRAWL, "other", seconds=60.0)
    await frontier.keep_session(CRAWL, "proxies/x", b"cookies", version=0)
    await frontier.update_lane(CRAWL, "a.test", LaneUpdate(rules=b"User-agent: *", rules_seconds=60.0))
    leases = (await lend(frontier, 7)).leases
    direct = [lease for lease in leases if lease.task.lane == "a.test"]
    one, two, three = direct[:3]
    via_pool = [lease for lease in leases if lease.task.lane == VIA_POOL]
    # One exit is quarantined, and marked so in the lane's roster.
    failed = Retry(lease=via_pool[0], reason="failed", exit=ExitUse(verdict="failed"))
    assert (await frontier.settle([failed])).stale == []
    rest = [*direct[3:], *via_pool[1:]]
    await frontier.settle([Retry(lease=one, reason="again", delay=0.01), Retry(lease=two, reason="again")])
    await frontier.settle([Done(lease=three, notes={"items": 1})])
    await frontier.bury(CRAWL, [(make_task(99), "by hand")])
    return rest


@pytest.fixture(params=[1, 3], ids=["one shard", "three shards"])
async def crawl(request: pytest.FixtureRequest, redis: RedisServer) -> AsyncIterator[tuple[RedisFrontier, int]]:
    """A frontier with a crawl in so many shards."""
    url = redis.url if request.param == 1 else f"{redis.url}?shards={request.param}"
    frontier = await RedisFrontier.open(url)
    await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=100, pools=(POOL,)))
    yield frontier, request.param
    await frontier.close()


@pytest.mark.parametrize("kind", DAMAGES)
async def test_the_crawl_goes_on_to_its_end(kind: str, crawl: tuple[RedisFrontier, int], redis: RedisServer) -> None:
    frontier, number = crawl
    damage, lost = DAMAGES[kind]
    held = await prepare(frontier)
    shards = shards_of(CRAWL, number)
    lane = VIA_POOL if "roster" in kind or "uses" in kind or "rests" in kind else "a.test"
    index = (
        0
        if "feeder" in kind or "session" in kind or "samples" in kind or "exit that" in kind
        else shard_of(lane, of=number)
    )
    damage(Place(redis, shards[index].prefix))
    await frontier.session(CRAWL, "proxies/x")
    await frontier.keep_session(CRAWL, "proxies/x", b"more", version=1)
    await frontier.rules(CRAWL, "a.test")
    await frontier.samples(CRAWL, "merged")
    await frontier.put(CRAWL, [make_task(4)])
    await frontier.settle([Done(lease=lease) for lease in held])
    await frontier.set_feeding(CRAWL, "feeder", seconds=0)
    await frontier.set_feeding(CRAWL, "other", seconds=0)

    async def work() -> bool:
        batch = await lend(frontier, seconds=0.2)
        await frontier.settle([Done(lease=lease) for lease in batch.leases])
        await frontier.lanes(CRAWL)
        await frontier.exits(CRAWL)
        await frontier.dead(CRAWL, DeadFilter())
        await frontier.workers()
        assert [crawl.id for crawl in await frontier.crawls()] == [CRAWL]
        return bool(batch.finished)

    # Leases whose answer was lost with the record come again when they have run out.
    await eventually(work)
    progress = await frontier.progress(CRAWL)
    assert progress.state is CrawlState.FINISHED, progress
    assert progress.left == 0
    noted = sum(number for name, number in progress.notes.items() if name.startswith(SET_ASIDE))
    assert progress.done >= TASKS - lost
    assert (f"{SET_ASIDE}lanes" in progress.notes) <= ("lane record" in kind or "roster" in kind), progress.notes
    if lost:
        assert noted
        assert any("could not be read" in fault for fault in faults_of(progress, max_failures="100%"))
        assert redis.call("LLEN", shards[index].prefix + "bad") >= 1


async def test_a_lane_whose_exits_are_all_in_use_is_not_taken_for_damaged(
    crawl: tuple[RedisFrontier, int], redis: RedisServer
) -> None:
    frontier, number = crawl
    alone = Pool(name="proxies", exits=("x",), interval=0.0, host_interval=0.0, host_cap=100, cap=1)
    await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=100, pools=(alone,)))
    await frontier.put(CRAWL, [make_task(key, VIA_POOL, pool="proxies") for key in (1, 2)])
    (lease,) = (await lend(frontier)).leases
    prefix = shards_of(CRAWL, number)[shard_of(VIA_POOL, of=number)].prefix
    assert struct.unpack_from(">17d", redis.call("HGET", f"{prefix}lanes", VIA_POOL))[-1] == math.inf
    redis.call("ZADD", f"{prefix}later", 1, b"\x00\x01")
    assert (await lend(frontier)).leases == []
    await frontier.settle([Done(lease=lease)])
    assert [lease.task.key for lease in (await lend(frontier)).leases] == [2]
    assert (await frontier.progress(CRAWL)).notes == {f"{SET_ASIDE}later": 1}


async def test_a_url_that_can_still_be_told_becomes_a_dead_letter(frontier: RedisFrontier, redis: RedisServer) -> None:
    await frontier.put(CRAWL, [make_task(1, handler="book"), make_task(2)])
    entry = next(one for one in redis.call("ZRANGE", P + "q:a.test", 0, -1) if one.endswith(b"/1"))
    broken = entry.replace(b"book", b"\xffook")
    redis.call("ZREM", P + "q:a.test", entry)
    redis.call("ZADD", P + "q:a.test", 1, broken)
    batch = await lend(frontier)
    assert [lease.task.url for lease in batch.leases] == ["https://a.test/2"]
    (letter,) = await frontier.dead(CRAWL, DeadFilter())
    assert (letter.task.url, letter.reason) == ("https://a.test/1", BAD_RECORD)
    await check_counts(frontier, leased=1, dead=1)
    await frontier.requeue_dead(CRAWL, DeadFilter())
    assert [lease.task.url for lease in (await lend(frontier)).leases] == ["https://a.test/1"]


async def test_the_bytes_of_a_bad_record_are_kept_with_its_name(frontier: RedisFrontier, redis: RedisServer) -> None:
    await frontier.put(CRAWL, [make_task(1)])
    redis.call("ZADD", P + "q:a.test", 1, b"abc")
    await lend(frontier)
    (record,) = redis.call("LRANGE", P + "bad", 0, -1)
    assert record.startswith(b"\x00\x04heldabc")
    assert record.endswith(b"abc")


@pytest.mark.parametrize(
    ("name", "value"), [("layout", "99"), ("layout", "garbage"), ("settings", "{garbage"), ("id", "")]
)
async def test_a_crawl_that_cannot_be_read_blocks_no_other(
    frontier: RedisFrontier, redis: RedisServer, name: str, value: str
) -> None:
    await frontier.open_crawl(Crawl(id="older", spider="s"))
    redis.call("HSET", prefix_of("older") + "crawl", name, value)
    redis.call("HDEL", prefix_of("older") + "crawl", "spider")
    refusals = {crawl.id: crawl.refusal for crawl in await frontier.crawls()}
    assert refusals.keys() == {CRAWL, "older"}
    assert refusals[CRAWL] == ""
    assert "crawl 'older'" in refusals["older"]
    await frontier.put(CRAWL, [make_task(1)])
    assert len((await lend(frontier)).leases) == 1
    assert await frontier.evict("w") == 1


async def test_leases_are_reclaimed_beside_a_crawl_whose_record_is_of_another_type(
    frontier: RedisFrontier, redis: RedisServer
) -> None:
    await frontier.open_crawl(Crawl(id="older", spider="s"))
    redis.call("SET", prefix_of("older") + "crawl", "garbage")
    await frontier.put(CRAWL, [make_task(1)])
    assert len((await lend(frontier)).leases) == 1
    assert await frontier.evict("w") == 1


@pytest.mark.parametrize("is_whole_key", [False, True])
async def test_a_due_time_of_a_visit_that_cannot_be_read_hastens_nothing_and_fails_nothing(
    frontier: RedisFrontier, redis: RedisServer, is_whole_key: bool
) -> None:
    await frontier.put(CRAWL, [make_task(number) for number in range(TASKS)])
    leases = (await lend(frontier)).leases
    await frontier.settle([Done(lease=lease, again=lease.task, again_in=900.0) for lease in leases])
    at = Place(redis, P)
    if is_whole_key:
        of_type("visits")(at)
    else:
        redis.call("HSET", P + "visits", struct.pack(">q", 1), "garbage")
    wanted = [make_task(number, hastens=True) for number in range(TASKS)]
    report = await frontier.put(CRAWL, [*wanted, make_task(TASKS)])
    # A key of another type is set aside in the midst of the put, which is then made once more.
    assert report.new + report.duplicates == TASKS + 1
    lent = {lease.task.key for lease in (await lend(frontier)).leases}
    assert lent == ({TASKS} if is_whole_key else {*range(TASKS + 1)} - {1})
    await check_counts(frontier, delayed=TASKS + 1 - len(lent), leased=len(lent))
