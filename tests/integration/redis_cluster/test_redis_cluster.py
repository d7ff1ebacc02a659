"""A crawl on a real cluster: its end, its budget, its inbox, and what is left of it."""

from __future__ import annotations

import asyncio

import pytest
from sharded_crawl import CRAWL, SECONDS, SHARDS, Site, opened, run, sharded, take, work

from shoal.errors import UsageError
from shoal.frontier import open_frontier
from shoal.frontier.redis.inbox import RedisInbox
from shoal.frontier.redis.shards import prefix_of
from shoal.model import Crawl, CrawlState, Done
from shoal.testing.contract.frontier.case import make_task
from shoal.testing.servers.programs import find_program
from shoal.testing.servers.redis_server import RedisCluster, RedisServer


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.full) for seed in range(1, 4))])
async def test_every_worker_is_told_of_the_end_and_none_before_it(cluster: RedisCluster, seed: int) -> None:
    site = Site(150, seed)
    frontier = await opened(sharded(cluster.url))
    await frontier.put(CRAWL, [site.page(0)])
    async with asyncio.timeout(SECONDS):
        workers = [work(cluster.url, site, f"w{number}") for number in range(4)]
        assert await asyncio.gather(*workers) == [site.pages] * 4
    progress = await frontier.progress(CRAWL)
    assert (progress.state, progress.known, progress.is_finished) == (CrawlState.FINISHED, site.pages, True)
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
    # Hosts had starts a moment ago, which count for other crawls: what is kept of them expires.
    left = cluster.keys()
    assert {key for key in left if b"::kept:" not in key} <= {b"shoal:crawls:last"}
    await frontier.close()


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


async def test_says_which_url_a_cluster_needs(cluster: RedisCluster, redis: RedisServer) -> None:
    node = next(node for node in cluster.nodes if node is not cluster.node_of(prefix_of(CRAWL)))
    frontier = await open_frontier(node.url)
    with pytest.raises(UsageError, match="is part of a cluster: write redis\\+cluster://"):
        await frontier.open_crawl(Crawl(id=CRAWL, spider="s"))
    await frontier.close()
    with pytest.raises(UsageError, match="is no Redis Cluster: write redis://"):
        await open_frontier(redis.url.replace("redis://", "redis+cluster://"))
