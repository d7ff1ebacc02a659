"""Connections for a rendered page: to addresses that the guard allows, directly or through the exit of its lease.

The proxy on loopback that all requests of a rendered page leave through: it asks the guard, and counts.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ipaddress
import ssl
import time
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from shoal.fetch.addresses import family_of
from shoal.fetch.base import Fault, FaultKind
from shoal.fetch.exits import ExitConfig
from shoal.fetch.guard import Lookup
from shoal.fetch.proxies import ProxyRoutes, fault_of
from shoal.fetch.routes import Origin, Routes, lacks_family, parse_origin
from shoal.settings.table import Settings

HEAD_BYTES: Final = 64 * 1024


class Line(NamedTuple):
    """An open connection. `wants_url`: a plain proxy is at its other end, which takes requests with whole URLs;
    `credentials` are for that proxy."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    wants_url: bool = False
    credentials: str = ""


class Dialer:
    """Opens connections for pages. Nobody else in this worker connects for a browser."""

    def __init__(
        self, settings: Settings, *, lookup: Lookup | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = settings.connect_seconds or None
        self._routes = Routes(settings, lookup=lookup, clock=clock, trusted_roots=None)
        self._proxies = ProxyRoutes(settings, routes=self._routes, clock=clock, trusted_roots=None)

    async def close(self) -> None:
        """Give up look-ups."""
        await self._routes.close()
        await self._proxies.close()

    async def dial(self, host: str, port: int, config: ExitConfig | None, *, is_plain: bool) -> Line | Fault:
        """A connection to this host, or why there is none. `is_plain`: for one request over plain HTTP."""
        origin = parse_origin(f"http://{host}:{port}")
        if origin is None:
            return Fault(kind=FaultKind.BAD_URL, message=f"not a host and port: {host[:80]}:{port}")
        try:
            async with asyncio.timeout(self._seconds):
                if config is None or not config.url:
                    return await self._directly(origin, port, source=config.address if config else "")
                return await self._by_proxy(origin, port, config, is_plain=is_plain)
        except TimeoutError:
            if config is not None and config.url:
                return fault_of(config, f"no connection within {self._seconds:g} s")
            return Fault(kind=FaultKind.TIMEOUT_CONNECT, message=f"no connection within {self._seconds:g} s")

    async def _directly(self, origin: Origin, port: int, *, source: str) -> Line | Fault:
        addresses = await self._routes.vetted(origin)
        if isinstance(addresses, Fault):
            return addresses
        usable = [address for address in addresses if not source or family_of(address) == family_of(source)]
        if not usable:
            return lacks_family(origin.host, source)
        reason, leaving = "", (source, 0) if source else None
        for address in usable:
            try:
                opened = await asyncio.open_connection(address, port, limit=HEAD_BYTES, local_addr=leaving)
                return Line(*opened)
            except OSError as error:
                reason = error.strerror or type(error).__name__
        return Fault(kind=FaultKind.CONNECT, message=f"{origin.host}: {reason.lower()}")

    async def _by_proxy(self, origin: Origin, port: int, config: ExitConfig, *, is_plain: bool) -> Line | Fault:
        vetted = await self._proxies.vetted(f"http://{origin.host}:{port}")
        if isinstance(vetted, Fault):
            return vetted
        proxy = urlsplit(config.url)
        try:
            tls = ssl.create_default_context() if proxy.scheme == "https" else None
            usual = {"https": 443, "http": 80}.get(proxy.scheme, 1080)
            opened = await asyncio.open_connection(proxy.hostname, proxy.port or usual, ssl=tls, limit=HEAD_BYTES)
        except OSError as error:
            return fault_of(config, f"it cannot be connected to: {error.strerror or error}", is_certain=True)
        line = Line(*opened)
        try:
            if proxy.scheme.startswith("socks"):
                refused = await _socks(line, proxy, origin.host, port)
            elif is_plain:
                return line._replace(wants_url=True, credentials=_basic(proxy))
            else:
                refused = await _tunnel(line, proxy, f"{origin.host}:{port}")
        except (OSError, EOFError, ValueError):
            refused = "it closed the connection"
        except BaseException:
            line.writer.close()
            raise
        if refused:
            line.writer.close()
            return fault_of(config, refused)
        return line


def _basic(proxy: SplitResult) -> str:
    if proxy.username is None:
        return ""
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


async def _tunnel(line: Line, proxy: SplitResult, authority: str) -> str:
    """Ask an HTTP proxy for a tunnel; gives why there is none."""
    credentials = _basic(proxy)
    signed = f"Proxy-Authorization: {credentials}\r\n" if credentials else ""
    line.writer.write(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{signed}\r\n".encode())
    head = await line.reader.readuntil(b"\r\n\r\n")
    status = head.split(b" ", 2)[1]
    if status.startswith(b"2"):
        return ""
    return "it wants other credentials (407)" if status == b"407" else "it refused to open a tunnel"


async def _socks(line: Line, proxy: SplitResult, host: str, port: int) -> str:
    """Ask a SOCKS5 proxy for a connection, by name; gives why there is none."""
    user, password = unquote(proxy.username or "").encode(), unquote(proxy.password or "").encode()
    line.writer.write(b"\x05\x02\x00\x02" if user else b"\x05\x01\x00")
    _, method = await line.reader.readexactly(2)
    if method == 2 and user:
        line.writer.write(bytes([1, len(user)]) + user + bytes([len(password)]) + password)
        _, refused = await line.reader.readexactly(2)
        if refused:
            return "it wants other credentials"
    elif method != 0:
        return "it wants other credentials"
    line.writer.write(b"\x05\x01\x00" + _socks_address(host) + port.to_bytes(2))
    _, refused, _, kind = await line.reader.readexactly(4)
    if refused:
        return f"it refused to connect (SOCKS error {refused})"
    length = {1: 4, 4: 16}.get(kind) or (await line.reader.readexactly(1))[0]
    await line.reader.readexactly(length + 2)
    return ""


def _socks_address(host: str) -> bytes:
    try:
        packed = ipaddress.ip_address(host.strip("[]")).packed
    except ValueError:
        name = host.encode()
        return bytes([3, len(name)]) + name
    return (b"\x01" if len(packed) == 4 else b"\x04") + packed


CHUNK_BYTES: Final = 64 * 1024
MAX_FAULTS: Final = 1000
LOOPBACK: Final = "127.0.0.1"
# Headers between a browser and its proxy, not for the site.
_HOP_HEADERS: Final = (b"proxy-", b"connection:", b"keep-alive:")


class PageProxy:
    """The proxy of one page. A browser that knows no other way cannot go around it: not by redirect, script, worker or
    websocket.

    - `faults`: why hosts were not connected to, by host and port
    - `connections`, `refused`: connections asked for, and those that the guard refused
    - `received`: bytes that came from outside"""

    def __init__(
        self, dialer: Dialer, *, config: ExitConfig | None, most_bytes: int, exceeded: Callable[[str], None]
    ) -> None:
        self._dialer = dialer
        self._config = config
        self._most_bytes = most_bytes
        self._exceeded = exceeded
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self.faults: dict[str, Fault] = {}
        self.connections = self.refused = self.received = 0

    async def open(self) -> str:
        """Begin to serve; gives the URL for the browser."""
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0, limit=HEAD_BYTES)
        port = self._server.sockets[0].getsockname()[1]
        return f"http://{LOOPBACK}:{port}"

    async def close(self) -> None:
        """End all connections of the page."""
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def fault_of(self, url: str) -> Fault | None:
        """Why nothing came from the host of this URL, if the guard or the connection was the reason."""
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme in ("https", "wss") else 80)
        return self.faults.get(_place(parts.hostname or "", port))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._serving.add(task)
        try:
            await self._answer(reader, writer)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            pass  # the browser or the site went away, or sent no HTTP
        except asyncio.CancelledError:
            pass  # the page is over; nobody waits for this task
        finally:
            writer.close()
            if task is not None:
                self._serving.discard(task)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        request, _, headers = head.partition(b"\r\n")
        method, target, _ = request.decode("ascii").split(" ")
        is_tunnel = method == "CONNECT"
        parts = urlsplit(f"//{target}" if is_tunnel else target)
        host, port = parts.hostname or "", parts.port or 80
        self.connections += 1
        line = await self._dialer.dial(f"[{host}]" if ":" in host else host, port, self._config, is_plain=not is_tunnel)
        if isinstance(line, Fault):
            # Closed without an answer: scripts would take any answer for one of the site.
            self._note(_place(host, port), line)
            return
        try:
            if is_tunnel:
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                line.writer.write(_forwarded(method, target, headers, line))
            await self._carry(reader, writer, line, has_head=not is_tunnel)
        finally:
            line.writer.close()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, line: Line, *, has_head: bool
    ) -> None:
        sending = asyncio.create_task(_pump(reader, line.writer))
        try:
            if has_head:
                writer.write(_closing(await line.reader.readuntil(b"\r\n\r\n")))
            await _pump(line.reader, writer, self._count)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    def _count(self, size: int) -> None:
        self.received += size
        if self.received > self._most_bytes:
            self._exceeded(f"the page loaded more than {self._most_bytes} B (render_bytes)")

    def _note(self, place: str, fault: Fault) -> None:
        self.refused += fault.kind is FaultKind.REFUSED_ADDRESS
        if len(self.faults) < MAX_FAULTS:
            self.faults[place] = msgspec.structs.replace(fault, elapsed=0.0)


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Callable[[int], None] | None = None
) -> None:
    """Carry bytes until one side ends."""
    with contextlib.suppress(OSError):
        while chunk := await reader.read(CHUNK_BYTES):
            if count is not None:
                count(len(chunk))
            writer.write(chunk)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


def _forwarded(method: str, target: str, headers: bytes, line: Line) -> bytes:
    """The head of a plain request as the site gets it, or the proxy of the exit. One request a connection: the next
    one may be for another host, which the guard has to see."""
    parts = urlsplit(target)
    path = target if line.wants_url else (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    kept = [one for one in headers.split(b"\r\n") if one and not one.lower().startswith(_HOP_HEADERS)]
    if line.credentials:
        kept.append(f"Proxy-Authorization: {line.credentials}".encode())
    return b"\r\n".join([f"{method} {path} HTTP/1.1".encode(), *kept, b"Connection: close", b"", b""])


def _closing(head: bytes) -> bytes:
    """The head of an answer, which says that the connection ends with it."""
    status, *headers = head.rstrip(b"\r\n").split(b"\r\n")
    kept = [one for one in headers if not one.lower().startswith(_HOP_HEADERS)]
    return b"\r\n".join([status, *kept, b"Connection: close", b"", b""])


def _place(host: str, port: int) -> str:
    return f"{host}:{port}"
