"""The HTTP fetcher (HTTP/1.1, HTTP/2): one request, one response, within all limits of time and size."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Final

import msgspec
from pyreqwest.bytes import Bytes
from pyreqwest.exceptions import PyreqwestError
from pyreqwest.http import HeaderMap
from pyreqwest.request import StreamRequest
from pyreqwest.response import Response as Answer
from pyreqwest.response import ResponseBodyReader

from shoal.fetch.base import Fault, FaultKind, Fetch, Response
from shoal.fetch.clients import FOREVER, IdleCloser
from shoal.fetch.decode import decompress, too_large
from shoal.fetch.descriptors import has_source
from shoal.fetch.exits import ExitConfig
from shoal.fetch.faults import explain, lacks_a_port, never_connected
from shoal.fetch.guard import Lookup
from shoal.fetch.proxies import (
    AddressRoutes,
    ProxyRoutes,
    address_fault,
    gateway_answer,
    gateway_fault,
    gateway_headers,
    gateway_url,
    proxy_answer,
    proxy_fault,
)
from shoal.fetch.raw_headers import RawHeaders, raw_values
from shoal.fetch.routes import Route, Routes
from shoal.model import DIRECT
from shoal.settings.table import Settings

MAX_CHUNKS: Final = 4096
INLINE_WIRE_BYTES: Final = 256 * 1024
INLINE_BYTES: Final = 1024 * 1024

TIMEOUTS: Final = frozenset({FaultKind.TIMEOUT_FIRST_BYTE, FaultKind.TIMEOUT_IDLE, FaultKind.TIMEOUT_TOTAL})

# Only the client sets these: a request could name another host than the vetted one, or smuggle a second request.
FORBIDDEN_HEADERS: Final = frozenset(
    {
        "connection",
        "content-length",
        "host",
        "keep-alive",
        "proxy-authorization",  # belongs to the proxy in use, never to a page
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


class Deadline:
    """Inside `with`, the current task gets a TimeoutError once `at` (the loop's time) has passed.

    Setting `at` costs nothing: the only timer fires at `checked_at`, which must not be later than any `at`, and again
    if `at` was moved. If the task is cancelled just as the HTTP client has its answer, the client returns the answer
    and swallows the CancelledError: loops also call `check`."""

    __slots__ = ("_before", "_loop", "_task", "_timer", "at", "is_over")

    def __init__(self, at: float, *, checked_at: float) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a deadline needs a task")
        self.at = at
        self.is_over = False
        self._task = task
        self._before = task.cancelling()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_at(checked_at, self._check)

    def __enter__(self) -> Deadline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._timer.cancel()
        cancelling = self._task.uncancel() if self.is_over else self._task.cancelling()
        if cancelling > self._before:
            # The task was also cancelled from outside: that must not get lost.
            if kind is not asyncio.CancelledError:
                raise asyncio.CancelledError
        elif kind is asyncio.CancelledError and self.is_over:
            raise TimeoutError from error

    def check(self) -> None:
        """Raise TimeoutError if the time is up."""
        if self.is_over:
            raise TimeoutError

    def _check(self) -> None:
        if self.at > self._loop.time():
            self._timer = self._loop.call_at(self.at, self._check)
        else:
            self.is_over = True
            self._task.cancel()


class HttpFetcher:
    """Fetches pages over HTTP; connects only to addresses that the guard allows."""

    def __init__(
        self,
        settings: Settings,
        *,
        exits: Mapping[str, ExitConfig] | None = None,
        resolver: Lookup | None = None,
        clock: Callable[[], float] = time.monotonic,
        trusted_roots: bytes | None = None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._routes = Routes(settings, lookup=resolver, clock=clock, trusted_roots=trusted_roots)
        self._exits = exits or {}
        self._proxies = ProxyRoutes(settings, routes=self._routes, clock=clock, trusted_roots=trusted_roots)
        self._gateways: Routes | None = None
        if any(config.kind == "gateway" for config in self._exits.values()):
            # The operator chose the gateways, so they may be at private addresses.
            trusting = msgspec.structs.replace(settings, allow_private=True)
            self._gateways = Routes(trusting, lookup=resolver, clock=clock, trusted_roots=trusted_roots)
        self._addresses = AddressRoutes(
            self._routes, addresses=sum(config.kind == "address" for config in self._exits.values())
        )
        self._raw_headers = RawHeaders()
        self._idle_closer = IdleCloser(self._close_idle, clock=clock)
        self._max_bytes = settings.max_body_bytes
        self._first_byte = settings.first_byte_seconds or FOREVER
        self._total = settings.total_seconds or FOREVER
        self._idle = settings.idle_seconds or FOREVER

    async def fetch(self, request: Fetch) -> Response | Fault:
        """Send the request and read the whole response, within every limit. Follows no redirect."""
        started = self._clock()
        try:
            answer = await self._fetch(request, started)
        except Exception as error:  # the contract: a fault is a value
            kind, message = explain(error, secure=request.url.startswith("https:"))
            answer = Fault(kind=kind, message=message)
        if isinstance(answer, Fault):
            if answer.kind is FaultKind.SHORTAGE:
                self._idle_closer.begin()
            return msgspec.structs.replace(answer, elapsed=self._clock() - started)
        return answer

    def _close_idle(self) -> None:
        for routes in (self._routes, self._gateways):
            if routes is not None:
                routes.close_idle()
        self._proxies.close_idle()
        self._addresses.close_idle()

    async def close(self) -> None:
        """Close idle connections."""
        self._idle_closer.end()
        await self._addresses.close()
        await self._routes.close()
        await self._proxies.close()
        await self._raw_headers.close()
        if self._gateways is not None:
            await self._gateways.close()

    async def _fetch(self, request: Fetch, started: float) -> Response | Fault:
        if request.exit == DIRECT:
            return await self._directly(request, request.url, started, routes=self._routes)
        config = self._exits.get(request.exit)
        if config is None:
            return Fault(
                kind=FaultKind.EXIT, message=f"{request.exit}: this worker's proxies and accounts have no such exit"
            )
        if self._gateways is not None and config.kind == "gateway":
            return await self._by_gateway(config, request, started, routes=self._gateways)
        if config.kind == "address":
            return await self._from_address(config, request, started)
        request = _with_agent(request, config.user_agent)
        if not config.url:
            return await self._directly(request, request.url, started, routes=self._routes)
        return await self._by_proxy(config, request, started)

    async def _directly(self, request: Fetch, url: str, started: float, *, routes: Routes) -> Response | Fault:
        origin, path = _split(url)
        until = asyncio.get_running_loop().time() + self._total
        route = routes.known(origin) or await routes.find(origin)
        while isinstance(route, Route):
            try:
                answer = await self._exchange(request, route, path, started, until)
                if isinstance(answer, Fault) and answer.kind in TIMEOUTS:
                    routes.forget(origin)
                return answer
            except PyreqwestError as error:
                following = await routes.next_address(origin, route) if never_connected(error) else None
                if following is None:
                    if routes.source == "" and lacks_a_port(error) and not has_source(route.addresses[0]):
                        return Fault(kind=FaultKind.CONNECT, message=explain(error, secure=False)[1])
                    raise
                route = following
        return route

    async def _from_address(self, config: ExitConfig, request: Fetch, started: float) -> Response | Fault:
        try:
            return await self._directly(request, request.url, started, routes=self._addresses.of(config.address))
        except PyreqwestError as error:
            lost = address_fault(config, error)
            if lost is None:
                raise
            return lost

    async def _by_proxy(self, config: ExitConfig, request: Fetch, started: float) -> Response | Fault:
        origin, path = _split(request.url)
        secure = origin.startswith("https:")
        until = asyncio.get_running_loop().time() + self._total
        route = await self._proxies.find(origin, config)
        if isinstance(route, Fault):
            return route
        try:
            answer = await self._exchange(request, route, path, started, until)
        except PyreqwestError as error:
            return proxy_fault(config, error, secure=secure)
        return answer if isinstance(answer, Fault) else proxy_answer(config, answer, secure=secure)

    async def _by_gateway(
        self, config: ExitConfig, request: Fetch, started: float, *, routes: Routes
    ) -> Response | Fault:
        target = await self._proxies.vetted(_split(request.url)[0])
        if isinstance(target, Fault):
            return target
        asked = msgspec.structs.replace(request, headers=gateway_headers(config, request.headers))
        try:
            return gateway_answer(
                config, await self._directly(asked, gateway_url(config, request.url), started, routes=routes)
            )
        except PyreqwestError as error:
            return gateway_fault(config, error)

    async def _exchange(
        self, request: Fetch, route: Route, path: str, started: float, until: float
    ) -> Response | Fault:
        now = asyncio.get_running_loop().time()
        first_byte_at = min(until, now + self._first_byte)
        headers: dict[str, str] | None = None
        try:
            with Deadline(first_byte_at, checked_at=min(first_byte_at, now + self._idle)) as deadline:
                built = (
                    await self._with_headers(request, route, path) if request.headers else _built(request, route, path)
                )
                async with built as answer:
                    status, headers = answer.status, _headers(answer)
                    if headers is None:
                        headers = await self._raw_headers_of(answer)
                    if request.method != "HEAD" and _announced(headers) > self._max_bytes:
                        return too_large(self._max_bytes)
                    if (coding := _unknown_transfer(headers)) is not None:
                        return Fault(kind=FaultKind.BAD_ENCODING, message=f"unknown Transfer-Encoding {coding[:40]!r}")
                    began_body = self._clock()
                    chunks = await self._read(answer.body_reader, deadline, until)
        except PyreqwestError:  # some of them are TimeoutErrors too
            raise
        except TimeoutError:
            return self._timed_out(is_in_body=headers is not None, until=until)
        if isinstance(chunks, Fault):
            return chunks
        body = chunks[0].to_bytes() if len(chunks) == 1 else b"".join(chunks)
        wire_size = len(body)
        encoding = headers.get("content-encoding")
        if encoding and wire_size:
            plain = await self._decompressed(body, encoding)
            if isinstance(plain, Fault):
                return plain
            body = plain
        ended = self._clock()
        return Response(
            url=request.url,
            status=status,
            headers=headers,
            body=body,
            wire_size=wire_size,
            elapsed=ended - started,
            body_elapsed=ended - began_body,
        )

    async def _with_headers(self, request: Fetch, route: Route, path: str) -> StreamRequest:
        """The request to send; header values that are no UTF-8 are made by RawHeaders."""
        try:
            return _built(request, route, path)
        except ValueError:
            raw = raw_values(request.headers or {})
            if not raw:
                raise
        made = [await self._raw_headers.make(name, value) for name, value in raw.items()]
        plain = {name: value for name, value in (request.headers or {}).items() if name not in raw}
        return _built(msgspec.structs.replace(request, headers=plain), route, path, made)

    async def _raw_headers_of(self, answer: Answer) -> dict[str, str]:
        """The headers of a response of which some are not ASCII."""
        values: dict[str, list[str]] = {}
        for name, value in await self._raw_headers.read(answer.headers):
            values.setdefault(name, []).append(value)
        return {name: _joined(name, several) for name, several in values.items()}

    async def _read(self, reader: ResponseBodyReader, deadline: Deadline, until: float) -> list[Bytes] | Fault:
        """The body's chunks, not yet decompressed; each chunk moves the deadline."""
        loop_time = asyncio.get_running_loop().time
        chunks: list[Bytes] = []
        size = 0
        while True:
            deadline.check()
            deadline.at = min(until, loop_time() + self._idle)
            chunk = await reader.read_chunk()
            if chunk is None:
                return chunks
            size += len(chunk)
            if size > self._max_bytes:
                return too_large(self._max_bytes)
            chunks.append(chunk)
            if len(chunks) >= MAX_CHUNKS:
                # Millions of one-byte chunks would take a hundred times their memory.
                chunks = [Bytes(b"".join(chunks))]

    async def _decompressed(self, body: bytes, encoding: str) -> bytes | Fault:
        """The decompressed body; a large one is decompressed in a thread, not to block the loop."""
        ratio = self._settings.max_ratio
        if len(body) <= INLINE_WIRE_BYTES:
            inline = min(INLINE_BYTES, self._max_bytes)
            plain = decompress(body, encoding, max_bytes=inline, max_ratio=ratio)
            is_cut = isinstance(plain, Fault) and plain.kind is FaultKind.TOO_LARGE
            if not is_cut or inline == self._max_bytes:
                return plain
        return await asyncio.to_thread(decompress, body, encoding, max_bytes=self._max_bytes, max_ratio=ratio)

    def _timed_out(self, *, is_in_body: bool, until: float) -> Fault:
        settings = self._settings
        if asyncio.get_running_loop().time() >= until:
            return Fault(kind=FaultKind.TIMEOUT_TOTAL, message=f"not done within {settings.total_seconds:g} s")
        if is_in_body:
            return Fault(kind=FaultKind.TIMEOUT_IDLE, message=f"silent for {settings.idle_seconds:g} s")
        return Fault(kind=FaultKind.TIMEOUT_FIRST_BYTE, message=f"no answer within {settings.first_byte_seconds:g} s")


def _split(url: str) -> tuple[str, str]:
    """The origin of a URL and the rest: path and query."""
    slash = url.find("/", 8)
    return (url[:slash], url[slash:]) if slash > 0 else (url, "/")


def _with_agent(request: Fetch, user_agent: str) -> Fetch:
    """The request with the account's User-Agent, unless it has its own."""
    headers = request.headers or {}
    if not user_agent or any(name.lower() == "user-agent" for name in headers):
        return request
    return msgspec.structs.replace(request, headers={**headers, "User-Agent": user_agent})


def _built(request: Fetch, route: Route, path: str, raw: Sequence[HeaderMap] = ()) -> StreamRequest:
    builder = route.client.request(request.method, route.prefix + path)
    if route.host is not None:
        builder.header("Host", route.host)
    if request.headers:
        builder.headers([pair for pair in request.headers.items() if pair[0].lower() not in FORBIDDEN_HEADERS])
    for headers in raw:
        builder.headers(headers)
    if request.body is not None:
        builder.body_bytes(request.body)
    # No reading ahead: the response is ready with its headers, as the first-byte deadline needs.
    builder.streamed_read_buffer_limit(0)
    return builder.build_streamed()


def _headers(answer: Answer) -> dict[str, str] | None:
    """The headers of a response; None: some are not ASCII, which the client cannot return as text."""
    try:
        pairs = answer.headers.dict_multi_value()
    except ValueError:
        return None
    return {name: value if isinstance(value, str) else _joined(name, value) for name, value in pairs.items()}


def _announced(headers: dict[str, str]) -> int:
    length = headers.get("content-length", "")
    return int(length) if length.isdecimal() and len(length) < 20 else 0


def _unknown_transfer(headers: dict[str, str]) -> str | None:
    """A transfer coding besides `chunked`, which the client does not undo; None: there is none."""
    named = headers.get("transfer-encoding", "chunked")
    if named == "chunked":
        return None
    names = named.lower().split(",")
    return next((name for name in map(str.strip, names) if name not in ("chunked", "identity", "")), None)


def _joined(name: str, values: list[str]) -> str:
    """The value of a header that was sent more than once."""
    match name:
        case "set-cookie":
            return "\n".join(values)
        case "location":
            return values[0]
        case "content-type":
            return _last_type(values)
        case _:
            return ", ".join(values)


def _last_type(values: list[str]) -> str:
    """The Content-Type that browsers use: the last usable one; a repeated type without charset is ignored."""
    found = ""
    for value in values:
        kind = _media_type(value)
        repeats = kind == _media_type(found) and "charset" not in value.lower()
        if "/" in kind and kind != "*/*" and not repeats:
            found = value
    return found or values[0]


def _media_type(value: str) -> str:
    return value.partition(";")[0].strip().lower()
