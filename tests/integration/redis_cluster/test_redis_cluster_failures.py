"""A crawl on a real cluster whose nodes crash, restart, fail over and hand on slots."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from sharded_crawl import CRAWL, SECONDS, SHARDS, Site, lanes_apart, opened, sharded, take, take_patiently, work

from shoal.errors import ServerUnreachable
from shoal.frontier.redis.shards import prefix_of, shard_of
from shoal.model import Done
from shoal.testing.contract.frontier.case import make_task
from shoal.testing.servers.redis_server import RedisCluster, RedisServer
from shoal.testing.waiting import eventually
from shoal.worker.outages import until_reachable

pytestmark = pytest.mark.full


# Six seconds: a cluster of its own loses a node and the end of that node's file.
async def test_links_that_a_crashed_shard_lost_with_its_last_second_are_sent_again(tmp_path: Path) -> None:
    cluster = RedisCluster(tmp_path).start()
    try:
        frontier = await opened(sharded(cluster.url))
        home, away = next(
            (one, two)
            for one in lanes_apart(SHARDS)
            for two in lanes_apart(SHARDS)
            if cluster.node_of(prefix_of_lane(one)) is not cluster.node_of(prefix_of_lane(two))
        )
        await frontier.put(CRAWL, [make_task(1, home), make_task(2, away)])
        node = cluster.node_of(prefix_of_lane(away))
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
            report = await until_reachable(
                lambda: frontier.settle([Done(lease=lease) for lease in held]), say=lambda _: None
            )
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
    """Wait until the replica has every write of its master."""
    written = master.call("INFO", "replication")["master_repl_offset"]
    await eventually(lambda: replica.call("INFO", "replication")["slave_repl_offset"] >= written)


def prefix_of_lane(lane: str) -> str:
    """The prefix of the keys of a lane's shard."""
    return prefix_of(CRAWL, shard_of(lane, of=SHARDS), of=SHARDS)


# Five seconds: three workers wait for a dead node of a cluster, then finish 1,200 pages.
async def test_a_node_that_restarts_is_waited_for_and_nothing_is_lost(cluster: RedisCluster) -> None:
    site = Site(1200, 7)
    frontier = await opened(sharded(cluster.url))
    await frontier.put(CRAWL, [site.page(0)])
    said: list[str] = []

    async def has_begun() -> bool:
        return (await frontier.progress(CRAWL)).done >= 100

    async with asyncio.timeout(SECONDS):
        workers = [asyncio.create_task(work(cluster.url, site, f"w{n}", say=said.append)) for n in range(3)]
        await eventually(has_begun)
        cluster.nodes[1].kill()
        await eventually(lambda: said)  # a worker waits for the node
        assert not any(worker.done() for worker in workers)
        cluster.nodes[1].start()
        assert await asyncio.gather(*workers) == [site.pages] * 3
    progress = await frontier.progress(CRAWL)
    assert (progress.done, progress.known, progress.dead) == (site.pages, site.pages, 0)
    await frontier.close()


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
    settling = asyncio.create_task(until_reachable(lambda: frontier.settle([Done(lease=first)]), say=lambda _: None))
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
        # What outlives a crawl of its hosts would keep the slot where it is.
        target.call("FLUSHALL")
        for node in (source, target, *cluster.nodes):
            node.call("CLUSTER", "SETSLOT", slot, "NODE", names[source])
    await frontier.close()
