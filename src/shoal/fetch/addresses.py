"""This machine's IP addresses, for exits `bind:ADDRESS` whose requests leave from one of them."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final

BIND: Final = "bind:"  # prefix of an exit that is an address of this machine
_IPV4_TABLE: Final = Path("/proc/net/fib_trie")
_IPV6_TABLE: Final = Path("/proc/net/if_inet6")
_LOCAL: Final = re.compile(r"\|-- (\S+)\s+/32 host LOCAL")
MOST_SHOWN: Final = 12


def has_address(address: str) -> bool:
    """Whether this machine has the address."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def family_of(address: str) -> str:
    """ "IPv4" or "IPv6"."""
    return "IPv6" if ":" in address else "IPv4"


def parse_address(text: str) -> str:
    """The address of `bind:ADDRESS` in normal form. Raises ValueError with the reason."""
    try:
        address = ipaddress.ip_address(text.strip("[]"))
    except ValueError:
        raise ValueError("it is no IPv4 or IPv6 address") from None
    if address.is_unspecified or address.is_multicast or "%" in text or address.is_link_local:
        raise ValueError("requests cannot leave from such an address")
    return str(address)


def check_own(addresses: Iterable[str]) -> str:
    """Which of the addresses this machine lacks, and which it has; empty: it has all of them."""
    missing = [address for address in addresses if not has_address(address)]
    if not missing:
        return ""
    own = own_addresses()
    has = f"it has {', '.join(own[:MOST_SHOWN])}" if own else "`ip address` shows those that it has"
    more = f" and {len(own) - MOST_SHOWN} more" if len(own) > MOST_SHOWN else ""
    return f"this machine does not have the address {', '.join(missing[:3])}: {has}{more}"


def own_addresses() -> list[str]:
    """The addresses of this machine, loopback last; empty if the system does not list them."""
    found = {ipaddress.ip_address(text) for text in _LOCAL.findall(_text_of(_IPV4_TABLE))}
    for line in _text_of(_IPV6_TABLE).splitlines():
        found.add(ipaddress.IPv6Address(int(line.split()[0], 16)))
    usable = [address for address in found if not address.is_link_local]
    return [str(address) for address in sorted(usable, key=lambda one: (one.is_loopback, one.version, int(one)))]


def _text_of(table: Path) -> str:
    try:
        return table.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""
