"""The serving process over HTTP: status, sign-in, health, metrics, server-sent events."""

from __future__ import annotations

from starlette.responses import Response, StreamingResponse

from shoal.errors import ShoalError
from shoal.serve.access import COOKIE, SESSION_SECONDS, Role, checked_token, client_of
from shoal.serve.answers import Refusal, json_answer
from shoal.serve.api.operations import PREFIX, Call
from shoal.serve.api.shapes import Health, SignedIn, Status
from shoal.serve.duties import SinkSeen, firing, sinks_seen
from shoal.serve.events import Watching
from shoal.serve.metrics import CONTENT_TYPE, metrics_text
from shoal.text.secrets import masked
from shoal.version import __version__

# Tells buffering proxies to pass events on at once.
STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


async def watch(call: Call) -> Response:
    """What changes, as it changes: all crawls, what cannot be reached and, with `crawl`, that crawl in detail."""
    name: str | None = call.query.crawl
    if name is not None:
        async with call.frontier() as frontier:
            if name not in {crawl.id for crawl in await call.parts.board.crawls(frontier)}:
                raise Refusal(404, f"there is no crawl {name!r} here: GET {PREFIX}/crawls lists them")
    if call.request.method == "HEAD":
        # HEAD has no body: the stream would never end.
        return Response(media_type="text/event-stream", headers=dict(STREAM_HEADERS))
    watching: Watching = call.request.app.state.watching
    return StreamingResponse(await watching.stream(name), media_type="text/event-stream", headers=dict(STREAM_HEADERS))


async def show_status(call: Call) -> Status:
    """What this process serves, what it cannot reach, and what the caller may do."""
    places = call.parts.places
    return Status(
        version=__version__,
        frontier=masked(places.frontier),
        store=masked(places.store) if places.store else None,
        archive=masked(places.archive) if places.archive else None,
        problems=await call.parts.probe(),
        role=call.role,
        spiders=call.parts.spiders.names(),
        alerts=await firing(call.parts),
    )


async def sign_in(call: Call) -> Response:
    """Open a session for a browser: the answer sets its cookie."""
    access, request = call.parts.access, call.request
    role: Role = "admin"
    if not access.is_open:
        role = checked_token(access, call.body.token, client_of(request))
    answer = json_answer(SignedIn(role=role), status=201)
    if not access.is_open:
        answer.set_cookie(
            COOKIE,
            access.sign_in(role),
            max_age=int(SESSION_SECONDS),
            path="/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
    return answer


async def sign_out(call: Call) -> Response:
    """End the session of this browser."""
    call.parts.access.sign_out(call.request.cookies.get(COOKIE, ""))
    answer = Response(status_code=204)
    answer.delete_cookie(COOKIE, path="/", httponly=True, samesite="strict")
    return answer


async def show_health(call: Call) -> Health:
    """The process lives."""
    return Health(ok=True)


async def show_readiness(call: Call) -> Response:
    """The frontier and the store answer."""
    problems = await call.parts.probe()
    return json_answer(Health(ok=not problems, problems=problems), status=503 if problems else 200)


async def show_metrics(call: Call) -> Response:
    """Figures of this process and of all crawls, in the format of Prometheus."""
    surveyor = call.parts.surveyor
    sinks: list[SinkSeen] = []
    try:
        async with call.frontier() as frontier, call.parts.inbox.using() as inbox:
            await surveyor.look(frontier, inbox)
        sinks = await sinks_seen(call.parts)
        reached = True
    except (ShoalError, OSError):
        # Answer with `shoal_frontier_up` 0 and the process's own metrics.
        reached = False
    text = metrics_text(surveyor, sinks, reached=reached)
    return Response(text, headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})
