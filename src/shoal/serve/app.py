"""The app: the routes of the API and of the page, behind the gate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from shoal.serve.answers import Refusal, json_answer, refused
from shoal.serve.events import Watching
from shoal.serve.feeding import feed_sinks
from shoal.serve.gate import HEADERS, Gate
from shoal.serve.gone_keeping import mark_gone
from shoal.serve.keeping import keep_clear, keep_histories, keep_schedules, keep_watch
from shoal.serve.openapi import document
from shoal.serve.operation_table import OPERATIONS
from shoal.serve.operations import PREFIX, routes
from shoal.serve.page_files import page_routes
from shoal.serve.parts import Parts


def _silent(line: str) -> None:
    """Says nothing."""


def build_app(parts: Parts, *, say: Callable[[str], None] = _silent) -> Starlette:
    """The app of these parts. It closes them when it ends. `say` gets what people should know of alerts,
    schedules and items that are gone."""

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
    """Paths and methods that there are none of."""
    assert isinstance(error, HTTPException)  # noqa: S101 -- for the type checker: registered for these alone
    lines = {
        404: f"there is no {request.url.path} here: {PREFIX}/openapi.json lists what there is",
        405: f"{request.method} is not for {request.url.path}: {PREFIX}/openapi.json lists what there is",
    }
    line = lines.get(error.status_code, str(error.detail))
    return refused(Refusal(error.status_code, line, headers=error.headers))


async def _unexpected(request: Request, error: Exception) -> Response:
    """A defect of ours. The log has the traceback, the answer tells nothing. It does not pass the gate."""
    return refused(Refusal(500, "shoal has a defect here: its output has the traceback", headers=HEADERS))
