"""Routes to origins: the vetted address of each, and a client that connects there and nowhere else."""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Callable
from typing import Final

import ada_url
import msgspec
from pyreqwest.client import Client
from pyreqwest.http import Url

from shoal.fetch.addresses import family_of
from shoal.fetch.base import Fault, FaultKind
from shoal.fetch.clients import Batch, Clients
from shoal.fetch.faults import one_line
from shoal.fetch.guard import Lookup, Resolver, refusal_unless
from shoal.settings.table import Settings

MAX_ADDRESSES: Final = 3
ROUTE_SECONDS: Final = 60.0
PARTING_SECONDS: Final = 0.05

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
    batch: Batch | None = None


class Routes:
    """Finds routes and remembers them. A route in use goes on working after it was dropped here."""

    def __init__(
        self,
        settings: Settings,
        *,
        lookup: Lookup | None,
        clock: Callable[[], float],
        trusted_roots: bytes | None,
        resolver: Resolver | None = None,
        source: str = "",
        share: int = 1,
    ) -> None:
        """`source`: connections leave from this address. `share`: so many share the connections that may be kept."""
        self._settings = settings
        self.source = source
        self._trusted_roots = trusted_roots
        self._owns_resolver = resolver is None
        self._exempt = [ipaddress.ip_network(network) for network in settings.allow_addresses]
        self._clock = clock
        self._resolver = resolver or Resolver(lookup, clock=clock)
        self._known: dict[str, Route] = {}
        self._clients = Clients(
            settings,
            clock=clock,
            trusted_roots=trusted_roots,
            dropped=self._forget_batch,
            source=source,
            share=share,
        )

    def leaving_from(self, source: str, *, share: int) -> Routes:
        """Routes whose connections leave from an address of this machine; look-ups are shared with these."""
        return Routes(
            self._settings,
            lookup=None,
            clock=self._clock,
            trusted_roots=self._trusted_roots,
            resolver=self._resolver,
            source=source,
            share=share,
        )

    def known(self, origin_text: str) -> Route | None:
        """The route to an origin (`https://host:port`), if it is remembered and has not expired."""
        route = self._known.get(origin_text)
        return None if route is None or route.expires <= self._clock() else route

    def forget(self, origin_text: str) -> None:
        """Drop the connections to an origin that took too long to answer.

        Over HTTP/2 a request that is given up leaves its connection open, and the client goes on reading and answering
        what the host sends there unasked (pings, settings). Hosts that share its client connect anew."""
        route = self._known.get(origin_text)
        if route is not None and route.batch is not None and route.origin.scheme == "https":
            self._clients.drop(route.batch)

    def relieve(self) -> None:
        """Drop the idle connections to all hosts: this process has no file descriptors left, and idle connections hold
        some."""
        self._clients.drop_all()

    async def find(self, origin_text: str) -> Route | Fault:
        """The route to an origin, or why there is none."""
        self._clients.drop_idle()
        origin = parse_origin(origin_text)
        if origin is None:
            return Fault(kind=FaultKind.BAD_URL, message=f"not a http or https URL: {one_line(origin_text)[:80]}")
        addresses = await self.vetted(origin)
        if isinstance(addresses, Fault):
            return addresses
        return await self._remember(origin_text, origin, addresses)

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

    async def next_address(self, origin_text: str, route: Route) -> Route | None:
        """The route by the host's next address, after the first could not be connected to; None: there is no more."""
        if len(route.addresses) < 2:
            self._known.pop(origin_text, None)
            return None
        return await self._remember(origin_text, route.origin, route.addresses[1:])

    async def close(self) -> None:
        """Cancel look-ups, close connections."""
        if self._owns_resolver:
            self._resolver.close()
        self._known.clear()
        clients = self._clients.close()
        for client in clients:
            await client.close()
        # The client wakes us before its thread has left Python; an interpreter that ends right now would abort in that
        # thread.
        await asyncio.sleep(PARTING_SECONDS if clients else 0)

    def _forget_batch(self, batch: Batch) -> None:
        for origin_text in batch.origins:
            route = self._known.get(origin_text)
            if route is not None and route.batch is batch:
                del self._known[origin_text]

    async def vetted(self, origin: Origin) -> tuple[str, ...] | Fault:
        """The addresses a request may go to.

        One allowed address among refused ones is enough: the connection goes to the allowed address itself, so the
        refused ones do no harm, and hosts with a stray private record stay reachable."""
        found = await self.look_up(origin)
        if isinstance(found, Fault):
            return found
        if self.source:
            family = family_of(self.source)
            found = tuple(address for address in found if family_of(address) == family)
            if not found:
                return lacks_family(origin.host, self.source)
        refusals = {address: self._refusal(address) for address in found}
        # An address with a zone (fe80::1%eth0) cannot be written in a URL.
        allowed = tuple(address for address, reason in refusals.items() if reason is None and "%" not in address)
        if allowed:
            return allowed[:MAX_ADDRESSES]
        address, reason = next(iter(refusals.items()))
        message = f"{origin.host} is at {address}, a {reason or 'zoned'} address (allow_private is off)"
        return Fault(kind=FaultKind.REFUSED_ADDRESS, message=message)

    def _refusal(self, address: str) -> str | None:
        return None if self._settings.allow_private else refusal_unless(address, self._exempt)

    async def _remember(self, origin_text: str, origin: Origin, addresses: tuple[str, ...]) -> Route:
        before = self._known.get(origin_text)
        if before is not None and before.addresses[0] in addresses:
            # Name servers shuffle their answers; keeping the address keeps its open connections in use.
            kept = before.addresses[0]
            addresses = (kept, *(address for address in addresses if address != kept))
        route = await self._route(origin_text, origin, addresses, before)
        if route.batch is not None and route.batch.is_kept:
            route.batch.expires = route.expires
            self._known[origin_text] = route
        return route

    async def _route(self, origin_text: str, origin: Origin, addresses: tuple[str, ...], before: Route | None) -> Route:
        address, authority = addresses[0], f"{origin.host}{origin.port}"
        # A client for HTTPS knows one address of the host; one for plain HTTP is told with each request.
        is_secure = origin.scheme == "https"
        batch = before.batch if before and (before.addresses[0] == address or not is_secure) else None
        if batch is None or not batch.is_kept:
            pin = {} if origin.literal else {origin.host: address}
            for_secure, for_plain = self._clients.for_secure, self._clients.for_plain
            batch = await for_secure(origin_text, pin) if is_secure else for_plain(origin_text)
        expires = self._clock() + ROUTE_SECONDS
        if is_secure:
            return Route(origin, addresses, expires, batch.client, f"https://{origin.userinfo}{authority}", None, batch)
        numeric = f"[{address}]" if ":" in address else address
        prefix = f"http://{origin.userinfo}{numeric}{origin.port}"
        return Route(origin, addresses, expires, batch.client, prefix, authority, batch)


def lacks_family(host: str, source: str) -> Fault:
    """The fault of an address of this machine at a host that has none of its kind. Another exit may reach the host:
    this one rests there, and the page does not pay for it."""
    message = f"{host} has no {family_of(source)} address, which it needs to be reached from {source}"
    return Fault(kind=FaultKind.CONNECT, message=message, is_certain=True)


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
