"""Operations of the API: their types, and how a request becomes a call of one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from shoal.errors import ShoalError
from shoal.frontier.base import Frontier
from shoal.model import Crawl
from shoal.serve.access import Role, log_change, log_refusal
from shoal.serve.answers import JSON, Refusal, json_answer, out_of_reach, refusal_of, refused
from shoal.serve.api.shapes import NoQuery, Shape, StartedCrawl
from shoal.serve.parts import Parts

PREFIX = "/api/v1"
MOST_BODY = 1024 * 1024
CHANGE_SECONDS = 60.0
LONG_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class Call:
    """One request to an operation, with its query and body decoded."""

    request: Request
    parts: Parts
    query: Any
    body: Any

    @property
    def role(self) -> Role:
        role: Role = self.request.state.role
        return role

    @property
    def name(self) -> str:
        """The crawl in the path."""
        name: str = self.request.path_params["crawl"]
        return name

    def frontier(self) -> AbstractAsyncContextManager[Frontier]:
        """The frontier, for calls that only read."""
        return self.parts.frontier.using()

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[tuple[Frontier, Crawl]]:
        """The frontier and the crawl in the path, for calls that only read."""
        async with self.parts.frontier.using() as frontier:
            yield frontier, await self._crawl(frontier)

    @asynccontextmanager
    async def reading_long(self) -> AsyncIterator[tuple[Frontier, Crawl]]:
        """Like `reading`, with a longer time limit once the frontier has answered."""
        async with self.reading() as (_, crawl):
            pass
        async with self.parts.frontier.using(seconds=LONG_SECONDS) as frontier:
            yield frontier, crawl

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[tuple[Frontier, Crawl]]:
        """Like `reading`, for calls that change the crawl: a longer time limit, and its readings expire afterwards."""
        async with self.reading() as (_, crawl):
            pass
        async with self.parts.frontier.using(seconds=CHANGE_SECONDS) as frontier:
            try:
                yield frontier, crawl
            finally:
                self.parts.board.expire(crawl.id)

    async def _crawl(self, frontier: Frontier) -> Crawl:
        crawls = await self.parts.board.crawls(frontier)
        found = next((crawl for crawl in crawls if crawl.id == self.name), None)
        if found is None:
            raise Refusal(404, f"there is no crawl {self.name!r} here: GET {PREFIX}/crawls lists them")
        if found.refusal:
            raise Refusal(409, found.refusal)
        return found


Handle = Callable[[Call], Awaitable[Any]]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One method of one path. `answer` None: no content; a text: another media type than JSON.

    `body` is the type of a JSON body, or the media types of a streamed one. `errors`: statuses beyond the usual ones;
    `refusal`: the type of errors that are more than one line."""

    method: str
    path: str
    handle: Handle
    answer: type[msgspec.Struct] | str | None
    query: type[msgspec.Struct] = NoQuery
    body: type[msgspec.Struct] | tuple[str, ...] | None = None
    status: int = 200
    errors: tuple[int, ...] = ()
    refusal: type[Shape] | None = None
    prefix: str = PREFIX

    @property
    def name(self) -> str:
        """The name in the OpenAPI document: that of its function."""
        return str(self.handle.__name__)

    @property
    def full_path(self) -> str:
        return self.prefix + self.path


def routes(operations: Sequence[Operation], parts: Parts) -> list[Route]:
    """The operations as routes of the app, one for each path, so that 405 can name the methods."""
    by_path: dict[str, dict[str, Operation]] = {}
    for operation in operations:
        by_path.setdefault(operation.full_path, {})[operation.method] = operation
    return [_route(path, methods, parts) for path, methods in by_path.items()]


def _route(path: str, methods: Mapping[str, Operation], parts: Parts) -> Route:
    async def endpoint(request: Request) -> Response:
        operation = methods["GET" if request.method == "HEAD" else request.method]
        try:
            return await _answer(operation, request, parts)
        except (Refusal, ShoalError, OSError, TimeoutError) as error:
            refusal = _refusal_of(error)
            log_refusal(request, operation.name, refusal)
            return refused(refusal)

    return Route(path, endpoint, methods=list(methods))


def _refusal_of(error: Exception) -> Refusal:
    if isinstance(error, Refusal):
        return error
    if isinstance(error, ShoalError):
        return refusal_of(error)
    return out_of_reach(f"a server or a file cannot be used: {error}")


async def _answer(operation: Operation, request: Request, parts: Parts) -> Response:
    query = query_of(request, operation.query)
    body = await body_of(request, operation.body) if isinstance(operation.body, type) else None
    found = await operation.handle(Call(request=request, parts=parts, query=query, body=body))
    log_change(request, operation.name, crawl=found.id if isinstance(found, StartedCrawl) else None)
    if isinstance(found, Response):
        return found
    if operation.answer is None:
        return Response(status_code=operation.status, headers={"Cache-Control": "no-store"})
    return json_answer(found, status=operation.status)


def query_of(request: Request, kind: type[msgspec.Struct]) -> msgspec.Struct:
    """Decode the query."""
    given = request.query_params.multi_items()
    names = [name for name, _ in given]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise Refusal(422, f"the parameter {twice!r} is given twice: give it once")
    try:
        found = msgspec.convert(dict(given), kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refusal(422, f"the query is not understood: {error}") from None
    # The text "null" would count as a missing parameter.
    if nothing := next((name for name in names if getattr(found, name) is None), None):
        raise Refusal(422, f"the parameter {nothing!r} has no value: leave it out")
    return found


async def body_of(request: Request, kind: type[msgspec.Struct]) -> msgspec.Struct:
    """Decode the JSON body."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != JSON:
        raise Refusal(415, f"the body must be JSON: send Content-Type: {JSON}")
    whole = await _bounded(request)
    try:
        return msgspec.json.decode(whole, type=kind)
    except msgspec.ValidationError as error:
        raise Refusal(422, f"the body is not understood: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(400, f"the body is no JSON: {error}") from None


async def _bounded(request: Request) -> bytes:
    too_large = Refusal(413, f"the body is larger than {MOST_BODY // 1024} KiB: send less at once")
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > MOST_BODY:
        raise too_large
    found = bytearray()
    try:
        async for chunk in request.stream():
            found += chunk
            if len(found) > MOST_BODY:
                raise too_large
    except ClientDisconnect:
        raise Refusal(400, "the body ended early") from None
    return bytes(found)
