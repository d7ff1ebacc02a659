"""One Redis server and a real cluster, and a frontier whose crawl lies in eight shards."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from sharded_crawl import opened, sharded

from shoal.frontier.base import Frontier
from shoal.testing.servers.redis_server import RedisCluster, RedisServer


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
async def frontier(redis: RedisServer) -> AsyncIterator[Frontier]:
    """A frontier on one server whose crawl lies in eight shards."""
    frontier = await opened(sharded(redis.url))
    yield frontier
    await frontier.close()
