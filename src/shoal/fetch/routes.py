"""Routes to origins: the vetted address of each, and the client that connects there and nowhere else."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import re
from collections import OrderedDict
from collections.abc import Callable
from datetime import timedelta
from typing import Final

import ada_url
import msgspec
from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import BuilderError
from pyreqwest.http import Url

from shoal.fetch.base import Fault, FaultKind
from shoal.fetch.faults import one_line
from shoal.fetch.guard import refusal
from shoal.fetch.resolver import Lookup, Resolver
from shoal.settings import Settings

ACCEPT: Final = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
ACCEPT_LANGUAGE: Final = "en,*;q=0.5"
ACCEPT_ENCODING: Final = "gzip, deflate, br, zstd"
MAX_PLAIN: Final = 4096
MAX_SECURE: Final = 256  # each has a client, with its own connections
MAX_ADDRESSES: Final = 3
ROUTE_SECONDS: Final = 60.0
KEEP_ALIVE_SECONDS: Final = 30.0
HTTP2_HEADERS: Final = 256 * 1024  # bytes, as browsers take them; the client alone takes 16 KiB
HTTP2_STREAM_WINDOW: Final = 1024 * 1024
HTTP2_CONNECTION_WINDOW: Final = 4 * 1024 * 1024
PARTING_SECONDS: Final = 0.05
RELIEF_SECONDS: Final = 1.0
GIVEN_UP_SECONDS: Final = 1.0  # the client's timeout is later than our own deadlines, which name the fault better
FOREVER: Final = 366 * 86_400.0

_NOT_IN_ORIGIN: Final = re.compile(r"[?#\\\s\x00-\x1f]")


class Origin(msgspec.Struct, frozen=True):
    """Scheme, host and port of a URL, taken apart and in canonical form."""

    scheme: str
    host: str
    port: str  # with its colon; empty for the default port
    userinfo: str  # with its @
    literal: str | None  # the address, when the host is one


class Route(msgspec.Struct, frozen=True):
    """How requests to an origin are sent. `addresses` are the vetted ones not yet tried, the one in use first."""

    origin: Origin
    addresses: tuple[str, ...]
    expires: float
    client: Client
    prefix: str
    host: str | None


class Routes:
    """Finds routes and remembers them. A route in use goes on working after it was dropped here."""

    def __init__(
        self, settings: Settings, *, lookup: Lookup | None, clock: Callable[[], float], trusted_roots: bytes | None
    ) -> None:
        self._settings = settings
        self._exempt = [ipaddress.ip_network(network) for network in settings.allow_addresses]
        self._clock = clock
        self._trusted_roots = trusted_roots
        self._resolver = Resolver(lookup, clock=clock)
        # Built now: the first request would start late if it waited for its client.
        self._plain_client: Client | None = built(client_builder(settings))
        self._plain: OrderedDict[str, Route] = OrderedDict()
        self._secure: OrderedDict[str, Route] = OrderedDict()
        self._relieved = -RELIEF_SECONDS

    def known(self, origin_text: str) -> Route | None:
        """The route to an origin (`https://host:port`), if it is remembered and has not expired."""
        table = self._table(origin_text)
        route = table.get(origin_text)
        if route is None or route.expires <= self._clock():
            return None
        table.move_to_end(origin_text)
        return route

    def forget(self, origin_text: str) -> None:
        """Drop the connections to an origin that took too long to answer.

        Over HTTP/2 a request that is given up leaves its connection open, and the client goes on reading and answering
        what the host sends there unasked (pings, settings)."""
        self._secure.pop(origin_text, None)

    def relieve(self) -> None:
        """Drop the idle connections to all hosts: this process has no file descriptors left, and idle connections hold
        some."""
        if self._clock() >= self._relieved + RELIEF_SECONDS:
            self._relieved = self._clock()
            self._plain.clear()
            self._secure.clear()
            self._plain_client = None

    async def find(self, origin_text: str) -> Route | Fault:
        """The route to an origin, or why there is none."""
        self._forget_idle()
        origin = parse_origin(origin_text)
        if origin is None:
            return Fault(kind=FaultKind.BAD_URL, message=f"not a http or https URL: {one_line(origin_text)[:80]}")
        addresses = await self._vetted(origin)
        if isinstance(addresses, Fault):
            return addresses
        return self._remember(origin_text, origin, addresses)

    async def look_up(self, origin: Origin) -> tuple[str, ...] | Fault:
        """All addresses of an origin's host, including refused ones."""
        if origin.literal is not None:
            return (origin.literal,)
        try:
            async with asyncio.timeout(self._settings.connect_seconds or None):
                return await self._resolver.addresses(origin.host)
        except TimeoutError:
            message = f"{origin.host}: no answer within {self._settings.connect_seconds:g} s"
            return Fault(kind=FaultKind.DNS, message=message)

    def next_address(self, origin_text: str, route: Route) -> Route | None:
        """The route by the host's next address, after the first could not be connected to; None: there is no more."""
        if len(route.addresses) < 2:
            self._table(origin_text).pop(origin_text, None)
            return None
        return self._remember(origin_text, route.origin, route.addresses[1:])

    async def close(self) -> None:
        """Cancel look-ups, close connections."""
        self._resolver.close()
        clients = [route.client for route in self._secure.values()]
        if self._plain_client is not None:
            clients.append(self._plain_client)
        self._plain_client = None
        self._plain.clear()
        self._secure.clear()
        for client in clients:
            await client.close()
        # The client wakes us before its thread has left Python; an interpreter that ends right now would abort in that
        # thread.
        await asyncio.sleep(PARTING_SECONDS if clients else 0)

    def _forget_idle(self) -> None:
        """Drop the connections to hosts without recent requests: a route in use is found again when it expires."""
        idle_since = self._clock() - KEEP_ALIVE_SECONDS
        while self._secure and next(iter(self._secure.values())).expires < idle_since:
            self._secure.popitem(last=False)

    def _table(self, origin_text: str) -> OrderedDict[str, Route]:
        return self._secure if origin_text.startswith("https:") else self._plain

    async def _vetted(self, origin: Origin) -> tuple[str, ...] | Fault:
        """The addresses a request may go to.

        One allowed address among refused ones is enough: the connection goes to the allowed address itself, so the
        refused ones do no harm, and hosts with a stray private record stay reachable."""
        found = await self.look_up(origin)
        if isinstance(found, Fault):
            return found
        refusals = {address: self._refusal(address) for address in found}
        # An address with a zone (fe80::1%eth0) cannot be written in a URL.
        allowed = tuple(address for address, reason in refusals.items() if reason is None and "%" not in address)
        if allowed:
            return allowed[:MAX_ADDRESSES]
        address, reason = next(iter(refusals.items()))
        message = f"{origin.host} is at {address}, a {reason or 'zoned'} address (allow_private is off)"
        return Fault(kind=FaultKind.REFUSED_ADDRESS, message=message)

    def _refusal(self, address: str) -> str | None:
        reason = None if self._settings.allow_private else refusal(address)
        # Compared as it is: an address that contains another one is in none of these networks.
        if reason is not None and "%" not in address:
            exempt = any(ipaddress.ip_address(address) in network for network in self._exempt)
            return None if exempt else reason
        return reason

    def _remember(self, origin_text: str, origin: Origin, addresses: tuple[str, ...]) -> Route:
        known = self._table(origin_text)
        before = known.get(origin_text)
        if before is not None and before.addresses[0] in addresses:
            # Name servers shuffle their answers; keeping the address keeps its open connections in use.
            kept = before.addresses[0]
            addresses = (kept, *(address for address in addresses if address != kept))
        route = self._route(origin, addresses, before)
        known[origin_text] = route
        known.move_to_end(origin_text)
        if len(known) > (MAX_SECURE if known is self._secure else MAX_PLAIN):
            known.popitem(last=False)
        return route

    def _route(self, origin: Origin, addresses: tuple[str, ...], before: Route | None) -> Route:
        expires = self._clock() + ROUTE_SECONDS
        address = addresses[0]
        authority = f"{origin.host}{origin.port}"
        if origin.scheme == "https":
            reusable = before is not None and before.addresses[0] == address
            client = before.client if reusable and before else self._secure_client(origin, address)
            return Route(origin, addresses, expires, client, f"https://{origin.userinfo}{authority}", None)
        if self._plain_client is None:
            self._plain_client = built(client_builder(self._settings))
        numeric = f"[{address}]" if ":" in address else address
        prefix = f"http://{origin.userinfo}{numeric}{origin.port}"
        return Route(origin, addresses, expires, self._plain_client, prefix, authority)

    def _secure_client(self, origin: Origin, address: str) -> Client:
        builder = secure_builder(self._settings, trusted_roots=self._trusted_roots)
        if origin.literal is None:
            builder.resolve(origin.host, address, 0)
        return built(builder)


def built(builder: ClientBuilder) -> Client:
    """Build the client. It reads the system's certificates, which takes file descriptors: raises OSError if none are
    left."""
    try:
        return builder.build()
    except BuilderError as error:
        raise OSError(errno.EMFILE, "no client could be made") from error


def client_builder(settings: Settings) -> ClientBuilder:
    """A client that does nothing by itself: no redirects, proxies, cookies, referers or decompression."""
    builder = ClientBuilder().no_proxy().follow_redirects(False).referer(False).default_cookie_store(False)
    builder.gzip(False).brotli(False).zstd(False).deflate(False)
    # As browsers do: a header over several lines, a space before its colon, a line that is no header.
    builder.http1_allow_obsolete_multiline_headers_in_responses(True)
    builder.http1_allow_spaces_after_header_name_in_responses(True)
    builder.http1_ignore_invalid_headers_in_responses(True)
    builder.connect_timeout(timedelta(seconds=settings.connect_seconds or FOREVER))
    # A request that we give up before its answer begins stays alive inside the client, with its connection, until this
    # timeout.
    silence = max(settings.first_byte_seconds or FOREVER, settings.idle_seconds or FOREVER) + GIVEN_UP_SECONDS
    builder.read_timeout(timedelta(seconds=silence))
    builder.pool_idle_timeout(timedelta(seconds=KEEP_ALIVE_SECONDS))
    builder.pool_max_idle_per_host(settings.concurrency)
    builder.user_agent(settings.user_agent)
    headers = {"Accept": ACCEPT, "Accept-Language": ACCEPT_LANGUAGE, "Accept-Encoding": ACCEPT_ENCODING}
    return builder.default_headers(headers)


def secure_builder(settings: Settings, *, trusted_roots: bytes | None) -> ClientBuilder:
    """The same for HTTPS: HTTP/2 where the host offers it, and certificates checked against these roots as well."""
    builder = client_builder(settings).http2(True)
    builder.http2_initial_stream_window_size(HTTP2_STREAM_WINDOW)
    builder.http2_initial_connection_window_size(HTTP2_CONNECTION_WINDOW)
    builder.http2_max_header_list_size(HTTP2_HEADERS)
    if trusted_roots is not None:
        builder.add_root_certificate_pem(trusted_roots)
    return builder


def parse_origin(text: str) -> Origin | None:
    """Take `https://user@host:port` apart; None when no request can be sent there."""
    if _NOT_IN_ORIGIN.search(text):
        return None
    try:
        url = ada_url.URL(f"{text}/")
    except ValueError:
        return None
    if url.protocol not in ("http:", "https:") or not url.hostname or url.pathname != "/":
        return None
    host = url.hostname
    # The client parses the URL again: if it read another host, it would look that host up itself, past the guard.
    if Url(f"{url.protocol}//{host}/").host_str != host:
        return None
    userinfo = f"{url.username}:{url.password}@" if url.password else f"{url.username}@" if url.username else ""
    port = f":{url.port}" if url.port else ""
    return Origin(url.protocol[:-1], host, port, userinfo, _literal(host))


def _literal(host: str) -> str | None:
    if host.startswith("["):
        return host[1:-1]
    # In canonical form only an IPv4 address ends in a number.
    return host if host[-1].isdigit() and host.rpartition(".")[2].isdigit() else None
