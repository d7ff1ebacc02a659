"""Warnings about server settings that would lose work or waste memory, each with the command that changes it."""

from __future__ import annotations

import logging

from redis.exceptions import NoPermissionError, ResponseError

from shoal.frontier.redis.connection import Connection, fields
from shoal.frontier.redis.connections import Node, RedisConnections

LISTPACK_VALUE = 512  # bytes of a task up to which the small lanes stay compact

_LOG = logging.getLogger("shoal.frontier")


def warn(text: str) -> None:
    """Log a warning for the person who runs the server."""
    _LOG.warning("%s", text)


async def check_server(connections: RedisConnections) -> None:
    """Connect to every server, and set the limit up to which small lanes are stored compactly."""
    for node in await connections.nodes():
        async with connections.borrow_from(node) as connection:
            await _keep_lanes_compact(connection)


async def warn_of_settings(connections: RedisConnections) -> None:
    """Warn about settings of every server that would lose work. Called by the process that begins a crawl, so that the
    others do not repeat it."""
    for node in await connections.nodes():
        await _warn(connections, node)


async def _warn(connections: RedisConnections, node: Node | None) -> None:
    async with connections.borrow_from(node) as connection:
        persistence, memory = await info(connection, "persistence"), await info(connection, "memory")
        is_compact = await _keep_lanes_compact(connection)
        fix = f"fix it with: {connection.redis_cli} CONFIG SET"
    shown = connections.shown
    if persistence.get("aof_enabled", "1") != "1":
        warn(f"Redis at {shown} keeps no append-only file, a crash loses the crawl; {fix} appendonly yes")
    if memory.get("maxmemory_policy", "noeviction") != "noeviction":
        warn(f"Redis at {shown} may evict parts of a crawl; {fix} maxmemory-policy noeviction")
    if not is_compact:
        warn(
            f"Redis at {shown} needs more memory than it could;"
            f" set zset-max-listpack-value {LISTPACK_VALUE} in its configuration"
        )


async def info(connection: Connection, section: str) -> dict[str, str]:
    """One section of the server's INFO."""
    return fields(await connection.call("INFO", section))


async def _keep_lanes_compact(connection: Connection) -> bool:
    for name in ("zset-max-listpack-value", "zset-max-ziplist-value"):
        try:
            current = await connection.call("CONFIG", "GET", name)
            if not current:
                continue
            if int(current[1]) < LISTPACK_VALUE:
                await connection.call("CONFIG", "SET", name, LISTPACK_VALUE)
        except (ResponseError, NoPermissionError):
            return False
        return True
    return False
