"""A site, and real proxies of every kind before it, each on an address of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import trustme
from exit_fetches import SECRET, Site

from shoal.testing.servers.proxy_servers import Microsocks, Tinyproxy


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
async def site(authority: trustme.CA) -> AsyncIterator[Site]:
    site = Site(authority)
    await site.start()
    yield site
    await site.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("proxies")


@pytest.fixture(scope="module")
def open_proxy(folder: Path) -> Iterator[Tinyproxy]:
    proxy = Tinyproxy(folder, address="127.0.0.2").start()
    yield proxy
    proxy.stop()


@pytest.fixture(scope="module")
def locked_proxy(folder: Path) -> Iterator[Tinyproxy]:
    proxy = Tinyproxy(folder, address="127.0.0.3", user="anna", password=SECRET).start()
    yield proxy
    proxy.stop()


@pytest.fixture(scope="module")
def refusing_proxy(folder: Path) -> Iterator[Tinyproxy]:
    proxy = Tinyproxy(folder, address="127.0.0.4", serves_us=False).start()
    yield proxy
    proxy.stop()


@pytest.fixture(scope="module")
def socks_proxy() -> Iterator[Microsocks]:
    proxy = Microsocks(address="127.0.0.5", user="anna", password=SECRET).start()
    yield proxy
    proxy.stop()
