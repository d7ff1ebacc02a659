"""The PostgreSQL store keeps the promises of the contract, on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from shoal.store.postgres.store import PostgresStore
from shoal.testing.servers.postgres_server import PostgresServer
from shoal.testing.store_contract import Reopen, StoreContract, reopening

EMPTY = """
DO $$ BEGIN
    IF to_regclass('shoal.items') IS NOT NULL THEN
        DELETE FROM shoal.items; DELETE FROM shoal.item_versions; DELETE FROM shoal.fetches;
        DELETE FROM shoal.outbox; DELETE FROM shoal.sinks;
    END IF;
END $$"""


class TestPostgresStore(StoreContract):
    @pytest.fixture
    async def reopen(self, postgres: PostgresServer) -> AsyncIterator[Reopen]:
        # Emptied, not made anew for each test: that takes ten times as long.
        postgres.call(EMPTY)
        url = postgres.url()
        async with reopening(lambda: PostgresStore.open(url)) as reopen:
            yield reopen
