"""A queue server that belongs to a chaos run: killed with SIGKILL, robbed of the last of its log, started again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from shoal.errors import UsageError

# What a power cut takes with it, or some of it: the log's tail, cut anywhere, also inside a step.
MOST_BYTES_CUT = 4096
AWAY_SECONDS = (0.2, 1.5)


@contextlib.asynccontextmanager
async def redis_server(folder: Path, *, seed: int) -> AsyncIterator[tuple[str, Callable[[], Awaitable[None]]]]:
    """A redis-server of our own: its URL, and what kills it and starts it again."""
    if shutil.which("redis-server") is None:
        raise UsageError("redis-server is not installed: install it, or name a server with --frontier redis://…")
    from shoal.testing.servers.redis_server import RedisServer

    rng = random.Random(seed)
    server = RedisServer(folder / "redis")

    async def restart() -> None:
        server.kill()
        log = server.append_only_file
        os.truncate(log, max(0, log.stat().st_size - rng.randrange(MOST_BYTES_CUT)))
        await asyncio.sleep(rng.uniform(*AWAY_SECONDS))
        await asyncio.to_thread(server.start)

    await asyncio.to_thread(server.start)
    try:
        yield server.url, restart
    finally:
        server.kill()
