"""What of a server's set-up would lose work or waste memory: one line each, with the command that changes it."""

from __future__ import annotations

import logging

from redis.exceptions import NoPermissionError, ResponseError

from shoal.frontier.redis.cluster import Place
from shoal.frontier.redis.connection import Line, RedisLink, fields

LISTPACK_VALUE = 512  # bytes of a task up to which the small lanes stay compact

_LOG = logging.getLogger("shoal.frontier")


def warn(line: str) -> None:
    """A line for whoever runs the server."""
    _LOG.warning("%s", line)


async def check_server(link: RedisLink) -> None:
    """Reach the server, look at its set-up, and let small lanes stay compact."""
    for place in await link.places():
        await _check(link, place)


async def _check(link: RedisLink, place: Place | None) -> None:
    async with link.line_to(place) as line:
        persistence, memory = await info(line, "persistence"), await info(line, "memory")
        is_compact = await _keep_lanes_compact(line)
    fix = "fix it with: redis-cli CONFIG SET" if place is None else f"fix it with: redis-cli -p {place[1]} CONFIG SET"
    if persistence.get("aof_enabled", "1") != "1":
        warn(f"Redis at {link.shown} keeps no append-only file, a crash loses the crawl; {fix} appendonly yes")
    if memory.get("maxmemory_policy", "noeviction") != "noeviction":
        warn(f"Redis at {link.shown} may evict parts of a crawl; {fix} maxmemory-policy noeviction")
    if not is_compact:
        warn(
            f"Redis at {link.shown} needs more memory than it could;"
            f" set zset-max-listpack-value {LISTPACK_VALUE} in its configuration"
        )


async def info(line: Line, section: str) -> dict[str, str]:
    """One section of what the server says about itself."""
    return fields(await line.call("INFO", section))


async def _keep_lanes_compact(line: Line) -> bool:
    for name in ("zset-max-listpack-value", "zset-max-ziplist-value"):
        try:
            current = await line.call("CONFIG", "GET", name)
            if not current:
                continue
            if int(current[1]) < LISTPACK_VALUE:
                await line.call("CONFIG", "SET", name, LISTPACK_VALUE)
        except (ResponseError, NoPermissionError):
            return False
        return True
    return False
