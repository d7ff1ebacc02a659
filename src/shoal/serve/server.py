"""The HTTP server of the app: one socket, an orderly end."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from shoal.errors import UsageError

GRACE_SECONDS = 3
# A proxy on this machine may say whom it speaks for, nobody else.
TRUSTED = ["127.0.0.1", "::1"]


class PassOn(logging.Handler):
    """Gives what the HTTP server logs to shoal's own logger, which writes it in the form that was asked for."""

    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger("shoal.http").handle(record)


class Server(uvicorn.Server):
    """uvicorn without signal handlers: the command that runs it has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """None."""
        yield


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that listens there, or the line that says why there is none."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(f"--host {host} is no address of this machine: {error.strerror}") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        # Whoever reads the line with the URL may connect at once.
        listener.listen()
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(f"port {port} is in use: --port names another one, 0 any that is free") from None
        raise UsageError(f"cannot listen at {shown_address(host, port)}: {error.strerror}") from None
    return listener


def shown_address(host: str, port: int) -> str:
    """An address as it is in a URL."""
    return f"{f'[{host}]' if ':' in host else host}:{port}"


async def serve_until(stop: asyncio.Event, app: ASGIApp, listener: socket.socket) -> None:
    """Serve the app until `stop` is set; requests in hand get a moment to end."""
    config = uvicorn.Config(
        app,
        access_log=False,
        log_config=None,
        server_header=False,
        date_header=False,
        proxy_headers=True,
        forwarded_allow_ips=TRUSTED,
        timeout_graceful_shutdown=GRACE_SECONDS,
        ws="none",
        lifespan="on",
    )
    own = logging.getLogger("uvicorn")
    own.handlers, own.propagate = [PassOn(logging.WARNING)], False
    server = Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait([serving, stopped], return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    stopped.cancel()
    await serving
