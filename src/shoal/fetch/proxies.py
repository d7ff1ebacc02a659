"""Requests through exits: proxies, gateways (services that fetch the page named in their URL), and local addresses.

The guard checks the target before a proxy or gateway gets its name."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple
from urllib.parse import quote, unquote, urljoin, urlsplit

import msgspec
from pyreqwest.client import Client
from pyreqwest.proxy import ProxyBuilder

from shoal.fetch.addresses import has_address
from shoal.fetch.base import Fault, FaultKind, Response, location_of
from shoal.fetch.clients import build_secure, secure_builder
from shoal.fetch.descriptors import has_source, idle_within, open_limit
from shoal.fetch.exits import TARGET, ExitConfig, secrets_of
from shoal.fetch.faults import CONNECTING, causes_of, explain, lacks_a_port, one_line
from shoal.fetch.guard import refusal
from shoal.fetch.routes import PARTING_SECONDS, ROUTE_SECONDS, Origin, Route, Routes, parse_origin
from shoal.settings.table import Settings
from shoal.text.secrets import without_secrets

# A client takes about 9 ms to build and 0.1 MB. With more exits in rotation, every request would build one.
MAX_CLIENTS: Final = 1024
MAX_VETTED: Final = 4096
# With more addresses in rotation, every request would build a client.
MAX_ADDRESSES: Final = 256

# Top-level names of private networks: our name server may not know them while the proxy's does.
INSIDE_NAMES: Final = frozenset(
    {"localhost", "local", "internal", "lan", "home", "corp", "intranet", "private", "arpa"}
)

_PLAINER: Final = {
    "tunnel error: unsuccessful": "it refused to open a tunnel",
    "tunnel error: proxy authorization required": "it wants other credentials (407)",
    "tunnel error: unexpected end of file": "it closed the connection",
    "SOCKS error: failed to create underlying connection": "it cannot be connected to",
    "SOCKS error: io error during SOCKS handshake": "it closed the connection",
    "operation timed out": "no connection in time",
}
# Failures before the proxy knew the target: not the target's fault.
_CERTAIN: Final = frozenset(
    {
        "dns error",
        "tcp connect error",
        "tunnel error: proxy authorization required",
        "SOCKS error: failed to create underlying connection",
    }
)


class _Proxied(NamedTuple):
    """The client of a proxy, and the origins it connected to."""

    client: Client
    origins: set[str]


class ProxyRoutes:
    """Finds the route to an origin through a proxy. A client in use works on after it was dropped here."""

    def __init__(
        self, settings: Settings, *, routes: Routes, clock: Callable[[], float], trusted_roots: bytes | None
    ) -> None:
        self._settings = settings
        self._routes = routes
        self._clock = clock
        self._trusted_roots = trusted_roots
        self._clients: OrderedDict[str, _Proxied] = OrderedDict()
        self._origins = 0
        self._most_origins = idle_within(open_limit(), settings.concurrency)
        self._vetted: OrderedDict[str, tuple[float, Origin | Fault]] = OrderedDict()

    async def vetted(self, origin_text: str) -> Origin | Fault:
        """The origin, if the guard allows requests to it through a proxy or gateway; cached."""
        known = self._vetted.get(origin_text)
        if known is not None and known[0] > self._clock():
            return known[1]
        origin = parse_origin(origin_text)
        if origin is None:
            return Fault(kind=FaultKind.BAD_URL, message=f"not a http or https URL: {one_line(origin_text)[:80]}")
        found: Origin | Fault = origin if self._settings.allow_private else await self._checked(origin)
        if isinstance(found, Fault) and found.kind is FaultKind.SHORTAGE:
            return found
        self._vetted[origin_text] = (self._clock() + ROUTE_SECONDS, found)
        self._vetted.move_to_end(origin_text)
        if len(self._vetted) > MAX_VETTED:
            self._vetted.popitem(last=False)
        return found

    async def find(self, origin_text: str, config: ExitConfig) -> Route | Fault:
        """The route to an origin through a proxy, or the fault."""
        origin = await self.vetted(origin_text)
        if isinstance(origin, Fault):
            return origin
        prefix = f"{origin.scheme}://{origin.userinfo}{origin.host}{origin.port}"
        return Route(origin, (), 0.0, self._client(config, origin_text), prefix, None)

    def close_idle(self) -> None:
        """Close idle connections."""
        self._clients.clear()
        self._origins = 0

    async def close(self) -> None:
        """Close connections."""
        clients = [proxied.client for proxied in self._clients.values()]
        self._clients.clear()
        for client in clients:
            await client.close()
        await asyncio.sleep(PARTING_SECONDS if clients else 0)

    async def _checked(self, origin: Origin) -> Origin | Fault:
        """The origin, unless any of its addresses is refused: the proxy looks the name up and may use any of them."""
        found = await self._routes.look_up(origin)
        if isinstance(found, Fault) and found.kind is FaultKind.SHORTAGE:
            return found
        if isinstance(found, Fault):
            _, dot, top = origin.host.rstrip(".").rpartition(".")
            message = f"{origin.host} is a name of an inside network (allow_private is off)"
            is_inside = not dot or top in INSIDE_NAMES
            return Fault(kind=FaultKind.REFUSED_ADDRESS, message=message) if is_inside else origin
        for address in found:
            if reason := refusal(address):
                message = f"{origin.host} is at {address}, a {reason} address (allow_private is off)"
                return Fault(kind=FaultKind.REFUSED_ADDRESS, message=message)
        return origin

    def _client(self, config: ExitConfig, origin_text: str) -> Client:
        found = self._clients.get(config.name)
        if found is None or origin_text not in found.origins:
            # A client keeps idle connections per origin, which are closed only with the client.
            while self._clients and (self._origins >= self._most_origins or len(self._clients) > MAX_CLIENTS):
                self._origins -= len(self._clients.popitem(last=False)[1].origins)
            found = self._clients.get(config.name) or self._built(config)
            found.origins.add(origin_text)
            self._origins += 1
        self._clients.move_to_end(config.name)
        return found.client

    def _built(self, config: ExitConfig) -> _Proxied:
        builder = secure_builder(self._settings, trusted_roots=self._trusted_roots)
        found = self._clients[config.name] = _Proxied(build_secure(builder.proxy(_proxy(config.url))), set())
        return found


def proxy_answer(config: ExitConfig, answer: Response, *, secure: bool) -> Response | Fault:
    """The site's response, or a fault if it is the proxy's own. Inside a tunnel it never is."""
    if secure or config.url.startswith("socks"):
        return answer
    if answer.status == 407:
        return fault_of(config, "it wants other credentials (407)")  # not certain: a hostile site may send 407, too
    # Common proxies mark their own pages; those of others look like the site's.
    is_signed = answer.headers.get("server", "").startswith("tinyproxy") or "x-squid-error" in answer.headers
    if is_signed and answer.status >= 400:
        return fault_of(config, f"the proxy itself answered {answer.status}")
    return answer


def proxy_fault(config: ExitConfig, error: Exception, *, secure: bool) -> Fault:
    """The fault of an exception: the proxy's, or the target's as without a proxy."""
    kind, message = explain(error, secure=secure)
    if lacks_a_port(error) and not has_source(urlsplit(config.url).hostname or ""):
        return fault_of(config, message, is_certain=True)
    if _is_the_proxys(kind, causes_of(error), config, secure=secure):
        return fault_of(config, _PLAINER.get(message, message), is_certain=not _CERTAIN.isdisjoint(causes_of(error)))
    return Fault(kind=kind, message=message)


def fault_of(config: ExitConfig, message: str, *, is_certain: bool = False) -> Fault:
    """A fault of the exit itself."""
    return Fault(kind=FaultKind.EXIT, message=f"{config.name}: {message}", is_certain=is_certain)


def _is_the_proxys(kind: FaultKind, causes: list[str], config: ExitConfig, *, secure: bool) -> bool:
    if kind in (FaultKind.LOCAL, FaultKind.SHORTAGE, FaultKind.BAD_URL):
        return False
    if CONNECTING not in causes:
        # Over plain HTTP a proxy sends an error page if the target fails; without one, the proxy failed.
        return kind is FaultKind.CONNECT and not secure and not config.url.startswith("socks")
    # Of two TLS handshakes, that with the proxy is part of opening the tunnel.
    return kind is not FaultKind.TLS or any(cause.startswith(("tunnel error", "SOCKS error")) for cause in causes)


def _proxy(url: str) -> ProxyBuilder:
    # socks5h sends the name to the proxy: with socks5 the client would look it up itself, past the guard.
    return ProxyBuilder.all(f"socks5h{url[6:]}" if url.startswith("socks5:") else url)


def gateway_url(config: ExitConfig, url: str) -> str:
    """The gateway's URL for a page."""
    return config.url.replace(TARGET, quote(url, safe=""))


def gateway_headers(config: ExitConfig, headers: Mapping[str, str] | None) -> dict[str, str] | None:
    """The headers that a gateway may see: secrets are for the page's host, unless `forwards_secrets`."""
    if not headers:
        return None
    return dict(headers) if config.forwards_secrets else without_secrets(headers)


def gateway_answer(config: ExitConfig, answer: Response | Fault) -> Response | Fault:
    """The page's response, or a fault if it is the gateway's own."""
    if isinstance(answer, Fault):
        # The gateway's host was looked up, not the page's.
        has_no_route = answer.kind in (FaultKind.DNS, FaultKind.REFUSED_ADDRESS, FaultKind.BAD_URL)
        return fault_of(config, "the gateway's host cannot be found") if has_no_route else answer
    if answer.status in config.error_statuses:
        return fault_of(config, f"the gateway itself answered {answer.status}")
    # Headers that contain the gateway's key: it must not get into tasks, logs and the archive.
    leaking = [
        name for name, value in answer.headers.items() if any(word in unquote(value) for word in secrets_of(config))
    ]
    location = location_of(answer.headers)
    if location and ("location" in leaking or _host(location, base=answer.url) == _host(config.url)):
        return fault_of(config, "the gateway redirects to itself")
    headers = {name: value for name, value in answer.headers.items() if name not in leaking}
    return msgspec.structs.replace(answer, headers=headers) if leaking else answer


def gateway_fault(config: ExitConfig, error: Exception) -> Fault:
    """The fault of an exception: the gateway's own, if the connection to it failed."""
    kind, message = explain(error, secure=config.url.startswith("https:"))
    is_connecting = CONNECTING in causes_of(error) or kind is FaultKind.CONNECT
    is_ours = kind in (FaultKind.LOCAL, FaultKind.SHORTAGE, FaultKind.BAD_URL)
    return fault_of(config, message) if is_connecting and not is_ours else Fault(kind=kind, message=message)


def _host(url: str, *, base: str = "") -> str | None:
    try:
        return urlsplit(urljoin(base, url)).hostname
    except ValueError:
        return None  # not a URL: the rules of the crawl reject it


class AddressRoutes:
    """The routes from each local address. They share DNS look-ups and the limit of idle connections."""

    def __init__(self, routes: Routes, *, addresses: int) -> None:
        self._routes = routes
        self._share = min(addresses, MAX_ADDRESSES)
        self._by_address: OrderedDict[str, Routes] = OrderedDict()

    def of(self, address: str) -> Routes:
        """The routes from this address; the least recently used ones are dropped."""
        found = self._by_address.get(address)
        if found is None:
            if len(self._by_address) >= MAX_ADDRESSES:
                self._by_address.popitem(last=False)
            found = self._by_address[address] = self._routes.leaving_from(address, share=self._share)
        self._by_address.move_to_end(address)
        return found

    def close_idle(self) -> None:
        """Close idle connections."""
        for routes in self._by_address.values():
            routes.close_idle()

    async def close(self) -> None:
        """Close connections."""
        for routes in self._by_address.values():
            await routes.close()
        self._by_address.clear()


def address_fault(config: ExitConfig, error: Exception) -> Fault | None:
    """The fault of an address that this machine has no more; None: something else failed."""
    if lacks_a_port(error) and not has_address(config.address):
        return fault_of(config, f"this machine does not have the address {config.address} any more", is_certain=True)
    return None
