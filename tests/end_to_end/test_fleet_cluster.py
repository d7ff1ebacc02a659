"""A fleet over a Redis Cluster as users see it: links lead from shard to shard, a worker and a node are killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis_fleet import RedisFleet, ended

from shoal.testing.servers.redis_server import RedisCluster
from shoal.testing.sites.site_process import site_process

pytestmark = pytest.mark.full

PAGES = 240
HOSTS = ",".join(f"127.0.0.{number}" for number in range(1, 7))


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RedisCluster]:
    cluster = RedisCluster(tmp_path / "redis").start()
    yield cluster
    cluster.kill()


@pytest.fixture
def fleet(tmp_path: Path, cluster: RedisCluster) -> Iterator[RedisFleet]:
    log = tmp_path / "hits.jsonl"
    with site_process("--graph", str(PAGES), "--hosts", HOSTS, "--latency", "0.02", log=log) as site:
        fleet = RedisFleet(tmp_path, site, f"{cluster.url}?shards=7")
        yield fleet
        fleet.end()


# Eleven seconds: links cross shards while a worker and a node of a real cluster are killed.
def test_a_fleet_over_a_cluster_loses_nothing_with_a_worker_and_a_node(
    fleet: RedisFleet, cluster: RedisCluster
) -> None:
    spider = fleet.spider(rate="8/s", allow=["*"], lease_seconds=4.0, horizon_seconds=0.5)
    run = fleet.start("run", spider, "--workers", "2")
    fleet.wait_for_pages(20)
    os.kill(fleet.busiest_worker().pid, signal.SIGKILL)
    fleet.wait_for_pages(60)
    cluster.nodes[1].kill()
    cluster.nodes[1].start()
    _, err, code = ended(run)
    assert code == 0, err
    fleet.check(PAGES)
    assert "finished" in fleet.shoal("status", fleet.crawl)
