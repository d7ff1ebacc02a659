"""A small HTTP/1.1 server on loopback that logs its requests by its own clock."""

from __future__ import annotations

import asyncio
import errno
import itertools
import json
import math
import re
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple, TextIO, cast

from shoal.testing.sites.catalogue import Page

PORT_TRIES = 20
MAX_HEAD_BYTES = 64 * 1024


class Hit(NamedTuple):
    """One request as the site saw it: `time` is the monotonic clock after its head was read, `wall` the calendar time,
    `peer` the address of the client."""

    time: float
    wall: float
    host: str
    method: str
    path: str
    user_agent: str
    status: int
    peer: str = ""


class Request(NamedTuple):
    """One request. `host` is the connected address, `path` includes the query, header names are lower case."""

    host: str
    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    peer: str = ""


class Reply(NamedTuple):
    """An encoded response, sent after `delay` seconds."""

    status: int
    head: bytes
    body: bytes
    delay: float = 0.0


def reply(
    body: str | bytes,
    *,
    status: int = 200,
    kind: str = "text/html; charset=utf-8",
    headers: Mapping[str, str] | None = None,
    delay: float = 0.0,
) -> Reply:
    """A response with its head encoded."""
    payload = body.encode() if isinstance(body, str) else body
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(payload)}",
        *(f"{name}: {value}" for name, value in (headers or {}).items()),
    ]
    return Reply(status, ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"), payload, delay)


def pace_violations(hits: Iterable[Hit], *, interval: float, tolerance: float = 0.0) -> int:
    """How many consecutive requests to one host were closer together than the interval less the tolerance."""
    closest = interval - tolerance
    return sum(
        later - earlier < closest
        for times in _times_by_host(hits).values()
        for earlier, later in itertools.pairwise(times)
    )


def busiest_window(hits: Iterable[Hit], *, seconds: float = 1.0) -> int:
    """The most requests to one host within any window of this length."""
    most = 0
    for times in _times_by_host(hits).values():
        window: deque[float] = deque()
        for now in times:
            window.append(now)
            while window[0] <= now - seconds:
                window.popleft()
            most = max(most, len(window))
    return most


def read_log(path: Path) -> list[Hit]:
    """The hits in a log file; a partly written last line is left out."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [Hit(**json.loads(line)) for line in lines]


def _times_by_host(hits: Iterable[Hit]) -> dict[str, list[float]]:
    times: dict[str, list[float]] = defaultdict(list)
    for hit in hits:
        times[hit.host].append(hit.time)
    return {host: sorted(of_host) for host, of_host in times.items()}


@dataclass(kw_only=True)
class LoopbackServer:
    """Serves `answer` on one port of several loopback addresses.

    `rate_limit=(n, seconds)` answers 429 with Retry-After above n requests per host in that time; `fail_paths` always
    answers these paths with the given status. `refuses` decides at each request whether it is answered with 503 and
    `Retry-After: 1`."""

    answer: Callable[[Request], Reply]
    hosts: Sequence[str] = ("127.0.0.1",)
    port: int = 0
    rate_limit: tuple[int, float] | None = None
    fail_paths: Mapping[str, int] = field(default_factory=dict)
    log: Path | None = None
    refuses: Callable[[float], bool] | None = None
    requests: list[Hit] = field(default_factory=list, init=False)
    in_flight: Counter[str] = field(default_factory=Counter, init=False)
    peak_in_flight: Counter[str] = field(default_factory=Counter, init=False)
    peak_connections: int = field(default=0, init=False)
    _servers: list[asyncio.Server] = field(default_factory=list, init=False)
    _connections: set[_Connection] = field(default_factory=set, init=False)
    _accepted: dict[str, deque[float]] = field(default_factory=lambda: defaultdict(deque), init=False)
    _log_file: TextIO | None = field(default=None, init=False)

    async def start(self) -> None:
        """Bind every host; further hosts that this machine does not have are left out."""
        for _ in range(PORT_TRIES):
            if await self._bind_all():
                break
            await self.close()
        else:
            raise OSError(errno.EADDRINUSE, f"no port is free on all of {', '.join(self.hosts)}")
        if self.log is not None:
            self._log_file = self.log.open("a", buffering=1, encoding="utf-8")

    async def close(self) -> None:
        """Stop listening, close the connections and the log."""
        for server in self._servers:
            server.close()
        for connection in list(self._connections):
            connection.abort()
        for server in self._servers:
            await server.wait_closed()
        self._servers.clear()
        if self._log_file is not None:
            self._log_file.close()
            self._log_file = None

    def take(self, request: Request, *, now: float) -> Reply:
        """Answer one request and log it."""
        result = self._answer(request, now=now)
        agent = request.headers.get("user-agent", "")
        hit = Hit(now, time.time(), request.host, request.method, request.path, agent, result.status, request.peer)
        self.requests.append(hit)
        if self._log_file is not None:
            self._log_file.write(json.dumps(hit._asdict()) + "\n")
        return result

    def begin(self, host: str) -> None:
        self.in_flight[host] += 1
        if self.in_flight[host] > self.peak_in_flight[host]:
            self.peak_in_flight[host] = self.in_flight[host]

    def end(self, host: str) -> None:
        self.in_flight[host] -= 1

    def opened(self, connection: _Connection) -> None:
        self._connections.add(connection)
        self.peak_connections = max(self.peak_connections, len(self._connections))

    def closed(self, connection: _Connection) -> None:
        self._connections.discard(connection)

    async def _bind_all(self) -> bool:
        loop = asyncio.get_running_loop()
        port = self.port
        bound: list[str] = []
        for host in self.hosts:
            try:
                server = await loop.create_server(partial(_Connection, self, host), host, port, backlog=1024)
            except OSError as error:
                if bound and error.errno == errno.EADDRNOTAVAIL:
                    continue
                if bound and error.errno == errno.EADDRINUSE and not self.port:
                    return False
                await self.close()
                raise
            self._servers.append(server)
            bound.append(host)
            port = server.sockets[0].getsockname()[1]
        self.hosts, self.port = tuple(bound), port
        return True

    def _answer(self, request: Request, *, now: float) -> Reply:
        wait = self._over_limit(request.host, now=now)
        if wait > 0:
            return reply("slower, please", status=429, kind="text/plain", headers={"Retry-After": str(math.ceil(wait))})
        if self.refuses is not None and self.refuses(now):
            return reply("not now", status=503, kind="text/plain", headers={"Retry-After": "1"})
        status = self.fail_paths.get(request.path)
        if status is not None:
            return reply(HTTPStatus(status).phrase, status=status, kind="text/plain")
        return self.answer(request)

    def _over_limit(self, host: str, *, now: float) -> float:
        if self.rate_limit is None:
            return 0.0
        most, seconds = self.rate_limit
        accepted = self._accepted[host]
        while accepted and accepted[0] <= now - seconds:
            accepted.popleft()
        if len(accepted) >= most:
            return accepted[0] + seconds - now
        accepted.append(now)
        return 0.0


class _Connection(asyncio.Protocol):
    """One client. Requests are answered one after the other, in order."""

    def __init__(self, server: LoopbackServer, host: str) -> None:
        self._server = server
        self._host = host
        self._peer = ""
        self._buffer = b""
        self._waiting: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's own kind, not a subclass
        self._peer = str((transport.get_extra_info("peername") or ("",))[0])
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
            self._server.end(self._host)
        self._transport = None
        self._server.closed(self)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._serve()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _serve(self) -> None:
        while self._waiting is None and self._transport is not None and not self._transport.is_closing():
            request = self._next_request()
            if request is None:
                return
            result = self._server.take(request, now=time.monotonic())
            self._server.begin(self._host)
            if result.delay > 0:
                loop = asyncio.get_running_loop()
                self._waiting = loop.call_later(result.delay, self._send_late, request, result)
            else:
                self._send(request, result)

    def _next_request(self) -> Request | None:
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                self.abort()
            return None
        first, *lines = self._buffer[:end].decode("latin-1").split("\r\n")
        words = first.split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = headers.get("content-length", "0")
        if len(words) != 3 or not length.isdecimal() or "transfer-encoding" in headers:
            self.abort()
            return None
        stop = end + 4 + int(length)
        if len(self._buffer) < stop:
            return None
        body = self._buffer[end + 4 : stop]
        self._buffer = self._buffer[stop:]
        return Request(self._host, words[0], words[1], headers, body, self._peer)

    def _send_late(self, request: Request, result: Reply) -> None:
        self._waiting = None
        self._send(request, result)
        self._serve()

    def _send(self, request: Request, result: Reply) -> None:
        self._server.end(self._host)
        if self._transport is None:
            return
        self._transport.write(result.head if request.method == "HEAD" else result.head + result.body)
        if request.headers.get("connection", "").lower() == "close":
            self._transport.close()


NUMBERED = re.compile(r"/(?:catalogue/page-|slow/|flaky/|g/)(\d{1,9})(?:\.html)?")


def page_reply(page: Page | None, *, delay: float) -> Reply:
    """The page, or a 404."""
    if page is None:
        return reply("<title>Not found</title><h1>Not found</h1>", status=404, delay=delay)
    return reply(page.body, kind=page.kind, delay=delay)


def number_of(path: str) -> int:
    """The number in a path, or -1."""
    match = NUMBERED.fullmatch(path)
    return int(match[1]) if match else -1
