"""`--dashboard`: `shoal serve` in a child process beside a crawl."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Callable

from shoal.crawl.opening import Places
from shoal.errors import UsageError
from shoal.settings.table import (
    ARCHIVE_VARIABLE,
    FRONTIER_VARIABLE,
    PIPE_VARIABLE,
    READER_VARIABLE,
    SINK_VARIABLE,
    STORE_VARIABLE,
    TOKEN_VARIABLE,
)
from shoal.version import install_command

USUAL_PORT = 8642
START_SECONDS = 60.0
END_SECONDS = 5.0
_OWN = (TOKEN_VARIABLE, READER_VARIABLE, PIPE_VARIABLE, SINK_VARIABLE)


def check_extra() -> None:
    """Refuse if the web server is not installed, before anything begins."""
    try:
        import cronsim
        import prometheus_client
        import starlette
        import uvicorn
    except ModuleNotFoundError as error:
        if error.name not in ("cronsim", "prometheus_client", "starlette", "uvicorn", "anyio", "h11"):
            raise
        raise UsageError(f"serve needs its web server: {install_command('serve')}") from None
    del cronsim, prometheus_client, starlette, uvicorn


@contextlib.asynccontextmanager
async def dashboard_beside(places: Places, *, say: Callable[[str], None]) -> AsyncIterator[None]:
    """Serve these places on loopback until the block ends: on the usual port, or on any if that is taken."""
    process, url = await _serve(places, USUAL_PORT)
    if not url:
        process, url = await _serve(places, 0)
    if not url:
        raise UsageError("the dashboard does not start: `shoal serve` says why")
    say(f"the dashboard is at {url}")
    try:
        yield
    finally:
        await _end(process)


async def _serve(places: Places, port: int) -> tuple[asyncio.subprocess.Process, str]:
    """The process and its URL; empty if it did not start."""
    command = [sys.executable, "-m", "shoal", "serve", "--port", str(port), "--json", "--parent", str(os.getpid())]
    process = await asyncio.create_subprocess_exec(
        *command, env=_environment(places), stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, start_new_session=True
    )
    line = b""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(START_SECONDS):
            while process.stdout is not None and (read := await process.stdout.readline()):
                line += read
                with contextlib.suppress(ValueError):
                    return process, str(json.loads(line)["url"])
    await _end(process)
    return process, ""


def _environment(places: Places) -> dict[str, str]:
    """Places are passed in the environment: on a command line everybody could read the passwords."""
    kept = {name: text for name, text in os.environ.items() if name not in _OWN}
    return {
        **kept,
        FRONTIER_VARIABLE: places.frontier,
        STORE_VARIABLE: places.store,
        ARCHIVE_VARIABLE: places.archive or "",
    }


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(END_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
