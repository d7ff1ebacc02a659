"""Crawls in several shards, on one server and on a real cluster whose nodes restart, fail over and hand on slots."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shoal.errors import ServerUnreachable, UsageError
from shoal.frontier import open_frontier
from shoal.frontier.base import Frontier
from shoal.frontier.redis_allowance import ask_for_allowance
from shoal.frontier.redis_desk import Desk
from shoal.frontier.redis_inbox import RedisInbox
from shoal.frontier.redis_link import RedisLink
from shoal.frontier.redis_repair import Repair
from shoal.frontier.redis_shard import prefix_of, shard_of
from shoal.frontier.redis_wire import Batch
from shoal.model import Budgets, Crawl, CrawlState, DeadFilter, Done, Lease, Retry, Task, TaskState
from shoal.patience import patiently
from shoal.testing.frontier_case import make_task
from shoal.testing.servers import RedisCluster, RedisServer, find_program

CRAWL = "books"
SHARDS = 8
SECONDS = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"), "--appendfsync", "no").start()
    yield server
    server.kill()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    cluster = RedisCluster(tmp_path_factory.mktemp("cluster")).start()
    yield cluster
    cluster.kill()


@pytest.fixture
def cluster(nodes: RedisCluster) -> RedisCluster:
    nodes.flush()
    return nodes


@pytest.fixture
async def frontier(server: RedisServer) -> AsyncIterator[Frontier]:
    """A frontier on one server whose crawl lies in eight shards."""
    server.call("FLUSHALL")
    frontier = await opened(sharded(server.url))
    yield frontier
    await frontier.close()


def sharded(url: str, shards: int = SHARDS) -> str:
    return f"{url}?shards={shards}"


async def opened(url: str, *, pages: int = 0) -> Frontier:
    frontier = await open_frontier(url)
    await frontier.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0, cap=1000, budgets=Budgets(pages=pages)))
    return frontier


def lanes_apart(number: int) -> list[str]:
    """Lanes that live in different shards."""
    lanes: dict[int, str] = {}
    for count in range(1000):
        lanes.setdefault(shard_of(f"{count}.test", of=SHARDS), f"{count}.test")
    return list(lanes.values())[:number]


def run(command: list[str]) -> int:
    return subprocess.run(command, timeout=SECONDS, stdout=subprocess.DEVNULL).returncode


async def take_a_moment() -> bool:
    await asyncio.sleep(0.02)
    return True


async def take(frontier: Frontier, limit: int = 100, *, worker: str = "w", seconds: float = 60.0) -> list[Lease]:
    return (await frontier.lease([CRAWL], limit, worker=worker, seconds=seconds, horizon=0.0)).leases


async def take_patiently(frontier: Frontier, limit: int = 100) -> list[Lease]:
    """The first leases to be had: after a restart the lanes rest for a horizon."""
    async with asyncio.timeout(SECONDS):
        while True:
            leases = await patiently(lambda: take(frontier, limit), say=lambda _: None)
            if leases:
                return leases
            await asyncio.sleep(0.05)


async def test_a_crawl_keeps_the_number_of_shards_it_was_made_with(server: RedisServer, frontier: Frontier) -> None:
    a, b = lanes_apart(2)
    await frontier.put(CRAWL, [make_task(1, a), make_task(2, b)])
    for url in (server.url, sharded(server.url, 3)):
        other = await opened(url)
        assert (await other.progress(CRAWL)).queued == 2
        assert (await other.put(CRAWL, [make_task(1, a), make_task(2, b)])).duplicates == 2
        assert {lane.lane for lane in await other.lanes(CRAWL)} == {a, b}
        await other.close()
    reader = await open_frontier(server.url)
    assert sorted(lease.task.key for lease in await take(reader)) == [1, 2]
    assert (await reader.look_up(CRAWL, 2)).state == TaskState.LEASED
    await reader.set_state(CRAWL, CrawlState.PAUSED)
    assert (await frontier.progress(CRAWL)).state == CrawlState.PAUSED
    await reader.close()


async def test_a_crawl_in_one_shard_stays_there(server: RedisServer) -> None:
    server.call("FLUSHALL")
    whole = await opened(server.url)
    await whole.put(CRAWL, [make_task(number, f"{number}.test") for number in range(20)])
    assert server.call("EXISTS", "shoal:shards") == 0
    other = await opened(sharded(server.url))
    assert (await other.progress(CRAWL)).queued == 20
    assert len(await take(other)) == 20
    await other.close()
    await whole.close()


async def test_another_crawl_of_the_same_name_may_lie_elsewhere(server: RedisServer, frontier: Frontier) -> None:
    await frontier.put(CRAWL, [make_task(1)])
    other = await open_frontier(server.url)
    await other.delete_crawl(CRAWL)
    assert [key for key in server.call("KEYS", "*") if b"books" in key] == []
    await other.open_crawl(Crawl(id=CRAWL, spider="s", interval=0.0))
    await other.put(CRAWL, [make_task(5)])
    assert [lease.task.key for lease in await take(frontier)] == [5]
    await other.close()


async def test_a_half_deleted_crawl_is_deleted_before_it_is_opened_again(
    server: RedisServer, frontier: Frontier
) -> None:
    await frontier.put(CRAWL, [make_task(number, f"{number}.test") for number in range(50)])
    server.call("HSET", "shoal:shards", CRAWL, -SHARDS)
    server.call("DEL", *(key.decode() for key in server.call("KEYS", prefix_of(CRAWL, 0, of=SHARDS) + "*")))
    again = await opened(sharded(server.url))
    assert (await again.progress(CRAWL)).known == 0
    await again.close()


async def test_no_two_shards_give_the_same_token(frontier: Frontier) -> None:
    await frontier.put(CRAWL, [make_task(number, f"{number % 40}.test") for number in range(400)])
    leases = [lease for _ in range(4) for lease in await take(frontier)]
    assert len({lease.token for lease in leases}) == len(leases) == 400
    assert len({lease.shard for lease in leases}) == SHARDS


DYING = """
import asyncio, os, signal, sys
from shoal.frontier.redis import RedisFrontier
from shoal.frontier.redis_outbox import Outbox
from shoal.frontier.redis_settle import Settler
from shoal.model import Done
from shoal.testing.frontier_case import make_task

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

class Dying(Outbox):
    pass

setattr(Dying, sys.argv[2], die)

async def main():
    frontier = await RedisFrontier.open(sys.argv[1])
    frontier._settler = Settler(frontier._desk, frontier._samples, Dying(frontier._desk, frontier._samples))
    leases = (await frontier.lease(["books"], 1, worker="w", seconds=60.0, horizon=0.0)).leases
    found = [make_task(number, sys.argv[3]) for number in range(10, 20)]
    await frontier.settle([Done(lease=leases[0], found=found)])

asyncio.run(main())
"""


@pytest.mark.parametrize("step", ["deliver", "_take_out"])
async def test_links_of_a_settler_killed_on_the_way_are_delivered_by_the_next_that_asks(
    server: RedisServer, frontier: Frontier, step: str
) -> None:
    home, away = lanes_apart(2)
    await frontier.put(CRAWL, [make_task(1, home)])
    assert run([sys.executable, "-c", DYING, server.url, step, away]) == -signal.SIGKILL
    progress = await frontier.progress(CRAWL)
    assert (progress.done, progress.is_finished) == (1, False)
    async with asyncio.timeout(SECONDS):
        found: list[Lease] = []
        outbox = prefix_of(CRAWL, shard_of(home, of=SHARDS), of=SHARDS) + "outbox"
        while len(found) < 10 or server.call("EXISTS", outbox):
            batch = await frontier.lease([CRAWL], 100, worker="w", seconds=60.0, horizon=0.0)
            assert batch.finished == ()
            found += batch.leases
            await asyncio.sleep(0.05)
    assert sorted(lease.task.key for lease in found) == list(range(10, 20))
    await frontier.settle([Done(lease=lease) for lease in found])
    assert (await frontier.lease([CRAWL], 1, worker="w", seconds=60.0, horizon=0.0)).finished == (CRAWL,)
    assert (await frontier.progress(CRAWL)).known == 11


async def test_links_that_a_crashed_shard_lost_with_its_last_second_are_sent_again(tmp_path: Path) -> None:
    cluster = RedisCluster(tmp_path).start()
    try:
        frontier = await opened(sharded(cluster.url))
        home, away = next(
            (one, two)
            for one in lanes_apart(SHARDS)
            for two in lanes_apart(SHARDS)
            if cluster.node_of(place_of(one)) is not cluster.node_of(place_of(two))
        )
        await frontier.put(CRAWL, [make_task(1, home), make_task(2, away)])
        node = cluster.node_of(place_of(away))
        node.wait_for_the_file()
        safe = node.append_only_file.stat().st_size
        (lease,) = [lease for lease in await take(frontier) if lease.task.key == 1]
        await frontier.settle([Done(lease=lease, found=[make_task(number, away) for number in range(10, 20)])])
        node.kill()
        with node.append_only_file.open("r+b") as file:
            file.truncate(safe)
        node.start()
        keys: set[int] = set()
        while len(keys) < 11:
            keys |= {lease.task.key for lease in await take_patiently(frontier)}
        assert keys == {2, *range(10, 20)}
        await frontier.close()
    finally:
        cluster.kill()


async def test_a_crawl_goes_on_on_the_node_that_takes_over(tmp_path: Path) -> None:
    cluster = RedisCluster(tmp_path).start()
    try:
        master = cluster.nodes[0]
        replica = cluster.add_replica(master)
        frontier = await opened(sharded(cluster.url))
        await frontier.put(CRAWL, [make_task(number, f"{number % 30}.test") for number in range(90)])
        held = await take(frontier, 40)
        epoch = (await frontier.progress(CRAWL)).epoch
        await replicated(master, replica)
        master.kill()
        replica.call("CLUSTER", "FAILOVER", "TAKEOVER")
        async with asyncio.timeout(SECONDS):
            report = await patiently(lambda: frontier.settle([Done(lease=lease) for lease in held]), say=lambda _: None)
            assert report.stale == []
            left: set[int] = set()
            while len(left) < 50:
                left |= {lease.task.key for lease in await take_patiently(frontier)}
        progress = await frontier.progress(CRAWL)
        assert (progress.done, progress.leased, progress.known) == (40, 50, 90)
        assert progress.epoch > epoch
        await frontier.close()
    finally:
        cluster.kill()


async def replicated(master: RedisServer, replica: RedisServer) -> None:
    """Until the replica has all that was written."""
    async with asyncio.timeout(SECONDS):
        while True:
            written = master.call("INFO", "replication")["master_repl_offset"]
            if replica.call("INFO", "replication")["slave_repl_offset"] >= written:
                return
            await asyncio.sleep(0.01)


def place_of(lane: str) -> str:
    """The prefix of the shard of a lane."""
    return prefix_of(CRAWL, shard_of(lane, of=SHARDS), of=SHARDS)


class Site:
    """A link graph over many lanes that always is the same."""

    def __init__(self, pages: int, seed: int) -> None:
        self.pages, self.seed = pages, seed

    def page(self, number: int) -> Task:
        return make_task(number, f"{number % 13}.test", max_attempts=50)

    def links(self, number: int) -> list[Task]:
        draw = random.Random(number * 1000 + self.seed)
        found = {(number * 2 + 1) % self.pages, (number * 2 + 2) % self.pages, draw.randrange(self.pages)}
        return [self.page(one) for one in sorted(found)]


async def work(url: str, site: Site, name: str) -> int:
    """A worker that now and then drops what it holds; gives the pages that were done when it was told of the end."""
    frontier = await patiently(lambda: open_frontier(url), say=lambda _: None)
    draw = random.Random(f"{name} {site.seed}")
    while True:
        limit = draw.randrange(1, 12)
        batch = await patiently(
            lambda: frontier.lease([CRAWL], limit, worker=name, seconds=0.5, horizon=0.0),  # noqa: B023 -- awaited at once
            say=lambda _: None,
        )
        if batch.finished:
            done = (await frontier.progress(CRAWL)).done
            await frontier.close()
            return done
        if draw.random() < 0.03:
            continue
        results = [
            Retry(lease=lease, reason="timeout", free=True)
            if draw.random() < 0.05
            else Done(lease=lease, found=site.links(lease.task.key))
            for lease in batch.leases
        ]
        await patiently(lambda: frontier.settle(results), say=lambda _: None)  # noqa: B023 -- awaited at once
        await asyncio.sleep(draw.choice([0.0, 0.0, 0.01]))


@pytest.mark.parametrize("seed", range(4))
async def test_nobody_is_told_of_the_end_before_it_and_everybody_then(cluster: RedisCluster, seed: int) -> None:
    site = Site(150, seed)
    frontier = await opened(sharded(cluster.url))
    await frontier.put(CRAWL, [site.page(0)])
    async with asyncio.timeout(SECONDS):
        workers = [work(cluster.url, site, f"w{number}") for number in range(4)]
        assert await asyncio.gather(*workers) == [site.pages] * 4
    progress = await frontier.progress(CRAWL)
    assert (progress.state, progress.known, progress.is_finished) == (CrawlState.FINISHED, site.pages, True)
    await frontier.close()


async def test_a_node_that_restarts_is_waited_for_and_nothing_is_lost(cluster: RedisCluster) -> None:
    site = Site(1200, 7)
    frontier = await opened(sharded(cluster.url))
    await frontier.put(CRAWL, [site.page(0)])
    async with asyncio.timeout(SECONDS):
        workers = [asyncio.create_task(work(cluster.url, site, f"w{number}")) for number in range(3)]
        while await take_a_moment() and (await frontier.progress(CRAWL)).done < 100:
            pass
        cluster.nodes[1].kill()
        await asyncio.sleep(0.3)
        cluster.nodes[1].start()
        assert await asyncio.gather(*workers) == [site.pages] * 3
    progress = await frontier.progress(CRAWL)
    assert (progress.done, progress.known, progress.dead) == (site.pages, site.pages, 0)
    await frontier.close()


@pytest.mark.parametrize("hosts", [1, 40])
async def test_max_pages_is_used_up_and_never_exceeded(cluster: RedisCluster, hosts: int) -> None:
    pages = 1500
    frontiers = [await opened(sharded(cluster.url), pages=pages) for _ in range(3)]
    await frontiers[0].put(CRAWL, [make_task(number, "a.test") for number in range(5)])
    leases = await take(frontiers[0])

    async def feed(number: int) -> int:
        accepted = 0
        for start in range(0, 900, 150):
            keys = range(1000 * (number + 1) + start, 1000 * (number + 1) + start + 150)
            report = await frontiers[number].put(CRAWL, [make_task(key, f"{key % hosts}.test") for key in keys])
            assert set(report.refused.values()) <= {"max_pages"}
            assert report.new + len(report.refused) == 150
            accepted += report.new
        return accepted

    accepted = sum(await asyncio.gather(*(feed(number) for number in range(3))))
    progress = await frontiers[0].progress(CRAWL)
    assert (accepted + 5, progress.known) == (pages, pages)
    late = [make_task(9000 + number, f"{number}.test") for number in range(20)]
    report = await frontiers[1].settle([Done(lease=leases[0], found=late)])
    assert report.refused == {task.key: "max_pages" for task in late}
    assert (await frontiers[0].progress(CRAWL)).known == pages
    for frontier in frontiers:
        await frontier.close()


async def test_a_deleted_crawl_leaves_nothing_on_any_node(cluster: RedisCluster) -> None:
    frontier = await opened(sharded(cluster.url), pages=400)
    await frontier.put(CRAWL, [make_task(number, f"{number % 30}.test", shape=1) for number in range(500)])
    leases = await take(frontier)
    await frontier.settle([Done(lease=lease, found=[make_task(1, "other.test")]) for lease in leases[:50]])
    assert len({cluster.node_of(prefix_of(CRAWL, shard, of=SHARDS)) for shard in range(SHARDS)}) == 3
    await frontier.delete_crawl(CRAWL)
    assert cluster.keys() <= {b"shoal:crawls:last"}
    await frontier.close()


async def test_dead_letters_of_all_shards_are_listed_requeued_and_dropped(frontier: Frontier) -> None:
    await frontier.put(CRAWL, [make_task(number, f"{number}.test", max_attempts=1) for number in range(30)])
    await frontier.settle([Retry(lease=lease, reason="timeout") for lease in await take(frontier)])
    assert len(await frontier.dead(CRAWL, DeadFilter())) == 30
    assert len(await frontier.dead(CRAWL, DeadFilter(), limit=7)) == 7
    assert await frontier.requeue_dead(CRAWL, DeadFilter(), limit=12) == 12
    assert await frontier.drop_dead(CRAWL, DeadFilter()) == 18
    assert (await frontier.progress(CRAWL)).outcomes == {"dropped": 18}


async def test_a_push_through_redis_cli_reaches_the_inbox_of_a_cluster(cluster: RedisCluster) -> None:
    command = [find_program("redis-cli"), "-c", "-p", str(cluster.nodes[0].port), "LPUSH", f"shoal:inbox:{CRAWL}"]
    for url in ("https://a.test/1", "https://a.test/2"):
        assert run([*command, url]) == 0
    inbox = RedisInbox(sharded(cluster.url))
    assert await inbox.waiting([CRAWL, "other"]) == [CRAWL]
    assert await inbox.take(CRAWL, 10) == [b"https://a.test/1", b"https://a.test/2"]
    await inbox.forget(CRAWL)
    assert await inbox.waiting([CRAWL]) == []
    await inbox.close()


async def test_says_which_url_a_cluster_needs(cluster: RedisCluster, server: RedisServer) -> None:
    node = next(node for node in cluster.nodes if node is not cluster.node_of(prefix_of(CRAWL)))
    frontier = await open_frontier(node.url)
    with pytest.raises(UsageError, match="is part of a cluster: write redis\\+cluster://"):
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s"))
    await frontier.close()
    with pytest.raises(UsageError, match="is no Redis Cluster: write redis://"):
        await open_frontier(server.url.replace("redis://", "redis+cluster://"))


async def test_a_slot_on_its_way_to_another_node_is_waited_for(cluster: RedisCluster) -> None:
    frontier = await opened(sharded(cluster.url, 1).replace("?shards=1", ""))
    await frontier.put(CRAWL, [make_task(number) for number in range(300)])
    first = (await take(frontier, 1))[0]
    prefix = prefix_of(CRAWL)
    source = cluster.node_of(prefix)
    target = next(node for node in cluster.nodes if node is not source)
    slot = source.call("CLUSTER", "KEYSLOT", prefix)
    names = {node: node.call("CLUSTER", "MYID").decode() for node in cluster.nodes}
    target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", names[source])
    source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", names[target])
    with pytest.raises(ServerUnreachable, match=f"is moving slot {slot}"):
        await take(frontier, 1)
    settling = asyncio.create_task(patiently(lambda: frontier.settle([Done(lease=first)]), say=lambda _: None))
    while keys := source.call("CLUSTER", "GETKEYSINSLOT", slot, 100):
        source.call("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *(key.decode() for key in keys))
    for node in (target, source, *cluster.nodes):
        node.call("CLUSTER", "SETSLOT", slot, "NODE", names[target])
    try:
        assert (await settling).stale == []
        assert len(await take_patiently(frontier)) == 100
        assert (await frontier.progress(CRAWL)).done == 1
        await frontier.delete_crawl(CRAWL)
    finally:
        for node in (source, target, *cluster.nodes):
            node.call("CLUSTER", "SETSLOT", slot, "NODE", names[source])
    await frontier.close()


@pytest.fixture
async def desk(server: RedisServer, frontier: Frontier) -> AsyncIterator[Desk]:
    """Another process's way to the scripts, step by step."""
    link = RedisLink(sharded(server.url))
    yield Desk(link, Repair(link).run)
    await link.close()


async def test_a_shard_that_moved_after_the_first_look_is_not_finished_by_the_second(
    frontier: Frontier, desk: Desk
) -> None:
    """The end is told by two looks. Between the first looks at two shards a link goes from the second to the first."""
    first, second = lanes_apart(2)
    await frontier.put(CRAWL, [make_task(1, second)])
    (lease,) = await take(frontier)
    shards = {lane: (await desk.shards(CRAWL))[shard_of(lane, of=SHARDS)] for lane in (first, second)}

    async def look(lane: str) -> bytes:
        ending: bytes = (await desk.change_in(shards[lane], "survey", 1, 0.0))[3]
        return ending

    async def look_again(lane: str, seen: bytes) -> bool:
        return bool((await desk.change_in(shards[lane], "finish", seen.removeprefix(b"q")))[1] == b"1")

    seen_first = await look(first)
    await frontier.settle([Done(lease=lease, found=[make_task(2, first)])])
    seen_second = await look(second)
    assert (seen_first[:1], seen_second[:1]) == (b"q", b"q")
    assert not await look_again(first, seen_first)
    await frontier.settle([Done(lease=lease) for lease in await take(frontier)])
    assert not await look_again(first, seen_first)
    assert await look_again(second, seen_second)
    assert (await frontier.progress(CRAWL)).state == CrawlState.RUNNING
    assert await look_again(first, await look(first))


async def test_an_allowance_that_comes_late_counts_for_nothing(server: RedisServer, desk: Desk) -> None:
    other = await opened(sharded(server.url), pages=10)
    a, b = lanes_apart(2)
    late = [make_task(number, a) for number in range(10)]
    shards = await desk.shards(CRAWL)
    served, grants = await ask_for_allowance(desk, shards, late)
    assert served == 10
    assert (await other.put(CRAWL, [make_task(100 + number, b) for number in range(12)])).new == 10
    shard = shards[shard_of(a, of=SHARDS)]
    batch = Batch(shard)
    tasks = batch.encode(late)
    answer = await desk.change_in(shard, "put", 0, *batch.kinds, len(late), *tasks, *grants[shard.number])
    assert (answer[2], len(answer[6])) == (0, 10)
    assert (await other.put(CRAWL, late)).refused == {task.key: "max_pages" for task in late}
    await other.close()
