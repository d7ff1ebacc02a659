"""The proxy on loopback that all requests of a rendered page leave through: it asks the guard, and counts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

import msgspec

from shoal.fetch.base import Fault, FaultKind
from shoal.fetch.browser.dialing import HEAD_BYTES, Dialer, Line
from shoal.fetch.exit_config import ExitConfig

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
