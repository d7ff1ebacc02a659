"""shoal's guard in front of Scrapy's downloader: requests to private and other special addresses are refused."""

from __future__ import annotations

import asyncio
import ipaddress
from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.exceptions import IgnoreRequest, NotConfigured
from scrapy.http import Response
from scrapy.utils.defer import maybe_deferred_to_future
from scrapy.utils.httpobj import urlparse_cached
from scrapy.utils.reactor import is_reactor_installed
from twisted.internet.defer import Deferred

from shoal.errors import ShoalError
from shoal.fetch.guard import refusal, refusal_unless
from shoal.integrations.scrapy.bridge import bridge_of
from shoal.integrations.scrapy.project_settings import shoal_settings

GUARDED = frozenset({"http", "https", "ftp"})


class GuardMiddleware:
    """Comes last before the downloader. The name is looked up by the resolver that the downloader asks next, which
    remembers its answers; the address that has answered is looked at again."""

    def __init__(self, crawler: Crawler) -> None:
        try:
            settings = shoal_settings(crawler.settings)
        except ShoalError as error:
            raise NotConfigured(str(error)) from None  # the scheduler refuses to run
        self._visits = bridge_of(crawler).visits
        self._exempt = [ipaddress.ip_network(network) for network in settings.allow_addresses]

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> GuardMiddleware:
        """The middleware of one spider's run."""
        return cls(crawler)

    async def process_request(self, request: Request) -> None:
        """Refuse a request whose host has no allowed address. A name that cannot be resolved goes on: the downloader
        says so, or a proxy knows it."""
        parts = urlparse_cached(request)
        if parts.scheme not in GUARDED or not parts.hostname:
            return
        addresses = await _addresses(parts.hostname)
        refused = {address: why for address in addresses if (why := refusal_unless(address, self._exempt))}
        if refused:
            address, why = next(iter(refused.items()))
            self._refuse(request, f"{parts.hostname} is at {address}, a {why} address (SHOAL_ALLOW_PRIVATE is off)")

    def process_response(self, request: Request, response: Response) -> Response:
        """Keep back what an address has answered that is not allowed."""
        address = getattr(response, "ip_address", None)
        if address is None or self._is_proxied(request):
            return response
        if why := refusal_unless(str(address), self._exempt):
            self._refuse(request, f"{address} has answered, a {why} address (SHOAL_ALLOW_PRIVATE is off)")
        return response

    def _is_proxied(self, request: Request) -> bool:
        """Whether the address that has answered is a proxy's: the project's own, or that of the lease's exit."""
        visit = self._visits.sender(request)
        return "proxy" in request.meta or (visit is not None and visit.exit is not None)

    def _refuse(self, request: Request, why: str) -> None:
        visit = self._visits.of(request)
        if visit is not None:
            visit.fail(f"refused_address: {why}")
        raise IgnoreRequest(why)


async def _addresses(host: str) -> list[str]:
    """The addresses of a host that the downloader may connect to; none where the name cannot be resolved."""
    if refusal(host) != "not an address":
        return [host]
    if not is_reactor_installed():
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, None)
        except OSError:
            return []
        return [str(address[4][0]) for address in found]
    from twisted.internet import reactor

    receiver = _Addresses()
    reactor.nameResolver.resolveHostName(receiver, host)
    return await maybe_deferred_to_future(receiver.resolved)


class _Addresses:
    """Collects what the reactor's resolver finds, as Twisted's IResolutionReceiver. It finds nothing where the look-up
    fails."""

    def __init__(self) -> None:
        self.resolved: Deferred[list[str]] = Deferred()
        self._found: list[str] = []

    def resolutionBegan(self, resolution: Any) -> None: ...  # noqa: N802 -- Twisted's name

    def addressResolved(self, address: Any) -> None:  # noqa: N802 -- Twisted's name
        self._found.append(str(address.host))

    def resolutionComplete(self) -> None:  # noqa: N802 -- Twisted's name
        self.resolved.callback(self._found)
