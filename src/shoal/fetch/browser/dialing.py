"""Connections for a rendered page: to addresses that the guard allows, directly or through the exit of its lease."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
import ssl
import time
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from shoal.fetch.base import Fault, FaultKind
from shoal.fetch.exit_config import ExitConfig
from shoal.fetch.own_addresses import family_of
from shoal.fetch.proxies import ProxyRoutes, fault_of
from shoal.fetch.resolver import Lookup
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
