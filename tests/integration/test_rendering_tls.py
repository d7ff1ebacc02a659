"""Pages over HTTPS in a real Chromium: rendered, guarded inside their tunnels, and refused where nobody trusts them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from shoal.browser.fetcher import BrowserFetcher
from shoal.fetch.base import Fault, FaultKind, Fetch, Response
from shoal.fetch.http import HttpFetcher
from shoal.model import Render
from shoal.settings.table import Settings
from shoal.testing.servers.programs import find_program

SITE, ELSEWHERE = "127.0.0.2", "127.0.0.1"
SETTINGS = Settings(allow_addresses=(f"{SITE}/32",), render_seconds=20.0)
PAGE = """<body><h1></h1><script>
const tries = ["https://%(private)s/", "wss://%(private)s/"].map(url => new Promise(done => {
    if (url.startsWith("wss")) { const socket = new WebSocket(url); socket.onerror = done; }
    else fetch(url, {mode: "no-cors"}).then(done).catch(done); }));
const own = fetch("/words").then(answer => answer.text())
    .then(text => { document.querySelector("h1").textContent = text; });
Promise.all([own, ...tries]).then(() => { document.body.id = "ready"; });
</script>"""


class TlsSite:
    """A page over HTTPS, and a server at a private address that nobody may reach."""

    def __init__(self) -> None:
        self._certificate = trustme.CA().issue_cert(SITE, ELSEWHERE)
        self.reached: list[bytes] = []

    async def open(self) -> None:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._certificate.configure_cert(context)
        self._servers = [
            await asyncio.start_server(self._serve, SITE, 0, ssl=context),
            await asyncio.start_server(self._reach, ELSEWHERE, 0),
        ]
        self._port, self._private = (server.sockets[0].getsockname()[1] for server in self._servers)
        self.url = f"https://{SITE}:{self._port}/"

    async def close(self) -> None:
        for server in self._servers:
            server.close()

    @property
    def pin(self) -> str:
        """The certificate's key as Chromium's flag names it."""
        leaf = x509.load_pem_x509_certificate(self._certificate.cert_chain_pems[0].bytes())
        key = leaf.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return base64.b64encode(hashlib.sha256(key).digest()).decode()

    async def _reach(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reached.append(await reader.read(100))
        writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            path = (await reader.readuntil(b"\r\n\r\n")).split()[1]
            page = PAGE % {"private": f"{ELSEWHERE}:{self._private}"}
            kind, text = ("text/plain", "said in a tunnel") if path == b"/words" else ("text/html", page)
            head = (
                f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(text)}\r\nConnection: close\r\n\r\n"
            )
            writer.write((head + text).encode())
            await writer.drain()
        except (OSError, EOFError):
            pass
        finally:
            writer.close()


@pytest.fixture
async def site() -> AsyncIterator[TlsSite]:
    opened = TlsSite()
    await opened.open()
    yield opened
    await opened.close()


async def render(url: str, program: str) -> Response | Fault:
    fetcher = BrowserFetcher(HttpFetcher(SETTINGS), program=program, settings=SETTINGS)
    try:
        return await fetcher.fetch(Fetch(url=url, render=Render(wait_for="#ready")))
    finally:
        await fetcher.close()


async def test_a_page_over_https_is_rendered_and_guarded_inside_its_tunnels(site: TlsSite, tmp_path: Path) -> None:
    trusting = tmp_path / "chromium"
    flag = f"--ignore-certificate-errors-spki-list={site.pin}"
    trusting.write_text(f'#!/bin/sh\nexec {find_program("chromium")} {flag} "$@"\n')
    trusting.chmod(0o755)
    answer = await render(site.url, str(trusting))
    assert isinstance(answer, Response), answer
    assert b"<h1>said in a tunnel</h1>" in answer.body
    assert answer.page_refused >= 2
    assert site.reached == []


@pytest.mark.full
async def test_a_page_that_no_authority_vouches_for_is_not_rendered(site: TlsSite) -> None:
    fault = await render(site.url, find_program("chromium"))
    assert isinstance(fault, Fault)
    assert fault.kind is FaultKind.TLS
    assert "CERT" in fault.message
