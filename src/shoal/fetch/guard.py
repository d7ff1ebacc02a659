"""The addresses that a request may be sent to. Pure: the fetcher asks about each address before it connects."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# The first match names the reason, so special addresses come before the wider network around them.
_TABLE: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    (
        "metadata",
        (
            "169.254.169.254/32",  # nearly every cloud
            "169.254.170.2/32",  # container credentials
            "169.254.170.23/32",
            "169.254.169.123/32",  # time service
            "169.254.169.253/32",  # resolver
            "100.100.100.200/32",
            "192.0.0.192/32",
            "168.63.129.16/32",  # a public address that leads only to the cloud's own platform
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
    # Addresses that contain another address: routers decide where they really lead, so all are refused.
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
    """Why no request may go to this address; None when one may. A text that is no address is refused."""
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
    """As `refusal`, but these networks are allowed."""
    reason = refusal(address)
    # Compared as it is: an address that contains another one is in none of these networks.
    if reason is not None and "%" not in address:
        return None if any(ipaddress.ip_address(address) in network for network in exempt) else reason
    return reason
