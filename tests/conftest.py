"""Servers that several tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from shoal.testing.servers.postgres_server import PostgresServer


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """One PostgreSQL server per test process. A test that stops it starts one of its own."""
    server = PostgresServer().start()
    yield server
    server.remove()
