"""A crawl on a Redis server of one's own: opened, lent from, and recounted from its keys."""

from __future__ import annotations

import time
from collections.abc import Callable

from shoal.frontier.base import Frontier
from shoal.frontier.redis.frontier import RedisFrontier
from shoal.frontier.redis.shards import prefix_of
from shoal.model import Crawl, Lease, Progress
from shoal.testing.servers.redis_server import RedisServer
from shoal.testing.waiting import eventually
from shoal.worker.outages import until_reachable

CRAWL = "books"
PREFIX = prefix_of(CRAWL)


async def opened(server: RedisServer, *, clock: Callable[[], float] = time.time, **fields: float) -> RedisFrontier:
    frontier = await RedisFrontier.open(server.url, clock=clock)
    await frontier.open_crawl(Crawl(id=CRAWL, spider="s", **{"interval": 0.0, "cap": 1000, **fields}))  # type: ignore[arg-type]
    return frontier


async def take(frontier: Frontier, limit: int = 100, *, seconds: float = 60.0) -> list[Lease]:
    return (await frontier.lease([CRAWL], limit, worker="w", seconds=seconds, horizon=0.0)).leases


async def take_when_rested(frontier: Frontier, limit: int = 100) -> list[Lease]:
    """The first leases after a restart: the lanes rest for a horizon before they lend."""
    return await eventually(lambda: until_reachable(lambda: take(frontier, limit), say=str), pause=0.05)


def recounted(server: RedisServer) -> dict[str, int]:
    """What the keys themselves say, whatever the counters claim."""
    lanes = [name.decode() for name in server.call("HKEYS", PREFIX + "lanes")]
    buckets = int(server.call("HGET", PREFIX + "crawl", "buckets"))
    kinds = [kind for kind in (server.call("HGET", PREFIX + "crawl", "kinds") or b"").decode().split(",") if kind]
    queues = [f"{queue}:{lane}" for queue in ("q", *(f"kq:{kind}" for kind in kinds)) for lane in lanes]
    waiting = {
        "queued": sum(server.call("ZCARD", PREFIX + queue) for queue in queues),
        "delayed": server.call("ZCARD", PREFIX + "later"),
        "leased": server.call("HLEN", PREFIX + "held"),
        "dead": server.call("HLEN", PREFIX + "dead"),
    }
    families = ["seen", *(f"past:{generation}" for generation in range(3))]
    known = sum(server.call("SCARD", f"{PREFIX}{name}:{bucket}") for name in families for bucket in range(buckets))
    return {**waiting, "done": known - sum(waiting.values())}


def claimed(progress: Progress) -> dict[str, int]:
    return {name: getattr(progress, name) for name in ("queued", "delayed", "leased", "dead", "done")}
