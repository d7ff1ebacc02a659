"""Server-sent events over HTTP."""

from __future__ import annotations

from starlette.responses import Response, StreamingResponse

from shoal.serve.answers import Refusal
from shoal.serve.events import Watching
from shoal.serve.operations import PREFIX, Call

# Proxies that collect an answer before they pass it on would hold events back.
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


async def watch(call: Call) -> Response:
    """What changes, as it changes: all crawls, what cannot be reached and, with `crawl`, that crawl in detail."""
    name: str | None = call.query.crawl
    if name is not None:
        async with call.frontier() as frontier:
            if name not in {crawl.id for crawl in await call.parts.board.crawls(frontier)}:
                raise Refusal(404, f"there is no crawl {name!r} here: GET {PREFIX}/crawls lists them")
    if call.request.method == "HEAD":
        # Without a body nobody would notice that the stream goes on.
        return Response(media_type="text/event-stream", headers=dict(STREAM_HEADERS))
    watching: Watching = call.request.app.state.watching
    return StreamingResponse(await watching.stream(name), media_type="text/event-stream", headers=dict(STREAM_HEADERS))
