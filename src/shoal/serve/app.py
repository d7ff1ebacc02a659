"""The app of `shoal serve`: the routes of the API and of the page behind access control, and its HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from shoal.errors import UsageError
from shoal.serve.access import HEADERS, Gate
from shoal.serve.answers import Refusal, json_answer, refused
from shoal.serve.api.openapi import document
from shoal.serve.api.operations import PREFIX, routes
from shoal.serve.api.table import OPERATIONS
from shoal.serve.duties import feed_sinks, keep_clear, keep_histories, keep_schedules, keep_watch, mark_gone
from shoal.serve.events import Watching
from shoal.serve.parts import Parts

FOLDER = Path(__file__).resolve().parent / "static"
GRACE_SECONDS = 3
# Only a proxy on this machine may name the client in X-Forwarded-For.
TRUSTED = ["127.0.0.1", "::1"]


def page_routes(folder: Path = FOLDER) -> list[BaseRoute]:
    """The routes of the page: its files, and index.html for every path of its own router."""

    async def first_page(request: Request) -> Response:
        index = folder / "index.html"
        if not index.is_file():
            return refused(Refusal(404, "the page is not part of this installation; the API is under /api/v1"))
        return FileResponse(index, headers={"Cache-Control": "no-cache"})

    return [
        Route("/", first_page, methods=["GET"]),
        Route("/crawls/{rest:path}", first_page, methods=["GET"]),
        Route("/schedules", first_page, methods=["GET"]),
        Route("/schedules/{rest:path}", first_page, methods=["GET"]),
        Mount("/static", FreshFiles(directory=folder, check_dir=False)),
    ]


class FreshFiles(StaticFiles):
    """Files that browsers revalidate on every use: after an upgrade no page mixes old and new files."""

    async def get_response(self, path: str, scope: object) -> Response:
        answer = await super().get_response(path, scope)  # type: ignore[arg-type]  # its own type of the same mapping
        answer.headers["Cache-Control"] = "no-cache"
        return answer


class PassOn(logging.Handler):
    """Passes the HTTP server's log to shoal's logger, which has the chosen format."""

    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger("shoal.http").handle(record)


class Server(uvicorn.Server):
    """uvicorn without signal handlers: the command that runs it has its own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Install no handlers."""
        yield


def bound_socket(host: str, port: int) -> socket.socket:
    """A socket that listens there. UsageError: it cannot."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise UsageError(f"--host {host} is no address of this machine: {error.strerror}") from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        # Listen now: whoever reads the line with the URL may connect at once.
        listener.listen()
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(f"port {port} is in use: --port names another one, 0 any that is free") from None
        raise UsageError(f"cannot listen at {shown_address(host, port)}: {error.strerror}") from None
    return listener


def shown_address(host: str, port: int) -> str:
    """HOST:PORT as in a URL."""
    return f"{f'[{host}]' if ':' in host else host}:{port}"


async def serve_until(stop: asyncio.Event, app: ASGIApp, listener: socket.socket) -> None:
    """Serve the app until `stop` is set; requests in progress get a moment to end."""
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


def _silent(line: str) -> None:
    """Drops the line."""


def build_app(parts: Parts, *, say: Callable[[str], None] = _silent) -> Starlette:
    """The app of these parts, which it closes at its end. `say` gets lines for people about the background work."""

    async def openapi(request: Request) -> Response:
        return json_answer(document(OPERATIONS))

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        duties = (
            keep_histories(parts),
            keep_watch(parts, say=say),
            keep_schedules(parts, say=say),
            feed_sinks(parts, say=say),
            mark_gone(parts, say=say),
            keep_clear(parts, say=say),
        )
        keeping = [asyncio.create_task(part) for part in duties]
        yield
        for part in keeping:
            part.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)
        await parts.close()

    app = Starlette(
        routes=[
            *routes(OPERATIONS, parts),
            Route(f"{PREFIX}/openapi.json", openapi, methods=["GET"]),
            *page_routes(),
        ],
        middleware=[Middleware(Gate, access=parts.access)],
        exception_handlers={HTTPException: _http_error, Exception: _unexpected},
        lifespan=lifespan,
    )
    app.state.watching = Watching(parts)
    app.router.redirect_slashes = False
    return app


async def _http_error(request: Request, error: Exception) -> Response:
    """The answer for unknown paths and methods."""
    assert isinstance(error, HTTPException)  # noqa: S101 -- for the type checker: registered for these alone
    lines = {
        404: f"there is no {request.url.path} here: {PREFIX}/openapi.json lists what there is",
        405: f"{request.method} is not for {request.url.path}: {PREFIX}/openapi.json lists what there is",
    }
    line = lines.get(error.status_code, str(error.detail))
    return refused(Refusal(error.status_code, line, headers=error.headers))


async def _unexpected(request: Request, error: Exception) -> Response:
    """The answer to a defect; the traceback is only in the log. This answer does not pass `Gate`: it needs its
    headers."""
    return refused(Refusal(500, "shoal has a defect here: its output has the traceback", headers=HEADERS))
