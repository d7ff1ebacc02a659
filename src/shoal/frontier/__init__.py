"""Where tasks live. `open_frontier` picks the backend by the URL's scheme."""

from __future__ import annotations

from shoal.errors import UsageError
from shoal.frontier.base import Frontier

SCHEMES = ("sqlite",)


async def open_frontier(url: str) -> Frontier:
    """Open the frontier at this URL: `sqlite:///path/to/shoal.db`, or the bare path of a file."""
    scheme, separator, rest = url.partition("://")
    match scheme if separator else "sqlite":
        case "sqlite":
            from shoal.frontier.sqlite import SqliteFrontier

            return await SqliteFrontier.open(_sqlite_path(rest, url) if separator else url)
        case _:
            known = ", ".join(f"{name}://" for name in SCHEMES)
            raise UsageError(f"no frontier for {scheme}://: use one of {known} or the path of a file")


def _sqlite_path(rest: str, url: str) -> str:
    """`sqlite:///name` is relative, `sqlite:////name` absolute, as elsewhere in Python."""
    if not rest.startswith("/") or rest == "/":
        raise UsageError(f"{url} names no file: write sqlite:///shoal.db, or sqlite:////var/lib/shoal.db")
    return rest[1:]
