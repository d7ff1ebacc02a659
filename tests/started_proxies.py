"""The fixture of proxies, for the conftest of each folder whose tests crawl through some."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from shoal.testing.servers.proxy_servers import Tinyproxy

PORT_TRIES = 5


@pytest.fixture
def start_proxy(tmp_path: Path) -> Iterator[Callable[..., Tinyproxy]]:
    """Starts proxies, each on the loopback address it is given."""
    started: list[Tinyproxy] = []

    def start(address: str, **options: Any) -> Tinyproxy:
        for _ in range(PORT_TRIES):
            # Tests that run beside this one use the same addresses, and may be quicker to take a port.
            with contextlib.suppress(RuntimeError):
                started.append(Tinyproxy(tmp_path, address=address, **options).start())
                return started[-1]
        raise RuntimeError(f"no tinyproxy would start on {address}")

    yield start
    for proxy in started:
        proxy.stop()
