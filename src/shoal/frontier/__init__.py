"""Where tasks live. `open_frontier` picks the backend by the URL's scheme."""

from __future__ import annotations

from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.frontier.clock import steady_seconds
from shoal.pipes import PIPE_SCHEMES, open_pipe

REDIS_SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
SCHEMES = ("sqlite", *REDIS_SCHEMES)


async def open_frontier(url: str) -> Frontier:
    """Open the frontier at this URL: `sqlite:///path/to/shoal.db`, the bare path of a file, or a Redis server's:
    `redis://host/0`, `rediss://…` with TLS, `unix:///path/to/socket`, `redis+sentinel://host1,host2/mymaster/0`,
    `redis+cluster://host1,host2/?shards=16`. With `?shards=N` a new crawl lies in N parts, which the nodes of a
    cluster share. The URL of a pipe leads to the frontier of the coordinator there."""
    scheme, separator, rest = url.partition("://")
    match scheme if separator else "sqlite":
        case "sqlite":
            from shoal.frontier.sqlite.frontier import SqliteFrontier

            return await SqliteFrontier.open(_sqlite_path(rest, url) if separator else url, steady=steady_seconds)
        case name if name in REDIS_SCHEMES:
            try:
                from shoal.frontier.redis.frontier import RedisFrontier
            except ModuleNotFoundError as error:
                if error.name not in ("redis", "hiredis"):
                    raise
                raise UsageError(f"{scheme}:// needs the redis library: pip install 'shoal[redis]'") from None

            return await RedisFrontier.open(url, steady=steady_seconds)
        case name if name in PIPE_SCHEMES:
            from shoal.pipes.frontier import PipedFrontier

            return await PipedFrontier.open(open_pipe(url))
        case _:
            known = ", ".join(f"{name}://" for name in SCHEMES)
            raise UsageError(f"no frontier for {scheme}://: use one of {known} or the path of a file")


def _sqlite_path(rest: str, url: str) -> str:
    """`sqlite:///name` is relative, `sqlite:////name` absolute, as elsewhere in Python."""
    if not rest.startswith("/") or rest == "/":
        raise UsageError(f"{url} names no file: write sqlite:///shoal.db, or sqlite:////var/lib/shoal.db")
    return rest[1:]
