"""Cookies without an account: a jar for each exit and registered domain, so that no cookie goes to another site, or to
its site through another exit."""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import Final, NamedTuple

import msgspec

from shoal.errors import ServerUnreachable, StorageError
from shoal.fetch.base import Fault, Fetch, Fetcher, Response
from shoal.fetch.cookies import HOSTS_REMEMBERED, CookieJar, site_of
from shoal.frontier.base import Frontier
from shoal.model import Lease
from shoal.urls.canonical import lane_of

MAX_JARS: Final = 10_000
MAX_BYTES: Final = 32 * 1024 * 1024
COOKIE_BYTES: Final = 400  # memory of a cookie, without its texts
# How long a worker uses a jar of the fleet before it reads it again.
LOOK_SECONDS: Final = 1.0
SHARE_TRIES: Final = 5
# Shorter values (EUR, true, en-US) are no credentials, and appear in many messages.
SHORTEST_SECRET: Final = 8

Visitor = tuple[str, str]  # an exit, and the site that sees it


class SiteVisit(NamedTuple):
    """An answer, the Cookie header that was `sent`, and whether the answer set new cookies."""

    answer: Response | Fault
    sent: str = ""
    has_new: bool = False

    def secrets(self) -> list[str]:
        """The values of its cookies as in the headers, also those that were replaced since."""
        headers = self.answer.headers if isinstance(self.answer, Response) else {}
        pairs = [line.partition(";")[0] for line in headers.get("set-cookie", "").split("\n")] + self.sent.split(";")
        values = {(pair.partition("=")[2] or pair).strip(' \t"') for pair in pairs}
        return [value for value in values if len(value) >= SHORTEST_SECRET]


class _SiteJar:
    """The cookies of one site through one exit. `version`: of the fleet's jar when this worker last read it."""

    __slots__ = ("jar", "looked_at", "size", "version")

    def __init__(self, jar: CookieJar) -> None:
        self.jar = jar
        self.version = 0
        self.looked_at = float("-inf")
        self.size = 0


class SiteCookies:
    """The cookies of a worker; with a `frontier`, of the fleet. `weight`: about the memory of all jars."""

    def __init__(
        self,
        *,
        frontier: Frontier | None = None,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:
        self._frontier = frontier
        self._clock = clock
        self._ticks = ticks
        self._jars: OrderedDict[Visitor, _SiteJar] = OrderedDict()
        self.weight = 0

    async def visit(self, request: Fetch, *, fetcher: Fetcher, lease: Lease) -> SiteVisit:
        """Send a request with its cookies, and keep those of the answer. A Cookie header of the request itself stays
        unchanged."""
        if self._frontier is not None:
            await self._refresh(self._frontier, lease, request.url)
        sent = self.header(lease.exit, request.url)
        if sent and not names_cookies(request.headers):
            request = msgspec.structs.replace(request, headers={**(request.headers or {}), "Cookie": sent})
        answer = await fetcher.fetch(request)
        lines = answer.headers.get("set-cookie") if isinstance(answer, Response) else None
        return SiteVisit(answer, sent, await self._take(lease, request.url, lines) if lines else False)

    def header(self, exit: str, url: str) -> str:  # noqa: A002 -- the word for it
        """The Cookie header for a request; empty: no cookie matches."""
        if not self._jars:
            return ""
        visitor = exit, site_of_url(url)
        found = self._jars.get(visitor)
        if found is None:
            return ""
        self._jars.move_to_end(visitor)
        return found.jar.header(url)

    def secrets(self, exit: str, url: str) -> list[str]:  # noqa: A002 -- the word for it
        """The cookie values of a site, which no message may show."""
        found = self._jars.get((exit, site_of_url(url))) if self._jars else None
        return [value for value in found.jar.values() if len(value) >= SHORTEST_SECRET] if found is not None else []

    async def _take(self, lease: Lease, url: str, lines: str) -> bool:
        visitor = lease.exit, site_of_url(url)
        found = self._jar_of(visitor)
        has_new = found.jar.take(url, lines)
        if has_new and self._frontier is not None:
            # An error here must not repeat the request: it could send a form twice.
            with contextlib.suppress(ServerUnreachable, StorageError):
                await self._share(self._frontier, lease.crawl, _name(visitor), found, url=url, lines=lines)
        self._weigh(visitor, found)
        return has_new

    async def _refresh(self, frontier: Frontier, lease: Lease, url: str) -> None:
        """Read the fleet's jar for a site, unless that was done a moment ago."""
        visitor = lease.exit, site_of_url(url)
        found = self._jar_of(visitor)
        if self._ticks() - found.looked_at < LOOK_SECONDS:
            return
        # If the frontier cannot be reached, the worker goes on with the cookies that it has.
        with contextlib.suppress(ServerUnreachable, StorageError):
            version, kept = await frontier.session(lease.crawl, _name(visitor))
            if version != found.version:
                found.jar, found.version = self._loaded(kept), version
        found.looked_at = self._ticks()
        self._weigh(visitor, found)

    async def _share(self, frontier: Frontier, crawl: str, name: str, found: _SiteJar, *, url: str, lines: str) -> None:
        """Write the cookies of an answer to the fleet's jar; if other workers were faster, on top of theirs."""
        for _ in range(SHARE_TRIES):
            data = found.jar.dump()
            version, kept = await frontier.keep_session(crawl, name, data, version=found.version)
            if kept == data or not version:  # version 0: the frontier has no room; only this worker has the cookies
                found.version = version
                return
            found.jar, found.version = self._loaded(kept), version
            found.jar.take(url, lines)

    def _jar_of(self, visitor: Visitor) -> _SiteJar:
        found = self._jars.get(visitor)
        if found is None:
            found = self._jars[visitor] = _SiteJar(CookieJar(clock=self._clock))
        return found

    def _weigh(self, visitor: Visitor, found: _SiteJar) -> None:
        """Note the use and the size of a jar; drops the least recently used jars beyond the limits."""
        if self._jars.get(visitor) is not found:
            return
        self._jars.move_to_end(visitor)
        size = found.jar.size + COOKIE_BYTES * len(found.jar)
        self.weight += size - found.size
        found.size = size
        while len(self._jars) > MAX_JARS or (self.weight > MAX_BYTES and len(self._jars) > 1):
            self.weight -= self._jars.popitem(last=False)[1].size

    def _loaded(self, data: bytes) -> CookieJar:
        try:
            return CookieJar.load(data, clock=self._clock)
        except msgspec.MsgspecError:
            return CookieJar(clock=self._clock)


@lru_cache(maxsize=HOSTS_REMEMBERED)
def _site(lane: str) -> str:
    """The registered domain of a lane's host, whatever its port."""
    return site_of(lane if lane.endswith("]") else lane.rpartition(":")[0] or lane)


def _name(visitor: Visitor) -> str:
    """The name of a jar in the frontier; never that of an exit, which has no space."""
    return f"cookies {visitor[0]} {visitor[1]}"


def names_cookies(headers: dict[str, str] | None) -> bool:
    """Whether a request has a Cookie header of its own."""
    return headers is not None and any(name.lower() == "cookie" for name in headers)


def site_of_url(url: str) -> str:
    """The registered domain of a canonical URL."""
    return _site(lane_of(url))
