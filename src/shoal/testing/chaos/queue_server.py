"""A queue server that belongs to a chaos run: killed with SIGKILL, the end of its log cut off, started again."""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from shoal.errors import UsageError

AWAY_SECONDS = (0.2, 1.5)


@contextlib.asynccontextmanager
async def redis_server(folder: Path, *, seed: int) -> AsyncIterator[tuple[str, Callable[[], Awaitable[None]]]]:
    """A redis-server of the run's own: its URL, and a function that kills and restarts it."""
    if shutil.which("redis-server") is None:
        raise UsageError("redis-server is not installed: install it, or name a server with --frontier redis://…")
    from shoal.testing.servers.redis_server import RedisServer

    rng = random.Random(seed)
    server = RedisServer(folder / "redis")

    async def restart() -> None:
        server.kill()
        server.lose_tail(rng)
        await asyncio.sleep(rng.uniform(*AWAY_SECONDS))
        await asyncio.to_thread(server.start)

    await asyncio.to_thread(server.start)
    try:
        yield server.url, restart
    finally:
        server.kill()
