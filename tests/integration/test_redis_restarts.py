"""A Redis server that is stopped, killed and started again, also with the end of its file gone: nothing is lost."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest
from redis_crawls import CRAWL, PREFIX, claimed, opened, recounted, take, take_when_rested

from shoal.errors import ServerUnreachable
from shoal.frontier.redis.frontier import RedisFrontier
from shoal.frontier.rules.constants import FEEDER_SECONDS
from shoal.model import Crawl, Dead, Done, LaneUpdate, Lease, Released, Result, Retry, Task, TaskState
from shoal.testing.clock import FakeClock
from shoal.testing.contract.frontier.case import make_task
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.waiting import eventually
from shoal.worker.outages import until_reachable


async def test_goes_on_after_the_server_was_away(own_redis: RedisServer) -> None:
    frontier = await opened(own_redis)
    await frontier.put(CRAWL, [make_task(number) for number in range(4)])
    lease = (await take(frontier, 1))[0]
    before = (await frontier.progress(CRAWL)).epoch
    own_redis.stop()
    with pytest.raises(ServerUnreachable, match="cannot reach Redis"):
        await frontier.progress(CRAWL)
    said: list[str] = []
    settling = asyncio.create_task(until_reachable(lambda: frontier.settle([Done(lease=lease)]), say=said.append))
    await eventually(lambda: said)
    own_redis.start()
    report = await settling
    assert (report.stale, len(said)) == ([], 1)
    assert report.epoch > before
    assert len(await take_when_rested(frontier)) == 3
    await frontier.close()


@pytest.mark.parametrize("shards", [1, 3])
async def test_keys_without_a_task_stay_known_and_uncounted_after_a_restart(
    own_redis: RedisServer, shards: int
) -> None:
    frontier = await RedisFrontier.open(f"{own_redis.url}?shards={shards}")
    await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=1000))
    lanes = [f"{number}.test" for number in range(8)]
    await frontier.put(CRAWL, [make_task(number, lane) for number, lane in enumerate(lanes)])
    await frontier.settle([Done(lease=lease) for lease in await take(frontier, 3)])
    assert await frontier.know(CRAWL, range(2000)) == 1992
    await frontier.forget(CRAWL, [1000])
    before = await frontier.progress(CRAWL)
    own_redis.restart()
    again = [make_task(number, lanes[number % 8]) for number in range(2000)]
    report = await until_reachable(lambda: frontier.put(CRAWL, again), say=str)
    assert (report.new, report.duplicates) == (1, 1999)
    after = await frontier.progress(CRAWL)
    assert (after.done, after.known, after.notes) == (3, 9, before.notes)
    await frontier.close()


async def test_lanes_rest_after_a_restart(own_redis: RedisServer) -> None:
    frontier = await opened(own_redis)
    await frontier.put(CRAWL, [make_task(1)])
    own_redis.restart()
    assert await until_reachable(lambda: take(frontier), say=str) == []
    assert (await frontier.lanes(CRAWL))[0].starts_in > 0.5
    await frontier.close()


async def test_feeders_that_could_not_say_that_they_go_on_while_the_server_was_away_get_time(
    own_redis: RedisServer,
) -> None:
    clock = FakeClock()
    frontier = await RedisFrontier.open(own_redis.url, clock=clock)
    await frontier.open_crawl(Crawl(id="c", spider="s", feeding=True))
    await frontier.set_feeding("c", "feeder", seconds=FEEDER_SECONDS)
    own_redis.restart()
    clock.advance(3 * FEEDER_SECONDS)

    async def is_finished() -> bool:
        return bool((await frontier.lease(["c"], 1, worker="w", seconds=60.0, horizon=0.0)).finished)

    assert not await until_reachable(is_finished, say=str)
    assert (await frontier.progress("c")).feeders_lost == 0
    clock.advance(FEEDER_SECONDS)
    assert await is_finished()
    assert (await frontier.progress("c")).feeders_lost == 1
    await frontier.close()


async def test_requests_that_have_landed_stay_landed_over_a_restart(own_redis: RedisServer) -> None:
    frontier = await opened(own_redis, interval=0.0)
    await frontier.put(CRAWL, [make_task(number) for number in range(4)])
    leases = await take(frontier)
    await frontier.lease([CRAWL], 1, worker="w", seconds=60.0, horizon=0.0, landed=leases[:3])
    own_redis.restart()
    await until_reachable(lambda: frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=0.0)), say=str)
    assert [lane.in_flight for lane in await frontier.lanes(CRAWL)] == [1]
    await frontier.settle([Done(lease=lease) for lease in leases])
    assert await frontier.lanes(CRAWL) == []
    await frontier.close()


async def test_leases_of_living_workers_outlast_a_restart_that_lost_their_renewals(own_redis: RedisServer) -> None:
    """A power cut takes the end of the file: renewals are lost, and a lease may have no end at all."""
    clock = FakeClock()
    frontier = await opened(own_redis, clock=clock)
    await frontier.put(CRAWL, [make_task(1, max_attempts=1), make_task(2, max_attempts=1)])
    leases = await take(frontier, seconds=30.0)
    key = own_redis.call("ZRANGE", PREFIX + "leases", 0, 0)[0]
    own_redis.call("ZREM", PREFIX + "leases", key)
    clock.advance(40.0)
    own_redis.restart()
    assert await until_reachable(lambda: take(frontier, seconds=30.0), say=str) == []
    clock.advance(20.0)
    assert await take(frontier, seconds=30.0) == []
    assert await frontier.extend(leases, seconds=30.0) == []
    await frontier.settle([Done(lease=lease) for lease in leases])
    progress = await frontier.progress(CRAWL)
    assert (progress.done, progress.lost, progress.dead) == (2, 0, 0)
    await frontier.close()


async def test_two_workers_that_meet_a_restarted_server_repair_it_once(own_redis: RedisServer) -> None:
    first, second = await opened(own_redis), await opened(own_redis)
    await first.put(CRAWL, [make_task(number) for number in range(50)])
    epoch = (await first.progress(CRAWL)).epoch
    own_redis.restart()
    await asyncio.gather(*(until_reachable(lambda one=one: take(one), say=str) for one in (first, second, first)))  # type: ignore[misc]
    assert (await second.progress(CRAWL)).epoch == epoch + 1
    await first.close()
    await second.close()


async def test_repairs_what_a_torn_write_left(own_redis: RedisServer) -> None:
    """Each half of a script's writes that a crash can keep, made by hand."""
    frontier = await opened(own_redis)
    keys = [*range(100, 400), -(2**63), -1, 0, 7, 2**31, 2**32 - 1, -(2**32), -(2**53) - 1, 2**63 - 1]
    await frontier.put(CRAWL, [make_task(key, "a.test") for key in keys])
    await frontier.put(CRAWL, [make_task(key, "b.test", delay=50.0) for key in range(1000, 1010)])
    leases = await take(frontier, 40)
    await frontier.settle([Done(lease=lease) for lease in leases[:10]])
    await frontier.settle([Dead(lease=lease, reason="gone") for lease in leases[10:20]])
    await frontier.settle([Retry(lease=lease, reason="timeout", delay=30.0) for lease in leases[20:25]])
    expected = claimed(await frontier.progress(CRAWL))
    for bucket in range(int(own_redis.call("HGET", PREFIX + "crawl", "buckets"))):
        for key in (-(2**63), -(2**53) - 1, -(2**32), -1, 2**32 - 1, 2**63 - 1, 115, 122, 130, 300, 1003):
            own_redis.call("SREM", f"{PREFIX}seen:{bucket}", key)
    task = own_redis.call("ZRANGE", PREFIX + "q:a.test", 0, 0)[0]
    own_redis.call("ZADD", PREFIX + "later", 1, bytes(8) + (6).to_bytes(2, "big") + b"a.test" + task)
    own_redis.call("HSET", PREFIX + "count", "done", 77, "queued", -3)
    own_redis.call("DEL", PREFIX + "ready", PREFIX + "busy", PREFIX + "graves")
    own_redis.call("ZADD", PREFIX + "leases", 5, "12345678")
    own_redis.restart()
    assert len(await take_when_rested(frontier, 5)) == 5
    expected["queued"] -= 5
    expected["leased"] += 5
    progress = await frontier.progress(CRAWL)
    assert claimed(progress) == expected == recounted(own_redis)
    lanes = {lane.lane: lane for lane in await frontier.lanes(CRAWL)}
    assert (lanes["a.test"].waiting, lanes["a.test"].in_flight) == (expected["queued"], expected["leased"])
    assert (await frontier.put(CRAWL, [make_task(key) for key in keys])).new == 0
    await frontier.close()


async def test_repairs_queues_of_several_kinds(own_redis: RedisServer) -> None:
    """A leased task is in its queue as well, a queued one is delayed, too, and counts and indexes are wrong."""
    frontier = await opened(own_redis)
    kinds = ("http", "browser", "eu")
    await frontier.put(CRAWL, [make_task(number, kind=kinds[number % 3]) for number in range(60)])
    await frontier.put(CRAWL, [make_task(number, "b.test", kind="eu", delay=50.0) for number in range(100, 110)])
    queue = PREFIX + "kq:browser:a.test"
    before = own_redis.call("ZRANGE", queue, 0, -1, "WITHSCORES")
    leases = (await frontier.lease([CRAWL], 5, worker="w", seconds=60.0, horizon=0.0, kinds=["browser"])).leases
    progress = await frontier.progress(CRAWL)
    own_redis.call("ZADD", queue, before[1], before[0])
    waiting = own_redis.call("ZRANGE", queue, 3, 3)[0]
    own_redis.call("ZADD", PREFIX + "later", 1, bytes(8) + (6).to_bytes(2, "big") + b"a.test" + waiting)
    own_redis.call("HSET", PREFIX + "count", "kind:browser", 77, "kind:eu", -3, "queued", 5)
    own_redis.call("DEL", PREFIX + "ready:browser", PREFIX + "ready", PREFIX + "busy")
    own_redis.restart()
    await until_reachable(lambda: frontier.update_lane(CRAWL, "a.test", LaneUpdate(interval=0.0)), say=str)
    repaired = await frontier.progress(CRAWL)
    assert claimed(repaired) == claimed(progress) == recounted(own_redis)
    assert repaired.kinds == progress.kinds == {"http": 20, "browser": 15, "eu": 30}
    await frontier.settle([Done(lease=lease) for lease in leases])

    async def browser() -> list[Lease]:
        batch = await frontier.lease([CRAWL], 50, worker="w", seconds=60.0, horizon=0.0, kinds=["browser"])
        return batch.leases

    assert len(await eventually(browser, pause=0.05)) == 15
    await frontier.close()


class Site:
    """A link graph that always is the same: page n leads to pages that follow from n. Of several kinds, if asked."""

    def __init__(self, pages: int, kinds: Sequence[str] = ("http",)) -> None:
        self.pages = pages
        self.kinds = kinds

    def kinds_of(self, worker: int) -> Sequence[str]:
        """The kinds that this worker does: all, or one."""
        return self.kinds if worker == 0 else [self.kinds[worker % len(self.kinds)]]

    def links(self, page: int) -> list[Task]:
        draw = random.Random(page)
        found = {
            (page * 2 + 1) % self.pages,
            (page * 2 + 2) % self.pages,
            *(draw.randrange(self.pages) for _ in range(4)),
        }
        return [
            make_task(
                number,
                f"{number % 7}.test",
                priority=number % 3,
                max_attempts=50,
                kind=self.kinds[number % len(self.kinds)],
            )
            for number in sorted(found)
        ]

    def result(self, lease: Lease, draw: random.Random) -> Result:
        dice = draw.random()
        if dice < 0.05:
            return Retry(lease=lease, reason="timeout", delay=0.05, free=draw.random() < 0.5)
        if dice < 0.1:
            return Released(lease=lease, lane=LaneUpdate(rest_seconds=0.01))
        return Done(lease=lease, found=self.links(lease.task.key))


async def work(own_redis: RedisServer, site: Site, number: int, stop: asyncio.Event) -> set[int]:
    """A worker that waits out the server and now and then drops what it holds."""
    name, kinds = f"w{number}", site.kinds_of(number)
    frontier = await until_reachable(lambda: RedisFrontier.open(own_redis.url), say=str)
    draw = random.Random(name)
    stored: set[int] = set()
    while not stop.is_set():
        batch = await until_reachable(
            lambda: frontier.lease([CRAWL], 20, worker=name, seconds=0.7, horizon=0.1, kinds=kinds), say=str
        )
        if batch.finished:
            break
        if draw.random() < 0.05:
            continue
        results = [site.result(lease, draw) for lease in batch.leases]
        stored |= {result.lease.task.key for result in results if isinstance(result, Done)}
        await until_reachable(lambda: frontier.settle(results), say=str)  # noqa: B023 -- awaited at once
        await asyncio.sleep(0 if batch.leases else min(batch.ask_again, 0.05))
    await frontier.close()
    return stored


async def rewritten(own_redis: RedisServer) -> None:
    """Until the append-only file was written anew: Redis itself does not start again when it is killed before that."""
    run_id = own_redis.call("INFO", "server")["run_id"]
    await eventually(lambda: own_redis.call("GET", "shoal:rewritten") == run_id.encode())


@pytest.mark.parametrize(
    ("seed", "ttl", "kinds"),
    [
        (1, 0.0, ["http"]),
        pytest.param(2, 0.0, ["http"], marks=pytest.mark.full),
        pytest.param(3, 3600.0, ["http"], marks=pytest.mark.full),
        pytest.param(4, 0.0, ["http", "browser"], marks=pytest.mark.full),
    ],
)
async def test_nothing_is_lost_when_the_server_dies_and_its_files_tail_is_gone(
    own_redis: RedisServer, seed: int, ttl: float, kinds: list[str]
) -> None:
    site, draw, stop = Site(1500, kinds), random.Random(seed), asyncio.Event()
    frontier = await opened(own_redis, dedup_ttl=ttl)
    await frontier.put(CRAWL, [make_task(0, "0.test", max_attempts=50)])
    own_redis.wait_for_the_file()
    safe = (own_redis.append_only_file, own_redis.append_only_file.stat().st_size)
    workers = [asyncio.create_task(work(own_redis, site, number, stop)) for number in range(3)]
    for _ in range(3):
        await asyncio.sleep(draw.uniform(0.1, 0.3))  # a moment of the crawl that the seed chooses
        assert not any(worker.done() for worker in workers)
        own_redis.kill()
        own_redis.lose_tail(draw, safe=safe)
        own_redis.start()
        await rewritten(own_redis)
    stored = set[int]().union(*await asyncio.gather(*workers))
    progress = await frontier.progress(CRAWL)
    assert (
        claimed(progress) == recounted(own_redis) == {"queued": 0, "delayed": 0, "leased": 0, "dead": 0, "done": 1500}
    )
    assert stored == set(range(1500))
    assert progress.kinds == ({"http": 0, "browser": 0} if len(kinds) > 1 else {})
    assert (await frontier.look_up(CRAWL, 77)).state == TaskState.DONE
    await frontier.close()
