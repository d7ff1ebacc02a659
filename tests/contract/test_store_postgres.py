"""The PostgreSQL store keeps the promises of the contract, on a real server."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from shoal.store.postgres.store import PostgresStore
from shoal.testing.contract.store.view_promises import ViewPromises
from shoal.testing.contract.store.week_promises import WeekPromises
from shoal.testing.servers.postgres_server import PostgresServer
from shoal.testing.store_contract import Reopen, StoreContract, reopening

EMPTY = r"""
DO $$ DECLARE view record; made record; BEGIN
    IF to_regclass('shoal.items') IS NOT NULL THEN
        DELETE FROM shoal.items; DELETE FROM shoal.item_versions; DELETE FROM shoal.fetches;
        DELETE FROM shoal.outbox; DELETE FROM shoal.sinks; DELETE FROM shoal.log_parts;
        FOR view IN SELECT * FROM shoal.item_views LOOP
            EXECUTE format('DROP %s shoal.%I CASCADE', CASE WHEN view.is_table THEN 'TABLE' ELSE 'VIEW' END, view.name);
        END LOOP;
        FOR made IN SELECT * FROM pg_proc WHERE proname LIKE 'view\_%' AND pronamespace = 'shoal'::regnamespace LOOP
            EXECUTE format('DROP FUNCTION shoal.%I CASCADE', made.proname);
        END LOOP;
        DELETE FROM shoal.item_views;
    END IF;
END $$"""


class TestPostgresStore(StoreContract, ViewPromises, WeekPromises):
    @pytest.fixture
    async def reopen(self, postgres: PostgresServer) -> AsyncIterator[Reopen]:
        # Emptied, not made anew for each test: that takes ten times as long.
        postgres.call(EMPTY)
        url = postgres.url()
        async with reopening(lambda: PostgresStore.open(url)) as reopen:
            yield reopen
