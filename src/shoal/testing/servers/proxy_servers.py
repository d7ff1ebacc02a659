"""Real forward proxies for tests, each on its own loopback address, and a gateway that fetches a given URL."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from urllib.parse import parse_qs, quote, urlsplit

from shoal.testing.servers.programs import START_SECONDS, find_program, free_port, wait_for_answer

FETCH_SECONDS = 5.0


class _ProxyServer:
    """The process of a proxy. It fetches from its own loopback address, so a site sees which proxy was used."""

    def __init__(self, address: str, *, scheme: str, user: str, password: str) -> None:
        self.address = address
        self.port = free_port()
        who = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user else ""
        self.url = f"{scheme}://{who}{address}:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def stop(self) -> None:
        """Stop it. Stopping again is harmless."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(START_SECONDS)
            self._process = None

    def _start(self, command: Sequence[str]) -> None:
        quiet = subprocess.DEVNULL
        self._process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet)
        try:
            wait_for_answer(self._process, self._answers)
        except RuntimeError as error:
            self.stop()
            raise RuntimeError(f"{command[0]} did not start on {self.address}:{self.port}: {error}") from None

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((self.address, self.port), timeout=1.0):
            return True
        return False


class Tinyproxy(_ProxyServer):
    """An HTTP proxy. With `user` it requires credentials; without `serves_us` it answers every request with 403."""

    def __init__(
        self, folder: Path, *, address: str, user: str = "", password: str = "", serves_us: bool = True
    ) -> None:
        super().__init__(address, scheme="http", user=user, password=password)
        self._program = find_program("tinyproxy")
        self._config = folder / f"tinyproxy-{self.port}.conf"
        lines = [f"Port {self.port}", f"Listen {address}", f"Bind {address}", "Timeout 20", "MaxClients 100"]
        lines += [f"BasicAuth {user} {password}"] if user else []
        lines += [] if serves_us else ["Allow 127.255.255.254"]
        self._config.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def start(self) -> Tinyproxy:
        """Start it and wait until it accepts connections."""
        self._start([self._program, "-d", "-c", str(self._config)])
        return self


class Microsocks(_ProxyServer):
    """A SOCKS5 proxy."""

    def __init__(self, *, address: str, user: str = "", password: str = "") -> None:
        super().__init__(address, scheme="socks5", user=user, password=password)
        self._program = find_program("microsocks")
        who = ["-u", user, "-P", password] if user else []
        self._command = [self._program, "-i", address, "-p", str(self.port), "-b", address, *who]

    def start(self) -> Microsocks:
        """Start it and wait until it accepts connections."""
        self._start(self._command)
        return self


class Gateway:
    """A service that fetches loopback pages for requests with the right key: `/?key=…&url=…`.

    With `status` it answers that status itself, with `location` it redirects. `heads` are its requests."""

    def __init__(self, *, key: str, address: str = "127.0.0.1") -> None:
        self.key = key
        self.address = address
        self.port = 0
        self.status = 0
        self.location = ""
        self.heads: list[str] = []
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Gateway:
        self._server = await asyncio.start_server(self._connected, self.address, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    @property
    def template(self) -> str:
        """Its URL as an exit."""
        return f"http://{self.address}:{self.port}/?key={self.key}&url={{url}}"

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, TimeoutError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            self.heads.append(head)
            async with asyncio.timeout(FETCH_SECONDS):
                writer.write(await self._answer(head))
                await writer.drain()
        writer.close()

    async def _answer(self, head: str) -> bytes:
        query = parse_qs(urlsplit(head.split(" ", 2)[1]).query)
        status = self.status or (302 if self.location else 0 if query.get("key") == [self.key] else 401)
        if status:
            location = f"Location: {self.location}\r\n" if self.location else ""
            return f"HTTP/1.1 {status} Own\r\n{location}Content-Length: 0\r\nConnection: close\r\n\r\n".encode()
        target = urlsplit(query["url"][0])
        reader, writer = await asyncio.open_connection(target.hostname, target.port or 80, local_addr=(self.address, 0))
        path = f"{target.path or '/'}{'?' if target.query else ''}{target.query}"
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {target.netloc}\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        # Announced, so that no client sends a request on a connection that is about to close.
        return answer.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
