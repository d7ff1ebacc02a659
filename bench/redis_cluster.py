"""A Redis Cluster on loopback for one benchmark: a crawl of as many shards as nodes has one shard on each node."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.redis_server import START_SECONDS, RedisServer, any_port, redis_server
from shoal.frontier.redis.shards import shards_of

SLOTS = 16384


class Cluster(NamedTuple):
    """The servers, and the URL for a crawl with a shard on each."""

    nodes: list[RedisServer]
    url: str

    @property
    def cpu_seconds(self) -> float:
        return sum(node.cpu_seconds for node in self.nodes)

    @property
    def used_bytes(self) -> int:
        return sum(node.used_bytes for node in self.nodes)

    @property
    def net_bytes(self) -> int:
        """Bytes that came in and went out, also those between nodes."""
        stats = [node.info("stats") for node in self.nodes]
        return sum(int(one["total_net_input_bytes"]) + int(one["total_net_output_bytes"]) for one in stats)


@contextlib.contextmanager
def redis_shards(count: int, *, crawl: str, folder: Path) -> Iterator[Cluster]:
    """One plain server for one shard, a cluster for several."""
    with contextlib.ExitStack() as stack:
        if count == 1:
            server = stack.enter_context(redis_server(folder / "0"))
            yield Cluster([server], server.url)
            return
        nodes, buses = list[RedisServer](), list[int]()
        for number in range(count):
            # Just before it is used: a port that is free now may be another node's a moment later.
            buses.append(any_port())
            options = ("--cluster-enabled", "yes", "--cluster-port", str(buses[-1]))
            nodes.append(stack.enter_context(redis_server(folder / str(number), *options)))
        _join(nodes, buses, homes=_homes(crawl, count, any_node=nodes[0]))
        addresses = ",".join(f"127.0.0.1:{node.port}" for node in nodes)
        yield Cluster(nodes, f"redis+cluster://{addresses}/?shards={count}")


def _homes(crawl: str, count: int, *, any_node: RedisServer) -> list[int]:
    """The node of each slot: an even part of all, and each shard of the crawl on a node of its own."""
    homes = [slot * count // SLOTS for slot in range(SLOTS)]
    for shard in shards_of(crawl, count):
        homes[any_node.call("CLUSTER", "KEYSLOT", shard.prefix)] = shard.number
    return homes


def _join(nodes: Sequence[RedisServer], buses: Sequence[int], *, homes: Sequence[int]) -> None:
    for number, node in enumerate(nodes):
        node.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        node.call("CLUSTER", "ADDSLOTS", *(slot for slot, home in enumerate(homes) if home == number))
    for node, bus in zip(nodes[1:], buses[1:], strict=True):
        nodes[0].call("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
    deadline = time.monotonic() + START_SECONDS
    while not all(_is_well(node, len(nodes)) for node in nodes):
        if time.monotonic() > deadline:
            raise SystemExit("the Redis servers form no cluster with all slots")
        time.sleep(0.05)


def _is_well(node: RedisServer, count: int) -> bool:
    state = node.call("CLUSTER", "INFO").split()
    return b"cluster_state:ok" in state and f"cluster_known_nodes:{count}".encode() in state
