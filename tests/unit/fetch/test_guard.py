from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shoal.fetch.guard import refusal

REFUSED = {
    "unspecified": ["0.0.0.0", "0.0.0.1", "0.255.255.255", "::", "0:0:0:0:0:0:0:0"],
    "loopback": ["127.0.0.1", "127.0.0.0", "127.255.255.255", "127.1.2.3", "::1"],
    "private": [
        "10.0.0.0",
        "10.255.255.255",
        "172.16.0.0",
        "172.31.255.255",
        "192.168.0.0",
        "192.168.255.255",
        "fc00::",
        "fd12:3456::1",
        "fdff:ffff:ffff:ffff:ffff:ffff:ffff:ffff",
    ],
    "link-local": ["169.254.0.1", "169.254.255.255", "fe80::1", "fe80::1%eth0", "febf:ffff::1"],
    "site-local": ["fec0::1", "feff::1"],
    "shared": ["100.64.0.0", "100.127.255.255"],
    "benchmarking": ["198.18.0.0", "198.19.255.255", "2001:2::1"],
    "documentation": ["192.0.2.1", "198.51.100.1", "203.0.113.255", "2001:db8::1", "3fff::1"],
    "multicast": ["224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1"],
    "metadata": [
        "169.254.169.254",
        "169.254.170.2",
        "100.100.100.200",
        "192.0.0.192",
        "168.63.129.16",
        "fd00:ec2::254",
        "fd20:ce::254",
    ],
    "IPv4-mapped": ["::ffff:127.0.0.1", "::ffff:8.8.8.8", "::ffff:a9fe:a9fe", "::ffff:0:8.8.8.8"],
    "NAT64": ["64:ff9b::7f00:1", "64:ff9b::8.8.8.8", "64:ff9b:1::1", "64:ff9b:1:ffff::1"],
    "6to4": ["2002:7f00:1::", "2002:808:808::1", "192.88.99.1"],
    "Teredo": ["2001::1", "2001:0:ffff:ffff::1"],
    "reserved": [
        "192.0.0.1",
        "240.0.0.1",
        "255.255.255.255",
        "::8.8.8.8",
        "::127.0.0.1",
        "100::1",
        "2001:10::1",
        "2001:20::1",
        "5f00::1",
        "1::1",
        "4000::1",
        "8000::1",
        "e000::1",
    ],
}
ALLOWED = [
    "1.1.1.1",
    "8.8.8.8",
    "9.255.255.255",
    "11.0.0.0",
    "93.184.216.34",
    "100.63.255.255",
    "100.128.0.0",
    "126.255.255.255",
    "128.0.0.0",
    "169.253.255.255",
    "169.255.0.0",
    "172.15.255.255",
    "172.32.0.0",
    "192.167.255.255",
    "192.169.0.0",
    "198.17.255.255",
    "198.20.0.0",
    "223.255.255.255",
    "2001:4860:4860::8888",
    "2606:4700::1111",
    "2a00:1450:4001::1",
    "2001:200::1",
]


@pytest.mark.parametrize(("reason", "address"), [(reason, one) for reason, all_ in REFUSED.items() for one in all_])
def test_refuses_with_the_name_of_the_network(reason: str, address: str) -> None:
    assert refusal(address) == reason


@pytest.mark.parametrize("address", ALLOWED)
def test_allows_public_addresses(address: str) -> None:
    assert refusal(address) is None


@pytest.mark.parametrize("text", ["", "example.com", "127.1", "2130706433", "0x7f000001", "[::1]", "1.2.3.4:80", "::g"])
def test_refuses_what_is_not_an_address(text: str) -> None:
    assert refusal(text) == "not an address"


@given(st.ip_addresses())
def test_allows_nothing_that_the_standard_library_calls_not_global(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if refusal(str(address)) is None:
        assert address.is_global
        assert not address.is_multicast


@given(st.ip_addresses(v=4), st.sampled_from(["::ffff:0:0", "64:ff9b::", "::"]))
def test_refuses_every_address_that_carries_another(inner: ipaddress.IPv4Address, prefix: str) -> None:
    address = ipaddress.IPv6Address(int(ipaddress.IPv6Address(prefix)) | int(inner))
    assert refusal(str(address)) is not None


@given(st.ip_addresses(v=4), st.sampled_from(["2002::", "2001::"]))
def test_refuses_tunnels_whatever_is_inside(inner: ipaddress.IPv4Address, prefix: str) -> None:
    shift = 80 if prefix == "2002::" else 64
    address = ipaddress.IPv6Address(int(ipaddress.IPv6Address(prefix)) | int(inner) << shift)
    assert refusal(str(address)) is not None
