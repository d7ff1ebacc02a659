"""The addresses a fetch goes to: how names are looked up, and which are refused."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence

import msgspec
import pytest
from fetch_checks import SETTINGS, Names, fault, fetched

from shoal.fetch.base import Fault, FaultKind
from shoal.fetch.http import HttpFetcher
from shoal.settings.table import Settings
from shoal.testing.sites.hostile import HostileSite


class TestAddresses:
    @pytest.mark.parametrize(
        ("url", "reason"),
        [
            ("http://127.0.0.1/", "loopback"),
            ("http://10.1.2.3/", "private"),
            ("http://169.254.169.254/latest/", "metadata"),
            ("http://2130706433/", "loopback"),
            ("http://0x7f.1/", "loopback"),
            ("http://0/", "unspecified"),
            ("http://[::1]/", "loopback"),
            ("http://[::ffff:7f00:1]/", "IPv4-mapped"),
            ("http://[64:ff9b::7f00:1]/", "NAT64"),
            ("https://[fd00:ec2::254]/", "metadata"),
            ("https://192.168.1.1/", "private"),
        ],
    )
    async def test_refuses_special_addresses_by_default(self, url: str, reason: str) -> None:
        fetcher = HttpFetcher(Settings())
        found = await fault(fetcher, url)
        assert found.kind is FaultKind.REFUSED_ADDRESS
        assert reason in found.message
        await fetcher.close()

    @pytest.mark.parametrize("scheme", ["http", "https"])
    async def test_refuses_a_name_that_leads_to_a_special_address(self, site: HostileSite, scheme: str) -> None:
        fetcher = HttpFetcher(Settings(), resolver=Names(inside_test=["127.0.0.1", "10.0.0.1"]))
        found = await fault(fetcher, f"{scheme}://inside.test:{site.port}/")
        assert found.kind is FaultKind.REFUSED_ADDRESS
        assert site.requests == []
        await fetcher.close()

    async def test_addresses_that_were_named_are_allowed_and_no_others(self, site: HostileSite) -> None:
        names = Names(
            inside_test=["10.0.0.1", "127.0.0.1"], outside_test=["127.0.0.2"], mapped_test=["::ffff:127.0.0.1"]
        )
        fetcher = HttpFetcher(Settings(allow_addresses=("127.0.0.1", "fd00::/8")), resolver=names)
        await fetched(fetcher, f"http://127.0.0.1:{site.port}/ok")
        await fetched(fetcher, f"http://inside.test:{site.port}/ok")
        for host in ("127.0.0.2", "outside.test", "mapped.test", "[::1]", "[::ffff:127.0.0.1]"):
            found = await fault(fetcher, f"http://{host}:{site.port}/ok")
            assert found.kind is FaultKind.REFUSED_ADDRESS
        await fetcher.close()

    async def test_connects_to_the_address_it_vetted_and_names_the_host(self, site: HostileSite) -> None:
        names = Names(shop_test=["127.0.0.1"])
        fetcher = HttpFetcher(SETTINGS, resolver=names)
        head = (await fetched(fetcher, f"http://shop.test:{site.port}/echo?a=b/c")).body
        assert head.startswith(b"GET /echo?a=b/c HTTP/1.1\r\n")
        assert f"Host: shop.test:{site.port}\r\n".encode() in head
        assert names.asked == ["shop.test"]
        await fetcher.close()

    async def test_names_an_international_host_in_its_ascii_form(self, site: HostileSite) -> None:
        fetcher = HttpFetcher(SETTINGS, resolver=Names(**{"xn--bcher-kva_test": ["127.0.0.1"]}))
        for host in ("xn--bcher-kva.test", "bücher.test", "B%C3%BCCHER.test"):
            head = (await fetched(fetcher, f"http://{host}:{site.port}/echo")).body
            assert f"Host: xn--bcher-kva.test:{site.port}\r\n".encode() in head
        await fetcher.close()

    async def test_reaches_an_ipv6_address(self) -> None:
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError:
            pytest.skip("no IPv6 on this machine")
        async with HostileSite(host="::1") as site:
            fetcher = HttpFetcher(SETTINGS, resolver=Names(six_test=["::1"]))
            head = (await fetched(fetcher, f"http://[::1]:{site.port}/echo")).body
            assert f"Host: [::1]:{site.port}\r\n".encode() in head
            head = (await fetched(fetcher, f"http://six.test:{site.port}/echo")).body
            assert f"Host: six.test:{site.port}\r\n".encode() in head
            await fetcher.close()

    async def test_credentials_of_a_url_become_a_header(self, site: HostileSite, fetcher: HttpFetcher) -> None:
        head = (await fetched(fetcher, f"http://user:secret@127.0.0.1:{site.port}/echo")).body.decode().lower()
        assert "authorization: basic dxnlcjpzzwnyzxq=" in head
        assert "user" not in head.split("host: ")[1].split("\r\n")[0]

    async def test_requests_that_wait_for_one_name_ask_for_it_once(self, site: HostileSite) -> None:
        names = Names(shop_test=["127.0.0.1"])
        fetcher = HttpFetcher(SETTINGS, resolver=names)
        await asyncio.gather(*(fetched(fetcher, f"http://shop.test:{site.port}/ok") for _ in range(8)))
        assert names.asked == ["shop.test"]
        await fetcher.close()

    async def test_looks_a_name_up_again_after_a_minute_and_a_failure_after_seconds(self, site: HostileSite) -> None:
        names, now = Names(shop_test=["127.0.0.1"]), [1000.0]
        fetcher = HttpFetcher(SETTINGS, resolver=names, clock=lambda: now[0])
        for later in (0, 59, 2):
            now[0] += later
            await fetched(fetcher, f"http://shop.test:{site.port}/ok")
        assert names.asked == ["shop.test"] * 2
        for later in (0, 4, 2):
            now[0] += later
            assert (await fault(fetcher, "http://gone.test/")).kind is FaultKind.DNS
        assert names.asked[2:] == ["gone.test"] * 2
        await fetcher.close()

    async def test_a_new_answer_of_the_name_server_is_vetted_again(self, site: HostileSite) -> None:
        names, now = Names(shop_test=["93.184.216.34"]), [0.0]
        fetcher = HttpFetcher(Settings(), resolver=names, clock=lambda: now[0])
        assert not isinstance(await fetcher._routes.find("http://shop.test"), Fault)
        names.addresses["shop.test"] = ["127.0.0.1"]
        now[0] += 61
        assert (await fault(fetcher, f"http://shop.test:{site.port}/ok")).kind is FaultKind.REFUSED_ADDRESS
        assert (await fault(fetcher, "http://shop.test/")).kind is FaultKind.REFUSED_ADDRESS
        await fetcher.close()

    async def test_tries_the_next_address_when_one_does_not_connect(self, site: HostileSite) -> None:
        fetcher = HttpFetcher(SETTINGS, resolver=Names(shop_test=["127.0.0.9", "127.0.0.1"]))
        assert (await fetched(fetcher, f"http://shop.test:{site.port}/ok")).status == 200
        await fetcher.close()

    async def test_a_name_server_that_does_not_answer_is_a_dns_fault(self) -> None:
        async def silent(host: str) -> Sequence[str]:
            await asyncio.sleep(3600)
            return []

        fetcher = HttpFetcher(msgspec.structs.replace(SETTINGS, connect_seconds=0.05), resolver=silent)
        assert (await fault(fetcher, "http://shop.test/")).kind is FaultKind.DNS
        await fetcher.close()

    async def test_asks_the_system_for_names(self, site: HostileSite, fetcher: HttpFetcher) -> None:
        assert (await fetched(fetcher, f"http://localhost:{site.port}/ok")).status == 200
        assert (await fault(fetcher, "http://no-such-host.invalid/")).kind is FaultKind.DNS
