"""TLS to a port without TLS: the server takes the handshake for half a command and waits for the rest."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine
from typing import Any

from shoal.errors import UsageError

PATIENCE_SECONDS = 1.0


async def connected(connecting: Coroutine[Any, Any, None], *, host: str, port: int, shown: str) -> None:
    """Connect with TLS. A port that is silent for long is asked once without TLS, to see whether it answers then."""
    task = asyncio.ensure_future(connecting)
    try:
        await asyncio.wait([task], timeout=PATIENCE_SECONDS)
        if not task.done() and await _speaks_plainly(host, port):
            raise UsageError(
                f"Redis at {shown} does not speak TLS on this port: name its TLS port, or write redis:// if it has none"
            )
        await task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _speaks_plainly(host: str, port: int) -> bool:
    """Whether the server there answers, with a pong or a refusal. No password is sent."""
    writer = None
    with contextlib.suppress(OSError, TimeoutError):
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                reader, writer = await asyncio.open_connection(host, port)
                writer.write(b"PING\r\n")
                return (await reader.read(1)) in (b"+", b"-")
        finally:
            if writer is not None:
                writer.close()
    return False
