from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scrapy_project import Project
from scrapy_versions import ScrapyVersion

from shoal.testing.servers.proxy_servers import Tinyproxy

PORT_TRIES = 5


@pytest.fixture
def project(tmp_path: Path, request: pytest.FixtureRequest) -> Project:
    """A folder for a spider. The marks of scrapy_versions repeat a test with other releases of Scrapy."""
    return Project(tmp_path, getattr(request, "param", ScrapyVersion()))


@pytest.fixture
def start_proxy(tmp_path: Path) -> Iterator[Callable[..., Tinyproxy]]:
    """Starts proxies, each on the loopback address it is given."""
    started: list[Tinyproxy] = []

    def start(address: str, **options: Any) -> Tinyproxy:
        for _ in range(PORT_TRIES):
            with contextlib.suppress(RuntimeError):
                started.append(Tinyproxy(tmp_path, address=address, **options).start())
                return started[-1]
        raise RuntimeError(f"no tinyproxy would start on {address}")

    yield start
    for proxy in started:
        proxy.stop()
