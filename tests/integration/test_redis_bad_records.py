"""A record in Redis that cannot be read is set aside: no worker stops, the crawl ends, and its end says so."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from shoal.frontier.redis.frontier import RedisFrontier
from shoal.frontier.redis.shards import prefix_of
from shoal.frontier.rules.tasks import BAD_RECORD, SET_ASIDE
from shoal.model import Crawl, CrawlState, DeadFilter, Done, Lease, LeaseBatch, Retry
from shoal.policy.verdicts import faults_of
from shoal.testing.contract.frontier.case import CRAWL, check_counts, make_task
from shoal.testing.contract.frontier.control_promises import beat_of
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.waiting import eventually

TASKS = 12
P = prefix_of(CRAWL)
Damage = Callable[[RedisServer], None]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"), "--appendfsync", "no").start()
    yield server
    server.kill()


@pytest.fixture
async def frontier(server: RedisServer) -> AsyncIterator[RedisFrontier]:
    server.call("FLUSHALL")
    frontier = await RedisFrontier.open(server.url)
    await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=100))
    yield frontier
    await frontier.close()


async def lend(frontier: RedisFrontier, limit: int = 100, *, seconds: float = 3.0) -> LeaseBatch:
    return await frontier.lease([CRAWL], limit, worker="w", seconds=seconds, horizon=1.0)


def first_of(server: RedisServer, key: str) -> bytes:
    """The first field of a hash, or member of a sorted set."""
    found = (
        server.call("HKEYS", P + key)
        if server.call("TYPE", P + key) == b"hash"
        else server.call("ZRANGE", P + key, 0, 0)
    )
    member: bytes = found[0]
    return member


def cut(server: RedisServer, key: str, size: int) -> None:
    field = first_of(server, key)
    server.call("HSET", P + key, field, server.call("HGET", P + key, field)[:size])


def in_queue(entry: bytes) -> Damage:
    """A waiting task becomes these bytes."""

    def damage(server: RedisServer) -> None:
        server.call("ZREM", P + "q:a.test", server.call("ZRANGE", P + "q:a.test", 0, 0)[0])
        server.call("ZADD", P + "q:a.test", 1, entry)

    return damage


def later_of(entry: bytes) -> Damage:
    def damage(server: RedisServer) -> None:
        server.call("ZREM", P + "later", first_of(server, "later"))
        server.call("ZADD", P + "later", 1, entry)

    return damage


def of_type(key: str) -> Damage:
    def damage(server: RedisServer) -> None:
        server.call("DEL", P + key)
        server.call("SET", P + key, "not yours")

    return damage


def field(key: str, name: str, value: str = "garbage") -> Damage:
    return lambda server: server.call("HSET", P + key, name, value)


def lost_lane(server: RedisServer) -> None:
    server.call("HDEL", P + "lanes", "a.test")


DAMAGES: dict[str, tuple[Damage, int]] = {
    # The damage, and how many tasks it costs.
    "a short task": (in_queue(b"abc"), 1),
    "a task that python cannot decode": (in_queue(b"\x00" * 18 + b"\x02" + b"\xff" * 40), 1),
    "a task whose url is no text": (in_queue(b"\x00" * 7 + b"\x63" + b"\x00" * 29 + b"https://a.test/\xff\xfe"), 1),
    "a held record cut short": (lambda server: cut(server, "held", 20), 1),
    "a held record without its task": (lambda server: cut(server, "held", 44), 1),
    "a tries record cut short": (lambda server: cut(server, "tries", 3), 0),
    "a later entry cut short": (later_of(b"\x00\x01"), 1),
    "a later entry of a long lane": (later_of(b"\x00" * 8 + b"\xff\xff" + b"a.test"), 1),
    "a lane record cut short": (lambda server: cut(server, "lanes", 50), 0),
    "a lane record that is lost": (lost_lane, 0),
    "a lane record of no numbers": (field("lanes", "a.test", "x" * 104), 0),
    "a lease without its task": (lambda server: server.call("ZADD", P + "leases", 1, "abcdefgh"), 0),
    "a task without its lease": (lambda server: server.call("DEL", P + "leases"), 0),
    "a dead letter cut short": (lambda server: cut(server, "dead", 12), 1),
    "a cap that is no number": (field("crawl", "cap"), 0),
    "an interval that is no number": (field("crawl", "interval"), 0),
    "a page budget that is no number": (field("crawl", "pages"), 0),
    "a missing cap": (lambda server: server.call("HDEL", P + "crawl", "cap"), 0),
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
    "a beat that is no sign of life": (lambda server: server.call("HSET", "shoal:{workers}:beats", "w", "{garbage"), 0),
}


async def prepare(frontier: RedisFrontier) -> list[Lease]:
    """A crawl with tasks in every state; gives the leases."""
    await frontier.put(CRAWL, [make_task(number, max_attempts=9) for number in range(1, TASKS + 1)])
    await frontier.beat(beat_of("w"))
    batch = await lend(frontier, 6)
    one, two, three, *rest = batch.leases
    await frontier.settle([Retry(lease=one, reason="again", delay=0.01), Retry(lease=two, reason="again")])
    await frontier.settle([Done(lease=three, notes={"items": 1})])
    await frontier.bury(CRAWL, [(make_task(99), "by hand")])
    return rest


@pytest.mark.parametrize("kind", DAMAGES)
async def test_the_crawl_goes_on_to_its_end(kind: str, frontier: RedisFrontier, server: RedisServer) -> None:
    damage, lost = DAMAGES[kind]
    held = await prepare(frontier)
    damage(server)
    await frontier.settle([Done(lease=lease) for lease in held])

    async def work() -> bool:
        batch = await lend(frontier, seconds=0.2)
        await frontier.settle([Done(lease=lease) for lease in batch.leases])
        await frontier.lanes(CRAWL)
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
    if lost:
        assert noted
        assert any("could not be read" in fault for fault in faults_of(progress, max_failures="100%"))
        assert server.call("LLEN", P + "bad") >= 1


async def test_a_url_that_can_still_be_told_becomes_a_dead_letter(frontier: RedisFrontier, server: RedisServer) -> None:
    await frontier.put(CRAWL, [make_task(1, handler="book"), make_task(2)])
    entry = next(one for one in server.call("ZRANGE", P + "q:a.test", 0, -1) if one.endswith(b"/1"))
    broken = entry.replace(b"book", b"\xffook")
    server.call("ZREM", P + "q:a.test", entry)
    server.call("ZADD", P + "q:a.test", 1, broken)
    batch = await lend(frontier)
    assert [lease.task.url for lease in batch.leases] == ["https://a.test/2"]
    (letter,) = await frontier.dead(CRAWL, DeadFilter())
    assert (letter.task.url, letter.reason) == ("https://a.test/1", BAD_RECORD)
    await check_counts(frontier, leased=1, dead=1)
    await frontier.requeue_dead(CRAWL, DeadFilter())
    assert [lease.task.url for lease in (await lend(frontier)).leases] == ["https://a.test/1"]


async def test_the_bytes_of_a_bad_record_are_kept_with_its_name(frontier: RedisFrontier, server: RedisServer) -> None:
    await frontier.put(CRAWL, [make_task(1)])
    server.call("ZADD", P + "q:a.test", 1, b"abc")
    await lend(frontier)
    (record,) = server.call("LRANGE", P + "bad", 0, -1)
    assert record.startswith(b"\x00\x04heldabc")
    assert record.endswith(b"abc")


@pytest.mark.parametrize(
    ("name", "value"), [("layout", "99"), ("layout", "garbage"), ("settings", "{garbage"), ("id", "")]
)
async def test_a_crawl_that_cannot_be_read_blocks_no_other(
    frontier: RedisFrontier, server: RedisServer, name: str, value: str
) -> None:
    await frontier.open_crawl(Crawl(id="older", spider="s"))
    server.call("HSET", prefix_of("older") + "crawl", name, value)
    server.call("HDEL", prefix_of("older") + "crawl", "spider")
    assert [crawl.id for crawl in await frontier.crawls()] == [CRAWL]
    await frontier.put(CRAWL, [make_task(1)])
    assert len((await lend(frontier)).leases) == 1
    assert await frontier.evict("w") == 1


async def test_leases_are_reclaimed_beside_a_crawl_whose_record_is_of_another_type(
    frontier: RedisFrontier, server: RedisServer
) -> None:
    await frontier.open_crawl(Crawl(id="older", spider="s"))
    server.call("SET", prefix_of("older") + "crawl", "garbage")
    await frontier.put(CRAWL, [make_task(1)])
    assert len((await lend(frontier)).leases) == 1
    assert await frontier.evict("w") == 1
