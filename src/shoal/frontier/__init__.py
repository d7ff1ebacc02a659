"""The frontier: the store of tasks that are not done. `open_frontier` picks the backend by the URL's scheme."""

from __future__ import annotations

from shoal.backends import backend_of, load, scheme_of, schemes_of
from shoal.errors import UsageError
from shoal.frontier.base import Frontier
from shoal.frontier.clock import steady_seconds


async def open_frontier(url: str) -> Frontier:
    """Open the frontier at this URL: `sqlite:///path/to/shoal.db`, the path of a file, or a Redis server:
    `redis://host/0`, `rediss://…` with TLS, `unix:///path/to/socket`, `redis+sentinel://host1,host2/mymaster/0`,
    `redis+cluster://host1,host2/?shards=16`. With `?shards=N` a new crawl is divided into N shards, which the nodes of
    a cluster share. The URL of a pipe opens the frontier of its coordinator."""
    scheme = scheme_of(url)
    backend = backend_of("frontier", scheme or "sqlite")
    if backend is None:
        known = ", ".join(f"{name}://" for name in schemes_of("frontier") if name not in schemes_of("pipe"))
        raise UsageError(f"no frontier for {scheme}://: use one of {known} or the path of a file")
    place = _sqlite_path(url) if scheme == "sqlite" else url
    frontier: Frontier = await load(backend, scheme=scheme).open(place, steady=steady_seconds)
    return frontier


def _sqlite_path(url: str) -> str:
    """`sqlite:///name` is relative, `sqlite:////name` absolute, as elsewhere in Python."""
    rest = url.removeprefix("sqlite://")
    if not rest.startswith("/") or rest == "/":
        raise UsageError(f"{url} names no file: write sqlite:///shoal.db, or sqlite:////var/lib/shoal.db")
    return rest[1:]
