"""Fetches over TLS: whose certificate is good."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
import trustme
from fetch_checks import SETTINGS, Names, fault, fetched

from shoal.fetch.base import FaultKind
from shoal.fetch.http import HttpFetcher
from shoal.fetch.routes import ROUTE_SECONDS
from shoal.testing.sites.hostile import answer


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    issued = authority.issue_cert("shop.test", "other.test", "*.many.test", "127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(folder / "site.pem")
    authority.cert_pem.write_to_path(folder / "roots.pem")
    return folder


class SecureSite:
    """Answers every request over TLS with the host it was asked for."""

    def __init__(self, folder: Path, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self._host = host
        self.port = port
        self.hosts: list[bytes] = []
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "site.pem")
        self._context.set_alpn_protocols(["http/1.1"])
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> SecureSite:
        self._server = await asyncio.start_server(self._serve, self._host, self.port, ssl=self._context)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        for writer in self._writers:
            with suppress(ConnectionError, ssl.SSLError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.hosts.append(head.lower().partition(b"host: ")[2].partition(b":")[0])
                writer.write(answer(head))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


class TestTls:
    async def test_pins_the_address_and_checks_the_certificate_for_the_name(self, certificate: Path) -> None:
        names = Names(shop_test=["127.0.0.1"], other_test=["127.0.0.1"], stranger_test=["127.0.0.1"])
        async with SecureSite(certificate) as site:
            roots = (certificate / "roots.pem").read_bytes()
            fetcher = HttpFetcher(SETTINGS, resolver=names, trusted_roots=roots)
            for host in ("shop.test", "other.test", "127.0.0.1"):
                head = (await fetched(fetcher, f"https://{host}:{site.port}/")).body
                assert f"host: {host}:{site.port}\r\n".encode() in head.lower()
            found = await fault(fetcher, f"https://stranger.test:{site.port}/")
            assert found.kind is FaultKind.TLS
            await fetcher.close()

    async def test_names_that_share_a_client_are_each_connected_to_at_their_own_address(
        self, certificate: Path
    ) -> None:
        near = [f"{number}.many.test" for number in range(12)]
        far = [f"{number}.many.test" for number in range(12, 24)]
        names = Names()
        names.addresses = {**{name: ["127.0.0.1"] for name in near}, **{name: ["127.0.0.2"] for name in far}}
        async with SecureSite(certificate) as first, SecureSite(certificate, host="127.0.0.2", port=first.port) as last:
            roots = (certificate / "roots.pem").read_bytes()
            fetcher = HttpFetcher(SETTINGS, resolver=names, trusted_roots=roots)
            await asyncio.gather(*(fetched(fetcher, f"https://{name}:{first.port}/") for name in near + far))
            clients = {id(route.client) for route in fetcher._routes._known.values()}
            await fetcher.close()
        assert len(clients) < 12
        assert sorted(first.hosts) == sorted(name.encode() for name in near)
        assert sorted(last.hosts) == sorted(name.encode() for name in far)

    async def test_a_name_that_moves_is_vetted_again_and_its_old_connection_not_used(self, certificate: Path) -> None:
        names, now = Names(shop_test=["127.0.0.1"], other_test=["127.0.0.1"]), [1000.0]
        settings = msgspec.structs.replace(SETTINGS, allow_private=False, allow_addresses=("127.0.0.1", "127.0.0.2"))
        roots = (certificate / "roots.pem").read_bytes()
        async with SecureSite(certificate) as first, SecureSite(certificate, host="127.0.0.2", port=first.port) as last:
            fetcher = HttpFetcher(settings, resolver=names, clock=lambda: now[0], trusted_roots=roots)
            urls = [f"https://{name}:{first.port}/" for name in ("shop.test", "other.test")]
            await asyncio.gather(*(fetched(fetcher, url) for url in urls))
            now[0] += ROUTE_SECONDS + 1
            names.addresses |= {"shop.test": ["127.0.0.2"], "other.test": ["127.0.0.3"]}
            await fetched(fetcher, urls[0])
            assert (await fault(fetcher, urls[1])).kind is FaultKind.REFUSED_ADDRESS
            await fetcher.close()
        assert sorted(first.hosts) == [b"other.test", b"shop.test"]
        assert last.hosts == [b"shop.test"]

    async def test_an_unknown_issuer_is_a_tls_fault(self, certificate: Path) -> None:
        async with SecureSite(certificate) as site:
            fetcher = HttpFetcher(SETTINGS, resolver=Names(shop_test=["127.0.0.1"]))
            found = await fault(fetcher, f"https://shop.test:{site.port}/")
            assert found.kind is FaultKind.TLS
            assert "certificate" in found.message
            await fetcher.close()

    async def test_a_site_that_speaks_no_tls_is_a_tls_fault(self, fetcher: HttpFetcher) -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(1)
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        found = await fault(fetcher, f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        assert found.kind is FaultKind.TLS
        server.close()
        await server.wait_closed()
