"""A crawl that was there and is not any more: whether somebody deleted it, or its server lost it, and how."""

from __future__ import annotations

from redis.exceptions import ResponseError

from shoal.errors import CrawlLost
from shoal.frontier.redis.connection import Connection
from shoal.frontier.redis.connections import RedisConnections
from shoal.frontier.redis.server_checks import info
from shoal.frontier.redis.shards import prefix_of

CRAWLS = "shoal:crawls"
LAST_NUMBER = "shoal:crawls:last"
SHARDS = (
    "shoal:shards"  # crawl → number of its shards, negative while it is being deleted; only where there are several
)


async def lost_crawl(connections: RedisConnections, crawl: str, *, run_id: str) -> CrawlLost | None:
    """The error for a crawl whose data are gone; None when it was deleted on purpose. `run_id` is the run of the
    server in which the crawl was seen last."""
    async with connections.borrow() as any_node:
        # To delete a crawl takes it from the list. The number of the newest crawl stays.
        await any_node.send("SISMEMBER", CRAWLS, crawl)
        await any_node.send("EXISTS", LAST_NUMBER)
        await any_node.send("HGET", SHARDS, crawl)
        await any_node.send("HGET", prefix_of(crawl) + "crawl", "state")
        is_listed, has_number, shards, state = await any_node.answers()
    is_being_deleted = state == b"deleting" or (shards or b"").startswith(b"-")
    if is_being_deleted or (not is_listed and has_number):
        return None
    async with connections.borrow_at(prefix_of(crawl)) as connection:
        why = await _cause(connection, run_id=run_id)
    return CrawlLost(f"the data of crawl {crawl} are gone from {connections.shown}: {why}")


async def _cause(connection: Connection, *, run_id: str) -> str:
    """What probably did it, as far as the server tells."""
    server, disk = await info(connection, "server"), await info(connection, "persistence")
    stats, memory = await info(connection, "stats"), await info(connection, "memory")
    left = await connection.call("DBSIZE")
    if run_id and server.get("run_id") != run_id:
        ago = server.get("uptime_in_seconds", "?")
        return f"the server was restarted {ago} s ago{await _kept(connection, disk)}, or it is another server"
    if int(stats.get("evicted_keys", 0)) and memory.get("maxmemory_policy", "noeviction") != "noeviction":
        policy = memory["maxmemory_policy"]
        return f"the server evicts keys when its memory is full (maxmemory-policy {policy}): set it to noeviction"
    others = f"; {left} other keys are there" if left else ""
    return f"the server was not restarted, so somebody emptied it (FLUSHALL, FLUSHDB, DEL){others}"


async def _kept(connection: Connection, disk: dict[str, str]) -> str:
    """What the server keeps on disk."""
    if disk.get("aof_enabled") == "1":
        return " and lost its append-only file"
    try:
        points = await connection.call("CONFIG", "GET", "save")
    except ResponseError:
        return " and keeps no append-only file"
    if points and points[1]:
        return f" and keeps only snapshots (appendonly no, save {points[1].decode('utf-8', 'replace')!r})"
    return " and keeps nothing on disk (appendonly no, save '')"
