"""Fetches over TLS: whose certificate is good."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import suppress
from pathlib import Path

import pytest
import trustme
from fetch_checks import SETTINGS, Names, fault, fetched

from shoal.fetch.base import FaultKind
from shoal.fetch.http import HttpFetcher
from shoal.testing.sites.hostile import answer


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tls")
    authority = trustme.CA()
    issued = authority.issue_cert("shop.test", "other.test", "127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(folder / "site.pem")
    authority.cert_pem.write_to_path(folder / "roots.pem")
    return folder


class SecureSite:
    """Answers every request over TLS with the host it was asked for."""

    def __init__(self, folder: Path) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(folder / "site.pem")
        self._context.set_alpn_protocols(["http/1.1"])
        self._server: asyncio.Server | None = None
        self._writers: list[asyncio.StreamWriter] = []
        self.port = 0

    async def __aenter__(self) -> SecureSite:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
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
                writer.write(answer(await reader.readuntil(b"\r\n\r\n")))
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
