"""The loopback proxy for all requests of a rendered page: connects where the guard allows, directly or through the
exit of the page's lease, and counts bytes and connections."""

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
CHUNK_BYTES: Final = 64 * 1024
MAX_FAULTS: Final = 1000
LOOPBACK: Final = "127.0.0.1"
# Headers for the proxy, not for the site.
_HOP_HEADERS: Final = (b"proxy-", b"connection:", b"keep-alive:")


class Connection(NamedTuple):
    """An open connection. `to_proxy`: it leads to a plain HTTP proxy, whose requests have whole URLs and these
    `credentials`."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    to_proxy: bool = False
    credentials: str = ""


class Dialer:
    """Opens all connections for a worker's rendered pages."""

    def __init__(
        self, settings: Settings, *, lookup: Lookup | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds = settings.connect_seconds or None
        self._routes = Routes(settings, lookup=lookup, clock=clock, trusted_roots=None)
        self._proxies = ProxyRoutes(settings, routes=self._routes, clock=clock, trusted_roots=None)

    async def close(self) -> None:
        """Cancel DNS look-ups."""
        await self._routes.close()
        await self._proxies.close()

    async def dial(self, host: str, port: int, config: ExitConfig | None, *, is_plain: bool) -> Connection | Fault:
        """A connection to a host, or the fault. is_plain: for one request over plain HTTP."""
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

    async def _directly(self, origin: Origin, port: int, *, source: str) -> Connection | Fault:
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
                return Connection(*opened)
            except OSError as error:
                reason = error.strerror or type(error).__name__
        return Fault(kind=FaultKind.CONNECT, message=f"{origin.host}: {reason.lower()}")

    async def _by_proxy(self, origin: Origin, port: int, config: ExitConfig, *, is_plain: bool) -> Connection | Fault:
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
        connection = Connection(*opened)
        try:
            if proxy.scheme.startswith("socks"):
                refused = await _socks(connection, proxy, origin.host, port)
            elif is_plain:
                return connection._replace(to_proxy=True, credentials=_basic(proxy))
            else:
                refused = await _tunnel(connection, proxy, f"{origin.host}:{port}")
        except (OSError, EOFError, ValueError):
            refused = "it closed the connection"
        except BaseException:
            connection.writer.close()
            raise
        if refused:
            connection.writer.close()
            return fault_of(config, refused)
        return connection


def _basic(proxy: SplitResult) -> str:
    if proxy.username is None:
        return ""
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return f"Basic {base64.b64encode(pair.encode()).decode()}"


async def _tunnel(connection: Connection, proxy: SplitResult, authority: str) -> str:
    """Ask an HTTP proxy for a tunnel; returns the error, or an empty text."""
    credentials = _basic(proxy)
    signed = f"Proxy-Authorization: {credentials}\r\n" if credentials else ""
    connection.writer.write(f"CONNECT {authority} HTTP/1.1\r\nHost: {authority}\r\n{signed}\r\n".encode())
    head = await connection.reader.readuntil(b"\r\n\r\n")
    status = head.split(b" ", 2)[1]
    if status.startswith(b"2"):
        return ""
    return "it wants other credentials (407)" if status == b"407" else "it refused to open a tunnel"


async def _socks(connection: Connection, proxy: SplitResult, host: str, port: int) -> str:
    """Ask a SOCKS5 proxy for a connection, by name; returns the error, or an empty text."""
    user, password = unquote(proxy.username or "").encode(), unquote(proxy.password or "").encode()
    connection.writer.write(b"\x05\x02\x00\x02" if user else b"\x05\x01\x00")
    _, method = await connection.reader.readexactly(2)
    if method == 2 and user:
        connection.writer.write(bytes([1, len(user)]) + user + bytes([len(password)]) + password)
        _, refused = await connection.reader.readexactly(2)
        if refused:
            return "it wants other credentials"
    elif method != 0:
        return "it wants other credentials"
    connection.writer.write(b"\x05\x01\x00" + _socks_address(host) + port.to_bytes(2))
    _, refused, _, kind = await connection.reader.readexactly(4)
    if refused:
        return f"it refused to connect (SOCKS error {refused})"
    length = {1: 4, 4: 16}.get(kind) or (await connection.reader.readexactly(1))[0]
    await connection.reader.readexactly(length + 2)
    return ""


def _socks_address(host: str) -> bytes:
    try:
        packed = ipaddress.ip_address(host.strip("[]")).packed
    except ValueError:
        name = host.encode()
        return bytes([3, len(name)]) + name
    return (b"\x01" if len(packed) == 4 else b"\x04") + packed


class PageProxy:
    """The proxy of one page, the browser's only way out: also for redirects, scripts, workers and websockets.

    - `faults`: faults of failed connections, by host and port
    - `connections`, `refused`: number of requested connections, and of those that the guard refused
    - `received`: bytes from outside"""

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
        """Start to serve; returns the proxy's URL."""
        self._server = await asyncio.start_server(self._serve, LOOPBACK, 0, limit=HEAD_BYTES)
        port = self._server.sockets[0].getsockname()[1]
        return f"http://{LOOPBACK}:{port}"

    async def close(self) -> None:
        """Close all connections of the page."""
        if self._server is not None:
            self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def fault_of(self, url: str) -> Fault | None:
        """The fault of the connection to this URL's host; None: there was none."""
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme in ("https", "wss") else 80)
        return self.faults.get(f"{parts.hostname or ''}:{port}")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._serving.add(task)
        try:
            await self._answer(reader, writer)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError):
            pass  # the browser or the site closed the connection, or sent no HTTP
        except asyncio.CancelledError:
            pass  # the page is done; nothing awaits this task
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
        connection = await self._dialer.dial(
            f"[{host}]" if ":" in host else host, port, self._config, is_plain=not is_tunnel
        )
        if isinstance(connection, Fault):
            # Closed without a response: scripts would take any response for the site's.
            self._note(f"{host}:{port}", connection)
            return
        try:
            if is_tunnel:
                writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                connection.writer.write(_forwarded(method, target, headers, connection))
            await self._carry(reader, writer, connection, has_head=not is_tunnel)
        finally:
            connection.writer.close()

    async def _carry(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, connection: Connection, *, has_head: bool
    ) -> None:
        sending = asyncio.create_task(_pump(reader, connection.writer))
        try:
            if has_head:
                writer.write(_closing(await connection.reader.readuntil(b"\r\n\r\n")))
            await _pump(connection.reader, writer, self._count)
        finally:
            sending.cancel()
            await asyncio.gather(sending, return_exceptions=True)

    def _count(self, size: int) -> None:
        self.received += size
        if self.received > self._most_bytes:
            self._exceeded(f"the page loaded more than {self._most_bytes} B (render_bytes)")

    def _note(self, host_and_port: str, fault: Fault) -> None:
        self.refused += fault.kind is FaultKind.REFUSED_ADDRESS
        if len(self.faults) < MAX_FAULTS:
            self.faults[host_and_port] = msgspec.structs.replace(fault, elapsed=0.0)


async def _pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Callable[[int], None] | None = None
) -> None:
    """Copy bytes until one side closes."""
    with contextlib.suppress(OSError):
        while chunk := await reader.read(CHUNK_BYTES):
            if count is not None:
                count(len(chunk))
            writer.write(chunk)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


def _forwarded(method: str, target: str, headers: bytes, connection: Connection) -> bytes:
    """The head of a plain request for the site or the exit's proxy. One request per connection: the next one may be for
    another host, which the guard must check."""
    parts = urlsplit(target)
    path = target if connection.to_proxy else (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    kept = [one for one in headers.split(b"\r\n") if one and not one.lower().startswith(_HOP_HEADERS)]
    if connection.credentials:
        kept.append(f"Proxy-Authorization: {connection.credentials}".encode())
    return b"\r\n".join([f"{method} {path} HTTP/1.1".encode(), *kept, b"Connection: close", b"", b""])


def _closing(head: bytes) -> bytes:
    """The head of a response with `Connection: close`."""
    status, *headers = head.rstrip(b"\r\n").split(b"\r\n")
    kept = [one for one in headers if not one.lower().startswith(_HOP_HEADERS)]
    return b"\r\n".join([status, *kept, b"Connection: close", b"", b""])
