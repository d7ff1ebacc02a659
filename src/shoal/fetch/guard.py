"""The guard: which addresses a request may be sent to, checked before each connection; and the DNS cache."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Final

from shoal.fetch.base import Fault, FaultKind
from shoal.fetch.descriptors import is_used_up
from shoal.fetch.faults import SHORTAGES, one_line

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Lookup = Callable[[str], Awaitable[Sequence[str]]]
Addresses = tuple[str, ...] | Fault

REMEMBER_SECONDS: Final = 60.0
REMEMBER_FAILURE_SECONDS: Final = 5.0
MAX_HOSTS: Final = 10_000
# More than a worker's slots: a name server that never answers blocks its thread long after the request ended.
LOOKUP_THREADS: Final = 128
LOOKUP_FILES: Final = 2  # files that a look-up has open at once

# The first match names the reason, so special addresses come before the wider network around them.
_TABLE: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    (
        "metadata",
        (
            "169.254.169.254/32",  # most clouds
            "169.254.170.2/32",  # container credentials
            "169.254.170.23/32",
            "169.254.169.123/32",  # time service
            "169.254.169.253/32",  # resolver
            "100.100.100.200/32",
            "192.0.0.192/32",
            "168.63.129.16/32",  # a public address of Azure's own platform
            "fd00:ec2::254/128",
            "fd00:ec2::23/128",
            "fd00:ec2::123/128",
            "fd00:ec2::253/128",
            "fd20:ce::254/128",
            "fd00:42::42/128",
        ),
    ),
    ("unspecified", ("0.0.0.0/8", "::/128")),
    ("loopback", ("127.0.0.0/8", "::1/128")),
    ("link-local", ("169.254.0.0/16", "fe80::/10")),
    ("site-local", ("fec0::/10",)),
    ("shared", ("100.64.0.0/10",)),
    ("private", ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")),
    ("benchmarking", ("198.18.0.0/15", "2001:2::/48")),
    (
        "documentation",
        ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20"),
    ),
    ("multicast", ("224.0.0.0/4", "ff00::/8")),
    # Addresses that contain another address: routers decide where packets go, so all are refused.
    ("IPv4-mapped", ("::ffff:0:0/96", "::ffff:0:0:0/96")),
    ("NAT64", ("64:ff9b::/96", "64:ff9b:1::/48")),
    ("6to4", ("192.88.99.0/24", "2002::/16")),
    ("Teredo", ("2001::/32",)),
    (
        "reserved",
        (
            "192.0.0.0/24",
            "192.31.196.0/24",
            "192.52.193.0/24",
            "192.175.48.0/24",
            "240.0.0.0/4",
            "::/96",  # IPv4-compatible, deprecated
            "100::/64",
            "100:0:0:1::/64",
            "2001::/23",
            "2620:4f:8000::/48",
            "5f00::/16",
        ),
    ),
)
_NETWORKS: Final[tuple[tuple[str, Network], ...]] = tuple(
    (reason, ipaddress.ip_network(network)) for reason, networks in _TABLE for network in networks
)
_GLOBAL_UNICAST: Final = ipaddress.IPv6Network("2000::/3")


@lru_cache(maxsize=4096)
def refusal(address: str) -> str | None:
    """Why no request may go to this address; None: it may. A text that is no address is refused."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return "not an address"
    for reason, network in _NETWORKS:
        if parsed.version == network.version and parsed in network:
            return reason
    if isinstance(parsed, ipaddress.IPv6Address) and parsed not in _GLOBAL_UNICAST:
        return "reserved"
    return None


def refusal_unless(address: str, exempt: Iterable[Network]) -> str | None:
    """Like `refusal`, but these networks are allowed."""
    reason = refusal(address)
    # Compared unchanged: an address that contains another one is in none of these networks.
    if reason is not None and "%" not in address:
        return None if any(ipaddress.ip_address(address) in network for network in exempt) else reason
    return reason


class Resolver:
    """Looks up and caches the addresses of hosts; a failure is a value, cached for a few seconds. Concurrent look-ups
    of a host are one."""

    def __init__(self, lookup: Lookup | None = None, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        # Threads of its own: a name server that does not answer must not block the loop's other threads.
        self._threads = None if lookup else ThreadPoolExecutor(LOOKUP_THREADS, thread_name_prefix="shoal-dns")
        self._lookup = lookup or self._ask_system
        self._known: dict[str, tuple[float, Addresses]] = {}
        self._asking: dict[str, asyncio.Task[Addresses]] = {}

    async def addresses(self, host: str) -> Addresses:
        """The addresses of a host in the system's order of preference, or why there are none."""
        known = self._known.get(host)
        if known is not None and known[0] > self._clock():
            return known[1]
        task = self._asking.get(host)
        if task is None:
            task = self._asking[host] = asyncio.create_task(self._ask(host))
        # Shielded: a request that is cancelled must not cancel the look-up that others wait for.
        return await asyncio.shield(task)

    def close(self) -> None:
        """Cancel the look-ups in flight."""
        for task in self._asking.values():
            task.cancel()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def _ask(self, host: str) -> Addresses:
        try:
            found = await self._answer(host)
            if not (isinstance(found, Fault) and found.kind is FaultKind.SHORTAGE):
                seconds = REMEMBER_FAILURE_SECONDS if isinstance(found, Fault) else REMEMBER_SECONDS
                self._known.pop(host, None)
                self._known[host] = (self._clock() + seconds, found)
                if len(self._known) > MAX_HOSTS:
                    del self._known[next(iter(self._known))]
            return found
        finally:
            del self._asking[host]

    async def _answer(self, host: str) -> Addresses:
        try:
            found = tuple(dict.fromkeys(await self._lookup(host)))
        except OSError as error:
            reason = one_line(error.strerror or type(error).__name__)
            return Fault(kind=FaultKind.SHORTAGE if _is_short(error) else FaultKind.DNS, message=f"{host}: {reason}")
        except ValueError:  # includes the idna codec's errors
            return Fault(kind=FaultKind.DNS, message=f"{one_line(host)}: not a host name")
        return found or Fault(kind=FaultKind.DNS, message=f"{host}: no address")

    async def _ask_system(self, host: str) -> Sequence[str]:
        loop = asyncio.get_running_loop()
        rows = await loop.run_in_executor(self._threads, _system_addresses, host)
        return [str(row[4][0]) for row in rows]


def _is_short(error: OSError) -> bool:
    """Whether a look-up failed because this machine lacks something."""
    return error.errno == socket.EAI_MEMORY if isinstance(error, socket.gaierror) else error.errno in SHORTAGES


def _system_addresses(host: str) -> list[tuple[int, int, int, str, tuple[object, ...]]]:
    try:
        return list(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM))
    except OSError as error:
        # Without descriptors glibc says "try again", "name not known", or "busy" (with multicast). Checked here in the
        # thread, because a moment later there may be some again.
        if is_used_up(needed=LOOKUP_FILES):
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from error
        raise
