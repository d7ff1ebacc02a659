"""HTTP clients (pyreqwest), each for a batch of origins, and the limit of their idle connections.

Connections can be dropped only with their whole client: batches of hosts that were visited once go first. pyreqwest
limits idle connections per host only and takes no resolver, so an HTTPS client is built with the checked address of
each name. One client per origin cost 5 ms each, and 17,860 descriptors for 20,000 hosts; one client for all with short
keep-alives would close the connections of the hosts that are being crawled.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from pyreqwest.client import Client, ClientBuilder
from pyreqwest.exceptions import BuilderError
from pyreqwest.runtime import runtime_worker_threads

from shoal.fetch.descriptors import idle_within, is_short, is_used_up, open_limit
from shoal.settings.table import Settings

ACCEPT: Final = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
ACCEPT_LANGUAGE: Final = "en,*;q=0.5"
ACCEPT_ENCODING: Final = "gzip, deflate, br, zstd"
KEEP_ALIVE_SECONDS: Final = 30.0
HTTP2_HEADERS: Final = 256 * 1024  # bytes, like browsers; the client's default is 16 KiB
HTTP2_STREAM_WINDOW: Final = 1024 * 1024
HTTP2_CONNECTION_WINDOW: Final = 4 * 1024 * 1024
GIVEN_UP_SECONDS: Final = 1.0  # the client's timeout comes after our own deadlines, which name the fault better
FOREVER: Final = 366 * 86_400.0

BATCHES: Final = 8  # per tier, when they are full
SMALLEST_BATCH: Final = 16  # origins: building a client for HTTPS takes 5 ms, as long as several requests
MAX_BATCHES: Final = 128  # per tier, however few origins each has: a client takes 0.1 MB
MAX_SEEN: Final = 10_000
# Over HTTP/2 a host may keep its connection alive for ever.
BATCH_SECONDS: Final = 300.0
# Building a client for HTTPS reads the system's certificates: origins that come faster than this share one.
GATHER_SECONDS: Final = 0.05
# A client thread that delivers a response waits for the interpreter lock, and its requests wait with it. With one
# thread and a busy event loop, many requests start in bursts. Few requests need no more threads, which cost 5 % of CPU.
SENDING_THREADS: Final = 4
MANY_AT_ONCE: Final = 256
READING_ROOTS: Final = 4  # descriptors for reading the system's certificates (a folder, a file), and some more
# Connections in use at one check are idle at the next.
CHECK_SECONDS: Final = 0.1
# Requests that met the shortage are retried within this time.
WATCH_SECONDS: Final = 2.0
# For shortages of other things (ports, memory), closing connections more often does not help.
CLOSE_SECONDS: Final = 1.0


class Batch:
    """A client and the origins whose routes use it.

    - `expires`: the latest expiry of these routes
    - `is_kept`: the client has not been dropped
    """

    __slots__ = ("client", "expires", "is_kept", "made", "origins")

    def __init__(self, client: Client, *, made: float) -> None:
        self.client = client
        self.origins: list[str] = []
        self.made = made
        self.expires = made
        self.is_kept = True


class Tier:
    """Batches, oldest first. With more than `most` origins, the oldest batch is dropped."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.size = max(SMALLEST_BATCH, most // BATCHES)
        self.batches: deque[Batch] = deque()
        self.plain: Batch | None = None
        self._origins = 0

    def count(self) -> None:
        """Count one more origin in the batches."""
        self._origins += 1

    @property
    def is_over(self) -> bool:
        """Whether the oldest batch must be dropped; never the newest, which is in use."""
        return len(self.batches) > 1 and (self._origins > self._most or len(self.batches) > MAX_BATCHES)

    def drop_oldest(self) -> Batch:
        """Remove the oldest batch."""
        return self.drop(self.batches[0])

    def drop(self, batch: Batch) -> Batch:
        """Remove a batch."""
        self.batches.remove(batch)
        batch.is_kept = False
        self._origins -= len(batch.origins)
        if self.plain is batch:
            self.plain = None
        return batch


class Clients:
    """Assigns a client to each origin.

    There are two tiers: an origin that returns after its batch was dropped gets a client among other returning ones, so
    that a stream of hosts with one page each does not close its connections.

    dropped: called with each batch whose connections are closed: it must not be used any more.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Callable[[], float],
        trusted_roots: bytes | None,
        dropped: Callable[[Batch], None],
        source: str = "",
        share: int = 1,
    ) -> None:
        """source: the local address of connections. share: how many instances share the limit of idle connections."""
        self._settings = settings
        self._source = source
        self._clock = clock
        self._trusted_roots = trusted_roots
        self._dropped = dropped
        self._limit = open_limit()
        most = max(2, idle_within(self._limit, settings.concurrency) // share)
        self._new, self._returning = Tier(most // 2), Tier(most - most // 2)
        self._seen: OrderedDict[str, None] = OrderedDict()
        self._gathering: dict[Tier, tuple[dict[str, str], asyncio.Task[Batch]]] = {}
        self._gathered_at = -math.inf
        # Raises if the spider uses the client library already: then its threads are used.
        with contextlib.suppress(RuntimeError):
            runtime_worker_threads(SENDING_THREADS)
        # Built now, or the first request would start late.
        self._plain(self._new)

    def for_plain(self, origin: str) -> Batch:
        """A client for an origin without TLS: each request has the address."""
        tier = self._tier(origin)
        return self._joined(tier, self._plain(tier), origin)

    async def for_secure(self, origin: str, pin: dict[str, str]) -> Batch:
        """A client that connects only to the address in `pin` for each host. A host that is an address needs none."""
        tier = self._tier(origin)
        pinned, building = self._gathering.get(tier, ({}, None))
        if any(pinned.get(host, address) != address for host, address in pin.items()):
            # A client has one address per name, and another origin of this host got another address.
            return self._joined(tier, self._secure(tier, pin), origin)
        pinned.update(pin)
        if building is None:
            wait = self._gathered_at + GATHER_SECONDS - self._clock()
            if wait <= 0:
                return self._joined(tier, self._secure(tier, pinned), origin)
            building = asyncio.create_task(self._gather(tier, pinned, wait))
            building.add_done_callback(_ignore_error)
            self._gathering[tier] = pinned, building
        # Shielded: a request that is cancelled must not cancel the client that others wait for.
        return self._joined(tier, await asyncio.shield(building), origin)

    def drop(self, batch: Batch) -> None:
        """Close the connections of a batch; its origins count as new when they come again."""
        for tier in (self._new, self._returning):
            if batch.is_kept and batch in tier.batches:
                self._dropped(tier.drop(batch))

    def drop_all(self) -> None:
        """Close all idle connections."""
        for tier in (self._new, self._returning):
            while tier.batches:
                self._dropped(tier.drop_oldest())

    def drop_idle(self) -> None:
        """Close the connections of batches without recent requests, and of old ones."""
        now = self._clock()
        for tier in (self._new, self._returning):
            while tier.batches and (
                tier.batches[0].expires < now - KEEP_ALIVE_SECONDS or tier.batches[0].made < now - BATCH_SECONDS
            ):
                self._retire(tier)

    def close(self) -> list[Client]:
        """Cancel clients that are being built; returns the others, to be closed."""
        for _, building in self._gathering.values():
            building.cancel()
        return [batch.client for tier in (self._new, self._returning) for batch in tier.batches]

    def _tier(self, origin: str) -> Tier:
        return self._returning if origin in self._seen else self._new

    def _joined(self, tier: Tier, batch: Batch, origin: str) -> Batch:
        batch.origins.append(origin)
        if batch.is_kept:
            tier.count()
        while tier.is_over:
            self._retire(tier)
        return batch

    def _retire(self, tier: Tier) -> None:
        batch = tier.drop_oldest()
        for origin in batch.origins:
            self._seen[origin] = None
            self._seen.move_to_end(origin)
        while len(self._seen) > MAX_SEEN:
            self._seen.popitem(last=False)
        self._dropped(batch)

    def _plain(self, tier: Tier) -> Batch:
        if tier.plain is None or len(tier.plain.origins) >= tier.size:
            tier.plain = self._added(tier, build_plain, client_builder(self._settings))
        return tier.plain

    def _secure(self, tier: Tier, pinned: dict[str, str]) -> Batch:
        builder = secure_builder(self._settings, trusted_roots=self._trusted_roots)
        for host, address in pinned.items():
            builder.resolve(host, address, 0)
        batch = self._added(tier, build_secure, builder)
        self._gathered_at = self._clock()
        return batch

    def _added(self, tier: Tier, build: Callable[[ClientBuilder], Client], builder: ClientBuilder) -> Batch:
        if is_short(self._limit, self._settings.concurrency):
            # Hosts may have several connections each: the limit of origins was not enough.
            oldest = self._new if self._new.batches else self._returning
            if oldest.batches:
                self._retire(oldest)
        if self._source:
            builder.local_address(self._source)
        batch = Batch(build(builder), made=self._clock())
        tier.batches.append(batch)
        return batch

    async def _gather(self, tier: Tier, pinned: dict[str, str], wait: float) -> Batch:
        try:
            await asyncio.sleep(wait)
        finally:
            del self._gathering[tier]
        return self._secure(tier, pinned)


def _ignore_error(building: asyncio.Task[Batch]) -> None:
    """Mark the error as seen: there may be no waiter left."""
    if not building.cancelled():
        building.exception()


def build_plain(builder: ClientBuilder) -> Client:
    """Build a client for http URLs only: without reading certificates it takes 10 µs and no file descriptor."""
    return _build(builder.danger_accept_invalid_certs(True))


def build_secure(builder: ClientBuilder) -> Client:
    """Build a client for HTTPS. Raises OSError if too few file descriptors are left.

    It reads the system's certificates and skips files that it cannot open: without descriptors it would trust fewer
    authorities, and sites would be blamed."""
    if is_used_up(needed=READING_ROOTS):
        raise _no_client(errno.EMFILE)
    client = _build(builder)
    # Client threads may have opened connections meanwhile.
    if is_used_up(needed=READING_ROOTS):
        raise _no_client(errno.EMFILE)
    return client


def _build(builder: ClientBuilder) -> Client:
    try:
        return builder.build()
    except BuilderError as error:
        raise _no_client(errno.EMFILE if is_used_up(needed=READING_ROOTS) else errno.EIO) from error


def _no_client(number: int) -> OSError:
    return OSError(number, f"no client could be made: {os.strerror(number)}")


def client_builder(settings: Settings) -> ClientBuilder:
    """A client without redirects, proxies, cookies, referers and decompression of its own."""
    builder = ClientBuilder().no_proxy().follow_redirects(False).referer(False).default_cookie_store(False)
    builder.runtime_multithreaded(settings.concurrency >= MANY_AT_ONCE)
    builder.gzip(False).brotli(False).zstd(False).deflate(False)
    # Like browsers, accept a header over several lines, a space before its colon, a line that is no header.
    builder.http1_allow_obsolete_multiline_headers_in_responses(True)
    builder.http1_allow_spaces_after_header_name_in_responses(True)
    builder.http1_ignore_invalid_headers_in_responses(True)
    builder.connect_timeout(timedelta(seconds=settings.connect_seconds or FOREVER))
    # A request that is cancelled before its response begins stays in the client, with its connection, until this.
    silence = max(settings.first_byte_seconds or FOREVER, settings.idle_seconds or FOREVER) + GIVEN_UP_SECONDS
    builder.read_timeout(timedelta(seconds=silence))
    builder.pool_idle_timeout(timedelta(seconds=KEEP_ALIVE_SECONDS))
    builder.pool_max_idle_per_host(settings.concurrency)
    builder.user_agent(settings.user_agent)
    headers = {"Accept": ACCEPT, "Accept-Language": ACCEPT_LANGUAGE, "Accept-Encoding": ACCEPT_ENCODING}
    return builder.default_headers(headers)


def secure_builder(settings: Settings, *, trusted_roots: bytes | None) -> ClientBuilder:
    """`client_builder` for HTTPS: HTTP/2 where the host offers it, certificates checked against these roots, too."""
    builder = client_builder(settings).http2(True)
    builder.http2_initial_stream_window_size(HTTP2_STREAM_WINDOW)
    builder.http2_initial_connection_window_size(HTTP2_CONNECTION_WINDOW)
    builder.http2_max_header_list_size(HTTP2_HEADERS)
    if trusted_roots is not None:
        builder.add_root_certificate_pem(trusted_roots)
    return builder


class IdleCloser:
    """Closes idle connections after a request met a shortage, again and again while all descriptors are in use."""

    def __init__(self, close_idle: Callable[[], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._close_idle = close_idle
        self._clock = clock
        self._closed = self._until = -WATCH_SECONDS
        self._watching: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Close idle connections: a request met a shortage."""
        self._until = self._clock() + WATCH_SECONDS
        if self._clock() >= self._closed + CLOSE_SECONDS:
            self._close()
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._watch())

    def end(self) -> None:
        """Stop checking."""
        if self._watching is not None:
            self._watching.cancel()

    async def _watch(self) -> None:
        while self._clock() < self._until:
            await asyncio.sleep(CHECK_SECONDS)
            if is_used_up():
                self._close()

    def _close(self) -> None:
        self._closed = self._clock()
        self._close_idle()
